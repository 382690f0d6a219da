"""Layers over space: convolutions, windows, padding, images at other sizes."""
