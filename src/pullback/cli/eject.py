"""`pullback eject`: an operation or a layer with its derivative, as one file that stands alone."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pullback import nn
from pullback.bridge.eject import ejected
from pullback.bridge.eject_triton import ejected_triton
from pullback.bridge.flat import Lying, Shape
from pullback.bridge.signature import Parameter, Signature, signature_of
from pullback.cli.command import Output, command
from pullback.cli.programs import function_named
from pullback.cli.shapes import data_indices, parsed, shapes_of, size_of, typed
from pullback.cli.view import has_folder, save
from pullback.ir.dtype import ALL, DType, int64
from pullback.ir.expr import Dim, upper
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import dim

LAYER = re.compile(r"nn\.\w+\(.*\)", re.DOTALL)
STAR = inspect.Parameter.VAR_POSITIONAL
LOOSE = (STAR, inspect.Parameter.VAR_KEYWORD)
ENDS = (".c", ".py")
LANGUAGES = ("c", "triton")
KINDS = {d.name: d for d in ALL}
EXAMPLE = """\
pullback eject "c[i, j] = sum[k](a[i, k] * b[k, j])" --shape a=64,32 --shape b=32,16 -o product.c
pullback eject "nn.LayerNorm(256)" --shape input=32,256 -o layer_norm.py
pullback eject "nn.GELU()" --shape input=32,256 --language triton -o gelu.py
pullback eject my_module:my_function --shape x=4,5 --set dim=-1 --dtype float64 -o mine.py"""

# What is made of WHAT: the function, its name, its signature, shapes and types by name.
Given = tuple[Callable[..., Any], str, Signature, dict[str, tuple[int, ...]], dict[str, DType]]


@command(example=EXAMPLE)
@click.argument("what")
@click.option("-o", "--out", "path", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--dim", "dims", multiple=True, help="n=1,512: the bounds of a symbolic first axis")
@click.option("--type", "types", multiple=True, help="ids=int64: the type of an input")
@click.option("--dtype", default="float32", help="of all other inputs")
@click.option("--set", "settings", multiple=True, help="dim=-1: an argument that is no tensor")
@click.option(
    "--eval", "evaluation", is_flag=True, help="a layer in evaluation, of its buffers too"
)
@click.option("--name", help="what its functions are called")
@click.option(
    "--language", type=click.Choice(LANGUAGES), default="c", help="of the functions in a file.py"
)
def eject(
    out: Output,
    what: str,
    path: Path,
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    dims: tuple[str, ...],
    types: tuple[str, ...],
    dtype: str,
    settings: tuple[str, ...],
    evaluation: bool,
    name: str | None,
    language: str,
) -> None:
    """Write WHAT and its derivative as one file of C, or Triton, that needs no pullback.

    WHAT is a definition as text; module:function or file.py:function, with a --shape for each
    tensor; or a layer of pb.nn, "nn.Linear(64, 32)", or of several,
    "nn.Sequential(nn.Linear(64, 32), nn.GELU())", whose parameters are arguments too. A file.c has
    NAME_forward and NAME_backward. A file.py has the same, compiled at its first import, as a
    function of PyTorch's tensors that is differentiable, and of NumPy's arrays. In Triton a
    file.py needs PyTorch and Triton: on a GPU, or by its interpreter.
    """
    if language != LANGUAGES[0] and path.suffix != ENDS[1]:
        raise click.UsageError(f"-o {path}: --language {language} is written as {ENDS[1]}")
    if path.suffix not in ENDS:
        raise click.UsageError(f"-o {path}: a file that ends in {' or '.join(ENDS)}")
    has_folder(path)
    extents = dict(map(_dim, dims))
    plain = [_numbers(option, extents) for option in shapes]
    function, own, signature, known, fixed = _given(what, plain, sizes, settings, evaluation)
    lying: dict[str, Shape] = {**known, **{n: s for n, s in map(_symbolic(extents), shapes) if s}}
    kinds = {n: _kind(k) for n, k in map(_pair, types)}
    for given in kinds:
        if given not in known:
            raise click.UsageError(f"--type {given}=..: there are {', '.join(known)}")
    for unknown in known.keys() - {p.name for p in signature.parameters}:
        raise click.UsageError(f"--shape {unknown}=..: no argument is called so")
    every = _kind(dtype)
    args = [
        Lying(lying[p.name], kinds.get(p.name) or fixed.get(p.name) or every)
        for p in signature.parameters
    ]
    with out.working("compiling"):
        if language == LANGUAGES[0]:
            made = ejected(function, name or own, signature, args)
            text = made.c() if path.suffix == ENDS[0] else made.python()
            parts = [p.name for p in made.parts]
        else:
            text, parts = ejected_triton(function, name or own, signature, args)
    save(path, text)
    size = path.stat().st_size
    out.show(f"{path}: {', '.join(parts)}, {size:,} bytes")
    out.tell(file=str(path), functions=parts, bytes=size)


def _given(
    what: str,
    shapes: Sequence[str],
    sizes: Sequence[str],
    settings: Sequence[str],
    evaluation: bool,
) -> Given:
    """Raises: click.UsageError for what is none of the forms."""
    is_layer = LAYER.fullmatch(what) is not None
    if settings and (is_layer or "=" in what):
        raise click.UsageError('--set is for a function; of a layer, write nn.GELU("tanh")')
    if sizes and (is_layer or "=" not in what):
        raise click.UsageError("--size is for a definition given as text")
    if is_layer:
        return _layer(what, shapes, not evaluation)
    if "=" in what:
        return _text(what, shapes, sizes)
    values = {n: _value(text) for n, text in map(_pair, settings)}
    known = dict(map(parsed, shapes))
    function = function_named(what)
    call, names = _bound(function, list(known), values)
    signature = Signature(tuple(Parameter(n, "Tensor") for n in names))
    return call, what.rpartition(":")[2], signature, known, {}


def _bound(
    function: Callable[..., Any], tensors: Sequence[str], values: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[str]]:
    """A function of its tensors, in its own order, with all else as it is set, and their names.

    Raises: click.UsageError for an argument without a value, and a value without an argument.
    """
    every = inspect.signature(function).parameters
    if any(p.kind is STAR for p in every.values()):
        return functools.partial(function, **values), list(tensors)
    for option, names in (("--shape", tensors), ("--set", [*values])):
        for unknown in [n for n in names if n not in every]:
            raise click.UsageError(f"{option} {unknown}=..: no argument is called so")
    for name, parameter in every.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in LOOSE
        if needed and name not in tensors and name not in values:
            raise click.UsageError(f"{name}? --shape {name}=.. of a tensor, --set {name}=..")
    order = [n for n in every if n in tensors]

    def call(*args: Any) -> Any:
        given = {**values, **dict(zip(order, args, strict=True))}
        first = [n for n, p in every.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        row = [given.pop(n) for n in first if n in given]
        return function(*row, **given)

    return call, order


def _signature(function: Callable[..., Any], known: Mapping[str, Any]) -> Signature:
    """What a function takes; of ``*inputs``, as many tensors as have shapes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is STAR for p in parameters):
        return Signature(tuple(Parameter(n, "Tensor") for n in known))
    return signature_of(function, {}, 1)


