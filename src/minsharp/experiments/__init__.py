"""The paper's experiments, each one command, each resumable."""
