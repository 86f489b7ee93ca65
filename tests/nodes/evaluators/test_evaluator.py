"""The evaluator: its episodes, the best weights, the verdict, and its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings
from flowrl.core.records import CheckpointRecord, MetricsRecord, VerdictRecord
from flowrl.core.state import State
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.evaluators.evaluation import Evaluation, episode_quotas, play_episodes
from flowrl.nodes.evaluators.evaluator import Evaluator
from tests.nodes.toy_policies import Toy, ToyAct, weights

TOYS = "tests.nodes.toy_envs"


def env(cls: str = "CountingEnv", **kwargs: Any) -> Gymnasium:
    return Gymnasium(id=f"{TOYS}:{cls}", kwargs=kwargs)


def evaluator(
    part: Gymnasium, wanted: frozenset[str] = frozenset(), seed: int = 0, **params: Any
) -> Evaluator:
    nstep = params.pop("nstep", 1)
    policy = PartSpec("toy", Toy, Toy.Config(nstep=nstep))
    config = Evaluator.Config(env=part, policy=policy, **params)
    return Evaluator(
        config=config, context=Context("evaluator", seed=seed, consumed_outputs=wanted)
    )


def records(node: Evaluator, kind: type) -> list[Any]:
    return [record for record in node.ctx.records if isinstance(record, kind)]


@pytest.mark.parametrize(
    ("episodes", "envs", "expected"),
    [(12, 5, [3, 3, 2, 2, 2]), (4, 4, [1] * 4), (2, 3, [1, 1, 0]), (20, 10, [2] * 10)],
)
def test_every_envs_quota_is_fixed_before_any_episode_is_played(
    episodes: int, envs: int, expected: list[int]
) -> None:
    assert episode_quotas(episodes, envs).tolist() == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 10_000))
def test_short_episodes_are_not_preferred(episodes: int, count: int, seed: int) -> None:
    """The first episodes of each env count, no matter how long they are."""
    envs = SerialEnvManager(env=env("TwoLengthEnv"), count=count, seed=seed)
    played = play_episodes(envs, ToyAct(), episodes)
    alone = []
    for index, quota in enumerate(episode_quotas(episodes, count)):
        single = SerialEnvManager(env=env("TwoLengthEnv"), count=count, seed=seed)
        single.reset()
        found: list[float] = []
        while len(found) < quota:
            steps = single.advance(np.zeros(1, np.int64), [index])
            found += [episode.total for episode in steps.episodes]
        alone += found
    assert [episode.total for episode in played] == alone


def test_an_endless_episode_is_an_error() -> None:
    node = evaluator(env("ContinuousEnv"), episodes=3, most_steps=50)
    node.mode.forward = lambda obs: {"action": np.zeros((len(obs), 2), np.float32)}
    with pytest.raises(
        ValueError, match="env 0: an episode has not ended after 50 steps; give the env "
    ):
        node.eval(weights(0))


def test_the_limit_of_steps_is_for_each_episode() -> None:
    def played(most_steps: int) -> int:
        node = evaluator(env("TwoLengthEnv"), episodes=30, env_count=3, most_steps=most_steps)
        return max(episode.length for episode in node.eval(weights(0)).episodes)

    assert played(40) == 40
    with pytest.raises(ValueError, match=r"env \d: an episode has not ended after 39 steps"):
        played(39)


def test_the_mean_of_many_episodes_is_the_true_mean_of_the_env() -> None:
    # half of the episodes return 1, half 40; the mean of those that end first would be near 1
    node = evaluator(env("TwoLengthEnv"), episodes=400, env_count=40)
    assert node.eval(weights(0)).return_mean == pytest.approx(20.5, abs=3.5)


def test_an_env_that_has_played_its_quota_is_not_stepped_any_more() -> None:
    envs = SerialEnvManager(env=env("TwoLengthEnv", long=30), count=4, seed=1)
    stepped: list[int] = []
    envs.reset()
    for index, one in enumerate(list(envs.local_envs.envs)):
        step = one.step
        envs.local_envs.step_calls[index] = lambda a, i=index, s=step: stepped.append(i) or s(a)
    played = play_episodes(envs, ToyAct(), 6)
    assert len(stepped) == sum(episode.length for episode in played)
    assert len({episode.length for episode in played}) == 2


def test_every_evaluation_plays_the_same_episodes() -> None:
    node = evaluator(env("CountingEnv"), episodes=7, env_count=3)
    first, second = node.eval(weights(0)), node.eval(weights(0))
    assert first == second
    assert [episode.env_id for episode in first.episodes] == [0, 0, 0, 1, 1, 2, 2]
    other = evaluator(env("CountingEnv"), episodes=7, env_count=3, seed=1)
    assert other.eval(weights(0)) != first


@pytest.mark.parametrize(
    ("params", "count"), [({"episodes": 3}, 3), ({"episodes": 30}, 10), ({"env_count": 4}, 4)]
)
def test_the_number_of_envs_depends_on_the_episodes(params: dict[str, int], count: int) -> None:
    node = evaluator(env(length=1), **params)
    assert node.envs.spec().count == count


def test_metrics_equal_hand_worked_numbers() -> None:
    found = Evaluation([Episode(0, 1.0, 10), Episode(0, 2.0, 20), Episode(1, 9.0, 60)])
    assert found.metrics() == {
        "return_mean": 4.0,
        "return_std": pytest.approx((38 / 3) ** 0.5),
        "return_min": 1.0,
        "return_max": 9.0,
        "return_median": 2.0,
        "length_mean": 30.0,
        "return_iqm": 4.0,  # a quarter of three episodes is none
        "return_per_step": 12 / 90,
        "length_min": 10.0,
        "length_max": 60.0,
    }
    assert (found.returns, found.lengths) == ([1.0, 2.0, 9.0], [10, 20, 60])
    assert replace(found, win_above=1.5).metrics()["win_rate"] == 2 / 3


def scripted_evaluator(scores: dict[str, float], **params: Any) -> Evaluator:
    """An evaluator whose returns depend on the purpose of the episodes' seeds."""
    node = evaluator(env(length=1), **params)
    play_original = node.play

    def fake(envs: Any, seeds: str, steps: Any, n: int) -> Evaluation:
        found = play_original(envs, seeds, steps, n)
        score = scores[seeds.partition("/")[0]]
        return Evaluation([episode._replace(total=score) for episode in found.episodes])

    node.play = fake
    return node


