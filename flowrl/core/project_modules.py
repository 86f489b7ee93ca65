"""Python modules beside a graph, importable while that graph is read, checked or run.

Graphs in different folders may have modules of the same name. So the folders are on `sys.path` for a while only, and
the modules of a folder leave `sys.modules` when those of another one are needed (docs/decisions/0010).
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def has_module(folder: Path, name: str) -> bool:
    return bool(name) and (
        (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    )


@contextmanager
def importable_modules(folders: Iterable[Path]) -> Iterator[None]:
    """Make the modules in these folders importable in this process for a while.

    They come after the installed modules, so that they do not hide any. A folder that the program itself has on
    `sys.path` stays as it is, with its modules.
    """
    absolute = list(dict.fromkeys(folder.resolve() for folder in folders))
    _PROJECTS.enter(absolute)
    try:
        yield
    finally:
        _PROJECTS.leave(absolute)


class ProjectModules:
    """The folders of graphs whose modules this process has imported, or may import now.

    Runs in several threads may need several folders at the same time. Then their modules must have different names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[Path] = Counter()  # of the folders that are on the path now
        self._added: set[Path] = set()  # those that were not on it before
        self._foreign: dict[Path, set[str]] = {}  # top-level modules that were loaded before
        self._modules: dict[Path, dict[str, ModuleType]] = {}  # imported from each folder

    def enter(self, folders: list[Path]) -> None:
        with self._lock:
            for folder, modules in self._modules.items():
                if not self._users[folder] and folder not in folders:
                    _unload(modules)
            for folder in folders:
                if not self._users[folder]:
                    self._begin(folder)
                self._users[folder] += 1

    def _begin(self, folder: Path) -> None:
        for name, module in self._modules.get(folder, {}).items():
            sys.modules.setdefault(name, module)
        self._foreign[folder] = {name for name in sys.modules if "." not in name}
        self._foreign[folder] -= self._modules.get(folder, {}).keys()
        if folder not in (Path(entry).resolve() for entry in sys.path):
            self._added.add(folder)
            sys.path.append(str(folder))

    def leave(self, folders: list[Path]) -> None:
        with self._lock:
            for folder in folders:
                self._users[folder] -= 1
                if not self._users[folder]:
                    self._end(folder)

    def _end(self, folder: Path) -> None:
        foreign = self._foreign.pop(folder)
        if folder not in self._added:
            return
        self._added.remove(folder)
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        self._modules.setdefault(folder, {}).update(_modules_of(folder, foreign))


_PROJECTS = ProjectModules()  # one, like `sys.modules`


def _modules_of(folder: Path, foreign: set[str]) -> dict[str, ModuleType]:
    """Return the modules that were imported from a folder, with their submodules."""
    top = {
        name
        for name, module in list(sys.modules.items())
        if "." not in name and name not in foreign and _is_in(folder, name, module)
    }
    return {
        name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in top
    }


def _is_in(folder: Path, name: str, module: ModuleType) -> bool:
    """Whether a top-level module is a file or package directly in this folder, not in a virtual environment within."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    homes = (folder / f"{name}.py", folder / name)
    return any(Path(place).resolve() in homes for place in places if place)


def _unload(modules: dict[str, ModuleType]) -> None:
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
