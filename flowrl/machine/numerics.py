"""What bits depend on beside the code: threads, rounding, torch's global settings. The same on every site.

A program that calls flowrl, or a library that a node loads, may have set any of these for its process or its thread;
where a node runs would be seen in the result then.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CHOICES = (  # of instructions, where a library has several; they are read from the environment
    *(
        "ATEN_CPU_CAPABILITY",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
        "ONEDNN_DEFAULT_FPMATH_MODE",
    ),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE"),
    *("NPY_ENABLE_CPU_FEATURES", "NPY_DISABLE_CPU_FEATURES"),
)
USUAL = ctypes.c_void_p(-1)  # FE_DFL_ENV of the C libraries of Linux


def settle_numerics(threads: int) -> None:
    """Let every numerical library compute as it does by itself, with so many threads: for this site's thread.

    Those that are loaded are told; those that a node may load yet read the number from the environment.
    """
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    threadpool_limits(threads)
    if sys.modules.get("torch") is not None:
        _settle_torch(importlib.import_module("torch"), threads)  # another thread may just load it
    _round_as_usual()


def _settle_torch(torch: Any, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)
    torch.backends.mkldnn.enabled = True


def _round_as_usual() -> None:
    """Some libraries are built to take very small numbers for zero, and set that in the thread that loads them."""
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        ctypes.CDLL(None).fesetenv(USUAL)


def choices() -> dict[str, str]:
    """What the environment says of instructions, as far as it does."""
    return {name: os.environ[name] for name in CHOICES if name in os.environ}
