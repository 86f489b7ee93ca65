"""The settings of torch that the bits of a result depend on. A run wants torch's own defaults of them.

The engine does not import torch. It passes the module to these functions if it is loaded. They work with each version
since 2.2, and leave out what a version does not have.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from flowrl.machine.global_setting import GlobalSetting, attribute_setting

BACKEND_ATTRIBUTES = (  # module within torch.backends, attribute, default
    ("mkldnn", "enabled", True),
    ("mkldnn", "deterministic", False),
    ("cudnn", "enabled", True),
    ("cudnn", "benchmark", False),
    ("cudnn", "deterministic", False),
    ("opt_einsum", "strategy", "auto"),
)
PRECISION_OWNERS = (  # modules within torch.backends; those from which others inherit are the last
    "mkldnn.matmul",
    "mkldnn.conv",
    "mkldnn.rnn",
    "mkldnn",
    "cuda.matmul",
    "cudnn",
    "",
)
ATTENTION_KERNELS = ("flash", "mem_efficient", "math", "cudnn")  # CPUs follow them, too
AUTOCAST_DTYPES = {"cpu": "bfloat16", "cuda": "float16", "mps": "float16", "xpu": "float16"}


def process_settings(torch: Any, threads: int) -> list[GlobalSetting]:
    """Return the settings that all threads of this process share."""
    return [
        GlobalSetting(
            "torch threads",
            torch.get_num_threads,
            torch.set_num_threads,
            threads,
        ),
        GlobalSetting(
            "torch dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32
        ),
        GlobalSetting(
            "torch deterministic algorithms",
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            0,
        ),
        *_backend_settings(torch.backends),
        *_precision_settings(torch),
    ]


def _backend_settings(backends: Any) -> Iterator[GlobalSetting]:
    for name, attribute, default in BACKEND_ATTRIBUTES:
        owner = getattr(backends, name, None)
        if getattr(owner, attribute, None) is not None:
            yield attribute_setting(f"torch {name} {attribute}", owner, attribute, default)
    for kernel in ATTENTION_KERNELS:
        read = getattr(backends.cuda, f"{kernel}_sdp_enabled", None)
        if read is not None:
            write = getattr(backends.cuda, f"enable_{kernel}_sdp")
            yield GlobalSetting(f"torch {kernel} attention", read, write, True)
    mha = getattr(backends, "mha", None)
    if mha is not None:
        read, write = mha.get_fastpath_enabled, mha.set_fastpath_enabled
        yield GlobalSetting("torch attention fast path", read, write, True)


def _precision_settings(torch: Any) -> Iterator[GlobalSetting]:
    """Yield the precision of float32, which versions since 2.9 have for each backend.

    They refuse to read the precision for all backends after one backend was given another.
    """

    def read() -> str | None:
        with suppress(RuntimeError):
            found: str = torch.get_float32_matmul_precision()
            return found
        return None

    def write(value: str | None) -> None:
        if value is not None and read() != value:
            torch.set_float32_matmul_precision(value)

    yield GlobalSetting("torch float32 matmul precision", read, write, "highest")
    for path in PRECISION_OWNERS:
        owner = torch.backends
        for name in filter(None, path.split(".")):
            owner = getattr(owner, name, None)
        if hasattr(owner, "fp32_precision"):
            name = f"torch {path} float32 precision"
            yield attribute_setting(name, owner, "fp32_precision", "none")


def thread_settings(torch: Any) -> list[GlobalSetting]:
    """Return the settings that each thread has for itself."""
    return [
        # first, because function modes may intercept the functions that write the others
        GlobalSetting(
            "torch function modes", partial(_modes, torch), partial(_set_modes, torch), ((), None)
        ),
        GlobalSetting("torch autograd", torch.is_grad_enabled, torch.set_grad_enabled, True),
        *_autocast_settings(torch),
    ]


def _autocast_settings(torch: Any) -> Iterator[GlobalSetting]:
    for device, dtype in AUTOCAST_DTYPES.items():
        functions = _autocast_functions(torch, device)
        if functions is not None:
            is_enabled, set_enabled, get_dtype, set_dtype = functions
            yield GlobalSetting(f"torch autocast on {device}", is_enabled, set_enabled, False)
            default = getattr(torch, dtype)
            yield GlobalSetting(f"torch autocast dtype on {device}", get_dtype, set_dtype, default)
    is_enabled, set_enabled = torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield GlobalSetting("torch autocast cache", is_enabled, set_enabled, True)
    read, write = partial(_autocast_depth, torch), partial(_set_autocast_depth, torch)
    yield GlobalSetting("torch autocast depth", read, write, 0)


def _autocast_functions(torch: Any, device: str) -> tuple[Any, Any, Any, Any] | None:
    """Return the functions that read and write autocast's state. Before 2.4 each device had its own."""
    if hasattr(torch, "get_autocast_dtype"):
        return (
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
            partial(torch.get_autocast_dtype, device),
            partial(torch.set_autocast_dtype, device),
        )
    if device == "cpu":
        return (
            torch.is_autocast_cpu_enabled,
            torch.set_autocast_cpu_enabled,
            torch.get_autocast_cpu_dtype,
            torch.set_autocast_cpu_dtype,
        )
    if device == "cuda":
        return (
            torch.is_autocast_enabled,
            torch.set_autocast_enabled,
            torch.get_autocast_gpu_dtype,
            torch.set_autocast_gpu_dtype,
        )
    return None


def _autocast_depth(torch: Any) -> int:
    """Return how many autocast contexts surround this thread. The outermost one drops the cached casts of weights."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def _set_autocast_depth(torch: Any, depth: int) -> None:
    torch.clear_autocast_cache()
    while _autocast_depth(torch) > depth:
        torch.autocast_decrement_nesting()
    while _autocast_depth(torch) < depth:
        torch.autocast_increment_nesting()


def _modes(torch: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the modes through which each torch call of this thread goes, and that of the default device."""
    modes = tuple(torch.overrides._get_current_function_mode_stack())
    owner, attribute = _default_device_mode(torch)
    return modes, getattr(owner, attribute, None)


def _set_modes(torch: Any, value: tuple[tuple[Any, ...], Any]) -> None:
    """Take the modes off their stack, and put others on it. Without any mode, a torch call costs nothing more."""
    modes, device_mode = value
    while torch._C._len_torch_function_stack():
        torch.overrides._pop_mode()
    for mode in modes:
        torch.overrides._push_mode(mode)
    owner, attribute = _default_device_mode(torch)
    setattr(owner, attribute, device_mode)


def _default_device_mode(torch: Any) -> tuple[Any, str]:
    """Return where `torch.set_default_device` keeps its mode: until 2.2 for the process, since then for each thread."""
    holder = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    if isinstance(holder, threading.local):
        return holder, "device_context"
    return torch, "_GLOBAL_DEVICE_CONTEXT"


@contextmanager
def leaving_modes(torch: Any) -> Iterator[None]:
    """Leave inference mode, and all modes that intercept the dispatch of operators, in this thread for a while."""
    with ExitStack() as stack:
        if torch._C._len_torch_dispatch_stack():
            dispatch = importlib.import_module("torch.utils._python_dispatch")
            stack.enter_context(dispatch._disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        yield