def test_only_new_best_weights_are_saved() -> None:
    scores = {"episodes": 0.0}
    node = scripted_evaluator(scores, episodes=2)
    states: list[State] = []
    for score in (5.0, 5.0, 4.0, 6.0, -1.0):
        scores["episodes"] = score
        states.append(weights(0))
        node.fire(states[-1])
    kept = records(node, CheckpointRecord)
    assert [(k.name, k.info["eval_return"]) for k in kept] == [("best", 5.0), ("best", 6.0)]
    assert [k.states for k in kept] == [{"": states[0]}, {"": states[3]}]
    assert kept[0].info == {"eval_return": 5.0, "eval_return_std": 0.0, "eval_episodes": 2}


def test_the_newest_evaluation_is_a_state() -> None:
    scores = {"episodes": 0.0}
    node = scripted_evaluator(scores, episodes=2)
    assert node.state("found").command == {}
    found = []
    for score in (5.0, 4.0, 6.0):
        scores["episodes"] = score
        node.fire(weights(0))
        found.append(node.state("found").command)
    assert [one["return_mean"] for one in found] == [5.0, 4.0, 6.0]
    assert [one["best"] for one in found] == [5.0, 5.0, 6.0]


@pytest.mark.parametrize(("info", "win_above"), [({}, None), ({"score": "float32"}, 2.0)])
def test_the_described_metrics_are_those_that_an_evaluation_has(
    info: dict[str, str], win_above: float | None
) -> None:
    part = Gymnasium(id=f"{TOYS}:InfoEnv", info=info)
    node = evaluator(part, episodes=2, win_above=win_above)
    facts = Evaluator.describe(node.config, Surroundings({}, {}, frozenset()))
    node.fire(weights(0))
    assert facts.settings["found"] == node.state("found").command.keys()
    assert facts.settings["found"] >= {f"info/{name}" for name in info}


