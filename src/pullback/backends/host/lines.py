"""A function as lines of LLVM IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pullback.ir.expr import Dim

LINE = 64  # bytes: to which memory is aligned
NEEDS = "install gcc or clang, or `pip install ziglang`"


@dataclass(slots=True)
class Lines:
    """Instructions, one after the other, with names of their own."""

    lines: list[str] = field(default_factory=list)
    count: int = 0

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, line: str) -> str:
        """The name of what an instruction gives."""
        self.count += 1
        self.emit(f"%.{self.count} = {line}")
        return f"%.{self.count}"

    def label(self, name: str) -> str:
        """A name for a block."""
        self.count += 1
        return f".{name}{self.count}"

    def begin(self, label: str) -> None:
        """A block, which the one before falls into."""
        self.emit(f"br label %{label}")
        self.lines.append(f"{label}:")

    def fails(self, condition: str, status: str, *first: str) -> None:
        """End with a status where something holds."""
        bad, good = self.label("bad"), self.label("good")
        self.emit(f"br i1 {condition}, label %{bad}, label %{good}")
        self.lines.append(f"{bad}:")
        for line in first:
            self.emit(line)
        self.emit(f"ret i32 {status}")
        self.lines.append(f"{good}:")

    def bounded(self, sizes: Mapping[Dim, str]) -> None:
        """Each size is within its bounds."""
        for dim, name in sizes.items():
            self.fails(self.value(f"icmp slt i64 %{name}, {dim.lo}"), "-2")
            self.fails(self.value(f"icmp sgt i64 %{name}, {dim.hi}"), "-2")
