"""Pictures of programs: dot that parses, svg that is XML; kernels, stages and variables in both."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.main import commands
from pullback.ir.notation import Names
from pullback.runtime.executable import Executable
from pullback.viewer.pictures import MOST, Picture, dot, svg

EVIL = 'a"b\\ </svg><script>\x07'
SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = """\
import pullback as pb
first = pb.jit(lambda x: pb.softmax(x, axis=0))
first(pb.ones(9))
"""


def layer(backend: str = "llvm") -> Executable:
    """A layer with its gradients, a loop, and a definition of a dangerous name."""

    def f(x: Any, w: Any) -> Any:
        h = pb.compute((16, 8), lambda i, j: pb.sum(x[i, k] * w[j, k], over=k), name=EVIL)
        y = pb.softmax(h, axis=1)
        z = pb.loop(3, lambda _, c: pb.tanh(c @ y[:8]), y)
        return z, pb.grad(pb.sum(y * y), w)

    k = pb.axis(12)
    jitted = pb.jit(f, options=pb.Options(backend=backend, cache=None))
    jitted(np.ones((16, 12), np.float32), np.ones((8, 12), np.float32))
    return jitted.program


def hosted() -> Executable:
    jitted = pb.jit(lambda a: pb.linalg.inv(a, method="host") * 2.0)
    jitted(pb.eye(4))
    return jitted.program


PROGRAMS = {
    "a layer": layer,
    "definitions": lambda: layer("reference"),
    "kernels that are interpreted": lambda: layer("kernels"),
    "a call of the host": hosted,
}


def parsed(text: str) -> tuple[dict[str, str], dict[str, list[str]], list[tuple[str, str]]]:
    """Nodes with labels, clusters with their nodes, and edges of a text in dot's grammar."""
    assert text.startswith("digraph program {\n") and text.endswith("}\n")
    string = r'"(?:[^"\\\n]|\\.)*"'
    nodes: dict[str, str] = {}
    clusters: dict[str, list[str]] = {}
    edges: list[tuple[str, str]] = []
    inside: list[str] | None = None
    for line in text.splitlines()[2:-1]:
        if found := re.fullmatch(rf"\s+(\w+) \[label=({string})(?:, style=\w+)?\];", line):
            assert found[1] not in nodes
            nodes[found[1]] = found[2]
            if inside is not None:
                inside.append(found[1])
        elif found := re.fullmatch(r"  subgraph (cluster_\w+) \{", line):
            inside = clusters[found[1]] = []
        elif found := re.fullmatch(r"  (\w+) -> (\w+);", line):
            edges.append((found[1], found[2]))
        elif line == "  }":
            inside = None
        else:
            assert re.fullmatch(rf"    label={string};", line) and inside is not None, line
    return nodes, clusters, edges


@pytest.mark.parametrize("name", PROGRAMS)
def test_dot_has_every_kernel_stage_and_variable(name: str) -> None:
    program = PROGRAMS[name]()
    nodes, clusters, edges = parsed(dot(program))
    assert {end for edge in edges for end in edge} <= nodes.keys()
    kernels = program.kernels
    assert len(clusters) == len(kernels) or (not kernels and clusters)
    stages = [len(k.every) for k in kernels]
    assert [len(own) for own in clusters.values()] == stages or not kernels
    for kernel in kernels:
        for variable in kernel.arguments:
            assert any(f'"{Names()(variable)}\\n' in label for label in nodes.values())
    stores = sum(s.store is not None for k in kernels for s in k.every)
    assert sum("s" in a and "s" not in b for a, b in edges) == stores or not kernels
    order = {node: n for n, node in enumerate(nodes)}
    assert all(order[a] < order[b] for a, b in edges), "what is read stands before"
    reading = {end for _, end in edges}
    assert all(node in reading for own in clusters.values() for node in own)


@pytest.mark.parametrize("name", PROGRAMS)
def test_svg_is_well_formed_and_shows_every_kernel(name: str) -> None:
    program = PROGRAMS[name]()
    root = ElementTree.fromstring(svg(program))
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    for kernel in program.kernels:
        wanted = "".join(c if c.isprintable() else "?" for c in f"kernel {kernel.name}")
        assert any(t.startswith(wanted[: MOST - 2]) for t in texts)
    boxes = Picture(program).boxes
    groups = root.findall(f"{SVG}g")
    assert [g.get("class") for g in groups] == [b.kind for b in boxes]
    assert len(root.findall(f"{SVG}path")) == sum(len(b.below) for b in boxes)


def test_boxes_of_the_svg_do_not_overlap_and_hold_their_texts() -> None:
    root = ElementTree.fromstring(svg(layer()))
    width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    areas = []
    for group in root.findall(f"{SVG}g"):
        (box,) = group.findall(f"{SVG}rect")
        x, y, w, h = (float(box.get(key, "")) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
        for text in group.findall(f"{SVG}text"):
            assert x < float(text.get("x", "")) < x + w
            assert y < float(text.get("y", "")) < y + h
        areas.append((x, y, w, h))
    for (x, y, w, h), (u, v, o, p) in itertools.combinations(areas, 2):
        assert x + w <= u or u + o <= x or y + h <= v or v + p <= y


def test_a_variable_that_is_written_again_is_another_box() -> None:
    boxes = Picture(layer()).boxes
    carried = [b for b in boxes if b.name == "carry0"]
    assert len(carried) == 2 and any("loop of 3" in b.lines for b in boxes)
    assert all(below < n for n, box in enumerate(boxes) for below in box.below)


@pytest.mark.slow
def test_pictures_are_written_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")  # set by `view`, and put back
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    pictures = ["--dot", str(tmp_path / "mine.dot"), "--svg", str(tmp_path / "mine.svg")]
    done = CliRunner().invoke(commands, ["view", str(script), *pictures])
    assert done.exit_code == 0, done.output
    assert parsed((tmp_path / "mine.dot").read_text())[0]
    ElementTree.parse(tmp_path / "mine.svg")
    assert not list(tmp_path.glob("*.html")), "a page that nobody asked for"
    script.write_text(SCRIPT + "second = pb.jit(pb.sin)\nsecond(pb.ones(3))\n")
    out = ["--out", str(tmp_path / "mine.html")]
    done = CliRunner().invoke(commands, ["view", str(script), *pictures[2:], *out])
    assert done.exit_code == 0, done.output
    names = {path.name for path in tmp_path.iterdir()}
    assert {"mine-first.svg", "mine-second.svg", "mine.html"} <= names


def test_a_picture_where_there_is_no_folder_is_misuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")
    gone = str(tmp_path / "gone" / "x.svg")
    done = CliRunner().invoke(commands, ["view", "y[i] = x[i]", "--shape", "x=3", "--svg", gone])
    assert done.exit_code == 2 and "no folder" in done.output
