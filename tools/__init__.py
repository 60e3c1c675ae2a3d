"""Scripts that make or check parts of the documentation."""
