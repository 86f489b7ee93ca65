"""Processes that begin with global states of their own: nothing that a run tells may depend on them.

`poisoned_environment` gives the variables with which Python imports `poisoned/sitecustomize.py` by itself. Each process
leaves a mark in $POISONED: its number, and a hash.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import locale
import os
import platform
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent / "poisoned"
ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def poison() -> None:
    """Other random states than any other process, in all that is loaded."""
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(seed)
    if "POISONED" in os.environ:
        open(os.path.join(os.environ["POISONED"], f"{os.getpid()}-{hash('hash')}"), "w").close()


def flush_to_zero() -> None:
    """Take very small numbers for zero in this thread and those that it starts, as libraries built for speed do."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        surroundings = (ctypes.c_uint32 * 8)()  # the last is the register of SSE
        ctypes.CDLL(None).fegetenv(surroundings)
        surroundings[7] |= 1 << 15 | 1 << 6
        ctypes.CDLL(None).fesetenv(surroundings)


class Poisoned(importlib.abc.Loader):
    """Loads a module, and poisons it."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        poison()
        if module.__name__ == "torch":
            module.set_num_threads(random.randint(1, 3))
            module.set_float32_matmul_precision(random.choice(["highest", "medium"]))
            module.backends.mkldnn.enabled = random.random() < 0.5


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch and numpy, once each."""

    def __init__(self) -> None:
        self._left = {"torch", "numpy"}

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._left:
            return None
        self._left.discard(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Poisoned(spec.loader)
        return spec


def poison_process() -> None:
    """From its beginning on."""
    os.environ.update(dict.fromkeys(THREADS, random.choice("123")))
    with suppress(locale.Error):  # as far as this machine has it
        locale.setlocale(locale.LC_ALL, random.choice(["C", "de_DE.UTF-8", "tr_TR.UTF-8"]))
    if random.random() < 0.5:
        flush_to_zero()
    sys.meta_path.insert(0, Finder())
    os.register_at_fork(after_in_child=poison)
    poison()


def poisoned_environment(marks: Path | None = None) -> Mapping[str, str]:
    """The variables; each process leaves a mark in a folder, if one is given."""
    paths = [str(FOLDER), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "random"}
    return found if marks is None else {**found, "POISONED": str(marks)}
