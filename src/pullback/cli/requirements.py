"""What pullback needs, and what its extras need, by its own metadata; and what is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

_LINE = re.compile(r"([\w.-]+)\s*([^;]*?)\s*(?:;.*?extra\s*==\s*['\"]([\w-]+)['\"].*)?$")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([\d.]+)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package, its versions that will do, the extra that wants it, the version installed."""

    name: str
    wanted: str
    extra: str
    version: str | None

    @property
    def fits(self) -> bool:
        """Whether a version that will do is installed."""
        if self.version is None:
            return False
        own = _numbers(self.version)
        return all(_holds(own, sign, _numbers(b)) for sign, b in _BOUND.findall(self.wanted))


def requirements() -> list[Requirement]:
    """All of them; none where pullback runs without being installed."""
    try:
        lines = requires("pullback") or []
    except PackageNotFoundError:
        return []
    return [requirement for line in lines if (requirement := _requirement(line)) is not None]


def _requirement(line: str) -> Requirement | None:
    """``torch>=2.6; extra == 'torch'``"""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name, wanted, extra = match.groups()
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = None
    return Requirement(name, wanted, extra or "", installed)


def _numbers(text: str) -> tuple[int, ...]:
    """``2.6.1+cpu -> (2, 6, 1)``"""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in match[0].split(".")) if match else ()


def _holds(own: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    """Missing numbers are 0."""
    size = max(len(own), len(bound))
    a, b = (n + (0,) * (size - len(n)) for n in (own, bound))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}[sign]
