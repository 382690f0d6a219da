"""This machine: its processor, the machine that runs programs on it, LLVM as their library."""
