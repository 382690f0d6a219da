"""A derivative that is not written yet: what is, times factors, where conditions hold.

    name * f_1 * f_2 / f_3      what cancels is never written, numbers make one, sums share factors

Factors are texts of values and of numbers, by their powers.
"""

from __future__ import annotations

import math
import re

from pullback.config import frozen

# Conditions, each with whether it holds: of lanes where all of them do a derivative is not 0.
When = frozenset[tuple[str, bool]]
Factors = tuple[tuple[str, int], ...]
_NUMBER = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?")
_PRODUCT = re.compile(r" (?P<sign>[*/+-]) ")
MOST = 8  # factors of what is not written yet: lines stay short


@frozen
class Term:
    """``name * factors`` with a minus or without one, and 0 but `when`."""

    name: str
    minus: bool = False
    factors: Factors = ()
    when: When = When()

    @property
    def text(self) -> str:
        """All of it."""
        return f"{'-' * self.minus}{only(product(self.name, self.factors), self.when)}"


def is_number(text: str) -> bool:
    """Whether a text is a number other than 0."""
    return bool(_NUMBER.fullmatch(text)) and float(text) != 0


def times(factors: Factors, more: Factors) -> Factors:
    """The product: powers of one text are added up."""
    powers = dict(factors)
    for text, power in more:
        powers[text] = powers.get(text, 0) + power
    return tuple((text, power) for text, power in powers.items() if power)


def shared(a: Factors, b: Factors) -> Factors:
    """What divides both."""
    other = dict(b)
    made = []
    for text, power in a:
        least = min(abs(power), abs(other.get(text, 0)))
        if least and power * other[text] > 0:
            made.append((text, least if power > 0 else -least))
    return tuple(made)


def without(factors: Factors, part: Factors) -> Factors:
    return times(factors, tuple((text, -power) for text, power in part))


def product(name: str, factors: Factors) -> str:
    """A text of what is multiplied; `name` may be none."""
    numbers = [(text, power) for text, power in factors if is_number(text)]
    one = len(numbers) == 1 and abs(numbers[0][1]) == 1
    folded = None if one else math.prod(float(text) ** power for text, power in numbers)
    above, made = [name] if name else [], ""
    for text, power in factors:
        if not one and is_number(text):
            continue
        if power < 0:
            made += f" / {text}" * -power
        elif above:
            made += f" * {text}" * power
        else:
            above, made = [text], f" * {text}" * (power - 1) + made
    if folded is not None and folded != 1.0:
        if not above:
            return f"{folded!r}{made}"
        made = f" * {folded!r}{made}"
    return f"{above[0] if above else '1.0'}{made}"


def factored(form: str) -> tuple[tuple[str, int], ...] | None:
    """The factors behind ``{g}`` in a derivative's form; nothing, where it is no product."""
    rest, made = form.removeprefix("-").removeprefix("{g}"), list[tuple[str, int]]()
    if not form.removeprefix("-").startswith("{g}"):
        return None
    while rest:
        sign = _PRODUCT.match(rest)
        if sign is None or sign["sign"] in "+-":
            return None
        end = _end(rest, sign.end())
        made.append((rest[sign.end() : end], 1 if sign["sign"] == "*" else -1))
        rest = rest[end:]
    return tuple(made)


def _end(text: str, start: int) -> int:
    """Where an operand ends that begins at a place."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if not depth and _PRODUCT.match(text, place):
            return place
    return len(text)


def only(text: str, when: When, other: str = "0.0") -> str:
    """A text where all conditions hold, and another one elsewhere."""
    if not when:
        return text
    if len(when) == 1:
        ((where, holds),) = when
        return f"tl.where({where}, {text}, {other})" if holds else (
            f"tl.where({where}, {other}, {text})"
        )  # fmt: skip
    parts = [f"({where})" if holds else f"(({where}) == 0)" for where, holds in sorted(when)]
    return f"tl.where({' & '.join(parts)}, {text}, {other})"


def joined(a: Term, b: Term, exact: bool, fine: bool) -> Term:
    """The sum of both, whose name is a text that is not written yet.

    `exact`: a number has the precision of the sum. `fine`: so have factors, without the name.
    """
    when, common = a.when & b.when, shared(a.factors, b.factors)
    whens = a.when - when, b.when - when
    rest = without(a.factors, common), without(b.factors, common)
    minus = a.minus and b.minus
    signs = tuple("-" * (t.minus and not minus) for t in (a, b))
    alike = a.name == b.name and all(rest) and fine and (exact or not _number(rest, whens))
    names = ("", "") if alike else (a.name, b.name)
    one, two = (product(n, r) for n, r in zip(names, rest, strict=True))
    if _apart(*whens):
        other = f"{signs[1]}{two}"
        other = other if _opposite(*whens) else only(other, whens[1])
        text = only(f"{signs[0]}{one}", whens[0], other)
    else:
        one, two = only(one, whens[0]), only(two, whens[1])
        text = f"{two} - {one}" if signs[0] else f"{one} {signs[1] or '+'} {two}"
        text = f"({text})" if alike else text
    return Term(f"{a.name} * {text}" if alike else text, minus, common, when)


def _number(rest: tuple[Factors, Factors], whens: tuple[When, When]) -> bool:
    """Whether a number is chosen by a condition: it is one of float32 then."""
    return any(
        only_ and all(is_number(text) for text, _ in part)
        for part, only_ in zip(rest, whens, strict=True)
    )


def _opposite(one: When, two: When) -> bool:
    """Whether of two conditions one holds where the other does not."""
    return len(one) == len(two) == 1 and two == {(where, not holds) for where, holds in one}


def _apart(one: When, two: When) -> bool:
    """Whether two conditions hold nowhere together."""
    return any((where, not holds) in two for where, holds in one)
