"""Advantages that collectors compute: equal to the learner's, in rows that stand alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.facts import UnsoundError
from flowrl.graph.loading import load_data
from flowrl.nodes import (
    A2c,
    EpisodeCollector,
    Gymnasium,
    Impala,
    Learner,
    Ppg,
    Ppo,
    Reinforce,
    SampleCollector,
    SerialEnvManager,
    Trpo,
)
from flowrl.nodes.actor_critic import ActorCritic
from flowrl.nodes.advantages import observations
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.observations import NestedColumns
from tests.nodes.learn_modes import DISCRETE, OBS

SHUFFLE = "tests.checks.test_row_order:Shuffle"
SMALL = {"model": Mlp(hidden=[16])}
RECURRENT = {"model": Gru(hidden=[16], size=8), "unroll_steps": 8}
MINIBATCHES = {"epochs": 2, "minibatch_size": 32}
CASES: dict[str, tuple[type[ActorCritic], dict[str, Any]]] = {
    "a2c": (A2c, {**SMALL, "gae_lambda": 0.9}),
    "a2c with memory": (A2c, {**RECURRENT, "gae_lambda": 0.9}),
    "ppo": (Ppo, {**SMALL, **MINIBATCHES}),
    "ppo with normalised values": (Ppo, {**SMALL, **MINIBATCHES, "normalise_values": True}),
    "ppo with normalised observations": (
        Ppo,
        {"model": Mlp(hidden=[16], normalise_obs=True), **MINIBATCHES},
    ),
    "ppo without shared layers": (Ppo, {"model": Mlp(hidden=[16], shared=False), **MINIBATCHES}),
    "ppo with memory": (Ppo, {**RECURRENT, **MINIBATCHES, "value_clip": 0.2}),
    "ppg": (Ppg, {**SMALL, "critic": Mlp(hidden=[8]), **MINIBATCHES, "auxiliary_every_iters": 2}),
    "trpo": (Trpo, {**SMALL, "critic": Mlp(hidden=[8]), "critic_epochs": 2}),
    "impala": (Impala, {**SMALL, "gae_lambda": 0.9}),
    "impala with memory": (Impala, RECURRENT),
    "reinforce": (Reinforce, SMALL),
}
# V-trace needs rows of the newest weights; otherwise some steps of three envs wait for the next token.
N_SAMPLE = {"impala": 54, "impala with memory": 48}
each_case = pytest.mark.parametrize("case", CASES)


def learner_and_collector(case: str, seed: int = 0) -> tuple[Learner, Learner, Any]:
    """A learner that computes advantages, one that reads them, and a collector that computes them for the second."""
    cls, settings = CASES[case]
    envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=3, seed=seed)
    spec = envs.spec()
    computing, reading = (
        cls(obs=spec.obs, action=spec.action, advantages=where, **settings)
        for where in ("learner", "collector")
    )
    made: Any = SampleCollector(
        envs=envs, policy=reading, n_sample=N_SAMPLE.get(case, 56), seed=seed
    )
    if cls is Reinforce:
        made = EpisodeCollector(envs=envs, policy=reading, n_episode=4, seed=seed)
    return Learner(policy=computing, seed=seed), Learner(policy=reading, seed=seed), made


def collected(collector: Any, learner: Learner) -> Batch:
    """A token of rows, with the newest weights."""
    batch: Batch = collector.fire(learner.state())
    return batch


def estimates(learner: Learner, rows: Batch) -> list[Any]:
    """What a learner's mode has as advantages and returns of these rows."""
    from flowrl.nodes.network_learn_mode import LearnBatch

    mode: Any = learner.mode
    b = LearnBatch(rows, {}, None)
    if isinstance(learner.policy, Reinforce):
        return [mode.returns(b)]
    if isinstance(learner.policy, Ppo):
        return list(mode.flat_estimates(b))
    if isinstance(learner.policy, Impala):
        logp, _ = learner.policy.distribution.logp_entropy(mode.heads(b), b)
        target, advantage = mode.corrected(b, logp.detach() - b.logp)
        return [advantage.numpy(), target.numpy()]
    return [x.numpy() for x in mode.advantages(b)]


@each_case
def test_collectors_compute_what_the_learner_computes(case: str) -> None:
    computing, reading, collector = learner_and_collector(case)
    for _ in range(2):
        rows = collected(collector, reading)
        ours, theirs = estimates(computing, rows), estimates(reading, rows)
        for one, other in zip(ours, theirs, strict=True):
            assert one.std() > 0.01
            np.testing.assert_allclose(one, other, atol=1e-6 * max(1.0, np.abs(one).max()))
        computing.train(rows)
        reading.train(rows)


@each_case
def test_a_learner_that_reads_advantages_learns_the_same_weights(case: str) -> None:
    computing, reading, collector = learner_and_collector(case)
    for _ in range(3):
        rows = collected(collector, reading)
        computing.train(rows)
        reading.train(rows)
    ours, theirs = computing.mode.weights(), reading.mode.weights()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["a2c", "trpo", "impala", "reinforce"])
def test_rows_with_advantages_stand_alone(case: str) -> None:
    """In another order, and with the columns that are read only, they have the same gradient."""
    _, reading, collector = learner_and_collector(case)
    _, other, _ = learner_and_collector(case)
    rows = collected(collector, reading)
    order = np.random.default_rng(1).permutation(len(rows))
    reading.train(rows)
    needed = other.policy.learn_columns()
    other.train(rows.only(needed).take(order))
    for name, array in reading.mode.weights().items():
        np.testing.assert_allclose(array, other.mode.weights()[name], atol=1e-5, err_msg=name)


