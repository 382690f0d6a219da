"""Modules: named parameters, buffers and sub-modules, under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast

from pullback.errors import AbsentError, StateError, UnsupportedError
from pullback.nn.base.parameter import Buffer, Parameter, label, put
from pullback.tensor.face.tensor import State, Tensor, from_array
from pullback.tensor.record.trace import observe

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Forward(Protocol[P, R_co]):
    """What a module of this `forward` is called with, and gives."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The layer's function."""


class Keys(NamedTuple):
    """What `load_state_dict` did not find, and what it did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A layer, or a tree of layers. Subclasses set parameters and modules as attributes in
    `__init__`, after ``super().__init__()``, and define `forward`.

    Example:
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a = nn.Parameter(pb.ones(2))
        ...     def forward(self, x):
        ...         return self.a * x
        >>> Scale()(pb.tensor([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer]
    _modules: dict[str, Module]

    def __init__(self) -> None:
        object.__setattr__(self, "training", True)
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_buffers", {})
        object.__setattr__(self, "_modules", {})

    def __setattr__(self, name: str, value: Any) -> None:
        home = self._home(name, value)
        for other in (self._parameters, self._buffers, self._modules):
            if other is not home:
                other.pop(name, None)
        if home is None:
            object.__setattr__(self, name, value)
            return
        self.__dict__.pop(name, None)
        home[name] = value
        if isinstance(value, State):
            label(value, name)

    def _home(self, name: str, value: Any) -> dict[str, Any] | None:
        if "_modules" not in self.__dict__:
            what = f"call super().__init__() before setting `{name}`"
            raise AbsentError(what, code="E342")
        if isinstance(value, Parameter) or (value is None and name in self._parameters):
            return self._parameters
        if isinstance(value, Buffer):
            return self._buffers
        return self._modules if isinstance(value, Module) else None

    def __getattr__(self, name: str) -> Any:
        for home in ("_parameters", "_buffers", "_modules"):
            own = self.__dict__.get(home, {})
            if name in own:
                return own[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for home in (self._parameters, self._buffers, self._modules):
            if name in home:
                del home[name]
                return
        object.__delattr__(self, name)

    def __call__(self: Forward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co:
        own = cast(Module, self)
        observe(own)
        result: R_co = own.forward(*map(from_array, args), **kwargs)
        return result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's function. Raises: UnsupportedError where a subclass has none."""
        raise UnsupportedError(f"{type(self).__name__} has no forward", code="E343")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Own `param` under `name`; None keeps the name free."""
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Any) -> None:
        """Own `tensor` as state that is not trained."""
        buffer = tensor if isinstance(tensor, Buffer) else Buffer(tensor)
        self._buffers[name] = buffer
        label(buffer, name)

    def register_module(self, name: str, module: Module) -> None:
        """Own `module` under `name`."""
        self._modules[name] = module

    add_module = register_module

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, outer ones first."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(_join(name, n), m) for n, m in module._modules.items()]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below."""
        return iter(self._modules.items())

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return iter(self._modules.values())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under its first name."""
        return _once(self._owned("_parameters", prefix, recurse))

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Buffer]]:
        """Every buffer once, under its first name."""
        return _once(self._owned("_buffers", prefix, recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Every buffer once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def _owned(self, home: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        owners: Iterable[tuple[str, Module]] = [(prefix, self)]
        if recurse:
            owners = self.named_modules(prefix)
        for path, module in owners:
            for name, cell in getattr(module, home).items():
                if cell is not None:
                    yield _join(path, name), cell

    def _cells(self) -> dict[str, Parameter | Buffer]:
        """Everything that a state_dict holds; a shared parameter stands under each of its names."""
        cells: dict[str, Parameter | Buffer] = {}
        for path, module in self.named_modules():
            for name, cell in (*module._parameters.items(), *module._buffers.items()):
                if cell is not None:
                    cells[_join(path, name)] = cell
        return cells

    def state_dict(self) -> dict[str, Tensor]:
        """The contents of now, by torch's names."""
        return {name: Tensor(cell.value) for name, cell in self._cells().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Keys:
        """Copy arrays (of NumPy, pullback or torch) into parameters and buffers, all or none.

        Raises: StateError for missing or unexpected names where `strict`; ShapeError; DTypeError.
        """
        cells = self._cells()
        missing = [n for n in cells if n not in state_dict]
        unexpected = [n for n in state_dict if n not in cells]
        if strict and (missing or unexpected):
            raise StateError(
                f"the state_dict does not fit {type(self).__name__}: "
                f"missing {missing}, unexpected {unexpected}",
                help="strict=False loads what fits",
            )
        put({name: cell for name, cell in cells.items() if name in state_dict}, state_dict)
        return Keys(missing, unexpected)

    def train(self, mode: bool = True) -> Self:
        """Switch every module to training (or, with False, evaluation)."""
        for module in self.modules():
            object.__setattr__(module, "training", mode)
        return self

    def eval(self) -> Self:
        """Switch every module to evaluation: dropout passes its input through."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say for every parameter whether a gradient is collected."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every gradient."""
        for parameter in self.parameters():
            parameter.grad = None

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call `fn` on every module, children first."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    def copy(self) -> Self:
        """A tree of the same modules with cells of its own, equal in value."""
        twins: dict[int, Any] = {}
        for module in reversed(list(self.modules())):
            twin = object.__new__(type(module))
            twin.__dict__.update(module.__dict__)
            below = {n: twins[id(m)] for n, m in module._modules.items()}
            object.__setattr__(twin, "_modules", below)
            for home in ("_parameters", "_buffers"):
                cells = {n: _twin(c, twins) for n, c in getattr(module, home).items()}
                object.__setattr__(twin, home, cells)
            twins[id(module)] = twin
        copied: Self = twins[id(self)]
        return copied

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def extra_repr(self) -> str:
        """What stands between the brackets in `repr`."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {_indent(repr(m))}" for name, m in self._modules.items()]
        head = type(self).__name__
        if not lines:
            return f"{head}({self.extra_repr()})"
        body = "\n  ".join(([self.extra_repr()] if self.extra_repr() else []) + lines)
        return f"{head}(\n  {body}\n)"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _once(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, cell in pairs:
        if id(cell) not in seen:
            seen.add(id(cell))
            yield name, cell


def _twin(cell: Any, twins: dict[int, Any]) -> Any:
    """A new cell with the contents of `cell`; the same one for a shared cell."""
    if cell is None:
        return None
    if id(cell) not in twins:
        twins[id(cell)] = cell.copy()
    return twins[id(cell)]
