"""Envs whose agents are the entries of tuples, as joint and as shared agents."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple

from flowrl.core.context import Context
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.tuple_agents import TupleAgents

ID = "tests.nodes.envs.test_tuple_agents:Levers"


class Levers(gymnasium.Env):
    """Agent k observes (k, t), and gets k + its action. An episode has three steps, or is truncated after two."""

    def __init__(self, agents: int = 2, cut: bool = False, lost: str = "") -> None:
        self.observation_space = Tuple([Box(0, 9, (2,), np.float32)] * agents)
        self.action_space = Tuple([Discrete(2)] * (agents - (lost == "action")))
        self.count, self.cut, self.lost = agents, cut, lost

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert isinstance(action, tuple)
        self.t += 1
        rewards = [k + int(a) for k, a in enumerate(action)]
        ends = self.t == 3, self.cut and self.t == 2
        return self._observe(), rewards[: 1 if self.lost == "reward" else None], *ends, {}

    def _observe(self) -> Any:
        return tuple(np.array([k, self.t], np.float32) for k in range(self.count))


def manager(agents: str, limit: int | None = None, **kwargs: Any) -> Any:
    env = TupleAgents(id=ID, agents=agents, kwargs=kwargs, max_episode_steps=limit)
    return SerialEnvManager(env=env, count=1, context=Context("envs", seed=0))


def test_joint_agents_are_an_axis_and_get_the_sum_of_the_rewards() -> None:
    envs = manager("joint")
    assert envs.reset()["agents"].tolist() == [[[0, 0], [1, 0]]]
    steps = [envs.advance(np.array([[1, 1]])) for _ in range(3)]
    assert [step.reward.tolist() for step in steps] == [[3], [3], [3]]
    assert [step.terminated.tolist() for step in steps] == [[False], [False], [True]]
    assert steps[1].next_obs["agents"].tolist() == [[[0, 2], [1, 2]]]


def test_shared_agents_are_rows_with_rewards_of_their_own() -> None:
    envs = as_agent_rows(manager("shared"))
    assert envs.reset().tolist() == [[0, 0], [1, 0]]
    steps = [envs.advance(np.array([1, 0])) for _ in range(3)]
    assert [step.reward.tolist() for step in steps] == [[1, 1]] * 3
    assert steps[-1].terminated.tolist() == [True, True]
    assert [(e.env_id, e.total, e.length) for e in steps[-1].episodes] == [(0, 3, 3), (1, 3, 3)]


@pytest.mark.parametrize("agents", ["joint", "shared"])
@pytest.mark.parametrize("setting", [{"cut": True}, {"limit": 2}])
def test_limits_truncate_all_agents(agents: str, setting: Any) -> None:
    envs = manager(agents, **setting)
    envs = as_agent_rows(envs) if agents == "shared" else envs
    envs.reset()
    rows = 2 if agents == "shared" else 1
    action = np.zeros(2, np.int64) if agents == "shared" else np.zeros((1, 2), np.int64)
    first, second = (envs.advance(action) for _ in range(2))
    assert not (first.truncated | first.terminated).any()
    assert second.truncated.tolist() == [True] * rows
    assert not second.terminated.any()


def test_wrong_envs_are_refused() -> None:
    with pytest.raises(
        UnsoundError, match=r"observations of 'CartPole-v1' are Box.*, and no Tuple"
    ):
        TupleAgents(id="CartPole-v1").spec()
    with pytest.raises(UnsoundError, match="observations of 2 agents, and actions of 1; give an"):
        manager("joint", lost="action")
    envs = manager("joint", lost="reward")
    envs.reset()
    with pytest.raises(
        Exception, match=r"gives the rewards \[0\]; expected one for each of 2 agents"
    ):
        envs.advance(np.zeros((1, 2), np.int64))


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.nodes.envs.entry_points._is_installed", lambda name: False)
    for id, extra in (("Foraging-8x8-2p-2f-v3", "foraging"), ("rware-tiny-2ag-v2", "rware")):
        with pytest.raises(MissingPackageError, match=rf"pip install 'flowrl\[{extra}\]'"):
            TupleAgents(id=id).spec()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "id", "width"),
    [("lbforaging", "Foraging-8x8-2p-2f-v3", 12), ("rware", "rware-tiny-2ag-v2", 71)],
)
def test_real_envs_repeat_their_episodes_by_their_seeds(package: str, id: str, width: int) -> None:
    pytest.importorskip(package)
    found = []
    for _ in range(2):
        config = TupleAgents(id=id)
        envs = SerialEnvManager(env=config, count=2, context=Context("envs", seed=3))
        seen = [envs.reset()["agents"].copy()]
        rng = np.random.default_rng(0)
        for _ in range(60):
            step = envs.advance(rng.integers(5, size=(2, 2)))
            seen += [step.obs["agents"].copy(), step.reward.copy()]
        envs.close()
        found.append(seen)
    assert found[0][0].shape == (2, 2, width)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert not np.array_equal(found[0][0][0], found[0][0][1])  # the envs have other seeds
