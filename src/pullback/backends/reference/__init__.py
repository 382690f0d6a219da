"""NumPy interpreters: the oracle."""
