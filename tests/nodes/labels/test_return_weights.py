"""Rows are weighted by the returns of their episodes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.datasets import npz
from flowrl.nodes.labels.return_weights import ReturnWeights

SCHEMA = {"obs": Column("float32"), "reward": Column("float32"), "last": Column("bool")}


def make(**params: float) -> ReturnWeights:
    return ReturnWeights(config=ReturnWeights.Config(**params), context=Context("balance"))


def episodes(*rewards: list[float], open_end: bool = False) -> Batch:
    flat = np.concatenate([np.array(one, np.float32) for one in rewards])
    last = np.concatenate([np.arange(len(one)) == len(one) - 1 for one in rewards])
    if open_end:
        last[-1] = False
    return Batch({"obs": flat, "reward": flat, "last": last})


@pytest.mark.parametrize("open_end", [False, True])
def test_weights_grow_with_the_returns_of_episodes(open_end: bool) -> None:
    rewards = [[1.0, 2.0], [4.0], [0.5, 0.5, 0.0]]
    found = make(temperature=0.7).fire(episodes(*rewards, open_end=open_end))["weight"]
    returns = [sum(one) for one in rewards]
    mean = sum(returns) / 3
    std = math.sqrt(sum((r - mean) ** 2 for r in returns) / 3)
    weights = [math.exp(sum(one) / (0.7 * std)) for one in rewards for _ in one]
    expected = [w * len(weights) / sum(weights) for w in weights]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found.dtype == np.float32


def test_episodes_of_one_return_count_alike() -> None:
    assert make().fire(episodes([1.0, 1.0], [2.0]))["weight"].tolist() == [1, 1, 1]


def test_a_token_without_rows_gets_the_column() -> None:
    assert make().fire(episodes([1.0]).take(slice(0, 0))).schema["weight"] == Column("float32")


@pytest.mark.parametrize("missing", ["reward", "last"])
def test_rows_without_rewards_or_ends_are_refused(missing: str) -> None:
    schema = {name: column for name, column in SCHEMA.items() if name != missing}
    with pytest.raises(UnsoundError, match=f"reads the column '{missing}'"):
        ReturnWeights.describe(
            ReturnWeights.Config(), Surroundings({"data": schema}, {}, frozenset({"out"}))
        )


@pytest.mark.exhaustive
def test_balanced_cloning_leaves_bad_demonstrations_aside(tmp_path: Path) -> None:
    """Three in four demonstrated steps are random; only the others are worth imitating."""
    demos = flowrl.load("cartpole_bc").check().graph.nodes["demos"].config.path
    good = npz.read(Path(demos))
    bad = dict(Batch.concat([good] * 3).columns)
    rng = np.random.default_rng(0)
    bad["action"] = rng.integers(2, size=len(bad["action"]))
    bad["last"] = np.arange(len(bad["action"])) % 20 == 19  # short episodes: low returns
    mixed = Batch.concat([Batch(bad), good])
    npz.write(tmp_path / "mixed.npz", mixed, npz.read_metadata(Path(demos)))
    sets = {"demos.path": str(tmp_path / "mixed.npz"), "evaluator.stop_value": None}
    sets |= {"evaluator.weights.every": 500, "buffer.size": 8000}
    returns = {}
    for graph in ("cartpole_rbc", "cartpole_bc"):
        run = flowrl.load(graph, sets).run(seed=0, train_iters=1000, out=tmp_path / graph)
        returns[graph] = run.eval_return
    assert returns["cartpole_rbc"] >= 450
    assert returns["cartpole_rbc"] > returns["cartpole_bc"]
