"""The text of a module of TTIR, read into nodes.

The grammar is that of MLIR's printed form, as far as Triton's frontend makes it: what is not known
here is an error, and never left out.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from pullback.errors import UnsupportedError
from pullback.triton.branches import JUMPS, structured
from pullback.triton.nodes import Block, Function, Operation, Place, Type, Value

NAME = r"%[\w$.\-]+(?:#\d+)?"
_RESERVED = {"tl", "triton", *keyword.kwlist}


def parse(text: str, library: str | tuple[str, ...]) -> Function:
    """The one public function of a module. Of `library` are the lines that are not the user's.

    Raises: UnsupportedError for a text of another form.
    """
    return _Reader(text, library).function()


def parsed_type(text: str) -> Type:
    """``"tensor<16x!tt.ptr<f32>>"`` -> a block of 16 pointers."""
    text = text.strip()
    shape: tuple[int, ...] = ()
    if block := re.fullmatch(r"tensor<((?:\d+x)+)(.*)>", text):
        shape = tuple(int(extent) for extent in block[1][:-1].split("x"))
        text = block[2]
    if pointer := re.fullmatch(r"!tt\.ptr<(.*?)(?:, \d+)?>", text):
        return Type(shape, pointer[1], True)
    return Type(shape, text)


def parts(text: str) -> list[str]:
    """What commas separate, those inside of brackets aside."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<({[") - (letter in ">)}]" and text[place - 1] != "-")
        if letter == "," and depth == 0:
            pieces.append(text[start:place].strip())
            start = place + 1
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece]


class _Places:
    """The locations of a module, by their names."""

    def __init__(self, lines: list[str], library: str | tuple[str, ...]) -> None:
        defined = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
        self.texts = {match[1]: match[2] for match in defined if match}
        self.library = library

    def __call__(self, name: str) -> Place:
        """The innermost line of the user's that a location is of."""
        return next(self.chain(self.texts.get(name, name)), Place())

    def chain(self, text: str) -> Iterator[Place]:
        if line := re.match(r'"([^"]+)":(\d+):\d+', text):
            if not line[1].startswith(self.library):
                yield Place(line[1], int(line[2]))
            return
        for name in re.findall(r"#loc\d*", text):
            yield from self.chain(self.texts.get(name, ""))


