"""Disks that are full or cannot be written to: a clear error, exit status 1, a folder that can be read."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowrl.core.errors import RunError
from flowrl.runs.disk_errors import explain_disk_errors
from flowrl.runs.folder import read_jsonl
from tests.cli.conftest import ENV, Called, one_line, process, write

Flowrl = Callable[..., Called]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small disk of its own, mounted with these options."""
    at = tmp_path / "disk"
    at.mkdir()

    def mounted(options: str) -> Path:
        mount = shutil.which("mount")
        if mount is None:
            pytest.skip("there is no mount command here")
        command = [mount, "-t", "tmpfs", "-o", options, "flowrl-test", str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")
        return at

    yield mounted
    subprocess.run(["umount", "-l", str(at)], capture_output=True, check=False)


def test_a_disk_that_gets_full_ends_the_run(
    disk: Callable[[str], Path], flowrl: Flowrl, folder: Path
) -> None:
    """Each evaluation writes 2 MB to a temporary file before it replaces the last one."""
    at = disk("size=3m")
    write(folder / "h.yaml", {"e": "LargeCheckpoints"}, [])
    status, out, err = flowrl("run", "h.yaml", "--out", str(at / "r"), "--json")
    why = f"{at}/r: cannot be written: No space left on device; free some space, or choose another --out"
    assert (status, err) == (1, f"flowrl: {why}\n")
    summary = one_line(out)
    assert (summary["status"], summary["why"]) == ("failed", why)
    assert json.loads((at / "r" / "summary.json").read_text()) == summary
    assert [row["return_mean"] for row in read_jsonl(at / "r" / "metrics.jsonl")] == [1.0, 1.0]
    kept = sorted(p.name for p in (at / "r" / "checkpoints").iterdir())
    assert kept == ["best.safetensors"]  # the one of before, and nothing half written


def test_a_completely_full_disk_is_reported(disk: Callable[[str], Path], flowrl: Flowrl) -> None:
    at = disk("size=64k")
    status, out, err = flowrl("run", "g.yaml", "--out", str(at / "r"), "--json")
    assert status == 1
    assert "cannot be written: No space left on device" in err
    assert "Traceback" not in err
    assert one_line(out)["status"] == "failed"
    for row in read_jsonl(at / "r" / "metrics.jsonl") if (at / "r/metrics.jsonl").exists() else ():
        assert row["node"] == "e"


def test_a_read_only_disk_is_reported(disk: Callable[[str], Path], flowrl: Flowrl) -> None:
    at = disk("size=64k,ro")
    status, out, err = flowrl("run", "g.yaml", "--out", str(at / "r"))
    why = f"{at}/r: cannot be written: Read-only file system; fix this, or choose another --out"
    assert (status, out, err) == (1, "", f"flowrl: {why}\n")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EDQUOT, "free some space, or choose another --out"),
        (errno.EIO, "fix this, or choose another --out"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
    ],
)
def test_the_remedy_is_that_of_the_error(number: int, remedy: str) -> None:
    why = f"r: cannot be written: {os.strerror(number)}; {remedy}"
    with pytest.raises(RunError, match=re.escape(why)), explain_disk_errors(Path("r")):
        raise OSError(number, os.strerror(number))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["graphs"], ["check", "g.yaml"], ["run", "g.yaml"]])
def test_output_that_cannot_be_written_is_reported_in_one_line(
    folder: Path, words: list[str]
) -> None:
    with (
        Path("/dev/full").open("w") as full,
        process(*words, folder=folder, stdout=full) as running,
    ):
        _, err = running.communicate(timeout=60)
    what = "flowrl: the output cannot be written: No space left on device\n"
    assert (running.returncode, err) == (1, what)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["graphs"], ["run", "g.yaml", "--train-iters", "2"]])
def test_a_closed_output_is_no_error(folder: Path, words: list[str]) -> None:
    shell = ["sh", "-c", '"$0" -m flowrl "$@" >&-', sys.executable, *words]
    more = {"env": ENV, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(shell, cwd=folder, check=False, **more)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_of_two_runs_one_gets_the_folder(folder: Path) -> None:
    words = ("run", "g.yaml", "--out", "r", "--quiet", "--train-iters", "2")
    with process(*words, folder=folder) as a, process(*words, folder=folder) as b:
        outcomes = sorted((each.wait(60), *each.communicate()) for each in (a, b))
    assert outcomes[0] == (0, "", "")
    taken = "flowrl: --out r: it already contains a run; choose another folder, or remove it\n"
    assert outcomes[1] == (2, "", taken)
    assert json.loads((folder / "r" / "summary.json").read_text())["status"] != "failed"
