"""Tensors as index expressions: of an axis each, by a function, or of themselves."""
