"""No policy takes an action that the observed mask forbids, and no target includes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.wrappers.leaves import ActionMask
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.sampling import uniform_allowed
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.c51 import C51
from flowrl.nodes.policies.discrete_sac import DiscreteSac
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.iqn import Iqn
from flowrl.nodes.policies.mdqn import Mdqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.pqn import Pqn
from flowrl.nodes.policies.qrdqn import Qrdqn
from flowrl.nodes.policies.rainbow import Rainbow
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policies.sql import Sql
from tests.nodes.learn_modes import learn_from, tensors

GAME = "tests.nodes.envs.game:Game"


def game() -> SerialEnvManager:
    env = Gymnasium(id=GAME, kwargs={"length": 7}, wrappers=[ActionMask()])
    return SerialEnvManager(env=env, count=4, seed=1)


def masked_obs(masks: list[list[int]]) -> Any:
    nested = NestedColumns(
        {"action_mask": Column("int8", (3,), n=2), "state": Column("float32", (1,))}
    )
    obs = nested.empty(len(masks))
    obs["action_mask"], obs["state"] = masks, 0.5
    return nested, obs


@pytest.mark.parametrize("cls", [Dqn, Ppo, Random])
def test_no_policy_takes_a_forbidden_action(cls: Any) -> None:
    envs = game()
    spec = envs.spec()
    small = {} if cls is Random else {"model": Mlp(hidden=[8], scale_bytes=False)}
    policy = cls(obs=spec.obs, action=spec.action, **small)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=200, seed=1)
    learner = None if cls is Random else Learner(policy=policy, seed=1)
    done = set()
    for _ in range(4):
        batch = collector.fire(learner and learner.state())
        action = batch["action"]
        assert batch["obs/action_mask"][np.arange(200), action].all()
        done |= set(action.tolist())
        if learner is not None:
            learner.train(batch)
    assert done == {0, 1, 2}
    greedy = policy.eval_mode(0)
    if learner is not None:
        greedy.load(learner.state())
    obs = envs.reset()
    assert obs["action_mask"][np.arange(4), greedy.forward(obs)["action"]].all()


def test_allowed_actions_are_drawn_uniformly() -> None:
    allowed = np.tile([True, False, True, True], (6000, 1))
    counts = np.bincount(uniform_allowed(allowed, np.random.default_rng(0)), minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 2000, atol=150)


SEVERAL = Column("int64", (2,), low=np.array([0, 0]), high=np.array([1, 2]))


@pytest.mark.parametrize("cls", [Ppo, Random])
def test_each_of_several_choices_obeys_its_part_of_the_mask(cls: Any) -> None:
    nested = NestedColumns({"action_mask": Column("int8", (5,)), "x": Column("float32", (2,))})
    policy = cls(obs=nested, action=SEVERAL)
    mode = policy.collect_mode(0)
    if cls is Ppo:
        mode.load(State(policy.learn_mode(0).weights()))
    obs = nested.empty(200)
    obs["action_mask"], obs["x"] = [0, 1, 1, 0, 1], 0.5
    drawn = mode.forward(obs)["action"]
    assert (drawn.dtype, drawn.shape) == (np.int64, (200, 2))
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0), (1, 2)}


def test_a_mask_with_real_valued_actions_is_an_ordinary_observation() -> None:
    nested = NestedColumns({"action_mask": Column("int8", (5,)), "x": Column("float32", (2,))})
    mode = Random(obs=nested, action=Column("float32", (1,), low=0.0, high=1.0)).collect_mode(0)
    assert mode.forward(nested.empty(3))["action"].shape == (3, 1)


@pytest.mark.parametrize("cls", [C51, DiscreteSac, Iqn, Mdqn, Pqn, Qrdqn, Rainbow, Sql])
def test_no_algorithm_takes_a_forbidden_action_or_learns_its_score(cls: Any) -> None:
    n = 8  # as many actions as iqn has fractions
    nested = NestedColumns({"action_mask": Column("int8", (n,), n=2), "state": Column("float32")})
    policy = cls(obs=nested, action=Column("int64", n=n))
    mode, rng = policy.learn_mode(0), np.random.default_rng(0)
    obs = nested.empty(60)
    obs["action_mask"], obs["state"] = rng.random((60, n)) < 0.4, rng.standard_normal(60)
    obs["action_mask"][:, 0] = 1
    columns = {
        **{
            f"{name}/{leaf}": obs[leaf].copy()
            for name in ("obs", "next_obs")
            for leaf in nested.columns
        },
        "reward": np.ones(60, np.float32),
        "discount": np.full(60, 0.9, np.float32),
        "last": np.arange(60) == 59,
        "terminated": np.zeros(60, bool),
        "truncated": np.zeros(60, bool),
    }
    for act in (policy.eval_mode(0), policy.collect_mode(0)):
        act.load(State(mode.weights(), policy.command(Count())))
        acted = act.forward(obs)
        assert obs["action_mask"][np.arange(60), acted["action"]].all()
    learned = learn_from(mode, Batch({**columns, **acted}))
    assert all(abs(float(value)) < 1e3 for value in learned.metrics.values())


def test_the_target_of_dqn_includes_allowed_actions_only() -> None:
    nested, obs = masked_obs([[1, 1, 1], [0, 1, 0]])
    policy = Dqn(obs=nested, action=Column("int64", n=3), model=Mlp(hidden=[]), gamma=1.0)
    mode = policy.learn_mode(3)
    batch = Batch(
        {
            "obs/action_mask": obs["action_mask"].copy(),
            "obs/state": obs["state"].copy(),
            "next_obs/action_mask": obs["action_mask"].copy(),
            "next_obs/state": obs["state"].copy(),
            "action": np.ones(2, np.int64),
            "reward": np.zeros(2, np.float32),
            "discount": np.ones(2, np.float32),
        }
    )
    free = Dqn(
        obs=NestedColumns({"state": nested.columns["state"]}),
        action=policy.action,
        model=Mlp(hidden=[]),
        gamma=1.0,
    ).learn_mode(3)
    with torch.no_grad():
        q = free.q({"state": torch.full((1, 1), 0.5)})["q"][0].numpy()
    learned = learn_from(mode, batch)  # the reward is 0, so the target is the largest allowed value
    assert q.max() - q[1] > 0.1
    np.testing.assert_allclose(learned.priorities, [q.max() - q[1], 0], rtol=1e-5)


def test_likelihood_and_entropy_are_those_of_allowed_actions() -> None:
    nested, obs = masked_obs([[1, 0, 1], [0, 0, 1]])
    policy = Ppo(obs=nested, action=Column("int64", n=3))
    net = policy.learn_mode(0).net
    seen = {name: torch.from_numpy(obs[name].copy()) for name in nested.columns}
    actions = tensors(Batch({"action": np.array([0, 2])}))
    logp, entropy = policy.distribution.logp_entropy(net(seen), actions)
    found = logp.detach().exp().tolist(), entropy.detach().tolist()
    assert found[0] == pytest.approx([0.5, 1], abs=0.02)
    assert found[1] == pytest.approx([np.log(2), 0], abs=0.01)
    (logp.sum() + entropy.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.module.parameters() if p.grad is not None)


@pytest.mark.parametrize("cls", [Dqn, Ppo, Random])
def test_a_mask_of_another_length_is_refused(cls: Any) -> None:
    nested = NestedColumns({"action_mask": Column("int8", (2,), n=2), "state": Column("float32")})
    with pytest.raises(
        UnsoundError, match=r"'action_mask' is int8\[2\], and the actions have 3 scor"
    ):
        cls(obs=nested, action=Column("int64", n=3)).eval_mode(0)
