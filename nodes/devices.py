"""The devices of torch on which networks learn and act. Nothing else knows of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.lazy import tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

CPU = "cpu"
AUTO = "auto"


def device_param(about: str) -> Any:
    """Declare the parameter `device` of a node: where its networks are."""
    words = "cpu, cuda, cuda:1, mps, or auto: the fastest of these that is there"
    return param(CPU, f"{about}: {words}", pattern=r"^(cpu|cuda(:\d+)?|mps|auto)$")


def available_device(wanted: str) -> str:
    """The device that a word stands for on this machine; raise `UnsoundError` if it is not there."""
    if wanted == CPU:
        return CPU
    if wanted == AUTO:
        return "cuda" if _count_cuda() else "mps" if _has_mps() else CPU
    kind, _, number = wanted.partition(":")
    hint = "take one that is there, such as `device: auto`"
    if kind == "mps" and not _has_mps():
        raise UnsoundError(
            "this machine has no Metal device (mps) that torch can use", hint, "device"
        )
    if kind == "cuda" and not _count_cuda():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
        raise UnsoundError(f"device '{wanted}': torch {torch.__version__} {built}", hint, "device")
    if number and int(number) >= _count_cuda():
        count = _count_cuda()
        what = f"device '{wanted}': the CUDA devices of this machine are cuda:0 to cuda:{count - 1}"
        raise UnsoundError(
            what if count > 1 else f"device '{wanted}': there is only cuda:0", hint, "device"
        )
    return wanted


def device_facts(config: Any, policy: Any, learn: bool, runs_here: bool) -> dict[str, Any]:
    """What a node with the parameter `device` states of it: the device for `auto`, and the modules that it imports."""
    device = available_device(config.device) if runs_here else config.device
    modules = policy.imported_modules(learn=learn)
    if device != CPU:
        modules = tuple(dict.fromkeys((*modules, "torch")))
    facts: dict[str, Any] = {"imports": modules}
    if config.device != device:
        facts |= {"resolved": {"device": device}, "notes": (f"device auto is {device} here",)}
    return facts


def shared_device_facts(
    config: Any, policies: Iterable[Any], learn: bool, runs_here: bool
) -> dict[str, Any]:
    """What a node with several policies states of its device: it imports the modules of all of them."""
    each = [device_facts(config, policy, learn, runs_here) for policy in policies]
    imports = tuple(dict.fromkeys(module for facts in each for module in facts["imports"]))
    return {**each[0], "imports": imports}


def _count_cuda() -> int:
    # Asked in another way, CUDA could not be used in processes that are forked from this one.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def to_device(array: Array, device: str) -> Tensor:
    """An array as a tensor on a device, which must not be written to: on the CPU it shares the array's memory."""
    made: Tensor = tensor(array)
    if device == CPU:
        return made
    if device.startswith("cuda"):
        made = made.pin_memory()  # then the copy does not hold up the program
    return made.to(device, non_blocking=True)


def to_numpy(values: Any) -> Array:
    """The values of a tensor as an array, without gradients. This waits for the device to compute them."""
    array: Array = copy_to_cpu(values.detach()).numpy()
    return array


def copy_to_cpu(values: Tensor) -> Tensor:
    """The tensor itself if it is on the CPU."""
    return values.cpu()


def to_float(value: Any) -> float:
    """The number that a tensor of one element holds. This waits for the device to compute it."""
    return float(to_numpy(value).item())
