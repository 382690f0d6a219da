"""What a backend can do: the few facts that fusion and scheduling depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A processor. Sizes in bytes; `vectors` is the number of vector registers.

    `dots`: types of which one instruction adds the products of two 32-bit words to a 32-bit sum
    ("bfloat16"; "int8": signed by unsigned bytes).

    `threads` decides nothing about results: chunks depend on shapes only.
    """

    name: str = "x86-64-v4"
    vector: int = 64
    vectors: int = 32
    l1: int = 32 * 1024
    l2: int = 1024 * 1024
    scratch: int = 64 * 1024
    threads: int = 2
    dots: frozenset[str] = frozenset()

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return max(1, self.vector // itemsize)
