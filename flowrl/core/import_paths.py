"""Import paths: how files name Python's classes and functions, `package.module:Name`.

Graphs and crash files may come from others. So what a path leads to is looked at before it is called, and nothing of
Python's standard library is taken: `subprocess:call` is neither an env nor a node.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

STANDARD_LIBRARY_HINT = (
    "name a class or function of a module of your own, or of an installed package"
)


class StandardLibraryError(ImportError):
    """An import path leads into Python's standard library."""

    def __init__(self, path: str) -> None:
        self.what = f"'{path}' belongs to Python's standard library"
        super().__init__(f"{self.what}; {STANDARD_LIBRARY_HINT}")


def import_object(path: str) -> Any:
    """Import the class or function that a file names.

    Raise `StandardLibraryError` for a path into the standard library, whose module is then not imported, and for a
    class or function that another module has from there.
    """
    refuse_standard_library(path)
    found = import_any_object(path)
    if callable(found) and is_in_standard_library(_defining_module(found)):
        raise StandardLibraryError(path)
    return found


def import_any_object(path: str) -> Any:
    """Import the object that `package.module:Name` names. It may be a class within a class, `module:Outer.Inner`."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def refuse_standard_library(path: str) -> None:
    """Raise `StandardLibraryError` if the path's module is one of the standard library."""
    if is_in_standard_library(path.partition(":")[0]):
        raise StandardLibraryError(path)


def is_in_standard_library(module: str) -> bool:
    """Whether a module of this name is one of Python's own."""
    return module.partition(".")[0] in sys.stdlib_module_names


def without_arguments(found: Any) -> Any:
    """What a `functools.partial` calls; anything else is returned as it is."""
    while isinstance(found, partial):
        found = found.func
    return found


def _defining_module(found: Any) -> str:
    # some functions that are written in C have none
    return getattr(without_arguments(found), "__module__", None) or ""
