"""Operations in files: TOML that says names, shapes and the definition, as a function."""

from pullback.operations.function import from_function
from pullback.operations.operation import Operation, parse, read, written

__all__ = ["Operation", "from_function", "parse", "read", "written"]
