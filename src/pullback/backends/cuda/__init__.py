"""NVIDIA devices through libcuda alone: its calls, memory and streams, and who runs programs."""
