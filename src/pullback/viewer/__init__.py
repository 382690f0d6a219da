"""One HTML page that shows programs whole: definitions, kernels, code, memory, time."""
