"""Files from anywhere (models, weights, arrays, archives, images): none may run, or take more memory than it shows.

This is the one place where bytes that somebody else wrote become networks and tensors. What a file announces is held
against what it holds before memory is spent on it, and whatever could run code is refused.
"""
