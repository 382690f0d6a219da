"""Functions of Triton's library of the device, `triton.language.extra.libdevice`: derivatives.

As in `words`: `{g}` comes from behind, `{x}`, `{z}`, `{w}` are operands, `{y}` is the result.
"""

from __future__ import annotations

IMPORT = "from triton.language.extra import libdevice\n"
_SYMBOL = "__nv_"

# By the name that CUDA gives them, what Triton calls them where that is another one.
NAMES = {"fabs": "abs", "fast_fdividef": "fast_dividef", "powi": "pow", "isnand": "isnan",
         "isinfd": "isinf", "signbitd": "signbit"}  # fmt: skip
# y' = f(x) - y / x, which is 1 / 2 at 0.
_BESSEL = "{g} * tl.where({x} == 0, 0.5, libdevice.FIRST({x}) - {y} / tl.where({x} == 0, 1.0, {x}))"

DERIVATIVES: dict[str, tuple[str, ...]] = {
    "abs": ("tl.where({x} > 0, {g}, tl.where({x} < 0, -{g}, 0.0))",),
    "acos": ("-{g} * tl.rsqrt(1 - {x} * {x})",),
    "acosh": ("{g} * tl.rsqrt({x} * {x} - 1)",),
    "asin": ("{g} * tl.rsqrt(1 - {x} * {x})",),
    "asinh": ("{g} * tl.rsqrt({x} * {x} + 1)",),
    "atan": ("{g} / ({x} * {x} + 1)",),
    "atan2": ("{g} * {z} / ({x} * {x} + {z} * {z})", "-{g} * {x} / ({x} * {x} + {z} * {z})"),
    "atanh": ("{g} / (1 - {x} * {x})",),
    "cbrt": ("{g} / (3 * {y} * {y})",),
    "ceil": ("",),
    "copysign": ("tl.where(({x} < 0) == ({y} < 0), {g}, -{g})", ""),
    "cos": ("-{g} * libdevice.sin({x})",),
    "cosh": ("{g} * libdevice.sinh({x})",),
    "cospi": ("{g} * -3.141592653589793 * libdevice.sinpi({x})",),
    "cyl_bessel_i0": ("{g} * libdevice.cyl_bessel_i1({x})",),
    "cyl_bessel_i1": (_BESSEL.replace("FIRST", "cyl_bessel_i0"),),
    "erf": ("{g} * 1.1283791670955126 * tl.exp(-{x} * {x})",),
    "erfc": ("{g} * -1.1283791670955126 * tl.exp(-{x} * {x})",),
    "erfcinv": ("{g} * -0.886226925452758 * tl.exp({y} * {y})",),
    "erfcx": ("{g} * (2 * {x} * {y} - 1.1283791670955126)",),
    "erfinv": ("{g} * 0.886226925452758 * tl.exp({y} * {y})",),
    "exp": ("{g} * {y}",),
    "exp10": ("{g} * {y} * 2.302585092994046",),
    "exp2": ("{g} * {y} * 0.6931471805599453",),
    "expm1": ("{g} * ({y} + 1)",),
    "fast_cosf": ("-{g} * libdevice.fast_sinf({x})",),
    "fast_dividef": ("{g} / {z}", "-{g} / {z} * {y}"),
    "fast_exp10f": ("{g} * {y} * 2.302585092994046",),
    "fast_expf": ("{g} * {y}",),
    "fast_log10f": ("{g} / ({x} * 2.302585092994046)",),
    "fast_log2f": ("{g} / ({x} * 0.6931471805599453)",),
    "fast_logf": ("{g} / {x}",),
    "fast_sinf": ("{g} * libdevice.fast_cosf({x})",),
    "fast_tanf": ("{g} * ({y} * {y} + 1)",),
    "fdim": ("tl.where({x} > {z}, {g}, 0.0)", "tl.where({x} > {z}, -{g}, 0.0)"),
    "floor": ("",),
    "fma": ("{g} * {z}", "{g} * {x}", "{g}"),
    "fmod": ("{g}", "-{g} * (({x} - {y}) / {z})"),
    "hypot": ("{g} * ({x} / {y})", "{g} * ({z} / {y})"),
    "j0": ("-{g} * libdevice.j1({x})",),
    "j1": (_BESSEL.replace("FIRST", "j0"),),
    "log": ("{g} / {x}",),
    "log10": ("{g} / ({x} * 2.302585092994046)",),
    "log1p": ("{g} / ({x} + 1)",),
    "log2": ("{g} / ({x} * 0.6931471805599453)",),
    "nearbyint": ("",),
    "norm3d": ("{g} * ({x} / {y})", "{g} * ({z} / {y})", "{g} * ({w} / {y})"),
    "normcdf": ("{g} * 0.3989422804014327 * tl.exp({x} * {x} * -0.5)",),
    "normcdfinv": ("{g} * 2.5066282746310002 * tl.exp({y} * {y} * 0.5)",),
    "pow": (
        "{g} * tl.where({z} == 0, 0.0, {z} * libdevice.pow({x}, {z} - 1))",
        "{g} * tl.where({x} > 0, {y} * libdevice.log(tl.where({x} > 0, {x}, 1.0)), 0.0)",
    ),
    "rcbrt": ("{g} * {y} / ({x} * -3)",),
    "remainder": ("{g}", "-{g} * (({x} - {y}) / {z})"),
    "rhypot": ("-{g} * {x} * {y} * {y} * {y}", "-{g} * {z} * {y} * {y} * {y}"),
    "rint": ("",),
    "round": ("",),
    "rsqrt": ("{g} * -0.5 * {y} * {y} * {y}",),
    "saturatef": ("tl.where(({x} >= 0) & ({x} <= 1), {g}, 0.0)",),
    "sin": ("{g} * libdevice.cos({x})",),
    "sinh": ("{g} * libdevice.cosh({x})",),
    "sinpi": ("{g} * 3.141592653589793 * libdevice.cospi({x})",),
    "sqrt": ("{g} * 0.5 / {y}",),
    "tan": ("{g} * ({y} * {y} + 1)",),
    "tanh": ("{g} * (1 - {y} * {y})",),
    "trunc": ("",),
    "y0": ("-{g} * libdevice.y1({x})",),
    "y1": ("{g} * (libdevice.y0({x}) - {y} / {x})",),
}
# Of whole numbers, or that tell of floats what is flat almost everywhere.
_FLAT = {"isnan": 1, "isinf": 1, "finitef": 1, "isfinited": 1, "signbit": 1}


def known(symbol: str) -> str:
    """What Triton calls a function of the library that has a derivative here; else nothing.

    ``"__nv_tanhf"``, ``"__nv_tanh"`` -> ``"libdevice.tanh"``: that of float32 ends in `f`.
    """
    stem = symbol.removeprefix(_SYMBOL)
    for name in (stem, stem.removesuffix("f")):
        name = NAMES.get(name, name)
        if symbol.startswith(_SYMBOL) and (name in DERIVATIVES or name in _FLAT):
            return f"libdevice.{name}"
    return ""


def calls() -> dict[str, str]:
    """How each is called, by its name."""
    arity = {name: len(rules) for name, rules in DERIVATIVES.items()} | _FLAT
    return {
        f"libdevice.{name}": f"libdevice.{name}({', '.join(f'{{{k}}}' for k in range(count))})"
        for name, count in arity.items()
    }


def rules() -> dict[str, tuple[str, ...]]:
    """The derivatives, by name."""
    return {f"libdevice.{name}": formulas for name, formulas in DERIVATIVES.items()}
