"""A run that was stopped or killed continues in its folder, with the files of a run that never stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn
from flowrl.core.state import State
from flowrl.runs.folder import CHECKPOINT_LOG, RunFolder
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runs.watcher import Watcher
from tests.sites.run_comparison import read_results
from tests.toys.toy_runs import toy_graph

SNAPSHOT_KEYS = ("resumed_after", "happened")


class Dies(Node):
    """Fails as soon as the run of this folder has a snapshot."""

    data = In("samples")
    run: Path | None = None

    def fire(self, data: Any) -> None:
        if Dies.run is not None and snapshot_folders(Dies.run):
            raise ConnectionError("the machine is gone")


class SavesVersions(Node):
    """Saves each version of the weights that it reads."""

    data = In("samples")
    weights = StateIn("weights")

    def fire(self, data: Any, weights: State) -> None:
        self.ctx.save_checkpoint(f"v{weights.version}", weights, folder="versions")


def graph(every_rounds: int = 2, **more: Any) -> dict[str, Any]:
    return toy_graph(
        {"c": "Source", "l": "Learner", "e": "Evaluator", "d": f"{__name__}:Dies"},
        ["c -> l, d", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}],
        snapshots={"every_rounds": every_rounds},
        **more,
    )


def results(folder: Path) -> dict[str, Any]:
    found = read_results(folder)
    return {name: value for name, value in found.items() if name not in SNAPSHOT_KEYS}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("serial", "threads"), ("threads", "serial")])
def test_a_run_that_failed_continues_with_the_files_of_one_that_did_not(
    first: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dies, "run", tmp_path / "run")
    loaded = flowrl.load(graph(every_rounds=5))
    with pytest.raises(NodeError, match="the machine is gone"):
        loaded.run(placement=first, train_iters=10**6, out=tmp_path / "run", quiet=True)
    failed = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (failed["status"], failed["resume"]) == ("failed", f"flowrl resume {tmp_path / 'run'}")
    monkeypatch.setattr(Dies, "run", None)
    iters = failed["snapshot_rounds"] + 13
    result = flowrl.resume(tmp_path / "run", placement=then, train_iters=iters, quiet=True)
    assert result.resumed_after == failed["snapshot_rounds"]
    assert (result.status, result.train_iters) == ("finished", iters)
    loaded.run(train_iters=iters, out=tmp_path / "whole", quiet=True)
    whole, found = results(tmp_path / "whole"), results(tmp_path / "run")
    assert whole["state_digest"]
    found["resume"] = whole["resume"]
    assert found == whole


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_mapped_buffer_is_made_anew_from_the_snapshot(placement: str, tmp_path: Path) -> None:
    """The rows that its files have when the run is resumed are newer."""

    def run(name: str) -> Any:
        storage = {"type": "mapped", "path": str(tmp_path / f"rows of {name}")}
        sets = {"evaluator.stop_value": None, "buffer.size": 2500, "snapshots.every_rounds": 2}
        return flowrl.load("cartpole_dqn", {**sets, "buffer.storage": storage})

    whole = run("whole").run(train_iters=96, out=tmp_path / "whole", quiet=True)
    run("part").run(train_iters=60, out=tmp_path / "part", quiet=True)
    shutil.rmtree(snapshot_folders(tmp_path / "part")[0])
    found = flowrl.resume(tmp_path / "part", placement=placement, train_iters=96, quiet=True)
    assert found.resumed_after < whole.snapshot_rounds
    assert found.state_digest == whole.state_digest


@pytest.mark.slow
def test_files_that_were_removed_meanwhile_are_named(tmp_path: Path) -> None:
    loaded = flowrl.load(graph())
    loaded.run(train_iters=8, out=tmp_path / "run", quiet=True)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    log = tmp_path / "run" / "logs" / "l.log"
    log.write_bytes(log.read_bytes()[:3])
    found = flowrl.resume(tmp_path / "run", train_iters=12, quiet=True)
    what = "what the run had written there before its snapshot is missing"
    assert found.warnings == (f"metrics.jsonl, logs/l.log: {what}",)
    assert flowrl.resume(tmp_path / "run", train_iters=16, quiet=True).warnings == ()
    assert (
        flowrl.fork(tmp_path / "run", out=tmp_path / "f", train_iters=20, quiet=True).warnings == ()
    )
    (tmp_path / "run" / "graph.yaml").unlink()
    with pytest.raises(UsageError, match=r"run: its graph\.yaml is missing"):
        flowrl.resume(tmp_path / "run", train_iters=20, quiet=True)


def test_checkpoints_of_the_part_that_is_not_repeated_are_removed(tmp_path: Path) -> None:
    data = toy_graph(
        {"c": "Source", "l": "Learner", "s": f"{__name__}:SavesVersions"},
        ["c -> l, s", "l.weights -> s"],
        snapshots={"every_rounds": 2, "keep": 10},
    )
    run, whole = tmp_path / "run", tmp_path / "whole"
    flowrl.load(data).run(train_iters=12, out=run, quiet=True)
    flowrl.load(data).run(train_iters=7, out=whole, quiet=True)
    shutil.copy(run / "versions" / "v10.safetensors", run / "versions" / "mine.safetensors")
    for folder in snapshot_folders(run):
        if int(folder.name.rpartition("-")[2]) > 6:
            shutil.rmtree(folder)
    result = flowrl.resume(run, train_iters=7, quiet=True)
    assert result.resumed_after <= 6
    found, expected = (
        {path.name for path in (folder / "versions").iterdir()} for folder in (run, whole)
    )
    assert found == expected | {"mine.safetensors"}


def test_a_damaged_list_of_checkpoints_is_named(tmp_path: Path) -> None:
    loaded = flowrl.load(graph())
    loaded.run(train_iters=8, out=tmp_path / "run", quiet=True)
    log = tmp_path / "run" / CHECKPOINT_LOG
    log.write_text("v7\n")
    with pytest.raises(
        RunError, match=r"checkpoints\.jsonl: is damaged .*; remove it, and the run"
    ):
        flowrl.resume(tmp_path / "run", train_iters=12, quiet=True)


def test_a_run_that_reached_its_limit_continues_to_a_greater_one(tmp_path: Path) -> None:
    short = {"nodes": {**graph()["nodes"]}, **{k: v for k, v in graph().items() if k != "nodes"}}
    del short["nodes"]["d"]
    short["edges"] = ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}]
    flowrl.load(short).run(train_iters=9, out=tmp_path / "whole", quiet=True)
    flowrl.load(short).run(train_iters=5, out=tmp_path / "run", quiet=True)
    with pytest.raises(UsageError, match="it has done 4 train iterations, and its limit is 3"):
        flowrl.resume(tmp_path / "run", train_iters=3, quiet=True)
    result = flowrl.resume(tmp_path / "run", train_iters=9, quiet=True)
    assert result.resumed_after == 4  # the beginning of the round of the cut
    whole, found = results(tmp_path / "whole"), results(tmp_path / "run")
    found["resume"] = whole["resume"]
    assert found == whole


class StopsAt(Watcher):
    """Stops a run at its first record after so many env steps, as Ctrl-C does."""

    def __init__(self, env_steps: int) -> None:
        self._env_steps = env_steps

    def event(self, run: Any, source: Any, record: Any) -> None:
        if source.total.env_steps >= self._env_steps and not run.is_stopping:
            run.stop()


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_an_interrupted_run_saves_a_snapshot_and_continues(placement: str, tmp_path: Path) -> None:
    without = {key: value for key, value in graph().items() if key != "snapshots"}
    loaded = flowrl.load(without)
    stopped = loaded.run(
        placement=placement,
        train_iters=10**6,
        out=tmp_path / "run",
        quiet=True,
        watcher=StopsAt(20),
    )
    assert stopped.status == "interrupted"
    assert stopped.snapshot_rounds is not None
    assert stopped.resume.startswith("flowrl resume ")
    iters = stopped.train_iters + 13
    again = flowrl.resume(tmp_path / "run", placement=placement, train_iters=iters, quiet=True)
    whole = loaded.run(train_iters=iters, out=tmp_path / "whole", quiet=True)
    assert (again.resumed_after, again.digest) == (stopped.snapshot_rounds, whole.digest)
    for name in ("metrics.jsonl", "logs/l.log", "logs/e.log"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_without_a_snapshot_is_not_continued(tmp_path: Path) -> None:
    without = {key: value for key, value in graph().items() if key != "snapshots"}
    flowrl.load(without).run(train_iters=4, out=tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match="it has no snapshot to continue from; give the graph"):
        flowrl.resume(tmp_path / "run", quiet=True)


def test_a_run_is_not_continued_while_it_runs(tmp_path: Path) -> None:
    found = []

    class Resumes(Watcher):
        def event(self, run: Any, source: Any, record: Any) -> None:
            if not found:
                with pytest.raises(UsageError, match=r"process \d+ still runs it") as caught:
                    flowrl.resume(run.run_dir, quiet=True)
                found.append(caught)

    flowrl.load(graph()).run(train_iters=4, out=tmp_path / "run", quiet=True, watcher=Resumes())
    assert found


def test_two_processes_do_not_run_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may have looked before either was listed among the active runs."""
    monkeypatch.setattr("flowrl.runs.folder_lock.LOCKED_WITHIN_S", 0.0)
    flowrl.load(graph()).run(train_iters=8, out=tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    other = RunFolder(tmp_path / "run")
    with pytest.raises(UsageError, match="run: another process runs it, or has just begun to"):
        flowrl.resume(tmp_path / "run", train_iters=12, quiet=True)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    other.close()
    assert flowrl.resume(tmp_path / "run", train_iters=12, quiet=True).train_iters == 12


def test_a_graph_that_reads_the_latest_version_goes_on_and_the_summary_says_so(
    tmp_path: Path,
) -> None:
    free = toy_graph(
        {"c": "Source", "l": "Learner"},
        ["c -> l", {"l.weights -> c.weights": {"latest": True}}],
        snapshots={"every_rounds": 2},
    )
    flowrl.load(free).run(train_iters=4, placement="threads", out=tmp_path / "r", quiet=True)
    result = flowrl.resume(tmp_path / "r", train_iters=9, placement="threads", quiet=True)
    assert result.train_iters == 9
    assert "not exactly as it would have gone on: the edge l.weights" in result.happened[0]
    exact = flowrl.resume(tmp_path / "r", train_iters=12, quiet=True)
    assert not exact.happened


@pytest.mark.parametrize(
    ("snapshots", "problem"),
    [
        ("10", "snapshots: expected a mapping"),
        ({"keep": 2}, "snapshots: it is not said how often"),
        ({"every_sec": 2}, "snapshots: unknown key 'every_sec'; did you mean 'every_s'"),
        ({"every_s": "soon"}, "snapshots.every_s is 'soon'; expected seconds"),
        ({"every_rounds": 0}, "snapshots.every_rounds is 0; expected a whole number from 1"),
    ],
)
def test_wrong_settings_are_problems_of_the_graph(snapshots: Any, problem: str) -> None:
    found = flowrl.load({**graph(), "snapshots": snapshots}).check(envs="skip")
    assert any(problem in str(one) for one in found.problems), found.problems
