"""Complex numbers as pairs of tensors: no element type and no primitive."""
