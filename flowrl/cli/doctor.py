"""The verb `doctor`: examines everything that a run needs from this installation and machine."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flowrl.core.errors import FlowError
from flowrl.core.wording import count_text, size_text
from flowrl.graph.catalogue import Catalogue, UnknownTypeError
from flowrl.machine.resource_limits import machine_memory_bytes
from flowrl.version import VERSION

LEAST_DISK_BYTES = 1 << 30
LEAST_MEMORY_BYTES = 2 << 30
LEAST_SHM_BYTES = 64 << 20
TORCH_TIMEOUT_S = 120.0

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:\[[^]]*\])?\s*\(?([^;()]*)\)?\s*(;.*)?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*([\d.]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one examination. A hint is a remedy if it failed, and otherwise advice."""

    ok: bool
    what: str
    hint: str = ""

    def __str__(self) -> str:
        sign = "ok" if self.ok and not self.hint else "--" if self.ok else "NO"
        return f"{sign}  {self.what}" + (f"\n      {self.hint}" if self.hint else "")


def doctor(arguments: Namespace) -> int:
    findings = examine_installation()
    print(findings_text(findings))
    return 0 if all(finding.ok for finding in findings) else 1


def examine_installation() -> list[Finding]:
    examinations: list[Callable[[], Iterable[Finding]]] = [
        _python,
        _install,
        _packages,
        _torch,
        _catalogue,
        _videos,
        _folder,
        _memory,
        _shared_memory,
    ]
    return [finding for examine in examinations for finding in examine()]


def findings_text(findings: list[Finding]) -> str:
    """The findings and a conclusion."""
    broken = sum(not finding.ok for finding in findings)
    conclusion = (
        f"{broken} of {len(findings)} things must be fixed"
        if broken
        else "everything that runs need is in order"
    )
    return "\n".join([*map(str, findings), "", conclusion])


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 10)
    yield Finding(
        fine,
        f"Python {version} at {sys.executable}",
        "" if fine else "flowrl needs Python 3.10 or newer",
    )


def _install() -> Iterator[Finding]:
    """The code that runs now must be the installed package, whatever the working folder."""
    here = Path(__file__).resolve().parents[1]
    again = "install it again: pip install -e . in the checkout"
    try:
        installed = importlib.metadata.version("flowrl")
    except importlib.metadata.PackageNotFoundError:
        hint = "install it: pip install flowrl, or pip install -e . in a checkout"
        yield Finding(False, f"flowrl {VERSION} at {here} is not installed", hint)
        return
    installed_path = _installed_path()
    if installed != VERSION:
        what = f"flowrl {VERSION} at {here} runs, but {installed} is installed"
        yield Finding(False, what, again)
    elif installed_path != str(here / "__init__.py"):
        what = f"flowrl at {here} runs, but Python in another folder imports {installed_path}"
        yield Finding(False, what, again)
    else:
        yield Finding(True, f"flowrl {VERSION} at {here}")


def _installed_path() -> str:
    """The flowrl that Python imports in an empty folder, where no checkout comes first."""
    code = "import flowrl; print(flowrl.__file__)"
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=empty, capture_output=True, text=True, timeout=60, check=False
        )
    return done.stdout.strip() if done.returncode == 0 else "none"


