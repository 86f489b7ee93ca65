"""How a learn mode computes, which is a matter of the learner and not of the algorithm."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowrl.core.facts import UnsoundError
from flowrl.nodes.devices import CPU, available_device
from flowrl.nodes.groups import ALONE, Group

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True)
class Compute:
    """How a learn mode computes."""

    device: str = CPU  # of torch: where its networks and batches are
    precision: Precision = (
        "float32"  # bf16: passes through networks are in bfloat16 where torch's autocast allows it
    )
    compile: bool = False  # whether passes through networks are compiled
    accumulate: int = 1  # gradients of which an optimiser step takes the mean
    group: Group = ALONE  # of learners that train one policy together


DEFAULT = Compute()
SETTINGS = ("device", "precision", "compile", "accumulate")  # the parameters of a learner


def compute_of(config: Any, group: Group = ALONE) -> Compute:
    """How a learner with this config computes; raise `UnsoundError` if it cannot do so here."""
    device = available_device(config.device)
    if config.compile:
        _check_compiler(device)
    return Compute(device, config.precision, config.compile, config.accumulate, group)


def check_settings(config: Any, policy: str, refused: Mapping[str, str] | None) -> None:
    """Refuse settings that a policy does not take, for the reasons in `refused`; None: it takes none."""
    for name in SETTINGS:
        if getattr(config, name) == getattr(DEFAULT, name):
            continue
        if refused is None:
            what = f"{policy} has no setting of how it computes, because it is no `Algorithm`"
            raise UnsoundError(what, f"leave out `{name}`", name)
        if name in refused:
            what = f"{policy} cannot learn with `{name}: {_written(getattr(config, name))}`: {refused[name]}"
            raise UnsoundError(what, f"leave out `{name}`", name)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_compiler(device: str) -> None:
    if device == CPU and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        hint = "install g++, or leave out `compile`"
        raise UnsoundError("torch needs a C++ compiler to compile for CPUs", hint, "compile")
    if device.startswith("cuda") and importlib.util.find_spec("triton") is None:
        hint = "install triton, or leave out `compile`"
        raise UnsoundError("torch needs the package triton to compile for CUDA", hint, "compile")
