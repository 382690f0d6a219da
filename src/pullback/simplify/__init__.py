"""Algebra on bodies, indices and graphs."""
