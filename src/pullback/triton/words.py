"""What each operation of TTIR is called in Triton, its derivative, or why it has none.

In a derivative `{g}` is what comes from the result, `{x}` and `{z}` are operands, `{y}` the result.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pullback.triton import library
from pullback.triton.nodes import Operation, Type

ELEMENTS = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
    "i1": "tl.int1", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64",
    "f8E5M2": "tl.float8e5", "f8E4M3FN": "tl.float8e4nv",
}  # fmt: skip
# The types of constants.
NUMBERS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn,
}  # fmt: skip

# Of elements alone: operands by place.
ELEMENTWISE = {
    "arith.addf": "{0} + {1}", "arith.subf": "{0} - {1}", "arith.mulf": "{0} * {1}",
    "arith.divf": "{0} / {1}", "tt.precise_divf": "tl.div_rn({0}, {1})", "arith.negf": "-{0}",
    "arith.addi": "{0} + {1}", "arith.subi": "{0} - {1}", "arith.muli": "{0} * {1}",
    "arith.divsi": "{0} // {1}", "arith.remsi": "{0} % {1}",
    "arith.remf": "{0} % {1}",
    "arith.andi": "{0} & {1}", "arith.ori": "{0} | {1}", "arith.xori": "{0} ^ {1}",
    "arith.shli": "{0} << {1}", "arith.shrsi": "{0} >> {1}",
    "arith.maxsi": "tl.maximum({0}, {1})", "arith.minsi": "tl.minimum({0}, {1})",
    "arith.maxnumf": "tl.maximum({0}, {1})", "arith.minnumf": "tl.minimum({0}, {1})",
    "arith.maximumf": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "arith.minimumf": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "arith.select": "tl.where({0}, {1}, {2})",
    "math.exp": "tl.exp({0})", "math.exp2": "tl.exp2({0})", "math.log": "tl.log({0})",
    "math.log2": "tl.log2({0})", "math.sin": "tl.sin({0})", "math.cos": "tl.cos({0})",
    "math.sqrt": "tl.sqrt({0})", "tt.precise_sqrt": "tl.sqrt_rn({0})",
    "math.rsqrt": "tl.rsqrt({0})", "math.erf": "tl.erf({0})", "math.absf": "tl.abs({0})",
    "math.absi": "tl.abs({0})", "math.floor": "tl.floor({0})", "math.ceil": "tl.ceil({0})",
    "math.fma": "tl.fma({0}, {1}, {2})",
    "tt.clampf": "tl.clamp({0}, {1}, {2})",
    "tt.mulhiui": "tl.umulhi({0}, {1})",
}  # fmt: skip

ELEMENTWISE |= library.calls()

# The signless integers of TTIR, taken as without a sign.
UNSIGNED = {
    "arith.divui": "{0} // {1}", "arith.remui": "{0} % {1}", "arith.shrui": "{0} >> {1}",
    "arith.maxui": "tl.maximum({0}, {1})", "arith.minui": "tl.minimum({0}, {1})",
    "tt.mulhiui": "tl.umulhi({0}, {1})",
}  # fmt: skip

CASTS = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.fptosi", "arith.extsi",
         "arith.trunci", "arith.index_cast")  # fmt: skip
UNSIGNED_CASTS = ("arith.extui", "arith.uitofp", "arith.fptoui")

# Of integers; of floats the ordered ones; unordered ones are the opposite of another.
COMPARISONS = {
    "slt": "<", "sle": "<=", "sgt": ">", "sge": ">=", "eq": "==", "ne": "!=",
    "olt": "<", "ole": "<=", "ogt": ">", "oge": ">=", "oeq": "==", "une": "!=",
}  # fmt: skip
WITHOUT_SIGN = {"ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}
OPPOSITES = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}

HALF_TIE = "tl.where({0} == {1}, 0.5 * {g}, tl.where(({0} {w} {1}) | ({1} != {1}), {g}, 0.0))"

# To each operand, by place: what is added to its derivative.
DERIVATIVES: dict[str, tuple[str, ...]] = {
    "arith.addf": ("{g}", "{g}"),
    "arith.subf": ("{g}", "-{g}"),
    "arith.mulf": ("{g} * {z}", "{g} * {x}"),
    "arith.divf": ("{g} / {z}", "-{g} / {z} * {y}"),
    "tt.precise_divf": ("{g} / {z}", "-{g} / {z} * {y}"),
    "arith.remf": ("{g}", "-{g} * (({x} - {y}) / {z})"),
    "arith.negf": ("-{g}",),
    "arith.select": ("", "tl.where({x}, {g}, 0.0)", "tl.where({x}, 0.0, {g})"),
    "math.exp": ("{g} * {y}",),
    "math.exp2": ("{g} * {y} * 0.6931471805599453",),
    "math.log": ("{g} / {x}",),
    "math.log2": ("{g} / ({x} * 0.6931471805599453)",),
    "math.sin": ("{g} * tl.cos({x})",),
    "math.cos": ("-{g} * tl.sin({x})",),
    "math.sqrt": ("{g} * 0.5 / {y}",),
    "tt.precise_sqrt": ("{g} * 0.5 / {y}",),
    "math.rsqrt": ("{g} * -0.5 * {y} * {y} * {y}",),
    "math.erf": ("{g} * 1.1283791670955126 * tl.exp(-{x} * {x})",),
    "math.absf": ("{g} * tl.where({x} > 0, 1.0, tl.where({x} < 0, -1.0, 0.0))",),
    "math.fma": ("{g} * {z}", "{g} * {x}", "{g}"),
    "math.floor": ("",),
    "math.ceil": ("",),
    "tt.clampf": (
        "tl.where(({x} >= {z}) & ({x} <= {w}), {g}, 0.0)",
        "tl.where({x} < {z}, {g}, 0.0)",
        "tl.where({x} > {w}, {g}, 0.0)",
    ),
}
EXTREMES = {"arith.maxnumf": ">", "arith.maximumf": ">", "arith.minnumf": "<",
            "arith.minimumf": "<"}  # fmt: skip
DERIVATIVES |= {
    name: (
        HALF_TIE.replace("{0}", "{x}").replace("{1}", "{z}").replace("{w}", sign),
        HALF_TIE.replace("{0}", "{z}").replace("{1}", "{x}").replace("{w}", sign),
    )
    for name, sign in EXTREMES.items()
}

DERIVATIVES |= library.rules()

# Written by functions of forward.py and adjoint.py; what there is to say of their derivatives.
STRUCTURED = {
    "arith.constant": "none",
    "arith.cmpf": "none: steps are flat almost everywhere",
    "arith.cmpi": "none",
    "arith.extf": "the same, or cast back",
    "arith.truncf": "the same, or cast back",
    "cf.br": "of what it leads to",
    "cf.cond_br": "a branch, of what either way leads to",
    "scf.for": "a loop that runs back; carried values by a closed form, or kept on a tape",
    "scf.while": "a loop that runs back as often as it ran",
    "scf.if": "the same branch",
    "scf.yield": "of the operation around it",
    "scf.condition": "of the operation around it",
    "tt.addptr": "none: an address",
    "tt.assert": "left out",
    "tt.atomic_rmw": "of `fadd`, whose result nothing reads: a load",
    "tt.bitcast": "none; of floats whose bits make other floats: refused",
    "tt.broadcast": "a sum over what is repeated",
    "tt.descriptor_gather": "of a load by pointers",
    "tt.descriptor_load": "of a load by pointers",
    "tt.descriptor_reduce": "of an atomic operation by pointers",
    "tt.descriptor_scatter": "of a store by pointers",
    "tt.descriptor_store": "of a store by pointers",
    "tt.dot": "two products",
    "tt.expand_dims": "a reshape",
    "tt.fp_to_fp": "the same, or cast back; to 8 bits: refused",
    "tt.gather": "a sum by place",
    "tt.get_num_programs": "none",
    "tt.get_program_id": "none",
    "tt.join": "the two halves",
    "tt.load": "a store where no two elements share an address, else an atomic addition",
    "tt.make_range": "none",
    "tt.make_tensor_descriptor": "none: its pointers are written out",
    "tt.print": "left out",
    "tt.reduce": "of sums, maxima, minima, those with their index; else as of a scan",
    "tt.reduce.return": "of the operation around it",
    "tt.reshape": "a reshape",
    "tt.return": "none",
    "tt.scan": "a scan that runs back, by the derivative of its combiner",
    "tt.scan.return": "of the operation around it",
    "tt.splat": "a sum",
    "tt.split": "a join",
    "tt.store": "a load",
    "tt.trans": "the inverse permutation",
    "ttg.barrier": "left out",
    "gpu.barrier": "left out",
}

# Operations that change nothing: checks and messages.
SILENT = ("tt.assert", "tt.print", "tt.return", "scf.yield", "scf.condition", "gpu.barrier",
          "ttg.barrier", "tt.reduce.return", "tt.scan.return")  # fmt: skip

REASONS = {
    "arith.mulsi_extended": "two results at once",
    "arith.mului_extended": "two results at once",
    "tt.approx_divf": "not built: no operation of a kernel's source makes it",
    "tt.atomic_load": "what it gives depends on the order of programs",
    "tt.atomic_store": "what stays depends on the order of programs",
    "tt.atomic_cas": "what it gives depends on the order of programs",
    "tt.atomic_poll": "it waits for another program",
    "tt.cat": "its order is not told; `tl.join` has one",
    "tt.call": "a function that is not inlined (`noinline=True`)",
    "tt.dot_scaled": "values of 4 and 8 bits have no derivative",
    "tt.elementwise_inline_asm": "assembly: nobody says what it computes",
    "tt.extern_elementwise": "a function of a library that is in no row here",
    "tt.histogram": "counts have no derivative, and are made by no operation of a kernel's source",
    "tt.int_to_ptr": "an address out of a number: no argument owns it",
    "tt.map_elementwise": "a function of scalars: not built",
    "tt.ptr_to_int": "a number out of an address",
    "tt.unsplat": "a scalar out of a block: not built",
}


def named(operation: Operation) -> str:
    """The name by which an operation has its row: of a library's functions their own."""
    if operation.name != "tt.extern_elementwise":
        return operation.name
    return library.known(operation.attribute("symbol")) or operation.name


def literal(text: str, type: Type) -> str:
    """A constant of TTIR in Python's words; bits, where no digits say it."""
    if type.element == "i1":
        return "True" if text in ("true", "1", "-1") else "False"
    kind = NUMBERS.get(type.element)
    if kind is None:
        return text
    if text.startswith("0x"):
        bits = int(text, 16).to_bytes(np.dtype(kind).itemsize, "little")
        value = float(np.frombuffer(bits, kind)[0])
    else:  # the digits tell elements of less than 32 bits apart, and are not their numbers
        value = float(text) if type.element in ("f32", "f64") else float(kind(text))
    return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'


def is_literal(text: str) -> bool:
    """Whether a text is a number, of any type."""
    return text.removeprefix("-")[:1].isdigit() or text.startswith("float(")


def shape_of(shape: tuple[int, ...]) -> str:
    """``(16,)``"""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
