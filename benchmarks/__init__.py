"""minsharp side by side with other libraries: `make bench`."""
