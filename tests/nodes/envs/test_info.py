"""Listed entries of `info` are columns, the same through every kind of manager; others are not carried."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.api import load
from flowrl.core.batch import Batch, Column
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.functions import as_node
from flowrl.core.records import CheckpointRecord, MetricsRecord, VerdictRecord
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.joined_managers import join_managers
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.info import offered_info, pool_info
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.evaluators.evaluation import Evaluation
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.policies.random import Random
from flowrl.render.report import check_json, check_text
from tests.nodes.env_managers.manager_kinds import KINDS, OTHERS, open_manager
from tests.nodes.toy_policies import Toy, weights
from tests.sites.run_comparison import compare_placements

ID = "tests.nodes.toy_envs:InfoEnv"
LISTED = {"is_success": "bool", "score": "float32", "place/xy": "int64[2]", "steps": "int64"}


def env(info: Any = LISTED, cls: str = "InfoEnv", **kwargs: Any) -> Gymnasium:
    return Gymnasium(id=f"tests.nodes.toy_envs:{cls}", info=info, kwargs=kwargs)


def check_info(batch: Any) -> None:
    """Compare the info of rows with their observations."""
    seed, t = batch["next_obs"][..., 0], batch["next_obs"][..., 1]
    assert (batch["info/score"] == seed % 100 + t).all()
    assert (batch["info/steps"] == t).all()
    assert (batch["info/place/xy"] == np.stack([t, -t], -1)).all()
    over = batch["terminated"] | batch["truncated"]
    assert (batch["info/is_success"] == (over & (seed % 2 == 0))).all()
    assert batch["info/is_success"].any()
    assert "info/text" not in batch
    assert [batch.schema[f"info/{name}"].dtype for name in LISTED] == [
        "bool",
        "float32",
        "int64",
        "int64",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_of_manager_have_the_listed_info(kind: str) -> None:
    with open_manager(kind, count=3, env=env()) as envs:
        spec = envs.spec()
        node = SampleCollector(
            envs=envs, policy=Random(obs=spec.obs, action=spec.action), n_sample=50
        )
        batches = [node.collect() for _ in range(3)]
        for batch in batches:
            check_info(batch)
    if kind in OTHERS:
        with open_manager("serial", count=3, env=env()) as envs:
            policy = Random(obs=spec.obs, action=spec.action)
            base = SampleCollector(envs=envs, policy=policy, n_sample=50)
            for batch in batches:
                expected = base.collect()
                assert all(np.array_equal(batch[name], expected[name]) for name in expected)


def test_info_follows_its_step_in_every_stepping_and_through_joined_managers() -> None:
    managers = [SerialEnvManager(env=env(), count=2, seed=k) for k in range(2)]
    spec = join_managers(managers).spec()
    policy = Random(obs=spec.obs, action=spec.action)
    for stepping in ("together", "halves", "independent", "ready"):
        check_info(
            SampleCollector(envs=managers, policy=policy, n_sample=80, stepping=stepping).collect()
        )
    episodes = EpisodeCollector(envs=managers, policy=policy, n_episode=12).collect()
    assert all(len(one) == one["info/steps"][-1] for one in episodes)


def test_a_row_of_several_steps_has_the_info_of_its_own_step() -> None:
    envs = SerialEnvManager(env=env(), count=2)
    spec = envs.spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=3)
    batch = SampleCollector(envs=envs, policy=policy, n_sample=40).fire(weights(0))
    assert (batch["info/steps"] == batch["obs"][:, 1] + 1).all()


def test_types_of_listed_names_are_those_that_an_env_shows() -> None:
    envs = SerialEnvManager(env=env(["score", "is_success", "place/xy"]), count=1)
    assert envs.spec().info == {
        "score": Column("float32"),
        "is_success": Column("bool"),
        "place/xy": Column("int64", (2,)),
    }
    with pytest.raises(UnsoundError, match=r"no 'scor' in 100 steps; .*did you mean 'score'"):
        SerialEnvManager(env=env(["scor"]), count=1)
    assert "text" not in offered_info(env())


@pytest.mark.parametrize("kind", ["serial", "thread"])
def test_what_is_missing_is_false_or_nan_and_of_an_integer_a_failure(kind: str) -> None:
    listed = {"nothing": "bool", "nowhere": "float32[2]"}
    with open_manager(kind, count=2, env=env(listed)) as envs:
        envs.reset()
        info = envs.advance(np.zeros(2, np.int64)).info
        assert info["nothing"].tolist() == [False, False]
        assert np.isnan(info["nowhere"]).all()
        assert info["nowhere"].shape == (2, 2)
    with open_manager(kind, count=2, env=env({"never": "int64"})) as envs:
        envs.reset()
        with pytest.raises(EnvError, match="info has no 'never', and an integer cannot say"):
            envs.advance(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"score": "bool"}, r"info: score is \d.*; it is listed as bool; list it as float32"),
        ({"score": "float32[2]"}, r"it is listed as float32\[2\]"),
        (
            {"text": "float32"},
            r"info: text is 'not a number'; it is listed as float32; list what has one type and shape",
        ),
    ],
)
def test_another_type_than_listed_is_a_failure_of_the_env(listed: Any, message: str) -> None:
    envs = SerialEnvManager(env=env(listed), count=1)
    envs.reset()
    with pytest.raises(EnvError, match=message):
        envs.advance(np.zeros(1, np.int64))


def test_info_that_is_no_mapping_is_an_error_in_words() -> None:
    with pytest.raises(
        UnsoundError, match=r"fails when it is played: .*info is None; expected a m"
    ):
        SerialEnvManager(env=env(["score"], "NoInfo"), count=1)
    envs = SerialEnvManager(env=env({"score": "float32"}, "NoInfo"), count=1)
    envs.reset()
    with pytest.raises(EnvError, match=r"step 1: info is None; expected a mapping, such as \{\}"):
        envs.advance(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"a": "flota"}, "info.a is 'flota'; expected bool, int8"),
        (["a", "a"], "given twice"),
        (
            "a",
            "info is 'a'; expected names with their types, such as {is_success: bool}, or a list",
        ),
    ],
)
def test_wrong_settings_are_refused_in_words(listed: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env(listed)


def test_a_replaced_worker_changes_no_info() -> None:
    with open_manager("sync", count=3, env=env(length=9)) as envs:
        envs.reset()
        for _ in range(4):
            before = envs.advance(np.zeros(3, np.int64))
        for worker in envs.pool.workers:
            os.kill(worker.pid, signal.SIGKILL)
        after = envs.advance(np.zeros(3, np.int64))
        assert envs.failures.restored_envs == 3
        assert (after.info["score"] == before.info["score"] + 1).all()


def test_timesteps_by_hand_have_the_listed_info() -> None:
    envs = SerialEnvManager(env=env(length=2), count=2)
    envs.launch(episodes=1)
    for _ in range(2):
        steps = envs.step(dict.fromkeys(envs.ready_obs, 0))
    for one in steps.values():
        assert one.info["steps"] == 2
        assert one.episode is not None
        assert one.episode.info["steps"] == 2.0
        assert "place/xy" not in one.episode.info  # it is no number


def test_pools_give_arrays_with_masks() -> None:
    columns = {"a": Column("float32"), "b": Column("bool"), "c": Column("int64")}
    given = {"a": np.array([1.0, 2.0]), "_a": np.array([True, False]), "c": np.array([3, 4])}
    found = pool_info(given, columns, 2)
    np.testing.assert_array_equal(found["a"], [1.0, np.nan])
    assert found["b"].tolist() == [False, False]
    assert found["c"].tolist() == [3, 4]
    with pytest.raises(ValueError, match="an integer cannot say so"):
        pool_info({}, columns, 2)
    listed = Gymnasium(id="CartPole-v1", info={"absent": "float32"})
    pool = VectorEnvManager(env=listed, count=2)
    pool.reset()
    assert np.isnan(pool.advance(np.zeros(2, np.int64)).info["absent"]).all()
    pool.close()


def test_agents_have_their_own_info() -> None:
    parallel = "tests.nodes.envs.agent_envs:NumberedAgents"
    listed = {"number": "float32", "missing": "float64"}
    shared = PettingZoo(id=parallel, agents="shared", info=listed)
    envs = join_managers(SerialEnvManager(env=shared, count=2))
    envs.reset()
    info = envs.advance(np.zeros(6, np.int64)).info
    assert info["number"].tolist() == [0.25, 1.25, 2.25] * 2
    assert np.isnan(info["missing"]).all()
    joint = SerialEnvManager(env=PettingZoo(id=parallel, info=["agent_1/number"]), count=1)
    joint.reset()
    assert joint.advance(np.zeros((1, 3), np.int64)).info["agent_1/number"].tolist() == [1.25]
    with pytest.raises(ValueError, match=r"`info` of agents needs types"):
        PettingZoo(id=parallel, agents="shared", info=["number"])


# evaluations


def evaluator(**params: Any) -> Evaluator:
    envs = SerialEnvManager(env=env(), count=3)
    policy = Toy(obs=envs.spec().obs, action=envs.spec().action)
    return Evaluator(envs=envs, policy=policy, episodes=9, seed=3, **params)


def test_an_evaluation_reports_the_info_of_last_steps() -> None:
    node = evaluator()
    evaluation = node.eval(weights(0))
    [metrics] = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    lengths = evaluation.lengths
    assert metrics["info/steps"] == pytest.approx(sum(lengths) / 9)
    successes = [episode.info["is_success"] for episode in evaluation.episodes]
    assert metrics["info/is_success"] == pytest.approx(sum(successes) / 9)
    assert 0 < sum(successes) < 9


def test_rows_of_an_evaluation_have_the_listed_info() -> None:
    node = evaluator()
    check_info(node.fire(weights(0)))
    known = Surroundings({}, {"envs": [node.envs.spec()]}, frozenset({"data"}))
    batch = node.fire(weights(0))
    assert Evaluator.describe(node.config, known).outs["data"] == dict(batch.schema)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"metric": "is_success"}, "mean is_success"),
        ({"metric": "steps", "average": "win_rate", "win_above": 2.5}, "win rate"),
    ],
)
def test_a_goal_can_be_about_info(params: dict[str, Any], text: str) -> None:
    evaluation = evaluator(**params).eval(weights(0))
    value = evaluation.average(params.get("average", "mean"))
    assert 0 < value < 1
    reached, missed = (evaluator(stop_value=goal, **params) for goal in (value - 0.9, 1.0))
    assert reached.eval(weights(0)).stop
    assert not missed.eval(weights(0)).stop
    [verdict] = [r for r in reached.ctx.records if isinstance(r, VerdictRecord)]
    assert verdict.reason.startswith(f"{text} {value:g} over 9 episodes")


def test_weights_whose_metric_is_missing_are_worse_than_any_other() -> None:
    node = evaluator(metric="score")
    measured = iter([math.nan, 1.0, math.nan, 2.0])
    node.play = lambda *_: Evaluation(
        [Episode(0, 1.0, 1, {"score": next(measured)})], metric="score"
    )
    for _ in range(4):
        node.fire(weights(0))
    saved = [r for r in node.ctx.records if isinstance(r, CheckpointRecord)]
    assert len(saved) == 3  # the first one, since there is no other, and those that were measured


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"metric": "success"}, "no number 'success' .*known: return, is_success, score, steps"),
        ({"metric": "place/xy"}, "no number 'place/xy'"),
        ({"metric": "steps", "average": "per_step"}, "take `mean` or `win_rate`"),
    ],
)
def test_a_goal_about_unlisted_info_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsoundError, match=message):
        evaluator(**params)


# graphs


@as_node
def success_bonus(data: Batch) -> Batch:
    return data.replace(reward=data["reward"] + data["info/is_success"])


@pytest.mark.slow
def test_info_reaches_buffers_and_reward_models_in_every_placement(tmp_path: Path) -> None:
    graph = {
        "extends": "cartpole_dqn",
        "env": {"id": ID, "info": {"is_success": "bool", "score": "float32"}},
        "nodes": {
            "evaluator": {"episodes": 4, "metric": "is_success", "stop_value": None},
            "bonus": {"type": f"{__name__}:success_bonus"},
        },
        "edges": ["collector -> bonus -> buffer", {"learner -> evaluator": {"every": 12}}],
    }
    found = compare_placements(graph, tmp_path, "threads", "envs=thread", train_iters=24)
    assert any('"info/is_success"' in line for line in found["metrics.jsonl"])


def test_check_lists_what_an_env_offers() -> None:
    graph = {"extends": "cartpole_dqn", "env": {"id": ID, "info": ["score"]}}
    checked = load(graph).check(envs="play")
    offered = "its env offers info that is not listed: place/xy: int64[2], steps: int64"
    assert offered in check_text(checked)
    assert "envs" in check_json(checked)["notes"]
    assert not check_json(load(graph).check())["notes"]
