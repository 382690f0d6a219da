"""A built model beside AOTInductor's: bytes, and what a fresh process needs to its first result.

`python benchmarks/artefacts.py` prints a table. The model is an MLP of 784, 512, 512, 10 with ReLU,
a batch of 32, its weights (2.7 MB) apart. Times are processor time of whole processes, in turn, the
least of 7; "of its imports" is a process that imports what the loader needs (NumPy; PyTorch) and
does nothing. One thread.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1")

import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

ROUNDS = 7
SIZES = (784, 512, 512, 10)
SCRIPT = """
import numpy as np
import pullback as pb
from pullback import nn

data = np.load({weights!r})
layers = []
for n in range(3):
    layer = nn.Linear({sizes}[n], {sizes}[n + 1])
    layer.weight.assign(pb.tensor(data[f"w{{n}}"]))
    layer.bias.assign(pb.tensor(data[f"b{{n}}"]))
    layers += [layer, nn.ReLU()]
model = nn.Sequential(*layers[:-1])

@pb.jit
def mlp(x):
    return model(x)

mlp(pb.zeros((32, 784)))
"""
HEAD = "import numpy as np\nx = np.ones((32, 784), np.float32)\n"
OURS = HEAD + "import mlp_loader\ny = mlp_loader.program(x)\nnp.save({out!r}, y)\n"
THEIRS = HEAD + (
    "import torch\nmodel = torch._inductor.aoti_load_package({path!r})\n"
    "y = model(torch.from_numpy(x)).numpy()\nnp.save({out!r}, y)\n"
)
IMPORTS = {"pullback": "import numpy, argparse, ctypes, hashlib, json, zipfile\n",
           "AOTInductor": "import numpy\nimport torch\nimport torch._inductor\n"}  # fmt: skip


def seconds(text: str, folder: Path) -> float:
    """Processor time of a process."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    start = spent()
    subprocess.run([sys.executable, "-c", text], cwd=folder, check=True)
    return spent() - start


def exported(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    """AOTInductor's package of the same model."""
    layers: list[torch.nn.Module] = []
    for n in range(3):
        layer = torch.nn.Linear(SIZES[n], SIZES[n + 1])
        layer.weight.data, layer.bias.data = (torch.from_numpy(weights[f"{k}{n}"]) for k in "wb")
        layers += [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).eval()
    with torch.no_grad():
        program = torch.export.export(model, (torch.zeros(32, 784),))
        path = str(folder / "mlp.pt2")
        return Path(torch._inductor.aoti_compile_and_package(program, package_path=path))


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    weights = {}
    for n in range(3):
        scale = np.float32(SIZES[n] ** -0.5)
        weights[f"w{n}"] = rng.normal(size=(SIZES[n + 1], SIZES[n])).astype(np.float32) * scale
        weights[f"b{n}"] = rng.normal(size=SIZES[n + 1]).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "weights.npz", **weights)
        script = folder / "mlp.py"
        script.write_text(SCRIPT.format(weights=str(folder / "weights.npz"), sizes=SIZES))
        line = [sys.executable, "-m", "pullback", "build", str(script), "-o", str(folder / "out")]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        package = exported(folder, weights)
        outs = {"pullback": folder / "ours.npy", "AOTInductor": folder / "theirs.npy"}
        texts = {
            "pullback": OURS.format(out=str(outs["pullback"])),
            "AOTInductor": THEIRS.format(path=str(package), out=str(outs["AOTInductor"])),
        }
        homes = {"pullback": folder / "out", "AOTInductor": folder}
        least: dict[tuple[str, str], float] = {}
        for _ in range(ROUNDS):
            for who in texts:
                for what, text in (("whole", texts[who]), ("imports", IMPORTS[who])):
                    took = seconds(text, homes[who])
                    least[who, what] = min(took, least.get((who, what), took))
        a, b = (np.load(path) for path in outs.values())
        assert np.allclose(a, b, atol=1e-4), abs(a - b).max()
        report(folder, package, least)


def report(folder: Path, package: Path, least: dict[tuple[str, str], float]) -> None:
    """Rows of the table."""
    with zipfile.ZipFile(package) as file:
        rows = [(i.filename, i.file_size) for i in file.infolist()]
    library = sum(size for name, size in rows if name.endswith(".so"))
    whole = sum(size for _, size in rows)
    own = folder / "out"
    ours = sum(p.stat().st_size for p in own.iterdir() if p.is_file())
    sizes = {"pullback": ((own / "mlp.so").stat().st_size, ours), "AOTInductor": (library, whole)}
    print("| | library | with weights | process to its first result | of its imports |")
    print("|---|---|---|---|---|")
    for who, (code, everything) in sizes.items():
        times = " | ".join(f"{least[who, what] * 1e3:,.0f} ms" for what in ("whole", "imports"))
        print(f"| {who} | {code / 1e3:,.0f} kB | {everything / 1e6:.2f} MB | {times} |")


if __name__ == "__main__":
    main()
