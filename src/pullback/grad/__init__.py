"""Derivatives of definitions."""
