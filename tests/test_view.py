"""The page of a program: numbers are the program's, texts are texts, no network is needed."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import pullback as pb
from browser import Browser
from pullback.backends.llvm.emit import emit_routine
from pullback.cli import train, train_command
from pullback.cli import view as view_command
from pullback.cli.main import commands
from pullback.config import Options
from pullback.ir.graph import Definition
from pullback.ir.program import Compute
from pullback.ir.text import show
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.memory.budget import work
from pullback.runtime.executable import Executable
from pullback.schedule.text import schedule_text
from pullback.viewer.data import MOST_POINTS, Curve
from pullback.viewer.graph import ADJOINT, AFTER, PRIMAL, Graph
from pullback.viewer.layout import layered
from pullback.viewer.page import collect, page, render, write

TIMED = Options(profile=True)
EVIL = "</script><script>alert(1)</script><!--"
ROOF = (100.0, 10.0)


def small() -> Executable:
    """A layer, its loss and gradients, with a definition of a dangerous name; run three times."""

    def function(x: Any, w: Any) -> Any:
        h = pb.compute((64, 48), lambda i, j: pb.sum(x[i, k] * w[j, k], over=k), name=EVIL)
        y = pb.softmax(h, axis=1)  # </script> is text here, too
        return y, pb.grad(pb.sum(y * y), w)

    k = pb.axis(32)
    jitted = pb.jit(function, options=TIMED)
    for _ in range(3):
        jitted(np.ones((64, 32), np.float32), np.ones((48, 32), np.float32))
    found: Executable = jitted.program
    return found


def training(steps: int = 5) -> Executable:
    """A loop of steps: gradients, and an update that is made of them."""
    w = pb.nn.Parameter(pb.ones((4, 4)))
    data = np.ones((8, 4), np.float32)

    def step() -> None:
        x = pb.Feeder(lambda: data, shape=(8, 4))
        loss = ((x @ w - x) ** 2).sum()
        (slope,) = pb.grad(loss, [w])
        w.assign(w - 0.01 * slope)

    jitted = pb.jit(lambda: pb.loop(steps, step), options=TIMED)
    jitted()
    found: Executable = jitted.program
    return found


@functools.cache
def deep(layers: int) -> Executable:
    """Many layers, alike but for their weights, and their gradients."""
    every = [pb.nn.Parameter(pb.tensor(np.eye(8, dtype=np.float32))) for _ in range(layers)]

    def function(x: Any) -> Any:
        for w in every:
            x = pb.softmax(x @ w, axis=1)
        return pb.grad(pb.sum(x * x), every)

    jitted = pb.jit(function, options=TIMED)
    jitted(np.ones((16, 8), np.float32))
    found: Executable = jitted.program
    return found


class Elements(HTMLParser):
    """Tags with their attributes, and the text in each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.setdefault(self.inside[-1], []).append(data)

    def count(self, tag: str) -> int:
        return sum(t == tag for t, _ in self.found)


def data_of(text: str) -> Any:
    return json.loads(Elements(text).texts["script"][0])


# --- the page


