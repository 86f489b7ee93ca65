"""The sample collector: rows and their order, weights, other policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.state import State
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.origin import collector_number
from flowrl.nodes.policies.random import Random
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights


def collector(
    n_sample: int = 6,
    count: int = 2,
    seed: int = 0,
    nstep: int = 1,
    gamma: float = 0.5,
    log_every_steps: int = 1,
    origin: bool = False,
    learning_policy: Any = None,
    policy: type[Toy] = Toy,
    **env: Any,
) -> SampleCollector:
    part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs=env)
    envs = SerialEnvManager(env=part, count=count, seed=seed)
    spec = envs.spec()
    made = policy(obs=spec.obs, action=spec.action, nstep=nstep, gamma=gamma)
    params = {"origin": origin, "learning_policy": learning_policy, "seed": seed}
    return SampleCollector(
        envs=envs, policy=made, n_sample=n_sample, log_every_steps=log_every_steps, **params
    )


class SumsInUnrolls(Toy):
    unroll_steps = 3  # type: ignore[assignment]


def described(node: SampleCollector) -> Any:
    known = Surroundings({}, {"envs": node.envs.spec()}, frozenset({"data"}))
    spec = PartSpec("toy", Toy, Toy.Config())
    config = SampleCollector.Config(policy=spec, n_sample=node.config.n_sample)
    return SampleCollector.describe(config, known)


def test_rows_have_the_described_columns() -> None:
    node = collector()
    facts = described(node)
    batch = node.fire(weights(1))
    assert facts.rows == {"data": len(batch)} == {"data": 6}
    assert facts.outs["data"] == dict(batch.schema)
    assert facts.outs["data"]["action"].n == 3
    assert facts.env_steps == node.ctx.take_count().env_steps


def test_rows_are_sorted_by_env_and_then_by_time() -> None:
    batch = collector(n_sample=6, length=9).fire(weights(0))
    assert batch["obs"][:, 1].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch["next_obs"][:, 1].tolist() == [1, 2, 3, 1, 2, 3]
    assert batch["reward"].tolist() == [1, 2, 3, 1, 2, 3]
    assert len(set(batch["obs"][:3, 0])) == len(set(batch["obs"][3:, 0])) == 1
    assert batch["last"].tolist() == [False, False, True] * 2
    assert batch["discount"].tolist() == [0.5] * 6
    assert batch["logp"].tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(("ends", "discount"), [("final", 0.0), ("cut", 0.5)])
def test_only_a_terminated_episode_has_the_discount_0(ends: str, discount: float) -> None:
    batch = collector(n_sample=4, count=1, length=2, ends=ends).fire(weights(0))
    assert batch["terminated"].tolist() == [False, ends == "final"] * 2
    assert batch["truncated"].tolist() == [False, ends == "cut"] * 2
    assert batch["discount"].tolist() == [0.5, discount] * 2
    assert batch["next_obs"][:, 1].tolist() == [1, 2, 1, 2]  # the true last observation
    assert batch["last"].tolist() == [False, True] * 2


def test_the_next_firing_continues_after_the_last_one() -> None:
    node = collector(n_sample=4, length=9)
    node.fire(weights(0))
    assert node.fire(weights(0))["obs"][:, 1].tolist() == [2, 3, 2, 3]


def test_tokens_do_not_change_after_they_were_returned() -> None:
    node = collector(n_sample=5, nstep=2)
    first = node.fire(weights(0))
    before = {name: array.copy() for name, array in first.columns.items()}
    for _ in range(3):
        node.fire(weights(0))
    assert all(np.array_equal(first[name], array) for name, array in before.items())
    assert not any(array.flags.writeable for array in first.columns.values())


def step_keys(batch: Batch) -> list[tuple[float, float]]:
    """The steps of the rows, each as the seed of its episode and the index in it."""
    return [tuple(row) for row in batch["obs"].tolist()]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 13), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_no_row_is_lost_or_changed_by_the_size_of_tokens(
    count: int, amounts: list[int], nstep: int, seed: int
) -> None:
    node = collector(count=count, seed=seed, nstep=nstep)
    tokens = [node.collect(n) for n in amounts]
    assert [len(token) for token in tokens] == amounts
    whole = collector(count=count, seed=seed, nstep=nstep)
    steps = -(-sum(amounts) // count)
    once = whole.collect(steps * count)
    rows = {k: i for i, k in enumerate(step_keys(once))}
    got = [k for token in tokens for k in step_keys(token)]
    by_time = [step_keys(once)[env * steps + t] for t in range(steps) for env in range(count)]
    assert sorted(got) == sorted(by_time[: sum(amounts)])
    for token in tokens:
        places = [rows[k] for k in step_keys(token)]
        assert places == sorted(places)  # sorted by env and then by time
        for name in set(token) - {"last", "logp"}:
            assert np.array_equal(token[name], once[name][places])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_a_row_that_is_not_last_is_followed_by_its_successor(
    count: int, n: int, nstep: int, seed: int
) -> None:
    node = collector(count=count, n_sample=n, nstep=nstep, seed=seed)
    for _ in range(3):
        batch = node.collect()
        seed_t, t = batch["obs"].T
        for k in np.flatnonzero(~batch["last"]):
            assert (seed_t[k + 1], t[k + 1]) == (seed_t[k], t[k] + 1)
        assert batch["last"][-1]


def test_rows_have_one_reward_whatever_the_policy_sums() -> None:
    # rewards 1 2 3 4 5, gamma 1/2, the fifth step terminates; tokens of two rows
    node = collector(n_sample=2, count=1, nstep=3, length=5, ends="final")
    rows = Batch.concat([node.fire(weights(0)) for _ in range(3)])
    assert rows["reward"].tolist()[:5] == [1, 2, 3, 4, 5]
    assert rows["discount"].tolist()[:5] == [0.5, 0.5, 0.5, 0.5, 0.0]
    assert rows["terminated"].tolist()[:5] == [False, False, False, False, True]
    assert rows["next_obs"][:5, 1].tolist() == [1, 2, 3, 4, 5]
    assert rows["last"].tolist() == [False, True, False, True, True, True]
    assert rows["origin/step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_can_be_followed_if_the_policy_that_learns_sums_rewards() -> None:
    def links(nstep: int, **params: Any) -> list[str]:
        rows = collector(nstep=nstep, length=5, **params).fire(weights(0))
        return [name for name in rows if name.startswith("origin/")]

    followed = ["origin/collector", "origin/env", "origin/step"]
    assert links(1) == []
    assert links(3) == followed
    learns = Toy(obs=Column("float32"), action=Column("int64"), nstep=3)
    assert links(1, learning_policy=learns) == followed
    assert links(3, origin=True) == [*followed, "origin/weights"]


@pytest.mark.parametrize(
    ("cls", "params"), [(SampleCollector, {"n_sample": 12}), (EpisodeCollector, {"n_episode": 2})]
)
def test_rows_of_a_random_policy_are_discounted_for_the_policy_that_learns(
    cls: Any, params: dict[str, int]
) -> None:
    def discounts(policy: Any, **learns: Any) -> set[float]:
        part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs={"length": 5})
        envs = SerialEnvManager(env=part, count=2, seed=0)
        spec = envs.spec()
        acts = policy(obs=spec.obs, action=spec.action)
        rows = cls(envs=envs, policy=acts, **params, **learns).fire(weights(0))
        return set(rows["discount"].tolist()) - {0}  # where an episode ends

    learns = Toy(obs=Column("float32"), action=Column("int64"), gamma=0.25)
    assert discounts(Random) == {1}
    assert discounts(Random, learning_policy=learns) == {0.25}
    assert discounts(Toy, learning_policy=learns) == {0.5}


def test_a_policy_that_learns_from_unrolls_cannot_let_others_sum_its_rewards() -> None:
    with pytest.raises(
        UnsoundError,
        match="SumsInUnrolls learns from unrolls, whose rewards nothing sums; let it sum",
    ):
        collector(nstep=2, policy=SumsInUnrolls)


def test_two_collectors_never_have_the_same_origin() -> None:
    numbers = {
        collector_number(Context(name, replica, 7))
        for name in ("agent", "tutor")
        for replica in range(3)
    }
    assert len(numbers) == 6
    assert numbers.isdisjoint({collector_number(Context("agent", 0, 8))})


def test_new_weights_are_loaded_once() -> None:
    node = collector()
    first, second = weights(1), weights(2)
    actions = [set(node.fire(w)["action"]) for w in (first, first, second)]
    assert actions == [{1}, {1}, {2}]
    assert node.mode.loads == 2


def test_finished_episodes_are_counted_and_recorded() -> None:
    node = collector(n_sample=8, count=2, length=3)
    node.fire(weights(0))
    assert node.ctx.take_count() == (8, 2, 0)
    metrics = [r.values for r in node.ctx.records if isinstance(r, MetricsRecord)]
    assert metrics == [
        {
            "return_mean": 6.0,
            "return_std": 0.0,
            "return_min": 6.0,
            "return_max": 6.0,
            "length_mean": 3.0,
        }
    ]


def test_episodes_are_recorded_once_enough_steps_were_taken() -> None:
    node = collector(n_sample=8, count=2, length=3, log_every_steps=20)
    record_counts = []
    for _ in range(6):
        node.fire(weights(0))
        record_counts.append(len([r for r in node.ctx.records if isinstance(r, MetricsRecord)]))
    assert record_counts == [0, 0, 1, 1, 1, 2]


def test_a_firing_in_which_no_episode_ends_records_nothing() -> None:
    node = collector(n_sample=2, length=30)
    node.fire(weights(0))
    assert node.ctx.records == []


class AlwaysOne(Random):
    """Always takes action 1, and has another discount."""

    gamma = 0.25
    nstep = 4

    def collect_columns(self) -> Any:
        return Toy.collect_columns(self)

    def collect_mode(self, seed: int) -> Any:
        mode = super().collect_mode(seed)
        forward = mode.forward
        mode.forward = lambda obs: {**forward(obs), "logp": np.full(len(obs), -9.0)}
        return mode


def test_while_another_policy_acts_rows_are_defined_as_before() -> None:
    node = collector(n_sample=30, length=50)
    node.reconfigure(policy=PartSpec("other", AlwaysOne, AlwaysOne.Config()))
    batch = node.fire(weights(1))
    assert set(batch["action"]) == {0, 1, 2}
    assert set(batch["logp"]) == {-9.0}
    assert set(batch["discount"]) == {0.5}
    node.reconfigure(policy=node.policy)
    assert set(node.fire(weights(1))["action"]) == {1}


def test_a_policy_that_lacks_a_column_cannot_act() -> None:
    node = collector()
    with pytest.raises(
        ValueError, match="Random does not output the column 'logp', which rows of Toy"
    ):
        node.reset_policy(PartSpec("random", Random, Random.Config()))


def test_a_mode_can_be_passed_directly() -> None:
    node = collector()
    mode = node.policy.collect_mode(0)
    node.reset_policy(mode)
    node.collect(2)
    assert mode.acted == 1


class FixedOutput:
    """A mode with a fixed output."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def load(self, state: State) -> None:
        """There is nothing to load."""

    def forward(self, obs: Any) -> dict[str, Any]:
        return dict(self.columns)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"action": [0, 0]}, r"outputs action; it must output 'logp' \(float32\)"),
        ({"logp": np.zeros(2)}, r"outputs logp; it must output 'action' \(int64\)"),
        (
            {"action": [0, 0], "logp": np.float32(0)},
            r"'logp' as float32\[\] for 2 observations; it",
        ),
        ({"action": [0, 0], "logp": np.zeros((2, 1))}, r"'logp' as float64\[2, 1\] for 2"),
        (
            {"action": [0, 0], "logp": np.zeros(2, complex)},
            "'logp' as complex128.* must be float32",
        ),
        ({"action": 0, "logp": np.zeros(2)}, r"'action' as int64\[\] for 2 observations"),
        ({"action": [0], "logp": np.zeros(2)}, r"'action' as int64\[1\] for 2 observations"),
    ],
)
def test_the_first_output_of_a_mode_is_checked(columns: Any, what: str) -> None:
    node = collector()
    node.reset_policy(FixedOutput(**columns))
    with pytest.raises(ValueError, match=what):
        node.collect()


