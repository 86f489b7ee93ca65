"""Global settings that the bits of a result depend on: threads, rounding, and the switches of numpy and torch.

The program that calls flowrl, or a library that a node imports, may have changed any of them for its process or
its thread. Without a reset, results would depend on the process that a node runs in. A run borrows the settings of its
process: `settled_numerics` puts them back.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from flowrl.machine import torch_settings
from flowrl.machine.global_setting import GlobalSetting, current_values, put_back, settle

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
INSTRUCTION_VARIABLES = (  # environment variables that choose a library's instruction set
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
    "NPY_ENABLE_CPU_FEATURES",
    "NPY_DISABLE_CPU_FEATURES",
)
NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
NUMPY_BUFFER_ELEMENTS = 8192
DEFAULT_FLOATING_POINT = ctypes.c_void_p(-1)  # FE_DFL_ENV of the C libraries of Linux
FLOATING_POINT_BYTES = 64  # more than `fenv_t` has on any of them
CPUS = "/sys/devices/system/cpu"


@contextmanager
def settled_numerics(threads: int) -> Iterator[None]:
    """Reset the numerics for the calling thread, and put everything back at the end, after errors too.

    Runs at the same time in threads of one process share the settings of the process: the last one puts them back.
    """
    with ExitStack() as stack:
        pools = _find_pools()
        settings = _thread_settings(threads, pools)
        before = current_values(settings)
        stack.callback(
            lambda: put_back(_thread_settings(_PROCESS.own_threads, _find_pools()), before)
        )
        settle(settings)
        stack.enter_context(_PROCESS.borrowed(pools))
        torch = _loaded_torch()
        if torch is not None:
            stack.enter_context(torch_settings.leaving_modes(torch))
        reset_numerics(threads)
        yield


def reset_numerics(threads: int) -> None:
    """Reset every numerical library to its defaults, with this number of threads, for the calling thread.

    Libraries that are loaded are set directly. Those that a node imports later read the number from the environment.
    """
    pools = _find_pools()
    settle(_thread_settings(threads, pools))
    settle(_process_settings(threads, pools))


def with_torch_threads(function: Callable[..., T], threads: int) -> Callable[..., T]:
    """Return the function. While it runs, torch has this number of threads in the thread that calls it."""

    def call(*arguments: Any) -> T:
        torch = _loaded_torch()
        if torch is None:
            return function(*arguments)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return function(*arguments)
        finally:
            torch.set_num_threads(before)

    return call


class BorrowedProcess:
    """The settings of this process before the first of the runs that borrow them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._borrowers = 0
        self.own_threads = 1  # with which the process's own libraries begin
        self._before: dict[str, Any] = {}

    @contextmanager
    def borrowed(self, pools: ThreadpoolController) -> Iterator[None]:
        """Put the settings back at the end, unless another run still borrows them."""
        with self._lock:
            if not self._borrowers:
                self.own_threads = _default_threads()
                self._before = current_values(_process_settings(self.own_threads, pools))
            self._borrowers += 1
        try:
            yield
        finally:
            with self._lock:
                self._borrowers -= 1
                if not self._borrowers:
                    settings = _process_settings(self.own_threads, _find_pools())
                    put_back(settings, self._before)


_PROCESS = BorrowedProcess()  # one for all runs, because their process is one


def _process_settings(threads: int, pools: ThreadpoolController) -> list[GlobalSetting]:
    """Return the settings that all threads of this process share."""
    settings = [_variable_setting(name, str(threads)) for name in THREAD_VARIABLES]
    settings += _pool_settings(pools, "blas", threads)
    torch = _loaded_torch()
    if torch is not None:
        settings += torch_settings.process_settings(torch, threads)
    return settings


def _thread_settings(threads: int, pools: ThreadpoolController) -> list[GlobalSetting]:
    """Return the settings that each thread has for itself."""
    settings = [
        *_pool_settings(pools, "openmp", threads),
        GlobalSetting("numpy errors", np.geterr, lambda value: np.seterr(**value), NUMPY_ERRORS),
        GlobalSetting("numpy buffer", np.getbufsize, np.setbufsize, NUMPY_BUFFER_ELEMENTS),
    ]
    torch = _loaded_torch()
    if torch is not None:
        settings += torch_settings.thread_settings(torch)
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        # IEEE arithmetic: some libraries make the thread that loads them flush denormal numbers to zero.
        settings.append(GlobalSetting("rounding", _floating_point, _set_floating_point, None))
    return settings


def _loaded_torch() -> Any:
    """Return torch, or None if nothing has imported it. If another thread is importing it, wait."""
    if sys.modules.get("torch") is None:
        return None
    return importlib.import_module("torch")


def _variable_setting(name: str, value: str) -> GlobalSetting:
    """Make a setting of an environment variable; None means that it is not set."""

    def write(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return GlobalSetting(name, partial(os.environ.get, name), write, value)


def _find_pools() -> ThreadpoolController:
    """Return the thread pools of the libraries that are loaded now. This reads the whole memory map of the process."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _pool_settings(pools: ThreadpoolController, kind: str, threads: int) -> list[GlobalSetting]:
    """Return the thread counts of the pools of a kind, which is `blas` or `openmp`."""
    return [
        GlobalSetting(pool.filepath, pool.get_num_threads, pool.set_num_threads, threads)
        for pool in pools.select(user_api=kind).lib_controllers
    ]


def _default_threads() -> int:
    """Return how many threads torch begins with: one for each core, or less if the environment says so."""
    cpus = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    cores = len({_threads_of_core(cpu) for cpu in cpus})
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(int(text), cores) if text.isdecimal() and int(text) else cores


def _threads_of_core(cpu: int) -> str:
    """Return the hardware threads of a CPU's core as the kernel lists them."""
    with suppress(OSError), open(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list") as file:
        return file.read()
    return str(cpu)


def _floating_point() -> bytes:
    surroundings = ctypes.create_string_buffer(FLOATING_POINT_BYTES)
    ctypes.CDLL(None).fegetenv(surroundings)
    return surroundings.raw


def _set_floating_point(value: bytes | None) -> None:
    """Set the rounding mode and its neighbours to what `_floating_point` returned, or to the defaults."""
    surroundings = DEFAULT_FLOATING_POINT if value is None else value
    ctypes.CDLL(None).fesetenv(surroundings)


def instruction_settings() -> dict[str, str]:
    """Return the environment variables that are set and choose instruction sets."""
    return {name: os.environ[name] for name in INSTRUCTION_VARIABLES if name in os.environ}
