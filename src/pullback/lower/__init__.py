"""Kernel and schedule to loop nest."""

from pullback.lower.kernel import lower

__all__ = ["lower"]
