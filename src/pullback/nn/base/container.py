"""Modules that hold modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pullback.nn.base.module import Module


class Sequential(Module):
    """``y = last(.. first(x))``

    Example:
        >>> nn.Sequential(nn.Linear(2, 3), nn.ReLU())(pb.ones((5, 2))).shape
        (5, 3)
    """

    def __init__(self, *args: Module | Mapping[str, Module]) -> None:
        super().__init__()
        for name, module in _named(args):
            self.register_module(name, module)

    def forward(self, input: Any) -> Any:
        for module in self.children():
            input = module(input)
        return input

    def append(self, module: Module) -> Sequential:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return list(self._modules.values())[index]


class ModuleList(Module):
    """A list of modules, numbered in the state_dict.

    Example:
        >>> layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        >>> len(layers)
        3
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ModuleList(list(self._modules.values())[index])
        return list(self._modules.values())[index]

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(list(self._modules)[index], module)

    def __repr__(self) -> str:
        lines = []
        place = 0
        for text, run in groupby(repr(m) for m in self):
            size = len(list(run))
            name = f"({place})" if size == 1 else f"({place}-{place + size - 1}): {size} x"
            lines.append(f"  {name}{':' if size == 1 else ''} {text}".replace("\n", "\n  "))
            place += size
        return "\n".join(["ModuleList(", *lines, ")"]) if lines else "ModuleList()"


class ModuleDict(Module):
    """Modules by name.

    Example:
        >>> heads = nn.ModuleDict({"a": nn.Linear(2, 2)})
        >>> list(heads.keys())
        ['a']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add or replace modules."""
        for name, module in modules.items():
            self.register_module(name, module)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return self._modules.items()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.register_module(name, module)


def _named(args: tuple[Module | Mapping[str, Module], ...]) -> Iterator[tuple[str, Module]]:
    for number, module in enumerate(args):
        if isinstance(module, Module):
            yield str(number), module
        else:
            yield from module.items()
