"""Loop nests as OpenCL C, on a device that shares its memory with this process."""
