"""The statistics of an evaluation, against hand-worked numbers and a slow implementation."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.config import PartSpec
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import CheckpointRecord, VerdictRecord
from flowrl.core.statistics import confidence_interval, interquartile_mean
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.evaluators.evaluation import Evaluation
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.policy import Policy
from tests.nodes.toy_policies import Toy, weights

COUNTING = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs={"length": 3})


def test_the_interquartile_mean_leaves_out_both_outer_quarters() -> None:
    assert interquartile_mean(np.array([9.0, 1.0, 3.0, 2.0])) == 2.5
    assert interquartile_mean(np.array([-100.0, 1, 2, 3, 4, 5, 6, 1000])) == 3.5
    assert interquartile_mean(np.array([7.0])) == 7.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_the_interquartile_mean_equals_that_of_the_slow_implementation(totals: list[float]) -> None:
    left = sorted(totals)
    for _ in range(len(totals) // 4):
        left = left[1:-1]
    assert interquartile_mean(np.array(totals)) == pytest.approx(statistics.fmean(left), abs=1e-9)


def test_the_interval_contains_the_true_value_about_as_often_as_its_confidence() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        low, high = confidence_interval(rng.normal(5.0, 1.0, 40), rng)
        held += low <= 5.0 <= high
    assert 178 <= held <= 199  # 95 % of 200, with a margin for chance and small samples


def test_the_interval_of_equal_returns_is_a_point() -> None:
    assert confidence_interval(np.full(10, 3.0), np.random.default_rng(0)) == (3.0, 3.0)


def test_the_three_averages_of_episodes() -> None:
    found = Evaluation([Episode(0, 6.0, 2), Episode(1, -2.0, 6)], win_above=0.0)
    assert found.average("mean") == 2.0
    assert found.average("win_rate") == 0.5
    assert found.average("per_step") == 0.5
    with pytest.raises(ValueError, match="a win rate needs `win_above`"):
        Evaluation(found.episodes).average("win_rate")


def evaluator(**params: object) -> Evaluator:
    policy = PartSpec("toy", Toy, Toy.Config())
    return Evaluator(env=COUNTING, policy=policy, episodes=4, seed=0, **params)


@pytest.mark.parametrize(
    ("average", "value", "missed"),
    [
        ("mean", 6.0, {"stop_value": 6.01}),
        ("win_rate", 1.0, {"win_above": 6.0}),
        ("per_step", 2.0, {"stop_value": 2.01}),
    ],
)
def test_each_average_can_be_the_goal(average: str, value: float, missed: dict[str, float]) -> None:
    goal = {"win_above": 5.0, "stop_value": value}
    below = evaluator(average=average, **{**goal, **missed})
    reached = evaluator(average=average, **goal)
    assert not below.eval(weights(0)).stop
    assert reached.eval(weights(0)).stop
    reasons = [r.reason for r in reached.ctx.records if isinstance(r, VerdictRecord)]
    assert [reason.partition(f" {value:g} over 4 ")[0] for reason in reasons] == [
        {"mean": "mean return", "win_rate": "win rate", "per_step": "return per step"}[average]
    ]


def test_metrics_contain_a_repeatable_confidence_interval() -> None:
    node = evaluator()
    first, second = (node.eval(weights(0)).metrics(node.ctx.rng("bootstrap")) for _ in range(2))
    assert first == second
    assert first["return_iqm_low"] <= first["return_iqm"] <= first["return_iqm_high"]


def test_eval_plays_the_requested_number_of_episodes() -> None:
    assert len(evaluator().eval(weights(0), n_episode=9).returns) == 9
    node = evaluator()
    node.eval(weights(0), n_episode=2)
    assert [
        r.info["eval_episodes"] for r in node.ctx.records if isinstance(r, CheckpointRecord)
    ] == [2]


def test_a_win_rate_requires_win_above() -> None:
    config = Evaluator.Config(
        env=COUNTING, policy=PartSpec("toy", Toy, Toy.Config()), average="win_rate"
    )
    assert issubclass(Toy, Policy)
    with pytest.raises(UnsoundError, match="give `win_above`"):
        Evaluator.describe(config, Surroundings({}, {}, frozenset()))
    with pytest.raises(UnsoundError, match="give `win_above`"):
        Evaluator(config=config)


@pytest.mark.parametrize(
    ("info", "params", "why"),
    [
        ({}, {"average": "win_rate", "win_above": 3.0}, "a win rate is at most 1"),
        (
            {"won": "bool"},
            {"metric": "won"},
            "the mean of 'won', which is true or false, is at most 1",
        ),
        ({"won": "float32"}, {"metric": "won"}, ""),
    ],
)
def test_a_goal_that_no_share_can_reach_is_refused(
    info: dict[str, str], params: dict[str, Any], why: str
) -> None:
    toy = PartSpec("toy", Toy, Toy.Config())
    env = PartSpec("gymnasium", Gymnasium, COUNTING.config.model_copy(update={"info": info}))
    for stop_value in (1.0, 1.5):
        config = Evaluator.Config(env=env, policy=toy, stop_value=stop_value, **params)
        if why and stop_value > 1:
            with pytest.raises(UnsoundError, match=f"`stop_value` is 1.5, and {why}; give a share"):
                Evaluator.describe(config, Surroundings({}, {}, frozenset()))
        else:
            Evaluator.describe(config, Surroundings({}, {}, frozenset()))


def test_an_unknown_average_is_refused_by_name() -> None:
    found: Any = Evaluation([Episode(0, 1.0, 10)])
    with pytest.raises(ValueError, match="no average 'wins'; known: mean, win_rate, per_step"):
        found.average("wins")
