"""Definitions are grouped into kernels; every refusal records its reason."""

from pullback.fuse.entry import fuse

__all__ = ["fuse"]
