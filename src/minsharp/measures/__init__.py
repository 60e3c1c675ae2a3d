"""Numbers that say how sharp a minimum is."""