def test_a_page_needs_nothing_from_elsewhere() -> None:
    parsed = Elements(page(EVIL, {"f": small()}, ROOF))
    kinds = {tag for tag, _ in parsed.found}
    assert not kinds & {"link", "img", "iframe", "object", "embed", "base"}
    for _, attributes in parsed.found:
        assert not {"src", "href", "style", "onclick"} & attributes.keys()
    (policy,) = [a["content"] for t, a in parsed.found if a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")


def test_texts_of_the_user_stay_texts() -> None:
    text = page(EVIL, {EVIL: small()}, ROOF, [Curve(EVIL, [1.0, 2.0])])
    parsed = Elements(text)
    assert parsed.count("script") == 2
    assert parsed.texts["title"] == [EVIL]
    assert "alert(1)</script>" not in text
    found = data_of(text)["programs"][0]
    assert found["name"] == found["curves"][0]["name"] == EVIL
    assert any("</script> is text" in o["excerpt"] for o in found["origins"])


def test_the_script_makes_no_html_of_texts() -> None:
    script = Elements(page("", {})).texts["script"][1]
    assert not any(
        word in script for word in ("innerHTML", "outerHTML", "insertAdjacent", "write(")
    )
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")


def test_numbers_that_json_lacks_are_null() -> None:
    found = data_of(page("", {"f": small()}, None, [Curve("loss", [1.0, float("nan")])]))
    assert found["programs"][0]["curves"][0]["points"] == [[1, 1.0], [2, None]]


# --- its numbers


def test_the_numbers_are_those_of_the_program() -> None:
    program = small()
    data = data_of(page("small", {"f": program}, ROOF))
    found = data["programs"][0]
    assert data["roof"] == {"gflops": 100.0, "gbytes": 10.0}
    assert found["facts"]["definitions"] == len(program.definitions)
    assert found["facts"]["cost"]["flops"] == program.cost.flops
    assert found["facts"]["cost"]["executed"] == program.cost.executed
    assert found["facts"]["bytes_moved_by_last_run"] == program.bytes_moved
    assert found["facts"]["compiler_ms"] == {n: s * 1e3 for n, s in program.timings.items()}
    timed = program.profile.launches
    assert len(found["kernels"]) == len(timed) == len(program.kernels)
    for row, t in zip(found["kernels"], timed, strict=True):
        assert (row["name"], row["runs"], row["spent"]) == (t.kernel.name, 3, t.spent)
        assert (row["flops"], row["bytes"]) == (work(t.kernel).flops, t.moved)
        assert row["text"] == show(t.kernel)
    for number, row in enumerate(found["kernels"]):
        own = [s.end - s.start for s in program.profile.spans if s.launch == number]
        assert row["median"] == sorted(own)[1]
    memory = found["memory"]
    assert memory["arena"] == program.memory.arena_bytes
    assert memory["lower_bound"] == program.memory.lower_bound_bytes
    placed = sorted((b.name, b.size, at, b.first, b.last) for b, at in program.memory.placed)
    keys = ("name", "size", "at", "first", "last")
    assert sorted(tuple(b[k] for k in keys) for b in memory["buffers"]) == placed
    spans, line = program.profile.spans, found["timeline"]
    assert sum(s[3] for s in line["spans"]) == sum(s.end - s.start for s in spans)
    assert [s[4] for s in line["spans"]] == list(range(len(timed))) * 3
    assert line["left_out"] == 0


def test_the_code_is_that_of_the_kernels() -> None:
    program = small()
    assert program.target is not None
    data = collect("", {"f": program})
    for kernel, row in zip(program.kernels, data["programs"][0]["kernels"], strict=True):
        (number,) = row["codes"]
        text = json.loads(zlib.decompress(base64.b64decode(data["codes"][number])))
        schedule = scheduled(kernel, program.target)
        routine = lower(kernel, schedule, marks=True)
        assert row["schedule"] == schedule_text(schedule)
        assert text["loops"] == show(routine)
        assert text["llvm"] == emit_routine(routine, program.target)
        assert "ret" in text["assembly"]


def test_lines_of_code_name_their_stages() -> None:
    """The compiled text is the same without them."""
    program = small()
    data = collect("", {"f": program})
    (own,) = data["programs"]
    assert program.target is not None
    for kernel, row in zip(program.kernels, own["kernels"], strict=True):
        (number,), (origins,) = row["codes"], row["lines"]
        text = json.loads(zlib.decompress(base64.b64decode(data["codes"][number])))
        stages = (*kernel.stages, *kernel.finish)
        for kind, sign in (("loops", "#"), ("llvm", ";")):
            marks = re.findall(rf"^ *{sign} stage (.*)$", text[kind], re.MULTILINE)
            assert {int(n) for mark in marks for n in mark.split(", ")} == set(range(len(stages)))
        assert [own["origins"][n]["place"] for n in origins] == [
            s.target.origin.place for s in stages if s.target.origin is not None
        ]
        bare = lower(kernel, scheduled(kernel, program.target))
        plain = [line for line in text["llvm"].splitlines() if not line.lstrip().startswith(";")]
        assert plain == emit_routine(bare, program.target).splitlines()


def test_machine_code_is_made_for_the_largest_kernels() -> None:
    program = small()
    data = collect("", {"f": program}, assembled=1)
    texts = [json.loads(zlib.decompress(base64.b64decode(c))) for c in data["codes"]]
    largest = max(data["programs"][0]["kernels"], key=lambda k: k["flops"])["codes"]
    made = [n for n, text in enumerate(texts) if "--assembly" not in text["assembly"]]
    assert made == largest


def test_a_program_that_was_not_timed_or_not_compiled() -> None:
    plain = pb.jit(lambda x: x + 1.0, options=Options())
    plain(np.ones(3, np.float32))
    slow = pb.jit(lambda x: x + 1.0, options=Options(backend="reference"))
    slow(np.ones(3, np.float32))
    found = data_of(page("", {"plain": plain.program, "slow": slow.program}))["programs"]
    assert [p["timeline"] for p in found] == [None, None]
    assert [len(p["kernels"]) for p in found] == [1, 0]
    assert found[0]["kernels"][0]["bytes"] == 24
    assert found[1]["memory"] is None


def test_long_curves_keep_their_ends() -> None:
    values = [float(n) for n in range(MOST_POINTS * 3 + 1)]
    (found,) = collect("", {"f": small()}, None, [Curve("loss", values, 11)])["programs"][0][
        "curves"
    ]
    assert len(found["points"]) <= MOST_POINTS + 1
    assert found["points"][0] == (11, 0.0)
    assert found["points"][-1] == (11 + MOST_POINTS * 3, values[-1])


# --- the graph


def test_adjoints_have_a_column_and_what_is_made_of_them() -> None:
    nodes = Graph(training().program.body).nodes
    columns = [(n.value.name, n.column) for n in nodes if isinstance(n.value, Definition)]
    assert columns == [
        ("matmul", PRIMAL),
        ("subtract", PRIMAL),
        ("dsubtract", ADJOINT),
        ("dfull", ADJOINT),
        ("multiply", AFTER),
        ("subtract", AFTER),
    ]
    assert [n.value.name for n in nodes if n.assigns] == ["subtract"]
    assert {n.kind for n in nodes} >= {"feed", "given", "map", "reduce"}
    assert all(b < n for n, node in enumerate(nodes) for b in node.below)


def test_a_tensor_named_like_an_adjoint_is_none() -> None:
    def function(x: Any) -> Any:
        y = pb.compute((4,), lambda i: x[i] * 2.0, name="y")
        dx = pb.compute((4,), lambda i: y[i] * x[i], name="dx")
        return dx, pb.grad(pb.sum(dx), x)

    jitted = pb.jit(function)
    jitted(np.ones(4, np.float32))
    nodes = Graph(jitted.program.program.body).nodes
    columns = [n.column for n in nodes if n.value.name == "dx"]
    assert columns[0] == PRIMAL and ADJOINT in columns[1:]


def test_an_adjoint_may_read_its_primal() -> None:
    w = pb.nn.Parameter(pb.ones((4,)))
    jitted = pb.jit(lambda: w.assign(w - pb.grad(pb.sum(w * w), [w])[0]))
    jitted()
    nodes = Graph(jitted.program.program.body).nodes
    assert [n.column for n in nodes] == [ADJOINT, ADJOINT, AFTER]


def test_loops_branches_and_symbolic_sizes_have_graphs() -> None:
    def function(x: Any) -> Any:
        y = pb.cond(pb.sum(x) > 0, lambda v: pb.exp(v), lambda v: v * 2.0, x)
        return pb.scan(lambda h, row: (h + row, h), pb.zeros(8), y)[1]

    turns = pb.jit(function)
    turns(np.ones((5, 8), np.float32))
    sized = pb.jit(lambda x: pb.softmax(x, axis=1), shapes=[(pb.dim("rows", 1, 64), 8)])
    sized(np.ones((5, 8), np.float32))
    first, second = collect("", {"turns": turns.program, "sized": sized.program})["programs"]
    assert {"if predicate", "if not predicate", "loop of 5"} <= set(first["places"])
    assert len(first["kernels"]) == len(turns.program.kernels)
    assert "carried" in {n["kind"] for n in first["nodes"]}
    labels = [first["places"][n["place"]] for n in first["nodes"] if n["column"] == PRIMAL]
    assert labels[0] == labels[-1] == "", "what follows a loop is a block of its own"
    assert first["nodes"][0]["place"] != first["nodes"][-1]["place"]
    assert "float32[rows, 8]" in {n["type"] for n in second["nodes"]}


def test_every_stage_is_one_of_the_definitions() -> None:
    program = training()
    found = collect("", {"f": program})["programs"][0]
    nodes = found["nodes"]
    for row, kernel in zip(found["kernels"], program.kernels, strict=True):
        names = {s.target.name for s in kernel.every}
        assert {nodes[n]["name"].split("_")[0] for n in row["nodes"]} == names
        assert len(row["nodes"]) == len(kernel.every)
    (compute,) = [i for i in program.program.body[0].body if isinstance(i, Compute)]
    used = set(compute.graph.definitions)
    computed = [n for n in nodes if n["kind"] in ("map", "reduce")]
    assert len(computed) == len(used)
    assert all(n["kernels"] for n in computed)
    assert {found["places"][n["place"]] for n in nodes} == {"loop of 5"}
    assert {found["places"][k["place"]] for k in found["kernels"]} == {"loop of 5"}


def test_rows_are_below_what_they_read() -> None:
    below = [[], [], [0, 1], [2], [2], [3, 4], []]
    rows = [row for row, _ in layered(below)]
    assert all(rows[s] < rows[n] for n, found in enumerate(below) for s in found)
    places = layered(below)
    assert len(set(places)) == len(places)
    late = layered([[], [0], [1], [], [2, 3]])
    assert late[3][0] == late[4][0] - 1, "what is given stands above its first reader"
    assert layered([[1], [0]]) == [(0, 0), (1, 0)], "a circle has a layout"


def test_neighbours_pull_places() -> None:
    crossed = [[], [], [1], [0]]
    (_, a), (_, b), (_, c), (_, d) = layered(crossed)
    assert (a < b) == (d < c)


def test_a_chain_of_ten_thousand_has_a_layout() -> None:
    below: list[list[int]] = [[]] + [[n] for n in range(9_999)]
    began = time.thread_time()
    assert layered(below)[-1] == (9_999, 0)
    assert time.thread_time() - began < 3.0


@pytest.mark.slow
def test_a_thousand_nodes_make_a_small_page_soon() -> None:
    program = deep(90)
    began = time.thread_time()
    text = page("deep", {"deep": program}, ROOF)
    spent = time.thread_time() - began
    found = data_of(text)["programs"][0]
    assert len(found["nodes"]) > 1000
    assert found["fold"] == "kernel"
    assert len(set(found["folds"]["kernel"]["of"])) < len(found["nodes"]) / 4
    assert len(text) < 3_000_000
    assert spent < 5.0


def test_pages_do_not_depend_on_the_run() -> None:
    first, second = (collect("", {"f": small()})["programs"][0] for _ in range(2))
    for key in ("nodes", "layout", "folds", "memory", "places"):
        assert first[key] == second[key]


# --- in a browser

missing = Browser.found()
browsing = pytest.mark.skipif(bool(missing), reason=missing)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(str(tmp_path_factory.mktemp("browser"))) as found:
        yield found


@pytest.mark.slow
@browsing
@pytest.mark.browser
def test_a_click_on_a_line_of_code_shows_the_users(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("", {"f": small()}))
    browser.open(path.as_uri())
    browser.click("#k0")
    for view, word in (("loops", "acc"), ("llvm", "fmul")):
        browser.click(f"#view-{view}")
        waited(
            browser, f"return document.querySelector('#code .lines').textContent.includes('{word}')"
        )
        browser.run(
            "[...document.querySelectorAll('#code .placed')]"
            f".find((line) => line.textContent.includes('{word}')).click()"
        )
        assert "h = pb.compute" in browser.text("#origin") or "softmax" in browser.text("#origin")
        assert "^^^" in browser.text("#origin")
        assert word in browser.text("#code .chosen")


@pytest.mark.slow
@browsing
@pytest.mark.browser
def test_a_click_shows_a_kernel_with_its_code(browser: Browser, tmp_path: Path) -> None:
    program = small()
    path = tmp_path / "page.html"
    path.write_text(page(EVIL, {"f": program}, ROOF, [Curve("loss", [3.0, 2.0, 1.0])]))
    browser.open(path.as_uri())
    kernel = program.kernels[0]
    browser.click("#k0")
    assert browser.text("#details h2") == kernel.name
    assert browser.text("#code .lines").rstrip() == show(kernel).rstrip()
    browser.click("#view-llvm")
    assert program.target is not None
    routine = lower(kernel, scheduled(kernel, program.target), marks=True)
    llvm = emit_routine(routine, program.target)
    waited(browser, "return document.querySelector('#code .lines').textContent.includes('define')")
    shown = browser.text("#code .lines").splitlines()
    made = llvm.rstrip("\n").splitlines()
    assert [a for a in shown if ";" not in a] == [b for b in made if ";" not in b]
    assert next(a for a in shown if ";" in a).strip().startswith(f"; {__file__}:")
    lines = browser.text("#code .numbers").splitlines()
    assert lines[-1] == str(len(llvm.rstrip("\n").splitlines()))
    browser.hover("#n2")
    assert "h = pb.compute" in browser.text("#hint")
    assert "^^^" in browser.text("#hint")
    for name in ("roofline", "memory", "timeline", "compiler", "loss"):
        browser.click(f"#tab-{name}")
        assert browser.run("return document.querySelectorAll('#chart svg > *').length") > 2
    browser.click("#tab-roofline")
    browser.click("circle[data-kernel='1']")
    assert browser.text("#details h2") == program.kernels[1].name
    assert not browser.complaints()


@pytest.mark.slow
@browsing
@pytest.mark.browser
def test_a_thousand_nodes_fold_and_unfold(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("deep", {"deep": deep(90)}, ROOF))
    browser.open(path.as_uri())
    boxes = "return document.querySelectorAll('.item').length"
    folded = browser.run(boxes)
    group = browser.run("return document.querySelector('.item.group').id")
    browser.run(f"choose({group!r})")
    browser.click("#unfold")
    assert folded < browser.run(boxes) < folded + 60
    browser.run("const f = byId('fold'); f.value = ''; f.dispatchEvent(new Event('change'))")
    browser.click("#fit")
    assert browser.run(boxes) > 1000
    overlapping = (
        "const at = [...items.values()].map((i) => `${i.x} ${i.y}`);"
        "return at.length - new Set(at).size"
    )
    assert browser.run(overlapping) == 0
    assert not browser.complaints()


def waited(browser: Browser, script: str) -> None:
    """Until it is true."""
    end = time.monotonic() + 20
    while not browser.run(script):
        assert time.monotonic() < end
        time.sleep(0.05)


# --- notebooks


def test_notebooks_show_tensors_definitions_and_programs() -> None:
    x = pb.compute((2, 3), lambda i, j: i * 3 + j, name="<b>")
    shown = x._repr_html_()
    assert Elements(shown).count("b") == 1
    assert "int64[2, 3]" in shown and "[0, 1, 2]" in shown
    program = small()
    definition = next(d for d in program.definitions if d.name == EVIL)
    shown = definition._repr_html_()
    assert {t for t, _ in Elements(shown).found} == {"div", "b", "pre"}
    assert "h = pb.compute" in shown
    shown = program._repr_html_()
    assert Elements(shown).count("script") == 0
    assert Elements(shown).count("tr") == 1 + len(program.kernels)
    assert len(shown) < 20_000
    svg = program.memory._repr_svg_()
    assert Elements(svg).count("rect") == len(program.memory.placed)
    jitted = pb.jit(lambda a: a)
    assert "not called yet" in jitted._repr_html_()


def test_a_tensor_that_is_traced_shows_no_numbers() -> None:
    seen: list[str] = []

    def function(x: Any) -> Any:
        seen.append((x + 1.0)._repr_html_())
        return x

    pb.jit(function)(np.ones(3, np.float32))
    assert "traced" in seen[0]


def test_rendering_is_the_same_for_the_same_data() -> None:
    data = collect("", {"f": small()})
    assert render(data) == render(data)


# --- commands

SCRIPT = """
import numpy as np
import pullback as pb

double = pb.jit(lambda x: x * 2.0)
for _ in range(4):
    double(np.ones(5, np.float32))
"""
TINY = "--layers 1 --dim 8 --heads 2 --context 8 --batch 2 --steps 4 --text story.txt --out run"


@pytest.fixture
def workplace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")  # set by `view`, and put back
    monkeypatch.setattr(train_command, "SAMPLE", 4)
    monkeypatch.setattr(view_command, "roofline", lambda: ROOF)
    monkeypatch.setattr(train_command, "roofline", lambda: ROOF)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(commands, list(arguments))


def test_the_page_of_a_script_has_its_times(workplace: Path) -> None:
    (workplace / "twice.py").write_text(SCRIPT)
    done = call("view", "twice.py", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["programs"] == [{"name": "double", "nodes": 2, "kernels": 1}]
    text = (workplace / "twice.html").read_text()
    assert facts["page"] == "twice.html"
    assert facts["bytes"] == (workplace / "twice.html").stat().st_size
    (kernel,) = data_of(text)["programs"][0]["kernels"]
    assert kernel["runs"] == 4 and kernel["spent"] > 0
    assert data_of(text)["roof"] == {"gflops": 100.0, "gbytes": 10.0}
    assert sorted(p.name for p in workplace.iterdir()) == ["twice.html", "twice.py"]


def test_the_page_of_a_definition_has_its_gradient(workplace: Path) -> None:
    formula = "c[i, j] = sum[k](a[i, k] * b[k, j])"
    done = call("view", formula, "--wrt", "b", "--out", "page.html")
    assert done.exit_code == 0, done.output
    (found,) = data_of((workplace / "page.html").read_text())["programs"]
    assert found["name"] == formula
    assert {n["column"] for n in found["nodes"]} == {PRIMAL, ADJOINT}
    assert all(k["runs"] > 1 for k in found["kernels"])


def test_what_cannot_be_viewed_is_refused(workplace: Path) -> None:
    (workplace / "twice.py").write_text(SCRIPT)
    assert call("view", "twice.py", "--wrt", "x").exit_code == 2
    for command in (["view", "c[i] = a[i]", "--out"], ["train", "--report"]):
        lost = call(*command, "nowhere/page.html")
        assert lost.exit_code == 2
        assert "cannot be written: there is no folder nowhere" in lost.output


def test_training_writes_a_report_with_its_losses(workplace: Path) -> None:
    (workplace / "story.txt").write_text("the cat sat on the mat. " * 20)
    done = call("train", *TINY.split(), "--report", "run.html", "--json")
    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in done.output.splitlines()]
    assert events[-1] == {"event": "report", "path": "run.html"}
    (found,) = data_of((workplace / "run.html").read_text())["programs"]
    losses, steps = found["curves"]
    assert [at for at, _ in losses["points"]] == [1, 2, 3, 4]
    assert losses["points"][-1][1] == [e["loss"] for e in events if e["event"] == "step"][-1]
    assert len(steps["points"]) == 3
    assert {k["runs"] for k in found["kernels"]} >= {4}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["interrupt", "end"]
)
def test_a_run_that_is_stopped_reports_what_ran(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    (workplace / "story.txt").write_text("the cat sat on the mat. " * 20)
    stepped = train.Run._stepped

    def stopping(run: train.Run, loss: Any) -> None:
        stepped(run, loss)
        if len(run.losses) == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(train.Run, "_stepped", stopping)
    before = signal.getsignal(number)
    many = TINY.replace("--steps 4", "--steps 100000")
    done = call("train", *many.split(), "--report", "run.html", "--json")
    assert done.exit_code == code, done.output
    assert signal.getsignal(number) is before
    events = [json.loads(line) for line in done.output.splitlines()]
    (stopped,) = [e for e in events if e["event"] == "interrupted"]
    assert events[-1]["event"] == "report"
    found = data_of((workplace / "run.html").read_text())
    assert found["title"] == f"pullback train, to step {stopped['step']}"
    losses, _ = found["programs"][0]["curves"]
    assert losses["count"] == stopped["step"] >= 3
    assert sorted(p.name for p in workplace.iterdir()) == ["run", "run.html", "story.txt"]


@pytest.mark.slow
def test_a_run_that_fails_reports_what_ran(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "story.txt").write_text("the cat sat on the mat. " * 20)
    stepped = train.Run._stepped

    def failing(run: train.Run, loss: Any) -> None:
        stepped(run, loss)
        if len(run.losses) == 2:
            raise ArithmeticError("planted")

    monkeypatch.setattr(train.Run, "_stepped", failing)
    done = call("train", *TINY.split(), "--report", "run.html", "--json")
    assert isinstance(done.exception, ArithmeticError)
    (found,) = data_of((workplace / "run.html").read_text())["programs"]
    losses, _ = found["curves"]
    assert [at for at, _ in losses["points"]] == [1, 2]


def test_a_page_is_written_whole_or_not_at_all(workplace: Path) -> None:
    path = workplace / "page.html"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(workplace.iterdir()) == [path]
