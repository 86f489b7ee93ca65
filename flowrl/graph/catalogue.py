"""The catalogue finds the class that a type's name in a graph means, and imports it when it is first needed.

A name is either registered or an import path. Names are registered by flowrl and by packages with an entry point of the
group `flowrl.catalogue`. An import path is `package.module:Class`, or `module:Class` of a Python file beside the graph.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

from flowrl.core.config import Part
from flowrl.core.errors import UsageError, spelling_hint
from flowrl.core.import_paths import (
    STANDARD_LIBRARY_HINT,
    StandardLibraryError,
    refuse_standard_library,
)
from flowrl.core.node import Node
from flowrl.core.ports import Link, Service
from flowrl.core.project_modules import has_module, importable_modules
from flowrl.core.signatures import written_doc
from flowrl.core.wording import with_article

GROUP = "flowrl.catalogue"
BUILT_IN = "flowrl.nodes.catalogue:CATALOGUE"  # kind -> name -> "package.module:Class"

T = TypeVar("T")
Table = Mapping[str, Mapping[str, str]]


class UnknownTypeError(LookupError):
    """A type cannot be found or imported."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(f"{what}; {hint}" if hint else what)


class MissingModuleError(UnknownTypeError):
    """The module of an import path cannot be found."""


@dataclass
class Catalogue:
    """Finds types by name. `folders` are the folders of modules beside the graph."""

    folders: tuple[Path, ...] = ()
    _tables: list[Table] = field(default_factory=list)
    _found: dict[tuple[str, str], type[Any]] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        """All registered names of a kind, sorted."""
        return sorted({name for table in self._all_tables() for name in table.get(kind, {})})

    def kinds(self) -> list[str]:
        """All registered kinds, sorted."""
        return sorted({kind for table in self._all_tables() for kind in table})

    def find(self, kind: str, name: str) -> type[Any]:
        if (kind, name) not in self._found:
            self._found[kind, name] = self._find(kind, name)
        return self._found[kind, name]

    def find_by_path(self, path: str) -> tuple[str, Any]:
        """What an import path names: the kind and the type, or an empty kind and another class or a function."""
        found = self._import(path)
        if is_type(getattr(found, "node", found), Node):
            return "node", _node_type(path, found)
        if is_type(found, Part):
            return found.kind or "part", found
        if not callable(found):
            what = f"'{path}' is {with_article(type(found).__name__)}"
            raise UnknownTypeError(what, "name a class or a function")
        return "", found

    def path(self, kind: str, name: str) -> str | None:
        """The import path of a registered name."""
        for table in self._all_tables():
            if name in table.get(kind, {}):
                return table[kind][name]
        return None

    def _find(self, kind: str, name: str) -> type[Any]:
        path = name if ":" in name else self.path(kind, name)
        if path is None:
            hint = f"{spelling_hint(name, self.names(kind))} (your own: 'package.module:Class')"
            raise UnknownTypeError(f"unknown {kind} type '{name}'", hint)
        found = self._import(path)
        return _node_type(name, found) if kind == "node" else _part_type(kind, name, found)

    def _all_tables(self) -> list[Table]:
        if not self._tables:
            self._tables.append(_load_table(BUILT_IN))
            for point in importlib.metadata.entry_points(group=GROUP):
                self._tables.append(_load_table(point.value))
        return self._tables

    def _import(self, path: str) -> Any:
        with importable_modules(self.folders):
            return self._import_now(path)

    def _import_now(self, path: str) -> Any:
        module, _, name = path.partition(":")
        _refuse_malformed(path)
        self._refuse_hidden_module(module.partition(".")[0])
        try:
            refuse_standard_library(path)
        except StandardLibraryError as refused:
            raise UnknownTypeError(refused.what, STANDARD_LIBRARY_HINT) from refused
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(error.name + ".")):
                beside = " or ".join("this folder" if f == Path() else str(f) for f in self.folders)
                raise MissingModuleError(
                    f"'{path}': there is no module '{error.name}'",
                    f"install it, or put it into {beside or 'the folder of a graph of your own'}",
                ) from error
            raise UnknownTypeError(
                f"'{path}' needs the module '{error.name}'", "install it"
            ) from error
        except (Exception, SystemExit) as error:
            raise UnknownTypeError(
                f"'{path}' cannot be imported: {_error_location(error)}"
            ) from error
        if not hasattr(found, name):
            raise UnknownTypeError(
                f"'{path}': the module '{module}' has no '{name}'",
                spelling_hint(name, _defined_names(found)),
            )
        return getattr(found, name)

    def _refuse_hidden_module(self, module: str) -> None:
        """Refuse a module beside the graph that an installed module of the same name would hide."""
        beside = [f for f in self.folders if has_module(f, module)]
        spec = _module_spec(module) if beside else None
        if spec is None or spec.origin is None:
            return
        found = Path(spec.origin).resolve()
        own_files = {
            p.resolve() for f in beside for p in (f / f"{module}.py", f / module / "__init__.py")
        }
        if found not in own_files:
            what = f"the module '{module}' beside the graph is hidden by {found}"
            raise UnknownTypeError(what, f"rename {beside[0] / module}")


