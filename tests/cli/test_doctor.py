"""What the doctor finds."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowrl.cli import doctor as doctor_module
from flowrl.cli.doctor import Finding, examine_installation, findings_text, satisfies
from flowrl.core.errors import UsageError

Patch = pytest.MonkeyPatch


def findings_of(examine: Callable[[], Any]) -> list[Finding]:
    """The findings of one examination."""
    return list(examine())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A working folder for this test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_this_installation_has_no_problem(monkeypatch: Patch) -> None:
    # an installed flowrl may be another checkout's: that is what another test is about
    monkeypatch.setattr(
        doctor_module,
        "_installed_path",
        lambda: str(Path(doctor_module.__file__).parents[1] / "__init__.py"),
    )
    findings = examine_installation()
    assert [f for f in findings if not f.ok] == []
    text = " / ".join(f.what for f in findings)
    for word in ("Python ", "flowrl ", "torch ", "catalogue: ", "videos: ", "memory: ", "shared"):
        assert word in text


def test_examining_leaves_no_files(folder: Path) -> None:
    findings_of(doctor_module._folder)
    assert list(folder.iterdir()) == []


def test_the_text_has_a_line_for_each_finding_and_a_conclusion() -> None:
    findings = [
        Finding(True, "this works"),
        Finding(True, "this might be better", "so"),
        Finding(False, "this is broken", "do that"),
    ]
    assert findings_text(findings) == (
        "ok  this works\n"
        "--  this might be better\n"
        "      so\n"
        "NO  this is broken\n"
        "      do that\n"
        "\n"
        "1 of 3 things must be fixed"
    )
    assert findings_text(findings[:2]).endswith("\n\neverything that runs need is in order")


def test_an_old_python_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.sys, "version_info", (3, 9, 1))
    assert findings_of(doctor_module._python) == [
        Finding(False, f"Python 3.9.1 at {sys.executable}", "flowrl needs Python 3.10 or newer")
    ]


# the installation


def not_installed(name: str) -> Any:
    raise importlib.metadata.PackageNotFoundError(name)


def test_an_uninstalled_checkout_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.importlib.metadata, "version", not_installed)
    [finding] = findings_of(doctor_module._install)
    assert not finding.ok
    assert finding.what.endswith("is not installed")
    assert finding.hint == "install it: pip install flowrl, or pip install -e . in a checkout"


def test_a_stale_version_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.importlib.metadata, "version", lambda name: "0.0.1")
    [finding] = findings_of(doctor_module._install)
    assert not finding.ok
    assert finding.what.endswith("runs, but 0.0.1 is installed")
    assert finding.hint == "install it again: pip install -e . in the checkout"


def test_the_installed_package_is_found_from_any_folder() -> None:
    assert Path(doctor_module._installed_path()).parts[-2:] == ("flowrl", "__init__.py")


def test_an_installation_that_hides_this_code_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module, "_installed_path", lambda: "None")
    [finding] = findings_of(doctor_module._install)
    assert not finding.ok
    assert finding.what.endswith("runs, but Python in another folder imports None")


# packages


def test_a_missing_package_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.importlib.metadata, "requires", lambda name: ["nowhere>=2.2"])
    assert findings_of(doctor_module._packages) == [
        Finding(False, "nowhere is not installed", "install it: pip install 'nowhere>=2.2'")
    ]


def test_a_package_out_of_range_is_reported(monkeypatch: Patch) -> None:
    wanted = ["numpy<2,>=1.26", 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(doctor_module.importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor_module.importlib.metadata, "version", lambda name: "2.4.1")
    assert findings_of(doctor_module._packages) == [
        Finding(
            False,
            "numpy 2.4.1: <2,>=1.26 is needed",
            "install another: pip install 'numpy<2,>=1.26'",
        )
    ]


def test_packages_in_range_are_listed_together(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.importlib.metadata, "requires", lambda name: ["a>=1", "b"])
    monkeypatch.setattr(doctor_module.importlib.metadata, "version", lambda name: "1.0")
    assert findings_of(doctor_module._packages) == [Finding(True, "packages: a 1.0, b 1.0")]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.2", True),
        ("2.2", ">=2.2.0", True),
        ("2.10", ">=2.9", True),
        ("1.9", ">=1.26", False),
        ("0.26.2", ">=0.21,<0.27", True),
        ("0.27.0", ">=0.21,<0.27", False),
        ("1.5", "!=1.5", False),
        ("1.5", "==1.5", True),
        ("1.5", "<=1.5, >1.4", True),
        ("1.5rc1", ">=1.5", True),
        ("1.5", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, fits: bool) -> None:
    assert satisfies(version, wanted) is fits


# torch


def ran(**ended: Any) -> Callable[..., Any]:
    """A subprocess that has ended in this way."""
    done = SimpleNamespace(**{"returncode": 0, "stdout": "", "stderr": "", **ended})
    return lambda *words, **options: done


def test_torch_is_listed_with_version_threads_and_device(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.subprocess, "run", ran(stdout="2.13.0+cpu 2 False\n"))
    [finding] = findings_of(doctor_module._torch)
    assert finding.ok
    assert finding.what.startswith("torch 2.13.0+cpu loads (CPU only); it would use 2 threads")
    monkeypatch.setattr(doctor_module.subprocess, "run", ran(stdout="2.13.0 1 True\n"))
    assert "(CUDA)" in findings_of(doctor_module._torch)[0].what


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (
            {"returncode": 1, "stderr": "Traceback …\nImportError: libtorch.so: no\n"},
            "torch does not load: ImportError: libtorch.so: no",
        ),
        ({"returncode": -11}, "torch does not load: exit status -11"),
    ],
)
def test_a_broken_torch_is_reported(
    monkeypatch: Patch, ended: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(doctor_module.subprocess, "run", ran(**ended))
    assert findings_of(doctor_module._torch) == [
        Finding(False, message, "install it again: pip install torch")
    ]


def test_a_torch_that_hangs_is_reported(monkeypatch: Patch) -> None:
    def hang(*words: Any, **options: Any) -> Any:
        raise subprocess.TimeoutExpired("python", options["timeout"])

    monkeypatch.setattr(doctor_module.subprocess, "run", hang)
    [finding] = findings_of(doctor_module._torch)
    assert (finding.ok, finding.what) == (False, "torch has not loaded after 120 s")


# the catalogue


def test_a_type_that_cannot_be_imported_is_reported(monkeypatch: Patch) -> None:
    table = {"node": {"broken": "nowhere_at_all:X"}}
    monkeypatch.setattr("flowrl.graph.catalogue._load_table", lambda path: table)
    monkeypatch.setattr("flowrl.graph.catalogue.importlib.metadata.entry_points", lambda group: [])
    [finding] = findings_of(doctor_module._catalogue)
    assert not finding.ok
    assert finding.what.startswith("the node type 'broken' cannot be loaded: 'nowhere_at_all:X': ")


def test_a_catalogue_that_cannot_be_loaded_is_reported(monkeypatch: Patch) -> None:
    def fail(path: str) -> Any:
        raise UsageError("gone")

    monkeypatch.setattr("flowrl.graph.catalogue._load_table", fail)
    assert findings_of(doctor_module._catalogue) == [
        Finding(False, "the catalogue of types cannot be loaded", "gone")
    ]


# the machine


def test_what_videos_need_is_advice(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module, "find_spec", lambda name: None)
    hint = "'flowrl eval --video' needs it: pip install 'flowrl[video]'"
    assert findings_of(doctor_module._videos) == [
        Finding(True, "videos: pygame and imageio_ffmpeg are not installed", hint)
    ]
    monkeypatch.setattr(doctor_module, "find_spec", lambda name: object())
    assert all(f.ok and not f.hint for f in findings_of(doctor_module._videos))


def test_a_folder_that_cannot_be_written_to_is_reported(monkeypatch: Patch, folder: Path) -> None:
    def refuse(**where: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor_module.tempfile, "TemporaryFile", refuse)
    assert findings_of(doctor_module._folder) == [
        Finding(
            False,
            f"{folder.resolve()} cannot be written to: Read-only file system",
            "go to a folder of your own, or write runs to another place with --out",
        )
    ]


def test_an_existing_runs_folder_is_examined(folder: Path) -> None:
    (folder / "runs").mkdir()
    assert findings_of(doctor_module._folder)[0].what.startswith(
        f"{folder.resolve() / 'runs'} can be written to;"
    )


def free(size: int) -> Callable[[Any], Any]:
    """A disk with this many free bytes."""
    return lambda path: shutil._ntuple_diskusage(2 * size, size, size)  # type: ignore[attr-defined]


def test_a_full_disk_is_reported(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", free(5_000_000))
    [finding] = findings_of(doctor_module._folder)
    assert not finding.ok
    assert finding.what.endswith("; 5.0 MB are free")
    assert finding.hint == "remove old runs, or write runs to another place with --out"


@pytest.mark.parametrize(
    ("size", "hint"), [(1 << 30, "keep buffers small, and one process"), (1 << 34, "")]
)
def test_little_memory_is_advice(monkeypatch: Patch, size: int, hint: str) -> None:
    monkeypatch.setattr(doctor_module, "machine_memory_bytes", lambda: size)
    [finding] = findings_of(doctor_module._memory)
    assert (finding.ok, finding.hint) == (True, hint)


def test_unknown_memory_is_no_problem(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor_module, "machine_memory_bytes", lambda: None)
    assert findings_of(doctor_module._memory)[0].ok


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm here")
@pytest.mark.parametrize(
    ("size", "hint"),
    [(1 << 20, "in a container, give it more: docker run --shm-size=1g"), (1 << 30, "")],
)
def test_little_shared_memory_is_advice(monkeypatch: Patch, size: int, hint: str) -> None:
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", free(size))
    [finding] = findings_of(doctor_module._shared_memory)
    assert (finding.ok, finding.hint) == (True, hint)
