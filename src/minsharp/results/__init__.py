"""What measurements return: frozen, printable, mergeable."""
