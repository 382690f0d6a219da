"""Whole programs as text: modules, parameters of which some are trained, and what is computed."""

from pullback.daten.model import Model, parse, read

__all__ = ["Model", "parse", "read"]