def test_outputs_of_compatible_types_are_accepted() -> None:
    node = collector(n_sample=2)
    node.reset_policy(FixedOutput(action=np.zeros(2), logp=np.ones(2)))
    batch = node.collect()
    assert (batch["action"].dtype, batch["logp"].dtype) == (np.int64, np.float32)


@pytest.mark.parametrize("policy", ["random", Random, None, lambda seed: seed])
def test_an_object_that_cannot_act_is_refused(policy: Any) -> None:
    node = collector()
    before = node.mode
    with pytest.raises(TypeError, match="cannot act; give a policy, one of its modes"):
        node.reset_policy(policy)
    assert node.mode is before


def test_reset_env_refuses_envs_with_other_spaces() -> None:
    node = collector()
    before = node.envs
    with pytest.raises(UnsoundError, match="env managers differ"):
        node.reset_env(SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=1))
    assert node.envs is before


def test_reset_env_restarts_with_other_envs() -> None:
    node = collector(n_sample=6, nstep=3, length=50)
    node.fire(weights(0))
    node.reset_env(collector(count=3, length=50).envs)
    batch = node.fire(weights(0))
    assert batch["obs"][:, 1].tolist() == [0, 1, 0, 1, 0, 1]
    node.reset()
    assert node.fire(weights(2))["obs"][:, 1].tolist() == [0, 1, 0, 1, 0, 1]


