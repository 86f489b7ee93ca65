"""Checkpoints of learners hold everything, and the same bits in every placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.checkpoint import read_acting, read_whole
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.nodes.learners.learner import Learner
from tests.sites.run_comparison import read_results

GRAPH = """\
extends: cartpole_dqn
nodes:
  evaluator: {episodes: 2, env_count: 2}
  learner: {hooks: [{type: save, every_iters: 8, keep: 2}, averaged_weights]}
edges: [{learner.averaged -> evaluator: {every: 12}}]
"""


@pytest.mark.slow
def test_hooks_and_averaged_weights_have_equal_results_on_several_sites(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRAPH)
    found = []
    for placement in ("serial", "threads"):
        out = tmp_path / placement
        flowrl.load(tmp_path / "g.yaml").run(
            placement=placement, train_iters=30, out=out, quiet=True
        )
        found.append(read_results(out))
    assert found[0] == found[1]
    checkpoints = tmp_path / "serial" / "checkpoints"
    iters = {path.stem: read_whole(path, "learner")["train_iter"] for path in checkpoints.iterdir()}
    best = iters.pop("best")
    assert iters == {"iter-16": 16, "iter-24": 24, "last": 30}
    assert best in (12, 24)
    state, info = read_acting(checkpoints / "last.safetensors")
    assert info["node"] == "learner.averaged"
    whole = read_whole(checkpoints / "last.safetensors", "learner")
    average = whole["hooks"]["AveragedWeights"]["weights"]
    assert all((average[name] == array).all() for name, array in state.arrays.items())


class VerdictCapable(Node):
    """A node beside the learner that fires in rounds and might end the run."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        pass


class WithoutVerdicts(VerdictCapable):
    may_end_run = False


@pytest.mark.slow
@pytest.mark.parametrize(("beside", "saves"), [("WithoutVerdicts", 4), ("VerdictCapable", 11)])
def test_whole_states_are_copied_only_where_a_cut_may_fall(
    beside: str, saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten rounds, two end with a version that paces an evaluator; the first and the last version count, too."""
    graph = (
        "extends: cartpole_dqn\nnodes:\n"
        "  evaluator: {episodes: 1, env_count: 1}\n"
        "  learner: {log_every_iters: 1}\n"
        f"  beside: {{type: '{__name__}:{beside}'}}\n"
        "edges:\n  - collector.data -> beside.data\n  - learner -> evaluator: {every: 32}\n"
    )
    (tmp_path / "g.yaml").write_text(graph)
    states: list[int] = []
    saved = Learner.state_dict

    def counted(self: Learner) -> dict[str, Any]:
        states.append(self.train_iter)
        return saved(self)

    monkeypatch.setattr(Learner, "state_dict", counted)
    flowrl.load(tmp_path / "g.yaml").run(
        placement="threads", train_iters=80, out=tmp_path / "run", quiet=True
    )
    assert len(states) == saves, states
