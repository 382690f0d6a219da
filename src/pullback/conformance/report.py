"""Verdicts as Markdown, the same text for the same results, and reports compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pullback.conformance.run import ORACLE, Verdict
from pullback.ir.dtype import ALL

SLACK = 2.0  # times the error of a committed report, and as many ulp: NumPy's own code differs

HEAD = """\
# Conformance of `{name}`

{summary}

Beside `{oracle}`, on {threads} threads. Integers and truth are exact; numbers are the largest error
in units in the last place: of each element or, in rows with a *, of the largest one of a result.
`pullback test-backend {name} -o FILE` writes this page.
"""


def summary(name: str, verdicts: Sequence[Verdict]) -> str:
    """One line: how many cells of which kind, and the worst that passes."""
    counts = {
        state: sum(v.state == state for v in verdicts) for state in ("pass", "fail", "refused")
    }
    told = ", ".join(f"{n} {state}" for state, n in counts.items())
    worst = max((v for v in verdicts if v.state == "pass"), key=lambda v: v.error, default=None)
    line = f"{name}: {len(verdicts)} cells: {told}"
    if worst is None or not worst.error:
        return line
    return f"{line}; largest error {shown(worst)} ulp ({worst.cell.name})"


def shown(verdict: Verdict) -> str:
    """A cell of a table."""
    if verdict.state == "pass":
        return f"{verdict.error:.3g}"
    return "**fail**" if verdict.state == "fail" else "refused"


def report(name: str, verdicts: Sequence[Verdict], threads: int) -> str:
    """The whole page."""
    parts = [
        HEAD.format(name=name, oracle=ORACLE, threads=threads, summary=summary(name, verdicts))
    ]
    sections = dict.fromkeys(v.cell.section for v in verdicts)
    for section in sections:
        parts.append("\n".join(_table(section, [v for v in verdicts if v.cell.section == section])))
    for state, title in (("fail", "Failed"), ("refused", "Refused")):
        told = [v for v in verdicts if v.state == state]
        if told:
            parts.append("\n".join([f"## {title}\n", *_reasons(told), ""]))
    return "\n".join(parts)


def _reasons(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line for each reason, with the cells that have it."""
    rows: dict[str, dict[str, list[str]]] = {}
    for v in verdicts:
        row = f"{v.cell.section}: {v.cell.case.name}"
        rows.setdefault(v.why, {}).setdefault(row, []).append(v.cell.kind.name)
    for why, cases in rows.items():
        yield f"- {why}: " + "; ".join(f"{c} ({', '.join(k)})" for c, k in cases.items())


def _table(section: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A row a case, a column a type."""
    known = {v.cell.kind for v in verdicts}
    kinds = [k for k in ALL if k in known]
    rows: dict[str, dict[str, str]] = {}
    for v in verdicts:
        name = v.cell.case.name + ("*" if v.cell.case.whole else "")
        rows.setdefault(name, {})[v.cell.kind.name] = shown(v)
    yield f"## {section}\n"
    yield f"| | {' | '.join(k.name for k in kinds)} |"
    yield "|---" * (len(kinds) + 1) + "|"
    for name, row in rows.items():
        yield f"| {name} | {' | '.join(row.get(k.name, '') for k in kinds)} |"
    yield ""


def read(text: str) -> dict[str, str]:
    """The cells of a report, by their names."""
    cells: dict[str, str] = {}
    section, kinds = "", [""]
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| | "):
            kinds = [k.strip() for k in line.strip("|").split("|")]
        elif line.startswith("| "):
            name, *row = (part.strip() for part in line[1:-1].split("|"))
            for kind, cell in zip(kinds[1:], row, strict=True):
                if cell:
                    cells[f"{section}: {name.removesuffix('*')}, {kind}"] = cell
    return cells


def worse(before: str, verdicts: Sequence[Verdict]) -> list[str]:
    """The cells that an older report has better, each with both; a larger error within `SLACK`
    is none.
    """
    older = read(before)
    lines = []
    for v in verdicts:
        was, now = older.get(v.cell.name, "absent"), shown(v)
        numbers = [float(t) for t in (was, now) if re.fullmatch(r"[\d.e+-]+", t)]
        if now == was or (len(numbers) == 2 and numbers[1] <= SLACK * (numbers[0] + 1)):
            continue
        if v.state != "pass" or len(numbers) == 2:
            lines.append(f"{v.cell.name}: {now}, was {was}" + (f": {v.why}" if v.why else ""))
    return lines