def _text(text: str, shapes: Sequence[str], sizes: Sequence[str]) -> Given:
    """A definition; the last of several is the result."""
    known, extents = shapes_of(text, shapes), dict(map(size_of, sizes))

    def definition(*inputs: Any) -> Any:
        made = typed(text, extents, dict(zip(known, inputs, strict=True)))
        return made[-1] if isinstance(made, tuple) else made

    signature = Signature(tuple(Parameter(n, "Tensor") for n in known))
    indices = data_indices(text, known)
    last = text.rsplit(";", 1)[-1].partition("[")[0].partition("=")[0].strip()
    name = last if last.isidentifier() else "definition"
    return definition, name, signature, dict(known), dict.fromkeys(indices, int64)


# --- layers


def _layer(what: str, shapes: Sequence[str], training: bool) -> Given:
    """A layer as a function of its inputs and its parameters; in evaluation of its buffers too."""
    layer = _built(ast.parse(what, mode="eval").body)
    if not isinstance(layer, nn.Module):
        raise click.UsageError(f"{what!r} is no layer")
    known = dict(map(parsed, shapes))
    own = _signature(layer.forward, known)
    inputs = [p for p in own.parameters if p.name in known]
    needed = [p for p in own.parameters if p.is_tensor and not p.default and p.name not in known]
    if needed and needed[0].kind == "Tensor":
        raise click.UsageError(f"the shape of {needed[0].name}? --shape {needed[0].name}=2,3")
    held = [*(layer.named_parameters() if training else layer._cells().items())]
    cells = dict(zip(_names([n for n, _ in held], inputs), held, strict=True))
    fixed = {n: c.dtype for n, (_, c) in cells.items() if not c.dtype.is_float}
    twin = layer.copy().train(training)

    rows = [p.name for p in inspect.signature(layer.forward).parameters.values() if p.kind is STAR]

    def call(*args: Any) -> Any:
        for (name, _), tensor in zip(cells.values(), args[len(inputs) :], strict=True):
            _put(twin, name, tensor)
        given = dict(zip([p.name for p in inputs], args, strict=False))
        return twin(*given.values()) if rows else twin(**given)

    names = [*(p.name for p in inputs), *cells]
    signature = Signature(tuple(Parameter(n, "Tensor") for n in names))
    known |= {n: tuple(map(upper, c.shape)) for n, (_, c) in cells.items()}
    return (
        call,
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(layer).__name__).lower(),
        signature,
        known,
        fixed,
    )


