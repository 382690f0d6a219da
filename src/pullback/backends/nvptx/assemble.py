"""LLVM IR -> PTX by LLVM, and PTX -> a cubin by ptxas, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pullback.backends.host.processor import SPEED, binding
from pullback.errors import DeviceError, InvalidIR

TRIPLE = "nvptx64-nvidia-cuda"
PTX = {75: 63, 80: 70, 86: 71, 87: 74, 89: 78, 90: 78, 100: 86, 103: 88, 120: 87, 121: 88}
OLDEST_PTX = 63
# Of an assembler's report: registers of a thread, bytes that it spills.
REGISTERS = re.compile(r"Used (\d+) registers")
SPILLS = re.compile(r"(\d+) bytes spill stores")


@cache
def _machine(capability: int) -> Any:
    """LLVM's compiler for a device."""
    llvm = binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        made = llvm.Target.from_triple(TRIPLE)
    except RuntimeError as error:
        what = f"this build of llvmlite makes no code for NVIDIA's GPUs: {error}"
        help_ = "the wheels of llvmlite 0.44 and later have it"
        raise DeviceError(what, help=help_, code="E443") from error
    version = f"+ptx{PTX.get(capability, OLDEST_PTX)}"
    return made.create_target_machine(
        cpu=f"sm_{capability}", features=version, opt=SPEED, codemodel="default"
    )


def ptx(text: str, capability: int) -> str:
    """PTX of LLVM IR. Raises: DeviceError where LLVM has no such target."""
    llvm, machine = binding(), _machine(capability)
    try:
        module = llvm.parse_assembly(text, context=llvm.create_context())
    except RuntimeError as error:
        raise InvalidIR(f"LLVM refuses the emitted text: {error}") from error
    with module:
        module.triple = TRIPLE
        module.data_layout = str(machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=SPEED)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return str(machine.emit_assembly(module))


@dataclass(frozen=True, slots=True)
class Assembled:
    """A cubin, and what the assembler tells of it: registers of a thread, bytes spilled."""

    cubin: bytes
    registers: int
    spilled: int


def ptxas() -> str | None:
    """The assembler: of the path, or of Triton's wheel."""
    spec = find_spec("triton")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    for place in places:
        path = Path(place, "backends", "nvidia", "bin", "ptxas")
        if path.exists():
            return str(path)
    return shutil.which("ptxas")


def assembled(text: str, capability: int) -> Assembled:
    """PTX as a cubin. Raises: DeviceError where there is no assembler, or with what it says."""
    tool = ptxas()
    if tool is None:
        what = "there is no ptxas to assemble with"
        raise DeviceError(what, help="pip install 'pullback[gpu]' brings one", code="E441")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(text, encoding="utf-8")
        line = [tool, "-v", f"-arch=sm_{capability}", str(source), "-o", str(cubin)]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise InvalidIR(f"ptxas refuses the emitted text: {done.stderr.strip()[:2000]}")
        used = map(int, REGISTERS.findall(done.stderr))
        spilled = sum(map(int, SPILLS.findall(done.stderr)))
        return Assembled(cubin.read_bytes(), max(used, default=0), spilled)
