"""Schedules: formulas, bounds at both ends, partial schedules, and every error message."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flowrl.core.state import Count
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policy import env_settings
from flowrl.nodes.schedules import NumberSchedule, current_value, scheduled_fields
from tests.nodes.learn_modes import DISCRETE, OBS


def dqn(**params: Any) -> Dqn:
    return Dqn(obs=OBS, action=DISCRETE, **params)


@pytest.mark.parametrize(
    ("shape", "at", "expected"),
    [
        ("linear", 0, 1.0),
        ("linear", 25, 0.8),
        ("linear", 100, 0.2),
        ("linear", 1000, 0.2),
        ("exponential", 0, 1.0),
        ("exponential", 100, 0.2 + 0.8 / math.e),
        ("exponential", 300, 0.2 + 0.8 / math.e**3),
        ("cosine", 0, 1.0),
        ("cosine", 50, 0.6),
        ("cosine", 25, 0.2 + 0.4 * (1 + math.sqrt(0.5))),
        ("cosine", 100, 0.2),
        ("cosine", 1000, 0.2),
    ],
)
@pytest.mark.parametrize("unit", ["env_steps", "train_iters", "episodes"])
def test_values_equal_the_formula_of_their_shape(
    shape: Any, at: int, expected: float, unit: str
) -> None:
    schedule = NumberSchedule(start=1.0, end=0.2, shape=shape, **{unit: 100})
    others = {name: 10**6 for name in ("env_steps", "train_iters", "episodes") if name != unit}
    assert schedule.value(Count(**others, **{unit: at})) == pytest.approx(expected)


def test_a_schedule_may_rise() -> None:
    schedule = NumberSchedule(start=0.0, end=1.0, env_steps=10)
    assert [schedule.value(Count(t)) for t in (0, 5, 10, 20)] == [0.0, 0.5, 1.0, 1.0]


def test_a_number_is_its_own_value() -> None:
    assert current_value(3, Count(10**6)) == 3.0
    assert dqn(epsilon=0.3, lr=0.01).command(Count(10**6)) == {"epsilon": 0.3, "lr": 0.01}


BY_RETURN = {"by": "return_mean", "points": [[0, 1.0], [100, 0.2], [200, 0.1]]}


@pytest.mark.parametrize(
    ("found", "line", "step"),
    [
        ({}, 1.0, 1.0),
        ({"return_mean": -5.0}, 1.0, 1.0),
        ({"return_mean": 50.0}, 0.6, 1.0),
        ({"return_mean": 100.0}, 0.2, 0.2),
        ({"return_mean": 150.0, "best": 0.0}, 0.15, 0.2),
        ({"return_mean": 500.0}, 0.1, 0.1),
        ({"return_mean": math.nan}, 1.0, 1.0),
    ],
)
def test_a_schedule_by_results_follows_the_newest_evaluation(
    found: dict[str, float], line: float, step: float
) -> None:
    policy = dqn(epsilon=BY_RETURN, lr={**BY_RETURN, "shape": "steps"})
    assert policy.command(Count(10**6), found) == pytest.approx({"epsilon": line, "lr": step})
    assert policy.needed_results() == {"return_mean": "policy.epsilon"}


def test_options_of_reset_are_settings_for_envs() -> None:
    policy = dqn(
        reset_options={"length": {"by": "best", "points": [[0, 4], [10, 14]]}, "slip": 0.1}
    )
    command = policy.command(Count(), {"best": 5.0})
    assert env_settings(command) == {"length": 9.0, "slip": 0.1}
    assert policy.needed_results() == {"best": "policy.reset_options.length"}


def test_a_metric_that_an_evaluation_does_not_have_is_named() -> None:
    with pytest.raises(
        ValueError, match="depends on 'return_mean', and the evaluation has best, win_rate"
    ):
        dqn(epsilon=BY_RETURN).command(Count(), {"best": 1.0, "win_rate": 0.5})


def test_the_command_has_every_scheduled_parameter() -> None:
    assert scheduled_fields(Ppo.Config) == ("entropy_weight", "clip", "lr")
    policy = Ppo(
        obs=OBS,
        action=DISCRETE,
        clip={"start": 0.2, "end": 0.1, "train_iters": 10},
        entropy_weight={"start": 0.1, "end": 0.0, "episodes": 4},
    )
    found = policy.command(Count(env_steps=10**6, train_iters=5, episodes=1))
    assert found == pytest.approx({"clip": 0.15, "entropy_weight": 0.075, "lr": 3e-4})


def test_a_partial_schedule_keeps_the_other_keys_of_its_default() -> None:
    epsilon = dqn(epsilon={"start": 1.0}).config.epsilon
    expected = NumberSchedule(start=1.0, end=0.1, env_steps=10_000, shape="exponential")
    assert epsilon == expected


def test_a_partial_schedule_with_another_unit_loses_that_of_its_default() -> None:
    epsilon = dqn(epsilon={"train_iters": 50}).config.epsilon
    expected = NumberSchedule(start=0.95, end=0.1, train_iters=50, shape="exponential")
    assert epsilon == expected


@pytest.mark.parametrize(
    ("params", "what"),
    [
        (
            {"epsilon": {"start": 1.5}},
            r"Dqn\.epsilon is NumberSchedule\(start=1.5, .* less than or equal to 1",
        ),
        ({"epsilon": {"end": -0.1}}, r"Dqn\.epsilon is .* greater than or equal to 0"),
        ({"epsilon": 1.5}, r"Dqn\.epsilon is 1.5; expected less than or equal to 1"),
        ({"lr": {"start": 1e-3, "end": 0.0, "env_steps": 10}}, r"Dqn\.lr is .* greater than 0"),
        ({"lr": 0}, r"Dqn\.lr is 0; expected greater than 0"),
        ({"epsilon": {"strat": 0.5}}, "a schedule has no key 'strat'; did you mean 'start'"),
        ({"epsilon": "high"}, r"'high' is neither a number nor a schedule, \{start: 0.95, end: "),
        ({"epsilon": True}, "True is neither a number nor a schedule"),
        ({"lr": float("nan")}, r"^Dqn\.lr: nan is not a finite number$"),
        ({"lr": float("inf")}, r"^Dqn\.lr: inf is not a finite number$"),
        (
            {"epsilon": {"env_steps": 10, "episodes": 5}},
            "needs one of env_steps, train_iters, episodes; it has env_steps and episodes .`env_steps: null`",
        ),
        (
            {"epsilon": {**BY_RETURN, "points": [[10, 0.5], [0, 1.0]]}},
            "the points are at 10, 0 of return_mean; write them in rising order",
        ),
        (
            {"epsilon": {**BY_RETURN, "points": [0, 1]}},
            r"points: \[0, 1\] is no list of pairs; expected pairs, such as",
        ),
        (
            {"epsilon": {**BY_RETURN, "points": [[0, 1]]}},
            r"Dqn\.epsilon\.points: List should have at least 2",
        ),
        ({"epsilon": {**BY_RETURN, "points": [[0, 1], [1, 2]]}}, "less than or equal to 1"),
        ({"lr": {**BY_RETURN, "points": [[0, 1], [1, 0]]}}, r"Dqn\.lr is .* greater than 0"),
        (
            {"epsilon": {**BY_RETURN, "start": 1.0, "env_steps": 5}},
            "has no start and env_steps .`start: null, env_steps: null` removes that of an extended",
        ),
        ({"epsilon": {**BY_RETURN, "point": []}}, "no key 'point'; did you mean 'points'"),
        ({"epsilon": {"by": "best"}}, r"missing required parameter 'epsilon\.points'"),
        ({"reset_options": {"length": "long"}}, "'long' is neither a number nor a schedule"),
        (
            {"lr": {"start": 1e-3, "end": 1e-4}},
            "needs one of env_steps, train_iters, episodes; it has none of them",
        ),
        ({"lr": {"start": 1e-3, "env_steps": 5}}, r"missing required parameter 'lr\.end'"),
        ({"epsilon": {"env_steps": 0}}, r"Dqn\.epsilon\.env_steps is 0; expected greater"),
        (
            {"epsilon": {"shape": "square"}},
            "shape is 'square'; expected 'linear', 'exponential' or",
        ),
    ],
)
def test_unsuitable_schedules_are_refused_by_name(params: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        dqn(**params)


def test_the_bounds_of_a_parameter_hold_at_both_ends() -> None:
    assert dqn(epsilon={"start": 1.0, "end": 0.0, "env_steps": 5}).config.epsilon.end == 0.0
