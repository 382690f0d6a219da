"""Derivatives in both modes, rules of one's own, many samples at once, and their check."""
