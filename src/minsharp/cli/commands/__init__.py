"""What the shell sees of each command: options, help and completion. The work is imported when a command runs."""
