"""Reading a network: from a module to records, and what can be told from them."""
