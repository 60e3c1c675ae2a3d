"""Measuring a network: exact curvature, streamed over the data."""