class _Reader:
    def __init__(self, text: str, library: str | tuple[str, ...]) -> None:
        lines = text.splitlines()
        self.places = _Places(lines, library)
        self.lines = [line.strip() for line in lines if line.strip()]
        self.at = 0
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set(_RESERVED)

    def refused(self, line: str) -> UnsupportedError:
        """The error of a text that is not known."""
        return UnsupportedError(f"a line of TTIR of an unknown form: {line}", code="E420")

    def next(self) -> str:
        line = self.lines[self.at]
        self.at += 1
        return line

    def define(self, name: str, type: Type) -> Value:
        """A value, whose name in the source that is written no other one has."""
        stem = re.sub(r"\W", "_", name.removeprefix("%"))
        stem = f"v{stem}" if stem[0].isdigit() else stem
        unique, count = stem, 0
        while unique in self.taken:
            count += 1
            unique = f"{stem}_{count}"
        self.taken.add(unique)
        self.values[name] = value = Value(unique, type)
        return value

    def named(self, text: str) -> tuple[Value, ...]:
        return tuple(self.values[name] for name in re.findall(NAME, text))

    def function(self) -> Function:
        line = self.next()
        while not line.startswith("tt.func"):
            line = self.next()
        head = re.match(
            r"tt\.func (?:public |private )?@([\w.]+)\((.*)\)(?: attributes.*)? \{$", line
        )
        if head is None:
            raise self.refused(line)
        label, blocks = "", dict[str, Block]()
        arguments = [self.argument(piece) for piece in parts(head[2])]
        while True:
            blocks[label], end = self.block(tuple(arguments))
            if end.startswith("}"):
                return Function(head[1], structured(blocks))
            label, arguments = (
                end[1 : end.index(":" if "(" not in end else "(")],
                self.labelled(end),
            )

    def labelled(self, line: str) -> list[Value]:
        """What a block takes: ``^bb0(%a: f32, %b: f32):``"""
        if "(" not in line:
            return []
        inside = line[line.index("(") + 1 : line.rindex(")")]
        return [self.argument(piece) for piece in parts(inside)]

    def argument(self, text: str) -> Value:
        name, type = text.split(":", 1)
        type = re.sub(r"\{.*?\}", "", re.sub(r" loc\(.*", "", type))
        return self.define(name.strip(), parsed_type(type))

    def block(self, arguments: tuple[Value, ...]) -> tuple[Block, str]:
        """Up to the bracket that closes it, or the label of the next one, which is given too."""
        operations: list[Operation] = []
        while True:
            line = self.next()
            if line.startswith("^bb") and not operations and not arguments:
                arguments = tuple(self.labelled(line))
                continue
            if line.startswith(("}", "^bb")):
                return Block(arguments, tuple(operations)), line
            operations.append(self.operation(line))

    def operation(self, line: str) -> Operation:
        place = Place()
        if at := re.search(r" loc\((.*)\)$", line):
            place = self.places(at[1])
            line = line[: at.start()]
        results: tuple[str, ...] = ()
        if match := re.match(r"(%[^=]+?)(?::(\d+))? = (.*)$", line):
            results = tuple(name.strip() for name in match[1].split(","))
            line = match[3]
            if match[2]:
                results = tuple(f"{results[0]}#{k}" for k in range(int(match[2])))
        match = re.match(r'"?([a-z_0-9]+\.[\w.]+)"?(.*)$', line)
        if match is None:
            raise self.refused(line)
        name, rest = match[1], match[2].strip()
        self.wanted = results
        if rest.endswith("{"):
            return self.holding(name, rest)
        if name == "arith.constant":
            return self.constant(rest, place)
        if name in JUMPS:
            targets = ",".join(re.findall(r"\^(bb\d+)", rest))
            return Operation(name, self.named(rest), (), (("targets", targets),), (), place)
        return self.plain(name, rest, place)

    def results(self, wanted: tuple[str, ...], types: list[Type]) -> tuple[Value, ...]:
        if len(wanted) != len(types):
            raise self.refused(f"{wanted}: results of {len(types)} types")
        return tuple(self.define(name, t) for name, t in zip(wanted, types, strict=True))

    def holding(self, name: str, rest: str) -> Operation:
        """An operation that holds blocks: the line that closes it has its place."""
        if name == "scf.for":
            return self.loop(rest)
        if name == "scf.while":
            return self.while_loop(rest)
        if name == "scf.if":
            return self.branches(rest)
        wanted, operands = self.wanted, self.named(rest[: rest.index(")")])
        attributes = [("axis", _one(r"axis = (\d+)", rest) or "")]
        attributes.append(("reverse", str("reverse = true" in rest)))
        block, end = self.block(())
        line, place = self.placed(end)
        if "->" not in line:
            raise self.refused(f"{name} {rest}")
        types = [parsed_type(t) for t in parts(line.split("->")[1].strip().strip("()"))]
        made = self.results(wanted, types)
        return Operation(name, operands, made, tuple(attributes), (block,), place)

    def placed(self, line: str) -> tuple[str, Place]:
        at = re.search(r" loc\((.*)\)$", line)
        return (line[: at.start()], self.places(at[1])) if at else (line, Place())

    def loop(self, rest: str) -> Operation:
        form = (
            r"(%\S+) = (%\S+) to (%\S+) step (%\S+)"
            r"(?: iter_args\((.*?)\) -> \((.*?)\))?\s*(?:: (\w+))?\s*\{$"
        )
        match, wanted = re.match(form, rest), self.wanted
        if match is None:
            raise self.refused(f"scf.for {rest}")
        bounds = tuple(self.values[match[k]] for k in (2, 3, 4))
        carries = [piece.split("=") for piece in parts(match[5] or "")]
        types = [parsed_type(piece) for piece in parts(match[6] or "")]
        starts = tuple(self.values[start.strip()] for _, start in carries)
        inside = [self.define(match[1], parsed_type(match[7] or "i32"))]
        inside += [self.define(n.strip(), t) for (n, _), t in zip(carries, types, strict=True)]
        block, end = self.block(tuple(inside))
        _, place = self.placed(end)
        made = self.results(wanted, types)
        return Operation("scf.for", bounds + starts, made, (), (block,), place)

    def while_loop(self, rest: str) -> Operation:
        wanted = self.wanted
        match = re.match(r"(?:\((.*?)\) )?: \((.*?)\) -> (.*) \{$", rest)
        if match is None:
            raise self.refused(f"scf.while {rest}")
        carries = [piece.split("=") for piece in parts(match[1] or "")]
        types = [parsed_type(piece) for piece in parts(match[2])]
        starts = tuple(self.values[start.strip()] for _, start in carries)
        inside = [self.define(n.strip(), t) for (n, _), t in zip(carries, types, strict=True)]
        before, _ = self.block(tuple(inside))
        after, end = self.block(())
        _, place = self.placed(end)
        gives = match[3].strip()
        gives = gives[1:-1] if gives.startswith("(") else gives
        made = self.results(wanted, [parsed_type(piece) for piece in parts(gives)])
        return Operation("scf.while", starts, made, (), (before, after), place)

    def branches(self, rest: str) -> Operation:
        match, wanted = re.match(r"(%\S+)(?: -> \((.*)\))? \{$", rest), self.wanted
        if match is None:
            raise self.refused(f"scf.if {rest}")
        condition = self.values[match[1]]
        first, end = self.block(())
        other = Block((), ())
        if end.startswith("} else"):
            other, end = self.block(())
        _, place = self.placed(end)
        made = self.results(wanted, [parsed_type(piece) for piece in parts(match[2] or "")])
        return Operation("scf.if", (condition,), made, (), (first, other), place)

    def constant(self, rest: str, place: Place) -> Operation:
        text, type = (rest, "i1") if rest in ("true", "false") else rest.rsplit(" : ", 1)
        made = self.results(self.wanted, [parsed_type(type)])
        literal = re.sub(r"dense<(.*)>", r"\1", text).split(" : ")[0]
        return Operation("arith.constant", (), made, (("value", literal),), (), place)

    def plain(self, name: str, rest: str, place: Place) -> Operation:
        head, _, tail = rest.rpartition(" : ") if " : " in rest else (rest, "", "")
        operands = self.named(head)
        pairs = re.findall(r"(\w+) = (array<[^>]*>|\"[^\"]*\"|[^,}\s]+)", head)
        attributes = [(key, text.strip('"')) for key, text in pairs]
        words = re.sub(NAME, "", head).split(",")[0].split()
        if name == "tt.descriptor_reduce":
            words = head.split(",")[:1]
        attributes.append(("word", words[0] if words else ""))
        if "allow_reorder" in head:
            attributes.append(("reorder", "True"))
        types = self.types(name, tail) if self.wanted else []
        made = self.results(self.wanted, types)
        return Operation(name, operands, made, tuple(attributes), (), place)

    def types(self, name: str, tail: str) -> list[Type]:
        """Of the results, out of what stands behind the colon."""
        if "->" in tail:
            gives = parts(tail.split("->")[1].strip().strip("()"))
            gives = gives * len(self.wanted) if name == "tt.split" else gives
            return [parsed_type(piece) for piece in gives]
        if " to " in tail:
            return [parsed_type(tail.split(" to ")[1])]
        pieces = [parsed_type(piece) for piece in parts(tail)]
        if name in ("arith.cmpi", "arith.cmpf"):
            return [Type(pieces[0].shape, "i1")]
        if name == "tt.load":
            return [Type(pieces[0].shape, pieces[0].element)]
        if name == "tt.addptr":
            return pieces[:1]
        return pieces[-1:] * len(self.wanted)


def _one(form: str, text: str) -> str | None:
    match = re.search(form, text)
    return match[1] if match else None
