"""The slow way and the ways of others: plain autograd on the module as it is. Imports nothing of the engine."""