def _packages() -> Iterator[Finding]:
    """The packages that flowrl requires must be installed, in suitable versions."""
    try:
        requirements = importlib.metadata.requires("flowrl") or []
    except importlib.metadata.PackageNotFoundError:
        return  # `_install` has reported it
    findings, fine = [], []
    for text in requirements:
        parsed = _REQUIREMENT.match(text)
        if parsed is None or "extra" in (parsed[3] or ""):
            continue
        name, wanted = parsed[1], parsed[2].strip()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            hint = f"install it: pip install '{name}{wanted}'"
            findings.append(Finding(False, f"{name} is not installed", hint))
            continue
        if satisfies(version, wanted):
            fine.append(f"{name} {version}")
        else:
            hint = f"install another: pip install '{name}{wanted}'"
            findings.append(Finding(False, f"{name} {version}: {wanted} is needed", hint))
    if fine:
        yield Finding(True, f"packages: {', '.join(fine)}")
    yield from findings


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version satisfies clauses such as `>=2.2,<3`."""
    actual = _numbers(version)
    tests: dict[str, Callable[[tuple[int, ...]], bool]] = {
        ">=": lambda limit: actual >= limit,
        "<=": lambda limit: actual <= limit,
        ">": lambda limit: actual > limit,
        "<": lambda limit: actual < limit,
        "==": lambda limit: actual == limit,
        "!=": lambda limit: actual != limit,
    }
    return all(tests[sign](_numbers(limit)) for sign, limit in _CLAUSE.findall(wanted))


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, padded so that 2.2 is 2.2.0."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in release[0].split(".")] if release else []
    return tuple([*parts, 0, 0, 0, 0][:4])


def _torch() -> Iterator[Finding]:
    """Load torch in another process, because a broken torch may crash its process."""
    code = (
        "import torch; print(torch.__version__, torch.get_num_threads(), torch.cuda.is_available())"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=TORCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        hint = "check its installation, and how fast this disk is"
        yield Finding(False, f"torch has not loaded after {TORCH_TIMEOUT_S:g} s", hint)
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        yield Finding(False, f"torch does not load: {last}", "install it again: pip install torch")
        return
    version, threads, cuda = done.stdout.split()
    device = "CUDA" if cuda == "True" else "CPU only"
    yield Finding(
        True,
        f"torch {version} loads ({device}); it would use {threads} threads, "
        "and a run uses as many as its graph says (torch_threads: 1)",
    )


def _catalogue() -> Iterator[Finding]:
    """Every registered type must be importable."""
    catalogue = Catalogue()
    try:
        names = [(kind, name) for kind in catalogue.kinds() for name in catalogue.names(kind)]
    except FlowError as error:
        yield Finding(False, "the catalogue of types cannot be loaded", str(error))
        return
    broken = 0
    for kind, name in names:
        try:
            catalogue.find(kind, name)
        except UnknownTypeError as error:
            broken += 1
            yield Finding(
                False, f"the {kind} type '{name}' cannot be loaded: {error.what}", error.hint
            )
    if not broken:
        yield Finding(True, f"catalogue: {len(names)} types")


def _videos() -> Iterator[Finding]:
    """What `flowrl eval --video` needs for the envs of gymnasium, and for MP4."""
    lacking = [name for name in ("pygame", "imageio_ffmpeg") if find_spec(name) is None]
    if lacking:
        what = (
            f"videos: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
        )
        yield Finding(True, what, "'flowrl eval --video' needs it: pip install 'flowrl[video]'")
    else:
        yield Finding(True, "videos: pygame and imageio_ffmpeg are installed")


def _folder() -> Iterator[Finding]:
    """The folder for runs must be writable. It is not created."""
    runs = Path("runs")
    folder = runs if runs.is_dir() else Path()
    shown = folder.resolve()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        hint = "go to a folder of your own, or write runs to another place with --out"
        yield Finding(False, f"{shown} cannot be written to: {error.strerror}", hint)
        return
    free = shutil.disk_usage(folder).free
    fine = free >= LEAST_DISK_BYTES
    hint = "" if fine else "remove old runs, or write runs to another place with --out"
    yield Finding(fine, f"{shown} can be written to; {size_text(free)} are free", hint)


def _memory() -> Iterator[Finding]:
    have = machine_memory_bytes()
    if have is None:
        yield Finding(True, "memory: this system does not report how much it has")
        return
    hint = "" if have >= LEAST_MEMORY_BYTES else "keep buffers small, and one process"
    cores = count_text(os.cpu_count() or 1, "core")
    yield Finding(True, f"memory: {size_text(have)}; {cores}", hint)


def _shared_memory() -> Iterator[Finding]:
    """Shared memory must have some room, because processes send large payloads through it."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding(True, "there is no /dev/shm", "payloads between processes go through sockets")
        return
    free = shutil.disk_usage(folder).free
    hint = (
        "" if free >= LEAST_SHM_BYTES else "in a container, give it more: docker run --shm-size=1g"
    )
    yield Finding(True, f"shared memory: {size_text(free)} are free in /dev/shm", hint)
