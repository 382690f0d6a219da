"""Ahead of time: a compiled program as a shared library with its header, weights and loader."""
