"""The ways to step envs (`together`, `halves`, `ready`), and envs that fail meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.collectors.sample_collector import SampleCollector
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights
from tests.quick_selection import examples

WAYS = st.sampled_from(["together", "halves", "independent", "ready"])
LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=2, max_size=5)


def collector(envs: Any, n_sample: int = 8, nstep: int = 1, **params: Any) -> SampleCollector:
    spec = envs.spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=nstep)
    return SampleCollector(envs=envs, policy=policy, n_sample=n_sample, **params)


def steps_of(batch: Batch) -> list[tuple[float, ...]]:
    return [tuple(row) for row in batch["obs"].tolist()]


def test_the_rows_of_halves_equal_those_of_together() -> None:
    lengths = [[3, 5], [2], [7, 1], [4], [6]]
    both = [
        collector(ScriptedEnvs(lengths), n_sample=13, nstep=2, stepping=way)
        for way in ("together", "halves")
    ]
    for _ in range(5):
        together, halves = (node.fire(weights(1)) for node in both)
        for name in set(together) - {"logp"}:  # it counts the calls of the policy
            assert np.array_equal(together[name], halves[name])


def test_with_halves_the_policy_serves_one_half_while_the_other_steps() -> None:
    envs = ScriptedEnvs([[9]] * 5)
    sent_at_inference = []
    node = collector(envs, n_sample=15, stepping="halves")
    forward = node.mode.forward
    node.mode.forward = lambda obs: sent_at_inference.append(len(envs.sent)) or forward(obs)
    node.fire(weights(0))
    assert envs.served == [3, 2] * 3
    assert sent_at_inference == [0, 3, 2, 3, 2, 3]
    assert envs.sent == []


def test_all_rows_of_halves_have_the_actions_of_the_firings_weights() -> None:
    node = collector(ScriptedEnvs([[9]] * 4), n_sample=8, stepping="halves")
    assert [set(node.fire(weights(w))["action"]) for w in (1, 2)] == [{1}, {2}]


@pytest.mark.slow
@examples(60)
@given(LENGTHS, st.integers(1, 20), st.integers(1, 3), WAYS, st.integers(1, 2))
def test_with_ready_every_step_is_returned_once_and_in_order(
    lengths: list[list[int]], n: int, nstep: int, way: str, least: int
) -> None:
    envs = ScriptedEnvs(lengths)
    params = {"least": least} if way == "ready" else {}
    node = collector(envs, n_sample=n, nstep=nstep, stepping=way, **params)
    tokens = [node.fire(weights(0)) for _ in range(6)]
    assert [len(token) for token in tokens] == [n] * 6
    given = [s for token in tokens for s in steps_of(token)]
    for env, of_env in enumerate(lengths):
        expected = [
            (float(env), float(k), float(t))
            for k in range(6 * n + 1)
            for t in range(of_env[k % len(of_env)])
        ]
        mine = [s for s in given if s[0] == env]
        assert mine == expected[: len(mine)]
    for token in tokens:
        assert steps_of(token) == sorted(steps_of(token))
    waiting = int(node.pending_steps.counts.sum())
    assert envs.steps == len(given) + waiting  # no step is lost
    assert waiting < len(lengths) * 2


def test_a_call_of_the_policy_waits_for_least_envs() -> None:
    envs = ScriptedEnvs([[9]] * 6)
    node = collector(envs, n_sample=60, stepping="ready", least=4)
    node.fire(weights(0))
    assert min(envs.served) >= 4
    assert len(set(envs.served)) > 1  # more than `least` if more are ready


@pytest.mark.slow
@examples(80)
@given(LENGTHS, st.integers(1, 20), st.integers(1, 3), WAYS, st.data())
def test_steps_of_failed_episodes_are_in_no_later_token(
    lengths: list[list[int]], n: int, nstep: int, way: str, data: st.DataObject
) -> None:
    pairs = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, 5))
    fails = data.draw(st.dictionaries(pairs, st.integers(1, 6), max_size=8))
    envs = ScriptedEnvs(lengths, fails)
    node = collector(envs, n_sample=n, nstep=nstep, stepping=way)
    tokens = [node.fire(weights(0)) for _ in range(5)]
    assert [len(token) for token in tokens] == [n] * 5
    given = [s for token in tokens for s in steps_of(token)]
    assert len(set(given)) == len(given)
    real = {e: k for e, k in fails.items() if k <= lengths[e[0]][e[1] % len(lengths[e[0]])]}
    for token in tokens:
        for k, (env, episode, t) in enumerate(steps_of(token)):
            # the step of a row is one of its episode
            lasts = lengths[int(env)][int(episode) % len(lengths[int(env)])]
            lived = real.get((int(env), int(episode)), lasts + 1)
            assert t + 1 < lived
            assert token["next_obs"][k].tolist() == [env, episode, t + 1]
            assert token["terminated"][k] == (t + 1 == lasts)
            assert not token["truncated"][k]
    for env in range(len(lengths)):  # an env that does not fail is not affected
        if not any(e == env for e, _ in real):
            mine = [s for s in given if s[0] == env]
            assert mine == sorted(mine)
            assert [s[2] for s in mine[:1]] in ([0.0], [])


def test_dropped_steps_are_counted() -> None:
    envs = ScriptedEnvs([[5], [5]], fails={(0, 0): 3})
    node = collector(envs, n_sample=20, log_every_steps=1)
    node.fire(weights(0))
    metrics = node.ctx.records[-1].values
    assert metrics["dropped_steps"] == 3
    assert envs.steps == 20 + 3 + int(node.pending_steps.counts.sum())
    node.fire(weights(0))
    assert "dropped_steps" not in node.ctx.records[-1].values


def test_a_failed_episode_does_not_count() -> None:
    node = collector(ScriptedEnvs([[4], [4]], fails={(1, 0): 4}), n_sample=12)
    node.fire(weights(0))
    assert node.ctx.take_count().episodes == 3  # two of env 0, and the second of env 1


def test_a_reset_receives_pending_steps_first() -> None:
    envs = ScriptedEnvs([[5]] * 3)
    node = collector(envs, n_sample=3, stepping="ready")
    node.fire(weights(0))
    node.reset_env()
    assert {s[1] for s in steps_of(node.fire(weights(0)))} == {1.0}


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"stepping": "halves"}, "one env cannot be split into halves"),
        ({"least": 2}, "`least` is for `stepping: independent` and `ready`"),
        ({"least": 2, "stepping": "ready"}, "there are 1 envs, fewer than `least`"),
    ],
)
def test_impossible_parameters_are_refused(params: dict[str, Any], what: str) -> None:
    envs = ScriptedEnvs([[5]])
    with pytest.raises(UnsoundError, match=what):
        collector(envs, **params)
    spec = envs.spec()
    config = SampleCollector.Config(policy=Toy(obs=spec.obs, action=spec.action), **params)
    with pytest.raises(UnsoundError, match=what):
        SampleCollector.describe(config, Surroundings({}, {"envs": spec}, frozenset({"data"})))


def test_only_ready_is_nondeterministic() -> None:
    spec = ScriptedEnvs([[5]] * 2).spec()
    known = Surroundings({}, {"envs": spec}, frozenset({"data"}))
    policy = Toy(obs=spec.obs, action=spec.action)
    for way, why in {
        "together": "",
        "halves": "",
        "independent": "",
        "ready": "as they are ready",
    }.items():
        config = SampleCollector.Config(policy=policy, stepping=way)
        said = SampleCollector.describe(config, known).nondeterministic
        assert why in said
        assert bool(why) == bool(said)
