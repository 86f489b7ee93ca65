"""The GPUs that a process may use, found without CUDA, ROCm or torch: loading these takes seconds and memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flowrl.machine.control_groups import ROOT, read_lines

# Torch reads the first for GPUs of NVIDIA, and also for those of AMD unless the second is there.
NVIDIA_VARIABLE, AMD_VARIABLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
AMD_RUNTIME_VARIABLE = "ROCR_VISIBLE_DEVICES"  # the GPUs that it leaves are numbered anew
TOOL_TIMEOUT_S = 10.0


def usable_gpus(
    environ: Mapping[str, str] = os.environ, root: Path = ROOT, tool: str = "nvidia-smi"
) -> tuple[str, ...]:
    """Return the names of the GPUs: numbers or UUIDs, as `CUDA_VISIBLE_DEVICES` lists them."""
    return _nvidia_gpus(environ, root, tool) or _amd_gpus(environ, root)


def gpu_variables(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process that is to see these GPUs only."""
    return dict.fromkeys((NVIDIA_VARIABLE, AMD_VARIABLE), ",".join(gpus))


def _nvidia_gpus(environ: Mapping[str, str], root: Path, tool: str) -> tuple[str, ...]:
    devices = _numbered(root / "dev", r"nvidia\d+")
    # `/dev/dxg` is Windows' subsystem for Linux.
    if not devices and not (root / "dev/dxg").exists():
        return ()
    present = _listed_by_tool(tool) or tuple(map(str, range(devices)))
    return _selected(environ.get(NVIDIA_VARIABLE), present)


def _amd_gpus(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    if not (root / "dev/kfd").exists():
        return ()
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    with_gpu = [path for path in nodes if _count_simds(path)]
    present = tuple(map(str, range(len(with_gpu))))
    left = _selected(environ.get(AMD_RUNTIME_VARIABLE), present)
    if left != present:
        present = tuple(map(str, range(len(left))))
    return _selected(environ.get(AMD_VARIABLE, environ.get(NVIDIA_VARIABLE)), present)


def _selected(variable: str | None, present: tuple[str, ...]) -> tuple[str, ...]:
    """The devices that a variable selects. As in CUDA, the list ends before the first that is not there."""
    if variable is None:
        return present
    found: list[str] = []
    for word in (part.strip() for part in variable.split(",")):
        is_number = word.isdigit() and int(word) < len(present)
        if not (is_number or word.startswith(("GPU-", "MIG-"))) or word in found:
            break
        found.append(word)
    return tuple(found)


def _listed_by_tool(tool: str) -> tuple[str, ...]:
    """The devices in the output of `nvidia-smi -L`: GPUs by number, and parts of divided GPUs (MIG) by UUID."""
    if shutil.which(tool) is None:
        return ()
    try:
        done = subprocess.run(
            [tool, "-L"], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found: dict[str, list[str]] = {}  # the parts of each GPU
    for line in done.stdout.splitlines():
        if whole := re.match(r"GPU (\d+): ", line):
            found[whole[1]] = []
        elif found and (part := re.search(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)", line)):
            found[list(found)[-1]].append(part[1])
    return tuple(name for gpu, parts in found.items() for name in parts or [gpu])


def _numbered(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, name) is not None for name in os.listdir(folder))
    except OSError:
        return 0


def _count_simds(properties: Path) -> int:
    """The vector units of a node of the ROCm driver. CPUs have none."""
    words = (line.split() for line in read_lines(properties))
    return sum(int(row[1]) for row in words if len(row) == 2 and row[0] == "simd_count")
