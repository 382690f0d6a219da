"""Damaged operations, artefacts and model folders: each is read, or refused by a code; else 1.

`python scripts/fuzz_files.py [--count N] [--start SEED]`: each number is one change, the same in
every run, of an operation of `ops/` (read, its inputs drawn, its definitions made), of the manifest
or the weights of what `pullback build` wrote (loaded), or of a model's `config.json`, in turn.
Other files have scripts of their own: `fuzz_gguf.py`, `fuzz_onnx.py`; weights, entries of the cache
and saved programs are changed by `robust.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gguf_support import damaged
from pullback.errors import PullbackError
from pullback.models import load_llama
from pullback.operations import parse
from pullback.operations.drawn import drawn
from pullback.operations.notation import symbols
from pullback_cli import commands
from test_build import loader
from test_models_folders import folder as model_folder

MOST = 10_000  # elements of an input that is drawn
SCRIPT = """
import numpy as np
import pullback as pb

w = pb.tensor(np.ones((4, 3), np.float32))

@pb.jit
def train(x):
    return pb.tanh(x @ w)

train(np.ones((5, 4), np.float32))
"""
WORDS = ("[", "]", "{", "}", '"', "\n", "=", "M", "K", "~", "sum", "(", ")", ",", "0", "-1", "2*M",
         "99999999999", "float32", "int64", "where", "#", "'''", "exp", "/", "%", ":")  # fmt: skip


def retold(source: random.Random, text: str) -> str:
    """A text with pieces taken out, doubled, or put in."""
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(len(text) + 1)
        end = min(len(text), at + source.choice((0, 1, 3, 20)))
        piece = source.choice((source.choice(WORDS), text[at:end] * 2, ""))
        text = text[:at] + piece + text[end:]
    return text


def operation(text: str) -> None:
    """Read; its definitions are made where its test's inputs are small."""
    made = parse(text, ROOT / "ops")
    sizes = made.test.sizes
    named = [n for s in made.inputs for z in s.sizes if z for n in symbols(z.tree)]
    if prod(max(1, sizes.get(n, 1)) for n in named) > MOST or sizes.get("~", 0) > 3:
        return
    arrays, given = drawn(made, {}, np.random.default_rng(0))
    made.of_stored(*arrays, **given)


def artefact(home: Path, name: str, data: bytes) -> None:
    """A file of what was built, changed; what stood there is put back."""
    path = home / "out" / name
    before = path.read_bytes()
    try:
        path.write_bytes(data)
        loader(home).Program()
    finally:
        path.write_bytes(before)


def outcome(use: Callable[[], Any]) -> str:
    """Read, or the code. Raises: what has none."""
    try:
        use()
    except PullbackError as error:
        return str(error.code)
    except RuntimeError as error:
        if type(error).__name__ != "ProgramError":
            raise
        return str(error.code)  # type: ignore[attr-defined]
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    wrong = 0
    texts = [p.read_text() for p in sorted((ROOT / "ops").glob("*.toml"))]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "train.py").write_text(SCRIPT)
        line = ["build", str(home / "train.py"), "-o", str(home / "out")]
        done = CliRunner().invoke(commands, line)
        assert done.exit_code == 0, done.output
        model = model_folder(home)
        config = (model / "config.json").read_bytes()
        built = [
            (n, (home / "out" / n).read_bytes()) for n in ("manifest.json", "weights.safetensors")
        ]
        for number in range(given.start, given.start + given.count):
            source = random.Random(number)
            if number % 4 == 0:
                data = damaged(number, config)
                (model / "config.json").write_bytes(data)
                use, kind = (lambda: load_llama(model)), "model"
            elif number % 4 == 1:
                name, whole = source.choice(built)
                data = damaged(number, whole)
                use, kind = (lambda n=name, d=data: artefact(home, n, d)), name
            else:
                text = retold(source, source.choice(texts))
                use, kind = (lambda t=text: operation(t)), "operation"
            try:
                seen[f"{kind} {outcome(use)}"] += 1
            except Exception:
                wrong += 1
                print(f"{number}:", traceback.format_exc(), file=sys.stderr)
    print(f"{given.count} files: {dict(sorted(seen.items()))}, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
