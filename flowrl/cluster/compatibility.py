"""The facts of a machine on which the bits of a result depend: which ones a host must share with the run."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowrl.machine.environment import cpu_name, version_of
from flowrl.machine.numerics import instruction_settings
from flowrl.version import VERSION

MUST_EQUAL = ("flowrl", "python", "torch", "numpy")  # their versions
SHOULD_EQUAL = {
    "cpu": "CPU",
    "torch_build": "build of torch",
    "numpy_build": "build of numpy",
    "choices": "choice of instructions in its environment",
}
MachineFacts = Mapping[str, str]


def machine_facts() -> dict[str, str]:
    """The facts of this machine. Torch is not loaded."""
    return {
        "flowrl": VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _without_build(version_of("torch")),
        "numpy": _without_build(version_of("numpy")),
        "torch_build": _torch_build(),
        "numpy_build": _numpy_build(),
        "cpu": cpu_name(),
        "choices": " ".join(f"{name}={value}" for name, value in instruction_settings().items()),
        "platform": platform.platform(),
    }


def _without_build(version: str | None) -> str:
    """A version without its build: 2.13.0 for 2.13.0+cpu."""
    return (version or "").partition("+")[0]


def _torch_build() -> str:
    """Torch's version and commit, from a file that can be read without loading torch."""
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

    config: Any = numpy.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{numpy.__version__} {blas.get('name', '')} {blas.get('version', '')}".strip()


def incompatibilities(run: MachineFacts, host: MachineFacts) -> Iterator[str]:
    """Why a host cannot take part in a run."""
    for name in MUST_EQUAL:
        if run[name] != host.get(name):
            host_has = f"{name} {host[name]}" if host.get(name) else f"no {name}"
            run_has = f"the run has {run[name]}" if run[name] else "the run has none"
            yield f"it has {host_has}, and {run_has}"


def host_warnings(name: str, run: MachineFacts, host: MachineFacts) -> Iterator[str]:
    """Why a run may have other bits on this host than on the machine where it was started."""
    for key, what in SHOULD_EQUAL.items():
        if run[key] != host.get(key):
            yield (
                f"host '{name}' has another {what} ({host.get(key) or 'none'}; the run has {run[key] or 'none'}): "
                "the same bits are promised for like machines only"
            )
