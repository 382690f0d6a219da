"""Triton: kernels as Triton's source, run by its interpreter, compiled offline for a GPU."""
