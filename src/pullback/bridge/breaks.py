"""Where PyTorch broke a graph in two, as its own record says.

``GraphBreak("Failed to trace builtin operator: ..", 'File "train.py", line 7, in step', 2)``
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

EXPLAINED = "Explanation: "
OPERATORS = "Dynamic shape operator", "Data dependent operator"
RESUMED = re.compile(r"torch_dynamo_resume_in_.*_at_(\d+)$")


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where PyTorch ended a graph, and went on in Python: why, the line of the user's, and
    how often it did so while it traced.

    Example:
        >>> print(pb.torch.GraphBreak("Call to print", 'File "a.py", line 3, in f'))
        graph break: Call to print (File "a.py", line 3, in f)
    """

    reason: str
    line: str
    times: int = 1

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        often = f", {self.times} times" if self.times > 1 else ""
        return f"graph break: {self.reason}{where}{often}"


def so_far() -> tuple[GraphBreak, ...]:
    """All since the start, or since `torch._dynamo.reset`, which empties PyTorch's record.

    Nothing where nothing was compiled yet: this loads no compiler.
    """
    noted = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ())
    counts = Counter([(_said(one.reason), _line(one.user_stack)) for one in noted])
    return tuple([GraphBreak(*place, times) for place, times in counts.items()])


def of_operators() -> list[GraphBreak]:
    """Where the graph that is compiled now ends, or begins, beside an operator whose result is of a
    shape, or a number, that is data: PyTorch runs that one between two graphs.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.symbolic_convert")
    traced = getattr(getattr(dynamo, "tls", None), "current_tx", None)
    if traced is None:
        return []
    code, output = traced.f_code, traced.output
    reasons = [output.compile_subgraph_reason]
    if resumed := RESUMED.match(code.co_name):
        noted = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ())
        place = code.co_filename, int(resumed[1])
        firsts = [(one, one.user_stack[0]) for one in noted if one.user_stack]
        reasons += [one for one, at in firsts if (at.filename, at.lineno) == place]
    own = [one for one in reasons if one is not None and one.reason.startswith(OPERATORS)]
    return list(dict.fromkeys([GraphBreak(_said(r.reason), _line(r.user_stack)) for r in own]))


def _said(reason: str) -> str:
    """The first line, and what it is explained by."""
    first, *rest = reason.splitlines() or [""]
    said = [s.strip() for s in rest if s.strip().startswith(EXPLAINED)]
    return ": ".join([first, *(s.removeprefix(EXPLAINED) for s in said[:1])])


def _line(stack: Any) -> str:
    """The innermost line."""
    if not stack:
        return ""
    last = stack[-1]
    return f'File "{last.filename}", line {last.lineno}, in {last.name}'
