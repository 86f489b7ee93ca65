"""Checkpoints of learners hold everything, and the same bits in every placement."""

from __future__ import annotations

from pathlib import Path

import flowrl
from flowrl.core.checkpoint import read_acting, read_whole
from tests.sites.run_comparison import read_results

GRAPH = """\
extends: cartpole_dqn
nodes:
  evaluator: {episodes: 2, env_count: 2}
  learner: {hooks: [{type: save, every_iters: 8, keep: 2}, averaged_weights]}
edges: [{learner.averaged -> evaluator: {every: 12}}]
"""


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