def test_each_row_has_columns_for_what_was_computed_and_needs_no_others() -> None:
    policies = {
        case: cls(obs=OBS, action=DISCRETE, advantages="collector", **settings)
        for case, (cls, settings) in CASES.items()
    }
    needs = {case: set(policy.learn_columns()) for case, policy in policies.items()}
    assert needs["a2c"] == {"obs", "action", "logp", "advantage", "return"}
    assert needs["ppo"] == needs["a2c"] | {"value"}
    assert needs["reinforce"] == {"obs", "action", "logp", "offset", "return"} - {"logp"}
    assert needs["ppo with memory"] == needs["ppo"] | {"last", "memory"}
    assert not any(policy.needs_order for policy in policies.values())


def test_values_of_nested_observations_are_computed_from_their_leaves() -> None:
    leaves = {"position": OBS, "speed": DISCRETE}
    rng = np.random.default_rng(0)
    rows = Batch(
        {
            "next_obs/position": rng.standard_normal((5, 4)).astype(np.float32),
            "next_obs/speed": rng.integers(2, size=5),
            "reward": np.zeros(5, np.float32),
        }
    )
    found = observations(rows, "next_obs", NestedColumns(leaves))
    assert (found["position"] == rows["next_obs/position"]).all()
    assert (found["speed"] == rows["next_obs/speed"]).all()


def test_evaluations_and_acting_do_without_the_value_network() -> None:
    _, reading, collector = learner_and_collector("ppg")
    state = reading.state()
    assert "values/trunk.0.weight" in state.arrays
    mode = reading.policy.eval_mode(0)
    mode.load(state)
    obs = collected(collector, reading)["obs"]
    assert set(mode.forward(obs)) == {"action"}


# What `check` knows of it


def problems(policy: dict[str, Any], nodes: Any = None, *edges: Any, extends: str) -> list[str]:
    graph = {
        "extends": extends,
        "policy": {"advantages": "collector", **policy},
        "nodes": {"evaluator": None, **(nodes or {})},
        "edges": list(edges),
    }
    return [str(problem) for problem in check(load_data(graph)).problems]


@pytest.mark.parametrize("where", ["collector", "learner"])
def test_rows_of_which_each_stands_alone_need_no_order(where: str) -> None:
    found = problems(
        {"advantages": where},
        {"mix": {"type": SHUFFLE}},
        "collector -> mix -> learner",
        extends="cartpole_ppo",
    )
    assert [("order of time" in problem) for problem in found] == [True] * (where == "learner")


def test_on_policy_rows_are_not_replayed_although_they_need_no_order() -> None:
    buffer = {"type": "naive_buffer", "batch_size": 64, "updates_per_push": 1}
    [problem] = problems(
        {}, {"buffer": buffer}, "collector -> buffer -> learner", extends="cartpole_ppo"
    )
    assert "learns on-policy, and buffer.batches repeats rows that older weights made" in problem


def test_a_reward_model_behind_a_collector_comes_too_late() -> None:
    [problem] = problems(
        {}, {"rnd": {"type": "rnd"}}, "collector -> rnd -> learner", extends="cartpole_ppo"
    )
    assert "rnd changes rewards, and the column 'advantage' of these rows" in problem
    assert "give the policy `advantages: learner`" in problem


def test_vtrace_on_the_collecting_side_needs_the_newest_weights() -> None:
    [problem] = problems({}, extends="cartpole_impala")
    assert "is stale (lag 1): V-trace on the collecting side" in problem
    assert problems({}, None, {"learner -> collector": {"lag": 0}}, extends="cartpole_impala") == []


def test_vtrace_on_the_collecting_side_needs_one_train_iteration_in_each_round() -> None:
    queue = {"type": "queue_buffer", "batch_size": 320, "updates_per_push": 2}
    edges = ["collector -> queue -> learner", {"learner -> collector": {"lag": 0}}]
    [problem] = problems({}, {"queue": queue}, *edges, extends="cartpole_impala")
    assert "learner fires 2 times in each round" in problem


@pytest.mark.parametrize(
    ("collector", "expected"),
    [
        ({"n_sample": 650}, "650 env steps are no multiple of 16"),
        ({"stepping": "ready"}, "with `stepping: ready` some rows are of older weights"),
    ],
)
def test_vtrace_on_the_collecting_side_needs_tokens_of_one_version(
    collector: dict[str, Any], expected: str
) -> None:
    edge = {"learner -> collector": {"lag": 0}}
    [problem] = problems({}, {"collector": collector}, edge, extends="cartpole_impala")
    assert expected in problem


def test_data_without_the_columns_is_refused() -> None:
    found = problems(
        {},
        {"demos": {"type": "demos", "path": "graphs/cartpole_demos.npz"}, "collector": None},
        "demos -> learner",
        extends="cartpole_ppo",
    )
    assert any("needs the column 'advantage'" in problem for problem in found)


def test_values_of_noisy_networks_are_the_learners_own() -> None:
    with pytest.raises(UnsoundError, match="values of a noisy network"):
        A2c(obs=OBS, action=DISCRETE, advantages="collector", model=Mlp(noisy=True))
    A2c(obs=OBS, action=DISCRETE, model=Mlp(noisy=True))
