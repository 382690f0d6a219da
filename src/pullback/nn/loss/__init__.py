"""Losses and distances, as functions and as modules."""
