"""Perturbs the global state of processes: random generators, threads, rounding, locale. No result may depend on it.

With the variables of `perturbed_environment`, Python imports `perturbed/sitecustomize.py` when it starts. Each process
writes a file into the folder $PERTURBED_MARKS; the file's name holds the process id and a string hash.
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

FOLDER = Path(__file__).parent / "perturbed"
ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def perturb_random_states() -> None:
    """Seed all loaded global generators with a number that no other process has."""
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(seed)
    if "PERTURBED_MARKS" in os.environ:
        open(
            os.path.join(os.environ["PERTURBED_MARKS"], f"{os.getpid()}-{hash('hash')}"), "w"
        ).close()


def flush_to_zero() -> None:
    """Flush denormal numbers to zero in this thread and in threads that it starts, as some libraries do."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        environment = (ctypes.c_uint32 * 8)()  # the last one is the register of SSE
        ctypes.CDLL(None).fegetenv(environment)
        environment[7] |= 1 << 15 | 1 << 6
        ctypes.CDLL(None).fesetenv(environment)


class PerturbingLoader(importlib.abc.Loader):
    """Loads a module, and then perturbs its global state."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        perturb_random_states()
        if module.__name__ == "torch":
            module.set_num_threads(random.randint(1, 3))
            module.set_float32_matmul_precision(random.choice(["highest", "medium"]))
            module.backends.mkldnn.enabled = random.random() < 0.5


class PerturbingFinder(importlib.abc.MetaPathFinder):
    """Finds torch and numpy when they are first imported, with a `PerturbingLoader`."""

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
            spec.loader = PerturbingLoader(spec.loader)
        return spec


def perturb_process() -> None:
    """Perturb the global state of this process, and of its forks."""
    os.environ.update(dict.fromkeys(THREADS, random.choice("123")))
    with suppress(locale.Error):  # if this machine has it
        locale.setlocale(locale.LC_ALL, random.choice(["C", "de_DE.UTF-8", "tr_TR.UTF-8"]))
    if random.random() < 0.5:
        flush_to_zero()
    sys.meta_path.insert(0, PerturbingFinder())
    os.register_at_fork(after_in_child=perturb_random_states)
    perturb_random_states()


def perturbed_environment(marks: Path | None = None) -> Mapping[str, str]:
    """Return environment variables that perturb child processes. `marks` is the folder for their files."""
    paths = [str(FOLDER), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "random"}
    return found if marks is None else {**found, "PERTURBED_MARKS": str(marks)}
