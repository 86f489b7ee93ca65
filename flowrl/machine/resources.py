"""What this machine has for the nodes of a run: cores, memory and GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.core.wording import count_text, size_text
from flowrl.machine.cores import usable_cores
from flowrl.machine.gpus import usable_gpus
from flowrl.machine.resource_limits import machine_memory_bytes


@dataclass(frozen=True, slots=True)
class MachineResources:
    """What processes of one machine may use. GPUs have the names that `CUDA_VISIBLE_DEVICES` would list."""

    cores: int = 0
    memory_bytes: int = 0
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return amounts_text(self.cores, self.memory_bytes, len(self.gpus))


NO_RESOURCES = MachineResources()


def machine_resources() -> MachineResources:
    """Find out what this process and its children may use."""
    return MachineResources(usable_cores(), machine_memory_bytes() or 0, usable_gpus())


def amounts_text(cores: int, memory_bytes: int, gpus: int) -> str:
    """`8 cores, 32.0 GB, no GPU`."""
    gpu_text = count_text(gpus, "GPU") if gpus else "no GPU"
    return f"{count_text(cores, 'core')}, {size_text(memory_bytes)}, {gpu_text}"
