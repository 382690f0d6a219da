"""Interoperation: `pb.torch` makes operators of PyTorch. `import pullback` imports none of it."""
