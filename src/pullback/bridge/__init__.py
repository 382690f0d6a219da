"""Reserved for PyTorch, Triton and JAX interoperation: nothing is here yet."""