def test_weights_with_nan_are_not_evaluated() -> None:
    node = evaluator(env(length=1))
    with pytest.raises(ValueError, match="learning has diverged"):
        node.fire(State({"w": np.array([np.nan], np.float32)}))
    assert records(node, CheckpointRecord) == []


@pytest.mark.parametrize(
    ("seen", "unseen", "verdict"),
    [(10.0, 10.0, True), (10.0, 9.9, False), (9.9, 10.0, False)],
    ids=["both", "seen only", "unseen only"],
)
def test_a_goal_must_be_reached_in_the_usual_and_in_new_episodes(
    seen: float, unseen: float, verdict: bool
) -> None:
    node = scripted_evaluator({"episodes": seen, "confirm": unseen}, episodes=2, stop_value=10.0)
    assert node.eval(weights(0)).stop is verdict
    assert len(records(node, VerdictRecord)) == verdict
    metrics = records(node, MetricsRecord)[0].values
    assert metrics["return_mean"] == seen
    assert metrics.get("confirm_return_mean") == (unseen if seen >= 10 else None)


def test_the_verdict_gives_its_reason() -> None:
    node = scripted_evaluator({"episodes": 11.0, "confirm": 10.5}, episodes=2, stop_value=10.0)
    node.fire(weights(0))
    assert records(node, VerdictRecord) == [
        VerdictRecord("mean return 11 over 2 episodes, and 10.5 over 2 unseen ones; the goal is 10")
    ]


def test_without_a_goal_there_is_no_verdict() -> None:
    node = scripted_evaluator({"episodes": 1e9}, episodes=2)
    assert not node.eval(weights(0)).stop


def test_each_confirmation_plays_new_episodes() -> None:
    node = evaluator(env(length=1, ends="final"), episodes=3, stop_value=1.0)
    node.eval(weights(0)), node.eval(weights(0))
    for one in node.envs.local_envs.envs:
        # With a quota of 1, each evaluation begins two episodes.
        fixed, fresh = one.seeds[::4], one.seeds[2::4]
        assert len(set(fixed)) == 1
        assert len(set(fresh)) == 2
        assert not set(fixed) & set(fresh)


def test_consumed_steps_are_output_as_rows() -> None:
    node = evaluator(
        env(length=3, ends="final"), frozenset({"data"}), episodes=3, env_count=2, nstep=2
    )
    batch = node.fire(weights(1))
    known = Surroundings({}, {}, frozenset({"data"}))
    assert Evaluator.describe(node.config, known).outs["data"] == dict(batch.schema)
    assert batch["obs"][:, 1].tolist() == [0, 1, 2] * 3
    assert batch["reward"].tolist() == [1.0, 2.0, 3.0] * 3  # also if the policy sums rewards
    assert batch["discount"].tolist() == [0.5, 0.5, 0.0] * 3
    assert batch["last"].tolist() == [False, False, True] * 3
    assert batch["next_obs"][:, 1].tolist() == [1, 2, 3] * 3
    assert set(batch["action"]) == {1}
    seeds = batch["obs"][:, 0]
    assert len(set(seeds)) == 3


def test_steps_without_a_consumer_are_not_output() -> None:
    assert evaluator(env(length=3), episodes=2).fire(weights(0)) is None


def test_an_evaluation_is_due_after_the_given_train_iterations() -> None:
    node = evaluator(env())
    due = [k for k in range(0, 1000, 50) if node.should_eval(k, every_iters=200)]
    assert due == [0, 200, 400, 600, 800]


def test_closing_closes_the_envs() -> None:
    node = evaluator(env(length=1), episodes=2)
    node.eval(weights(0))
    envs = list(node.envs.local_envs.envs)
    node.close()
    assert [one.closed for one in envs] == [True, True]
