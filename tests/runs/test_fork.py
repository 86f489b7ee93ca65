"""A fork begins from a snapshot of another run, with other settings, and with random numbers of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.errors import NodeError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.runs.result import RunResult
from tests.toys.toy_runs import toy_graph

SIX = {"train_iters": 6, "quiet": True}


class Sized(Node):
    """Has a state of a size that the graph chooses."""

    data = In("samples")

    class Config(Config):
        size: int = param(2, "the size")

    def setup(self) -> None:
        self.numbers = [0] * self.config.size

    def fire(self, data: Batch) -> None:
        self.numbers[0] += 1

    def load_state_dict(self, state: Any) -> None:
        if len(state["numbers"]) != self.config.size:
            raise ValueError(f"the state has the size {len(state['numbers'])}")
        super().load_state_dict(state)


def graph(**more: Any) -> dict[str, Any]:
    return toy_graph(
        {"c": "Source", "l": "Learner", "e": "Evaluator", "s": f"{__name__}:Sized"},
        ["c -> l, s", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}],
        snapshots={"every_rounds": 1000, "keep": 5},  # which is: one at the end
        **more,
    )


@pytest.fixture
def parent(tmp_path: Path) -> RunResult:
    """A run of six iterations, with snapshots after two, four and five rounds."""
    flowrl.load(graph()).run(out=tmp_path / "parent", train_iters=3, quiet=True)
    flowrl.resume(tmp_path / "parent", train_iters=5, quiet=True)
    return flowrl.resume(tmp_path / "parent", **SIX)


def fork(parent: RunResult, out: str, **options: Any) -> RunResult:
    folder = Path(parent.run_dir).parent / out
    return flowrl.fork(parent.run_dir, out=folder, **{**SIX, **options})


@pytest.mark.slow
def test_a_fork_with_the_same_random_numbers_does_as_its_parent(parent: RunResult) -> None:
    for placement in ("serial", "threads"):
        child = fork(parent, placement, at=2, same_random=True, placement=placement)
        assert (child.digest, child.state_digest) == (parent.digest, parent.state_digest)
        assert (child.seed, child.resumed_after) == (parent.seed, 2)


@pytest.mark.slow
def test_a_fork_has_random_numbers_of_its_own_and_is_repeatable(parent: RunResult) -> None:
    forks = {
        "usual": fork(parent, "usual", at=2),
        "again": fork(parent, "again", at=2, placement="threads"),
        "set": fork(parent, "set", at=2, set={"c.mode": "other"}),
        "seed": fork(parent, "seed", at=2, seed=5),
        "later": fork(parent, "later", at=4),
    }
    digests = {name: child.digest for name, child in forks.items()}
    assert digests["usual"] == digests["again"]
    assert len({*digests.values(), parent.digest}) == 5  # all but `again`
    seed = forks["usual"].seed
    assert fork(parent, "named", at=2, seed=seed).digest == digests["usual"]


def test_the_parent_of_a_fork_is_recorded_and_kept_when_it_continues(parent: RunResult) -> None:
    child = fork(parent, "child", at=4)
    expected = {"run_dir": parent.run_dir, "rounds": 4, "same_random": False}
    assert child.parent is not None
    assert {name: child.parent[name] for name in expected} == expected
    assert len(child.parent["state_digest"]) == 64
    again = flowrl.resume(child.run_dir, train_iters=9, quiet=True)
    whole = flowrl.fork(
        parent.run_dir, at=4, train_iters=9, quiet=True, out=Path(parent.run_dir).parent / "whole"
    )
    assert again.parent == child.parent
    assert (again.digest, again.state_digest) == (whole.digest, whole.state_digest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"at": 3}, "it has no snapshot after 3 rounds; its snapshots are those after 2, 4, 5"),
        ({"train_iters": 5}, "it has done 5 train iterations, and its limit is 5; give a greater"),
        ({"at": 2, "same_random": True, "seed": 1}, "--same-random continues the random numbers"),
        (
            {"at": 2, "set": {"c.steps": 7}},
            "done 20 env steps after 2 rounds, and with the changed",
        ),
        (
            {"at": 2, "set": {"c.replicas": 2}},
            "its snapshot has no state of 'l.data', 's.data', 'c#1'; a fork",
        ),
    ],
)
def test_what_does_not_fit_the_snapshot_is_refused_before_there_is_a_folder(
    options: dict[str, Any], told: str, parent: RunResult
) -> None:
    with pytest.raises(UsageError, match=told):
        fork(parent, "child", **options)
    assert not (Path(parent.run_dir).parent / "child").exists()


def test_a_node_that_cannot_take_its_state_is_named(parent: RunResult) -> None:
    with pytest.raises(
        NodeError, match="node 's', loading its state: ValueError: the state has the size 2"
    ):
        fork(parent, "child", at=2, set={"s.size": 3})


def test_a_run_continues_with_changes_that_leave_its_bits(parent: RunResult) -> None:
    changes = {"snapshots.every_rounds": 3, "limits.train_iters": 9, "l.data.compress": "lz4"}
    result = flowrl.resume(parent.run_dir, set=changes, quiet=True)
    whole = flowrl.load(graph()).run(
        train_iters=9, quiet=True, out=Path(parent.run_dir).parent / "whole"
    )
    assert (result.train_iters, result.digest) == (9, whole.digest)


@pytest.mark.slow
@pytest.mark.parametrize("is_file", [True, False])
def test_a_changed_graph_is_shown_and_continues_only_as_a_fork(
    is_file: bool, parent: RunResult
) -> None:
    path, changes = Path(parent.run_dir) / "graph.yaml", {"c.mode": "other"}
    if is_file:
        path.write_text(path.read_text().replace("mode: usual", "mode: other"))
        changes = {}
    with pytest.raises(UsageError) as raised:
        flowrl.resume(parent.run_dir, set=changes, train_iters=9, quiet=True)
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("and this changes what it computes:")
    assert "~ node c: mode usual -> other" in lines
    command = f"flowrl fork {parent.run_dir}" + ("" if is_file else " --set c.mode=other")
    assert lines[-1] == f"A new run can continue with it: {command}"
    assert fork(parent, "child", at=4, set=changes).status == "finished"
    recorded = json.loads((Path(parent.run_dir).parent / "child/summary.json").read_text())
    assert recorded["parent"]["rounds"] == 4


@pytest.mark.slow
def test_forks_of_a_bundled_graph_are_equal_in_every_placement(tmp_path: Path) -> None:
    settings = {"snapshots.every_rounds": 1000}
    options: dict[str, Any] = {"train_iters": 60, "quiet": True}
    flowrl.load("cartpole_dqn").run(set=settings, out=tmp_path / "parent", **options)
    options["train_iters"] = 120
    changes = {"policy.lr": 0.01}
    forks = [
        flowrl.fork(tmp_path / "parent", set=changes, placement=p, out=tmp_path / p, **options)
        for p in ("serial", "processes")
    ]
    assert forks[0].state_digest == forks[1].state_digest
    seeds = [fork.seed for fork in forks]
    assert seeds[0] == seeds[1] != 0
    other = flowrl.fork(tmp_path / "parent", set=changes, out=tmp_path / "o", seed=1, **options)
    assert other.episodes != forks[0].episodes or other.digest != forks[0].digest


def test_a_fork_that_fails_before_all_states_are_loaded_has_the_counts_of_its_snapshot(
    tmp_path: Path,
) -> None:
    """Nodes are loaded in the order of the graph, and an env manager with other envs comes first."""
    graph = flowrl.load("cartpole_dqn", {"snapshots.every_rounds": 100})
    before = graph.run(train_iters=16, out=tmp_path / "parent", quiet=True)
    with pytest.raises(NodeError, match="the state is that of 8 envs, and this manager has 4"):
        flowrl.fork(tmp_path / "parent", set={"envs.count": 4}, train_iters=99, out=tmp_path / "f")
    found = json.loads((tmp_path / "f" / "summary.json").read_text())
    assert before.snapshot_rounds is not None
    assert (found["env_steps"], found["train_iters"]) == (1024 + 256, 8)
    assert found["env_steps_per_s"] == 0
