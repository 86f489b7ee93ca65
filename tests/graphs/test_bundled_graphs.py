"""Every bundled graph is sound, repeatable, and does what it is there for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flowrl
from flowrl.source.bundled import bundled_graphs, graphs_folder

SOLVED = {  # graph: the seeds on which it must reach its goal
    "cartpole_dqn": range(10),
    "cartpole_ppo": range(10),
    "cartpole_dqn_rnd": range(3),
    "cartpole_dqn_demos": range(3),
    "cartpole_dqn_per": range(5),
}
CASES = [(graph, seed) for graph, seeds in SOLVED.items() for seed in seeds]


@pytest.mark.parametrize("name", bundled_graphs())
def test_a_bundled_graph_is_sound_and_deterministic(name: str) -> None:
    checked = flowrl.load(name).check()
    assert checked.problems == []
    assert checked.warnings == []
    assert checked.deterministic
    assert checked.graph.about


@pytest.mark.parametrize("name", bundled_graphs())
def test_a_bundled_graph_repeats_itself_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the recording graph writes
    runs = [flowrl.load(name).run(seed=3, train_iters=12, out=tmp_path / f"run{i}") for i in (1, 2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].train_iters == 12
    metrics = [(tmp_path / f"run{i}" / "metrics.jsonl").read_bytes() for i in (1, 2)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("name", ["cartpole_dqn_rnd", "cartpole_dqn_demos", "cartpole_dqn_per"])
def test_the_edits_that_users_come_for_take_at_most_six_lines(name: str) -> None:
    lines = (graphs_folder() / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "extends: cartpole_dqn"
    assert len([line for line in lines if line.strip()]) <= 6


def test_a_run_can_write_the_demonstrations_that_another_learns_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flowrl.load("cartpole_dqn_record").run(train_iters=96, out=tmp_path / "a")
    demos = flowrl.load("cartpole_dqn_demos", {"demos.path": str(tmp_path / "cartpole_demos.npz")})
    assert demos.run(train_iters=16, out=tmp_path / "b").train_iters == 16


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_bundled_graph_solves_its_task(name: str, seed: int, tmp_path: Path) -> None:
    result = flowrl.load(name).run(seed=seed, out=tmp_path / "run")
    assert result.status == "solved", json.dumps(result.as_dict())
    assert result.eval_return is not None
    assert result.eval_return >= 475
