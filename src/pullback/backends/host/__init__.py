"""This machine: its processor by name, and LLVM as the library that knows it."""
