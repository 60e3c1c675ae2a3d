"""The command line: `main` is its entry point, `app` puts the commands together, one module per command."""
