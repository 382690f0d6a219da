"""Interoperation: what `pb.torch` is, loaded at its first use; functions of NumPy on tensors."""
