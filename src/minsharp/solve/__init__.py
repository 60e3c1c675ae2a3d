"""Minimising a sum of exponentials, with a proof."""
