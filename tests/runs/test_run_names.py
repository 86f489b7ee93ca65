"""Which run a user names. `last` is the newest run under the working folder, for every verb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flowrl.cli import main
from flowrl.core.errors import UsageError
from flowrl.runs.query_server import answering_queries
from flowrl.runs.registry import RunEntry, live_entries
from flowrl.runs.run_names import existing_run_path, find_live_run, find_run_folder


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder for this test alone, with a path short enough for sockets."""
    with TemporaryDirectory(prefix="flowrl-test-", dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield Path(short)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder. Another folder lies beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def ended_run(folder: Path, started_at: float) -> Path:
    """Make the folder of a run that was started at a time and has ended."""
    folder.mkdir(parents=True)
    for name in ("graph.yaml", "graph.dot", "environment.json", "summary.json"):
        (folder / name).write_text("{}")
    os.utime(folder / "graph.dot", (started_at, started_at))
    return folder


@contextmanager
def active_run(folder: Path) -> Iterator[RunEntry]:
    """The entry of a run in this folder that answers queries."""
    with answering_queries("g", "serial", folder, lambda query: {"stopping": True}, warn=print):
        yield next(e for e in live_entries() if e.run_dir == str(folder))


def test_last_is_the_newest_run_at_any_place_under_this_folder(here: Path) -> None:
    for number, name in enumerate(["runs/b", "runs/sweep/1", "a"], 1):
        newest = ended_run(here / name, started_at=number)
        assert find_run_folder("last") == (newest, None)
        assert existing_run_path("last") == newest
    with active_run(here / "runs" / "c") as run:
        assert find_run_folder("last") == (here / "runs" / "c", run)
        assert find_live_run("last") == run


def test_last_is_never_a_run_of_another_folder(here: Path) -> None:
    other = here.parent / "other"
    ended_run(other / "runs" / "ended", started_at=9)
    with active_run(other / "r") as run:
        for find in (find_live_run, find_run_folder, existing_run_path):
            with pytest.raises(
                UsageError, match=r"last: there is no run under this folder; .*: r "
            ):
                find("last")
        own = ended_run(here / "own", started_at=1)
        assert find_run_folder("last") == (own, None)
        with pytest.raises(UsageError, match="under this folder is own, which is not active; act"):
            find_live_run("last")
        assert find_live_run("r") == find_live_run(str(run.pid)) == run
        assert find_run_folder("r") == (other / "r", run)


@pytest.mark.parametrize(
    "words",
    ["stop last", "top last", "why last", "logs last", "eval last", "plot last", "diff last r"],
)
def test_every_verb_refuses_last_where_only_another_folder_has_runs(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with active_run(here.parent / "r"):
        assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("flowrl: last: there is no run under this folder; ")


def test_ended_runs_are_found_where_the_registry_cannot_be_used(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here / "missing"))
    run = ended_run(here / "runs" / "one", started_at=1)
    assert existing_run_path("last") == existing_run_path("on") == run
    assert existing_run_path("runs/one") == Path("runs/one")


def test_a_folder_with_the_name_last_is_named_by_its_path(here: Path) -> None:
    named_last = ended_run(here / "last", started_at=1)
    newer = ended_run(here / "r", started_at=2)
    assert find_run_folder("last")[0] == newer
    assert find_run_folder("./last")[0] == named_last
