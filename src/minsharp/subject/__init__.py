"""What is measured, as the user has it: the module, the parameters that count, how it is called, and its data."""
