"""What a host must have in common with the run, and what is better alike."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowrl.machine.environment import cpu_name, version_of
from flowrl.machine.numerics import instruction_settings
from flowrl.version import VERSION

SAME = ("flowrl", "python", "torch", "numpy")  # whose versions must be the same
ALIKE = {
    "cpu": "CPU",
    "torch_build": "build of torch",
    "numpy_build": "build of numpy",
    "choices": "choice of instructions in its environment",
}
Facts = Mapping[str, Any]


def machine_facts() -> dict[str, Any]:
    """What bits may depend on, on this machine; torch is not loaded for it."""
    return {
        "flowrl": VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _public(version_of("torch")),
        "numpy": _public(version_of("numpy")),
        "torch_build": _torch_build(),
        "numpy_build": _numpy_build(),
        "cpu": cpu_name(),
        "choices": " ".join(f"{name}={value}" for name, value in instruction_settings().items()),
        "cores": os.cpu_count() or 0,
        "platform": platform.platform(),
    }


def _public(version: str | None) -> str:
    """A version without its build: 2.13.0+cpu is a 2.13.0."""
    return (version or "").partition("+")[0]


def _torch_build() -> str:
    """Version and commit, from a file of torch's that can be read without it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return version_of("torch") or ""
    found = re.search(r"^git_version *= *'(\w+)'", text, re.MULTILINE)
    return f"{version_of('torch')} {found[1][:12] if found else ''}".strip()


def _numpy_build() -> str:
    import numpy

    told: Any = numpy.show_config(mode="dicts")
    blas = told.get("Build Dependencies", {}).get("blas", {})
    return f"{numpy.__version__} {blas.get('name', '')} {blas.get('version', '')}".strip()


def differences(here: Facts, there: Facts) -> Iterator[str]:
    """Why a host cannot take part."""
    for name in SAME:
        if here[name] != there.get(name):
            has = f"{name} {there[name]}" if there.get(name) else f"no {name}"
            runs = f"the run has {here[name]}" if here[name] else "the run has none"
            yield f"it has {has}, and {runs}"


def unlike(name: str, here: Facts, there: Facts) -> Iterator[str]:
    """What a run over unlike machines is told."""
    for key, what in ALIKE.items():
        if here[key] != there.get(key):
            yield (
                f"host '{name}' has another {what} ({there.get(key) or 'none'}; here {here[key] or 'none'}): "
                "the same bits are promised for like machines only"
            )
