"""The public functions on tensors."""
