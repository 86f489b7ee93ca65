"""A group whose gradients torch.distributed adds: what it learns, and how it ends when a learner is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.config import param
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.learners.learner import Learner
from tests.nodes.learn_modes import same_bits
from tests.nodes.policies.test_every_algorithm import make, random_batch
from tests.nodes.test_learner_groups import group_of, learn

FAST = {
    "learner.replicas": 3,
    "learner.reduce": "fast",
    "evaluator.weights.every": 12,
    "evaluator.episodes": 2,
}


class KillsOnce(Hook):
    """Kills the process of replica 1 in its tenth train iteration, if it did not do so before."""

    class Config(Hook.Config):
        done: str = param(".", "the file that says that it did so")

    def after_iter(self, learner: Learner, batch: Batch, result: Any) -> None:
        done = Path(self.config.done)
        if learner.ctx.replica == 1 and learner.train_iter == 10 and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_learners_of_one_process_have_the_sums_of_the_engine() -> None:
    policy = make("dqn")
    batches = [random_batch(policy, seed) for seed in range(3)]
    exact, fast = group_of(policy), group_of(policy, reduce="fast")
    learn(exact, batches)
    learn(fast, batches)
    assert same_bits(exact[0].mode.state_dict(), fast[2].mode.state_dict())


def test_a_fast_group_is_not_deterministic() -> None:
    checked = flowrl.load("cartpole_ppo_group", {"learner.reduce": "fast"}).check()
    assert checked.problems == []
    assert checked.reasons == [
        "learner: reduce fast (the order of additions depends on the placement)"
    ]
    [problem] = flowrl.load("cartpole_ppo", {"learner.reduce": "fast"}).check().problems
    assert problem.what.endswith(
        "`reduce: fast` is for a group of learners, and this learner is alone"
    )


@pytest.mark.slow
def test_in_processes_all_learn_the_weights_of_the_exact_group_up_to_rounding(
    tmp_path: Path,
) -> None:
    sets = {**FAST, "learner.log_every_iters": 1}  # at each report they compare their weights
    runs = {
        how: flowrl.load("cartpole_dqn", {**sets, "learner.reduce": how}).run(
            placement="processes", train_iters=20, out=tmp_path / how, quiet=True
        )
        for how in ("exact", "fast")
    }
    files = (tmp_path / how / "checkpoints" / "last.safetensors" for how in ("exact", "fast"))
    exact, fast = map(load_file, files)
    assert exact.keys() == fast.keys()
    for name in exact:
        if name.startswith("act/"):
            np.testing.assert_allclose(fast[name], exact[name], atol=1e-5)
    assert runs["exact"].happened == ()
    [what] = runs["fast"].happened
    assert what.endswith("torch.distributed added, in an order of its own")


@pytest.mark.slow
def test_a_fast_group_ends_at_a_verdict_beyond_which_it_learns(tmp_path: Path) -> None:
    graph = flowrl.load("cartpole_dqn", {**FAST, "evaluator.stop_value": 9})
    result = graph.run(placement="processes", steps=50_000, out=tmp_path / "r", quiet=True)
    assert result.train_iters == 12


@pytest.mark.slow
def test_a_fast_group_that_loses_a_learner_goes_on(tmp_path: Path) -> None:
    hook = {"type": f"{__name__}:KillsOnce", "done": str(tmp_path / "done")}
    sets = {**FAST, "learner.hooks": [hook], "snapshots.every_rounds": 1}
    graph = flowrl.load("cartpole_dqn", sets)
    result = graph.run(placement="processes", train_iters=30, out=tmp_path / "r", quiet=True)
    assert (tmp_path / "done").exists()
    assert (result.train_iters, result.recoveries) == (30, 1)
