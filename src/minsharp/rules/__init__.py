"""What a rule about an operation is, and the rules that are always right."""
