"""Norms, as functions and as modules."""
