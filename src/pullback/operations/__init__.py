"""Operations in files: TOML that says names, shapes and the definition, as a function."""

from pullback.operations.operation import Operation, parse, read, written

__all__ = ["Operation", "parse", "read", "written"]
