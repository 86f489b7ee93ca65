"""`stepping: independent` has the rows of `together`, no matter which env is ready first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Array, Column
from flowrl.core.state import State
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights
from tests.quick_selection import examples

POLICIES: dict[str, Callable[..., Policy]] = {
    "explores": lambda **given: Dqn(nstep=2, **given),
    "draws": Ppo,
    "remembers": lambda **given: Ppo(unroll_steps=2, model=Gru(size=8), **given),
    "remembers, overlapping": lambda **given: StepCountingPolicy(burn_in_steps=2, **given),
    "at random": Random,
}
LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=2, max_size=5)


class OneLateEnv(ScriptedEnvs):
    """Env 0 becomes ready only when no other env is pending."""

    def recv(self, ids: Any = None, least: int = 1) -> Any:
        if ids is None:
            assert 1 <= least <= len(self.sent)
            ids = ([i for i in self.sent if i] + [0])[: max(least, len(self.sent) - 1)]
        return super().recv(ids)


def collector(envs: Any, policy: Policy, n: int, stepping: str, **params: Any) -> SampleCollector:
    return SampleCollector(
        envs=envs, policy=policy, n_sample=n, stepping=stepping, log_every_steps=1, seed=3, **params
    )


def toy(envs: Any) -> Policy:
    spec = envs.spec()
    return Toy(obs=spec.obs, action=spec.action)


def learned(policy: Policy, seed: int) -> State:
    if isinstance(policy, Random | StepCountingPolicy):  # it has no learn mode
        return State({})
    return State(policy.learn_mode(seed).weights(), {"epsilon": 0.3, "lr": 1e-3})


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(state, dict):
        return {name: state}
    return {k: v for key, part in state.items() for k, v in flat(part, f"{name}/{key}").items()}


@pytest.mark.slow
@examples(60)
@given(LENGTHS, st.integers(1, 12), st.sampled_from(sorted(POLICIES)), st.integers(1, 3), st.data())
def test_rows_metrics_and_states_equal_those_of_together(
    lengths: list[list[int]], pieces: int, name: str, least: int, data: st.DataObject
) -> None:
    pairs = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, 5))
    fails = data.draw(st.dictionaries(pairs, st.integers(1, 6), max_size=6))
    spec = ScriptedEnvs(lengths).spec()
    policy = POLICIES[name](obs=spec.obs, action=spec.action)
    n = pieces * 2  # whole unrolls
    together = collector(ScriptedEnvs(lengths, fails), policy, n, "together", origin=True)
    envs = ScriptedEnvs(lengths, fails)
    own = collector(envs, policy, n, "independent", origin=True, least=min(least, len(lengths)))
    for k in range(4):
        wanted, found = (node.fire(learned(policy, k)) for node in (together, own))
        assert dict(wanted.schema) == dict(found.schema)
        for column in wanted:
            assert wanted[column].tobytes() == found[column].tobytes(), column
        assert envs.sent == []
    assert together.ctx.records == own.ctx.records
    assert together.ctx.take_count() == own.ctx.take_count()
    a, b = flat(together.state_dict()), flat(own.state_dict())
    assert a.keys() == b.keys()
    for key in a:
        assert np.array_equal(a[key], b[key]), key


def test_a_slow_env_delays_no_other_env_within_a_firing() -> None:
    envs = OneLateEnv([[9]] * 3)
    order: list[int] = []
    step = envs.step_envs
    envs.step_envs = lambda at: order.extend(at) or step(at)  # type: ignore[method-assign]
    collector(envs, toy(envs), 12, "independent").fire(weights(0))
    assert order == [1, 2] * 4 + [0] * 4


def test_a_call_of_the_policy_waits_for_least_envs() -> None:
    envs = ScriptedEnvs([[9]] * 4)
    collector(envs, toy(envs), 16, "independent", least=4).fire(weights(0))
    assert envs.served == [4] * 4


def test_all_rows_of_a_firing_have_the_actions_of_its_weights() -> None:
    envs = ScriptedEnvs([[9]] * 4)
    node = collector(envs, toy(envs), 8, "independent")
    assert [set(node.fire(weights(w))["action"]) for w in (1, 2)] == [{1}, {2}]


def test_the_policy_always_gets_the_observations_of_all_envs() -> None:
    envs, shown = ScriptedEnvs([[9]] * 4), []
    node = collector(envs, toy(envs), 20, "independent")
    forward = node.mode.forward
    node.mode.forward = lambda obs: shown.append(len(obs)) or forward(obs)
    node.fire(weights(0))
    assert set(shown) == {4}
    assert len(shown) > 5  # some envs were ahead of others


class DrawsForNewEpisodes:
    """Draws random numbers only for the first observations of episodes."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def forward(self, obs: Array) -> dict[str, Array]:
        new = obs[:, 2] == 0
        action = np.zeros(len(obs), np.int64)
        action[new] = self.rng.integers(3, size=new.sum())
        return {"action": action, "logp": np.zeros(len(obs), np.float32)}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Any) -> None:
        self.rng.bit_generator.state = state["rng"]