def test_the_same_seed_has_the_same_rows_and_another_seed_has_others() -> None:
    a, b = (collector(n_sample=50, seed=3).fire(weights(0)) for _ in range(2))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    other = collector(n_sample=50, seed=4).fire(weights(0))
    assert not np.array_equal(a["obs"], other["obs"])


def test_replicas_play_different_episodes() -> None:
    part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv")
    config = SerialEnvManager.Config(env=part, count=2)
    first, second = (
        SerialEnvManager(config=config, context=Context("envs", replica, 7)) for replica in (0, 1)
    )
    assert not np.array_equal(first.reset(), second.reset())


def test_origin_columns_identify_each_step() -> None:
    part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs={"length": 4})
    envs = SerialEnvManager(env=part, count=2)
    spec = envs.spec()
    policy = Toy(obs=spec.obs, action=spec.action)
    config = SampleCollector.Config(policy=policy, n_sample=6, origin=True)
    context = Context("collector", replica=3)
    node = SampleCollector(config=config, context=context, envs=envs)
    node.fire(weights(0))
    batch = node.fire(State({"w": np.zeros(1, np.float32)}, version=5))
    assert batch["origin/collector"].tolist() == [collector_number(context)] * 6
    assert batch["origin/env"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["origin/step"].tolist() == [3, 4, 5] * 2
    assert batch["origin/weights"].tolist() == [5] * 6
    copy = SampleCollector(config=config, context=context, envs=envs)
    copy.load_state_dict(node.state_dict())
    again = copy.fire(State({"w": np.zeros(1, np.float32)}, version=5))
    assert again["origin/step"].tolist() == [6, 7, 8] * 2


def test_rows_of_another_policy_have_no_weights_version() -> None:
    envs = ScriptedEnvs([[9]])
    spec = envs.spec()
    policy = Toy(obs=spec.obs, action=spec.action)
    node = SampleCollector(envs=envs, policy=policy, n_sample=2, origin=True)
    version = State({"w": np.zeros(1, np.float32)}, version=5)
    acted = [node.collect(weights=version)["origin/weights"].tolist()]
    for other in (AlwaysOne(obs=spec.obs, action=spec.action), policy):
        node.reset_policy(other)
        acted.append(node.collect()["origin/weights"].tolist())
        acted.append(node.collect(weights=version)["origin/weights"].tolist())
    assert acted == [[5, 5], [-1, -1], [-1, -1], [-1, -1], [5, 5]]


@pytest.mark.parametrize("n", [0, -3, 2.5, "x"])
def test_only_positive_whole_numbers_can_be_requested(n: Any) -> None:
    envs = ScriptedEnvs([[5]] * 2)
    spec = envs.spec()
    samples = SampleCollector(envs=envs, policy=Toy(obs=spec.obs, action=spec.action))
    episodes = EpisodeCollector(envs=envs, policy=Toy(obs=spec.obs, action=spec.action))
    with pytest.raises(ValueError, match=r"n_sample is .*; it must be a positive whole number"):
        samples.collect(n_sample=n)
    with pytest.raises(ValueError, match=r"n_episode is .*; it must be a positive whole number"):
        episodes.collect(n_episode=n)


def test_weights_passed_to_collect_stay_in_use() -> None:
    envs = ScriptedEnvs([[5]] * 2)
    spec = envs.spec()
    node = SampleCollector(envs=envs, policy=Toy(obs=spec.obs, action=spec.action), n_sample=4)
    first = node.collect(weights=weights(7))
    assert np.array_equal(first["action"], node.collect()["action"])
    assert not np.array_equal(first["action"], node.collect(weights=weights(8))["action"])
