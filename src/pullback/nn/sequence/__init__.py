"""Layers over time: attention, recurrences, Transformers."""
