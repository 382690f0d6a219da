"""Models of ONNX with bytes and fields changed at random: right, or an error with a code.

`python scripts/fuzz_onnx.py COUNT [--start SEED] [--jobs N]`: each seed takes a model of onnx's
node tests, or one with branches, functions and data in another file, changes it, loads and calls
it. Whatever else is raised, a process that dies and one that takes too long fail the run, and name
the seed: `python scripts/fuzz_onnx.py 1 --start SEED` runs it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))

import pullback as pb
from pullback.errors import PullbackError

SECONDS = 30  # of one model
MEMORY = 8 << 30  # bytes of one process
CHUNK = 200  # models of one process
BIG = 1 << 12  # elements of an input that is made
NUMBERS = (0, 1, -1, 2, 7, 1 << 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 40)
WORDS = ("", "x", "y", "0", "../x", "NOTSET", "SAME_UPPER", "constant", "ai.onnx", "com.none")


def models() -> list[onnx.ModelProto]:
    """What is changed."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        nodes = [c.model for c in sorted(load_model_tests(kind="node"), key=lambda c: c.name)]
    return [*nodes[::3], *[own() for _ in range(60)]]


def own() -> onnx.ModelProto:
    """A convolution, a branch, a function, weights here and in another file."""
    w = numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")
    far = TensorProto(name="b", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    far.external_data.add(key="location", value="data")
    far.external_data.add(key="offset", value="4")
    shape = numpy_helper.from_array(np.array([1, -1], np.int64), "s")
    branches = {}
    for name, kind in (("then_branch", "Exp"), ("else_branch", "Neg")):
        port = helper.make_tensor_value_info("r", 1, None)
        branches[name] = helper.make_graph([helper.make_node(kind, ["f"], ["r"])], name, [], [port])
    inner = helper.make_node("LeakyRelu", ["a"], ["c"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    opset = helper.make_opsetid("", 21)
    bent = helper.make_function("own", "Bent", ["a"], ["c"], [inner], [opset], ["slope"])
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Bent", ["h"], ["g"], domain="own", slope=0.5),
        helper.make_node("MaxPool", ["g"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "s"], ["f"]),
        helper.make_node("If", ["k"], ["y"], **branches),
        helper.make_node("Shape", ["f"], ["n"]),
    ]
    ins = [helper.make_tensor_value_info("x", 1, [1, 1, 4, 4])]
    ins.append(helper.make_tensor_value_info("k", TensorProto.BOOL, []))
    outs = [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_value_info("n", 7, [2])]
    graph = helper.make_graph(nodes, "own", ins, outs, [w, far, shape])
    versions = [opset, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[bent], opset_imports=versions)


def bent(data: bytes, rng: random.Random) -> bytes:
    """Bytes with some changed, left out, put in, or cut."""
    own = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(max(1, len(own)))
        way = rng.randrange(5)
        if way == 0 and own:
            own[at] ^= 1 << rng.randrange(8)
        elif way == 1 and own:
            own[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif way == 2:
            del own[at : at + rng.randrange(1, 9)]
        elif way == 3:
            own[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif rng.randrange(4) == 0:
            del own[at:]
    return bytes(own)


def turned(message: Any, rng: random.Random) -> None:
    """A field of a message, or of one within, with another value."""
    fields = [f for f, _ in message.ListFields()]
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(message, field.name)
    many = not isinstance(value, str | bytes | int | float) and hasattr(value, "__len__")
    if field.type == field.TYPE_MESSAGE:
        if many and len(value) and rng.randrange(6) == 0:
            one = rng.randrange(len(value))
            value.add().CopyFrom(value[one]) if rng.randrange(2) else value.__delitem__(one)
            return
        turned(rng.choice(list(value)) if many else value, rng)
        return
    kind = "".join if field.type == field.TYPE_STRING else bytes
    if field.type == field.TYPE_STRING:
        fresh: Any = rng.choice(WORDS)
    elif field.type == field.TYPE_BYTES:
        fresh = bent(bytes(value if not many else b"x"), rng) if kind is bytes else b""
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        fresh = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    else:
        fresh = rng.choice(NUMBERS)
    try:
        if not many:
            setattr(message, field.name, fresh)
        elif len(value) and rng.randrange(3):
            value[rng.randrange(len(value))] = fresh
        else:
            value.append(fresh)
    except (ValueError, TypeError):
        return  # out of the field's range


def changed(model: onnx.ModelProto, rng: random.Random) -> bytes:
    """A model, changed as bytes or as fields."""
    if rng.randrange(3) == 0:
        return bent(model.SerializeToString(), rng)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 2, 4))):
        turned(copy, rng)
    try:
        return copy.SerializeToString()
    except (DecodeError, ValueError):
        return bent(model.SerializeToString(), rng)


def inputs(model: Any) -> dict[str, Any]:
    """Ones of the shapes that a model tells, where they are small."""
    made = {}
    for port in model.inputs:
        shape = [e if isinstance(e, int) else 2 for e in port.shape or ()]
        if min(shape, default=1) < 0 or np.prod(shape, dtype=float) > BIG:
            shape = [2]
        made[port.name] = np.ones(shape, port.kind.numpy if port.kind else np.float32)
    return made


def tried(data: bytes, folder: Path) -> str:
    """What became of a file: the code of its error, or none. Raises: what nobody should."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    signal.alarm(SECONDS)
    try:
        own = pb.onnx.load(path)
        own.run(inputs(own))
    except PullbackError as error:
        return error.code
    finally:
        signal.alarm(0)
    return "runs"


def one_process(first: int, count: int) -> None:
    """The models of some seeds, in this process; says each seed before it is tried."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    known, codes = models(), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").write_bytes(np.ones(4, np.float32).tobytes())
        for seed in range(first, first + count):
            print(seed, end=" ", flush=True)
            rng = random.Random(seed)
            data = changed(rng.choice(known), rng)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                codes[tried(data, folder)] += 1
    print("\n" + " ".join(f"{c}={n}" for c, n in sorted(codes.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process")
    told = parser.parse_args()
    if told.here or told.count == 1:
        one_process(told.start, told.count)
        return
    total, bad = Counter[str](), 0
    for first in range(told.start, told.start + told.count, CHUNK):
        count = min(CHUNK, told.start + told.count - first)
        while count > 0:
            command = [sys.executable, __file__, str(count), "--start", str(first), "--here"]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = done.stdout.splitlines() or [""]
            if not done.returncode:
                total.update({c: int(n) for c, n in (p.split("=") for p in lines[-1].split())})
                break
            bad += 1
            seed = int(lines[-1].split()[-1])
            print(f"seed {seed}: ended with {done.returncode}: {done.stderr.strip()[-600:]}")
            first, count = seed + 1, first + count - seed - 1
    print(f"{sum(total.values())} models: {dict(sorted(total.items()))}; {bad} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
