"""Process-wide settings that the bits of a result depend on: threads, rounding, torch's global switches.

The program that calls flowrl, or a library that a node imports, may have changed any of them for its process or
its thread. Without a reset, results would depend on the process that a node runs in.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from typing import Any

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
DEFAULT_FLOATING_POINT = ctypes.c_void_p(-1)  # FE_DFL_ENV of the C libraries of Linux


def reset_numerics(threads: int) -> None:
    """Reset every numerical library to its defaults, with this number of threads, for the calling thread.

    Libraries that are loaded are set directly. Those that a node imports later read the number from the environment.
    """
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    threadpool_limits(threads)
    if sys.modules.get("torch") is not None:
        # import_module waits if another thread is importing torch
        _reset_torch(importlib.import_module("torch"), threads)
    _reset_rounding()


def _reset_torch(torch: Any, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)
    torch.backends.mkldnn.enabled = True


def _reset_rounding() -> None:
    """Restore IEEE arithmetic: some libraries make the thread that loads them flush denormal numbers to zero."""
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        ctypes.CDLL(None).fesetenv(DEFAULT_FLOATING_POINT)


def instruction_settings() -> dict[str, str]:
    """Return the environment variables that are set and choose instruction sets."""
    return {name: os.environ[name] for name in INSTRUCTION_VARIABLES if name in os.environ}