def _names(paths: Sequence[str], inputs: Sequence[Parameter]) -> list[str]:
    """Of parameters, as arguments: ``0.weight -> layer0_weight``, beside those of inputs."""
    taken = {p.name for p in inputs}
    names = [re.sub(r"^(?=\d)", "layer", path.replace(".", "_")) for path in paths]
    return [f"{name}_" if name in taken else name for name in names]


def _put(layer: nn.Module, path: str, tensor: Tensor) -> None:
    """Let the parameter or buffer at `path` be a tensor."""
    *homes, name = path.split(".")
    for home in homes:
        layer = layer._modules[home]
    place: dict[str, Any] = layer._parameters if name in layer._parameters else layer._buffers
    place[name] = tensor


def _built(node: ast.expr) -> Any:
    """``nn.Linear(2, 3, bias=False)``: names of pb.nn, called with literals and such layers."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        home, name = node.func.value, node.func.attr
        make = getattr(nn, name, None)
        if isinstance(home, ast.Name) and home.id == "nn" and inspect.isclass(make):
            given = {k.arg: _built(k.value) for k in node.keywords if k.arg is not None}
            return make(*map(_built, node.args), **given)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        said = ast.unparse(node)
        raise click.UsageError(f"{said!r} is neither a literal nor a layer of pb.nn") from error


# --- options


def _dim(option: str) -> tuple[str, Dim]:
    """``n=1,512``: a symbolic extent. Raises: click.BadParameter."""
    name, bounds = parsed(option)
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise click.BadParameter(f"{option!r} is not of the form n=1,512", param_hint="--dim")
    return name, dim(name, *bounds)


def _numbers(option: str, extents: Mapping[str, Dim]) -> str:
    """``x=n,64 -> x=512,64``: a shape at its upper bounds."""
    name, equals, shape = option.partition("=")
    parts = [str(extents[e].hi) if e in extents else e for e in shape.split(",")]
    return f"{name}{equals}{','.join(parts)}"


def _symbolic(extents: Mapping[str, Dim]) -> Callable[[str], tuple[str, Shape]]:
    """The shape of an option that names extents; () of another."""

    def shape(option: str) -> tuple[str, Shape]:
        name, _, text = option.partition("=")
        parts = text.split(",")
        if not any(e in extents for e in parts):
            return name, ()
        return name, tuple([extents[e] if e in extents else int(e) for e in parts])

    return shape


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{option!r} is not of the form name=value")
    return name, value


def _kind(name: str) -> DType:
    if name not in KINDS:
        raise click.BadParameter(f"{name!r} is no type: {', '.join(KINDS)}")
    return KINDS[name]


def _value(text: str) -> Any:
    """A number, a truth, None, or else text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