def _refuse_malformed(path: str) -> None:
    """Refuse what has not the form of an import path, such as the path of a file."""
    module, _, name = path.partition(":")
    is_file = module.endswith(".py")
    if is_file or "/" in path or not all([*module.split("."), name]):
        module = Path(module).stem if is_file else "package.module"
        hint = f"write '{module}:{name or 'Class'}'"
        raise UnknownTypeError(f"'{path}' is not an import path", hint)


def _defined_names(module: ModuleType) -> list[str]:
    """The classes and functions that a module defines."""
    found = vars(module).items()
    return [n for n, v in found if getattr(v, "__module__", "") == module.__name__ and callable(v)]


def _module_spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _error_location(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def is_type(found: Any, *bases: type[T]) -> TypeGuard[type[T]]:
    """Whether `found` is a class with one of these bases. (Python 3.10 takes `list[int]` for a class, too.)"""
    return isinstance(found, type) and not set(bases).isdisjoint(found.__mro__)


def type_summary(cls: type[Any]) -> str:
    """A type in one line: of its docstring, or of its module's if the module defines no other type."""
    module = sys.modules[cls.__module__]
    types = [
        v
        for v in vars(module).values()
        if is_type(v, Node, Part) and v.__module__ == cls.__module__
    ]
    text = module.__doc__ if types == [cls] and module.__doc__ else written_doc(cls)
    return (text or "").strip().partition("\n")[0]


def _node_type(name: str, found: Any) -> type[Node]:
    found = getattr(found, "node", found)  # of a decorated function
    if not is_type(found, Node):
        hint = "subclass flowrl.Node, or decorate a function with @flowrl.as_node"
        raise UnknownTypeError(f"'{name}' is not a node type", hint)
    driven = [n for n, p in found.ports.items() if not isinstance(p, Link | Service)]
    if driven and found.fire is Node.fire:
        raise UnknownTypeError(
            f"'{name}' has the port '{driven[0]}' and never fires", "define fire"
        )
    return found


def _part_type(kind: str, name: str, found: Any) -> type[Part]:
    if not is_type(found, Part):
        raise UnknownTypeError(
            f"'{name}' is not {with_article(kind)} type", f"subclass the library's {kind} class"
        )
    if found.kind != kind:
        is_kind = with_article(found.kind or "nameless")
        raise UnknownTypeError(f"'{name}' is {is_kind} type; expected {with_article(kind)}")
    return found


def _load_table(path: str) -> Table:
    module, _, name = path.partition(":")
    try:
        table: Table = getattr(importlib.import_module(module), name)
    except Exception as error:  # a third-party package may raise anything
        raise UsageError(
            f"the catalogue '{path}' cannot be loaded: {error}; reinstall its package, "
            "or run from an installed checkout ('make run' sets one up)"
        ) from error
    return table