def test_a_policy_whose_draws_depend_on_observations_is_refused() -> None:
    envs = OneLateEnv([[3], [5], [2]])
    node = collector(envs, toy(envs), 30, "independent")
    node.reset_policy(DrawsForNewEpisodes())
    with pytest.raises(
        ValueError, match=r"state of DrawsForNewEpisodes depends on observations.*`together`"
    ):
        node.collect()


GRAPH = """
extends: GRAPH
nodes:
  envs: {type: KIND, count: 8, WORKERS}
  collector: {stepping: STEPPING}
"""


WHEREVER = [
    ("env_manager", "dynamic_seeds: true", "together", "serial"),
    ("sync_subprocess_env_manager", "envs_per_worker: 3", "independent", "threads"),
    ("sync_subprocess_env_manager", "pre_reset: true", "independent", "processes"),
    ("env_manager", "dynamic_seeds: true", "independent", "processes"),
    ("sync_subprocess_env_manager", "envs_per_worker: 1", "independent", "serial"),
    ("async_subprocess_env_manager", "wait_num: 1", "independent", "serial"),
    ("thread_env_manager", "pre_reset: true", "independent", "serial"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "ways"), [("cartpole_dqn", 7), ("cartpole_ppo", 3)])
def test_graphs_have_the_digest_of_together_in_every_placement(
    graph: str, ways: int, tmp_path: Path
) -> None:
    digests = set()
    for number, (kind, workers, stepping, place) in enumerate(WHEREVER[:ways]):
        text = GRAPH.replace("GRAPH", graph).replace("KIND", kind).replace("WORKERS", workers)
        file = tmp_path / f"{number}.yaml"
        file.write_text(text.replace("STEPPING", stepping))
        run = flowrl.load(str(file)).run(
            placement=place, train_iters=12, out=tmp_path / str(number)
        )
        digests.add(run.digest)
    assert len(digests) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16, 17, 64])
@pytest.mark.parametrize(
    ("model", "shape"),
    [(Mlp(hidden=[33, 64]), (5,)), (Gru(size=12), (5,)), (Cnn(), (4, 42, 42))],
    ids=["mlp", "gru", "cnn"],
)
def test_the_output_of_a_model_for_a_row_does_not_depend_on_other_rows(
    model: Any, shape: tuple[int, ...], count: int
) -> None:
    """This is why `independent` can have the rows of `together`."""
    heads, rng = {"a": LinearHead(3)}, np.random.default_rng(count)
    column = Column("float32", shape)
    inference_model = model.inference_model(column, heads, ("a",))
    module = model.build(column, heads, 0)
    inference_model.load({name: p.detach().numpy() for name, p in module.named_parameters()})
    obs, other = rng.standard_normal((2, count, *shape), np.float32)
    memory = [
        rng.standard_normal((2, count, *c.shape), np.float32)
        for c in model.memory_columns().values()
    ]

    def said(obs: Array, which: Array | int) -> dict[str, Array]:
        pair = [np.where(_tall(which, m), m[1], m[0]) for m in memory]
        return inference_model(obs, *pair)

    whole = said(obs, np.zeros(count, bool))
    for row in {0, count // 2, count - 1}:
        others = np.arange(count) != row
        found = said(np.where(_tall(others, obs[None]), other, obs), others)
        for name in whole:
            assert found[name][row].tobytes() == whole[name][row].tobytes()


def _tall(which: Array, like: Array) -> Array:
    return which.reshape(-1, *[1] * (like.ndim - 2))
