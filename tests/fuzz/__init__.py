"""Random networks of every kind, each claim of the package checked on each: `python -m tests.fuzz --help`."""
