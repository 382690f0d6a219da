"""Activations, softmax and dropout, as functions and as modules."""
