"""The grammar of docs/grammar.md as a recogniser: rules are read off the page, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "grammar.md"
BLOCKS = re.compile(r"^```peg\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r'"[^"]*"|/(?:[^/\\]|\\.)+/|\w+|[\[\]{}()|=]')

Part = tuple[str, Any]  # kind, and what it is made of


def rules() -> dict[str, Part]:
    """Every rule of the page by name; a name is defined once."""
    found: dict[str, Part] = {}
    for block in BLOCKS.findall(PAGE.read_text()):
        for line in block.splitlines():
            name, _, text = line.partition("=")
            assert name.strip() not in found, f"{name} is defined twice"
            found[name.strip()] = _Reader(TOKEN.findall(text)).alternatives()
    return found


@dataclass
class _Reader:
    tokens: list[str]

    def alternatives(self) -> Part:
        every = [self.sequence()]
        while self.tokens and self.tokens[0] == "|":
            self.tokens.pop(0)
            every.append(self.sequence())
        return ("any", every)

    def sequence(self) -> Part:
        parts = []
        while self.tokens and self.tokens[0] not in "|)]}":
            parts.append(self.part())
        return ("all", parts)

    def part(self) -> Part:
        token = self.tokens.pop(0)
        if token in ("[", "{", "("):
            inner = self.alternatives()
            self.tokens.pop(0)
            return ({"[": "maybe", "{": "many", "(": "any"}[token], [inner])
        if token[0] == '"':
            return ("text", token[1:-1])
        if token[0] == "/":
            return ("pattern", re.compile(token[1:-1]))
        return ("rule", token)


@dataclass
class Recogniser:
    """Whether a line is one of a rule: the first alternative that fits holds, each place once."""

    rules: dict[str, Part]
    line: str = ""
    known: dict[tuple[str, int], int | None] = field(default_factory=dict)
    furthest: int = 0

    def fits(self, rule: str, line: str) -> bool:
        self.line, self.known, self.furthest = line, {}, 0
        end = self.rule(rule, 0)
        return end is not None and not line[end:].strip()

    def rule(self, name: str, at: int) -> int | None:
        key = name, at
        if key not in self.known:
            self.known[key] = self.match(self.rules[name], at)
        return self.known[key]

    def match(self, part: Part, at: int) -> int | None:
        kind, inner = part
        if kind == "any":
            return next((e for p in inner if (e := self.match(p, at)) is not None), None)
        if kind == "all":
            end: int | None = at
            for p in inner:
                if end is None:
                    return None
                end = self.match(p, end)
            return end
        if kind in ("maybe", "many"):
            while (after := self.match(inner[0], at)) is not None and after > at:
                at = after
                if kind == "maybe":
                    break
            return at
        if kind == "rule":
            return self.rule(str(inner), at)
        return self.token(kind, inner, at)

    def token(self, kind: str, inner: object, at: int) -> int | None:
        start = at
        while start < len(self.line) and self.line[start] == " ":
            start += 1
        self.furthest = max(self.furthest, start)
        if kind == "pattern":
            found = inner.match(self.line, start)
            return found.end() if found else None
        text = str(inner)
        if not self.line.startswith(text, start):
            return None
        end = start + len(text)
        word = text[-1].isalnum() and self.line[end : end + 1].replace("_", "a").isalnum()
        return None if word else end
