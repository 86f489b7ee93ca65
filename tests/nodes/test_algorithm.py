"""What follows from the declarations of an algorithm: targets, columns, commands, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import part
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.acting import add_noise, tanh_action
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.models.heads import LinearHead, ScalarHead
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.optimisers import Sgd
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import Target, TargetRule, follows
from tests.nodes.learn_modes import CONTINUOUS, DISCRETE, OBS, learn_from, rows, same_bits

WIDE = Column("float32", (2,), low=(-2.0, 0.0), high=(2.0, 10.0))


class Twin(Algorithm):
    """An algorithm of your own with an actor, two critics, and bounded real-valued actions."""

    actions, squashes, acting_network = "real", True, "actor"

    class Config(Algorithm.Config):
        model: Any = part("model", "both networks", default={"type": "mlp", "hidden": [8]})
        lr: Scheduled = scheduled(1e-3, "learning rate")
        noise: Scheduled = scheduled(0.1, "deviation of the noise")
        target: TargetRule = follows(tau=0.5)

    def networks(self) -> dict[str, Net]:
        target, size = self.config.target, self.action_size
        both = {"obs": self.obs, "action": self.unit_action}
        return {
            "actor": Net(self.model(), {"obs": self.obs}, {"x": LinearHead(size)}, target=target),
            "critic": Net(self.model(), both, {"q": ScalarHead()}, copies=2, target=target),
        }

    def collect_steps(self) -> Any:
        return [tanh_action("x"), add_noise("noise")]

    def eval_steps(self) -> Any:
        return [tanh_action("x")]

    class Learn(NetworkLearnMode):
        def learn(self, b: LearnBatch) -> dict[str, Any]:
            here: Any = self
            with torch.no_grad():
                a_tp1 = here.actor_target(b.next_obs)["x"].tanh()
                q_tp1 = here.critic_target(obs=b.next_obs, action=a_tp1)["q"].amin(-1)
                goal = b.reward + b.discount * q_tp1
            q = here.critic(obs=b.obs, action=b.unit_action)["q"]
            loss = (q - goal.unsqueeze(1)).square().mean()
            here.critic.descend(loss, self.now.lr)
            action = here.actor(b.obs)["x"].tanh()
            gain = here.critic(obs=b.obs, action=action)["q"][:, 0].mean()
            here.actor.descend(-gain, self.now.lr)
            return {"loss": loss, "priority": (goal - q[:, 0]).abs()}


def twin(action: Column = WIDE, **params: Any) -> Twin:
    return Twin(obs=OBS, action=action, **params)


def real_rows(n: int = 32, seed: int = 0) -> Batch:
    action = np.random.default_rng(seed).uniform((-2, 0), (2, 10), (n, 2)).astype(np.float32)
    return rows(n, seed, action=action)


# Targets


def test_a_target_is_due_at_its_interval_or_moves_always() -> None:
    assert [Target(every_iters=3).share_due(k) for k in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert [Target(tau=0.25).share_due(k) for k in range(1, 4)] == [0.25] * 3


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ({}, r"copied \(`every_iters: 100`\) or moved \(`tau: 0.005`\); give one of both"),
        ({"tau": 0.1, "every_iters": 5}, "give one of both"),
        ({"tau": 0}, r"target\.tau is 0; expected greater than 0"),
        ({"tau": 1.5}, r"target\.tau is 1.5; expected less than or equal to 1"),
        ({"every_iters": 0}, r"target\.every_iters is 0"),
        ({"every": 5}, "every"),
        ("copy", r"'copy' is no mapping such as \{every_iters: 100\} or \{tau: 0.005\}"),
        (0.005, "0.005 is no mapping such as"),
    ],
)
def test_unsuitable_targets_are_refused(target: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Dqn(obs=OBS, action=DISCRETE, target=target)


def test_a_graph_changes_the_rule_of_the_graph_that_it_extends(tmp_path: Path) -> None:
    lines = "policy: {target: {tau: 0.01, every_iters: null}, epsilon: {train_iters: 9, env_steps: null}}"
    (tmp_path / "g.yaml").write_text(f"extends: cartpole_dqn\n{lines}\n")
    assert flowrl.load(tmp_path / "g.yaml").check().problems == []
    (tmp_path / "g.yaml").write_text("extends: cartpole_dqn\npolicy: {target: {tau: 0.01}}\n")
    [problem] = flowrl.load(tmp_path / "g.yaml").check().problems
    assert "`every_iters: null` removes that of an extended graph" in problem.what + problem.hint


def test_every_target_network_follows_its_own_network() -> None:
    mode: Any = twin().learn_mode(0)
    before = {n: getattr(mode, f"{n}_target").params.clone() for n in ("actor", "critic")}
    learn_from(mode, real_rows())
    for name, start in before.items():
        moved = start + 0.5 * (getattr(mode, name).params - start)
        torch.testing.assert_close(getattr(mode, f"{name}_target").params, moved)
        assert not torch.equal(moved, start)


# What follows from the declarations


def test_columns_commands_and_weights_follow_from_the_declarations() -> None:
    policy = twin(noise={"start": 0.5, "end": 0.1, "env_steps": 10})
    assert set(policy.learn_columns()) == {"obs", "next_obs", "action", "reward", "discount"}
    assert policy.command(Count(env_steps=5)) == pytest.approx({"lr": 1e-3, "noise": 0.3})
    names = policy.learn_mode(0).weights()
    assert {name.split(".")[0] for name in names} == {"trunk", "x"}
    assert len(names["x.out.bias"]) == 2


def test_squashed_actions_reach_the_bounds_of_the_env_and_come_back() -> None:
    policy = twin(noise=10.0)
    act = policy.collect_mode(0)
    act.load(State(policy.learn_mode(0).weights(), policy.command(Count())))
    acted = act.forward(rows(400)["obs"])["action"]
    np.testing.assert_allclose(acted.min(0), [-2, 0], atol=1e-6)
    np.testing.assert_allclose(acted.max(0), [2, 10], atol=1e-6)
    mode: Any = policy.learn_mode(0)
    unit = LearnBatch(Batch({"action": acted}), {}, mode.box).unit_action
    assert unit.abs().max().item() == pytest.approx(1)
    given = LearnBatch(Batch({"action": np.float32([[1.0, 7.5]])}), {}, mode.box).unit_action
    assert given.tolist() == [[0.5, 0.5]]


def test_a_restored_algorithm_of_your_own_continues_with_the_same_bits() -> None:
    policy = twin(optimiser=Sgd(momentum=0.5))
    one, other = policy.learn_mode(0), policy.learn_mode(1)
    for seed in range(4):
        learn_from(one, real_rows(seed=seed))
    other.load_state_dict(one.state_dict())
    for seed in range(4, 8):
        for mode in (one, other):
            learn_from(mode, real_rows(seed=seed))
    assert same_bits(one.state_dict(), other.state_dict())


def test_columns_that_are_not_read_are_named() -> None:
    b = LearnBatch(rows(), {}, None)
    with pytest.raises(AttributeError, match="no column 'bonus'; add it to `reads` of the algor"):
        _ = b.bonus


def test_minibatches_have_every_row_once_with_nested_observations() -> None:
    n = 10
    nested = {"obs/a": np.arange(n), "obs/b": np.arange(2 * n).reshape(n, 2), "x": np.arange(n)}
    b = LearnBatch(Batch(nested), {}, None)
    parts = list(b.minibatches(["obs", "x"], np.random.default_rng(0).permutation(n), 4))
    assert [len(m.x) for m in parts] == [4, 4, 2]
    assert sorted(torch.cat([m.x for m in parts]).tolist()) == list(range(n))
    for m in parts:
        assert torch.equal(m.obs["a"], m.x)
        assert torch.equal(m.obs["b"][:, 0], 2 * m.x)


# Refusals


@pytest.mark.parametrize(
    ("make", "what", "key"),
    [
        (lambda: twin(DISCRETE), "twin needs real-valued actions; the env takes int64", "policy"),
        (
            lambda: twin(Column("float32", (2,))),
            "twin scales its actions to their bounds; .*wrap the env, so that its actions are",
            "policy",
        ),
        (
            lambda: twin(Column("float32", (2,), low=[-1.0, 1.0], high=[1.0, 1.0])),
            "to their bounds; component 1 of the env's actions is always 1; wrap the env",
            "policy",
        ),
        (lambda: twin(Column("int64", (2,), n=2)), "takes int64.*; try ppo$", "policy"),
        (lambda: twin(model=Gru()), "twin learns from single steps, and the model is rec", "model"),
        (
            lambda: Dqn(obs=OBS, action=CONTINUOUS),
            "dqn chooses one of n actions; .*; try ppo",
            "policy",
        ),
        (
            lambda: Dqn(obs=OBS, action=Column("int64", (2,), n=2)),
            "dqn chooses one of n actions",
            "policy",
        ),
    ],
)
def test_unsuitable_actions_and_models_are_refused(make: Any, what: str, key: str) -> None:
    with pytest.raises(UnsoundError, match=what) as error:
        make()
    assert error.value.key == key


@pytest.mark.parametrize("missing", ["networks", "collect_steps", "eval_steps"])
def test_what_an_algorithm_does_not_define_is_named(missing: str) -> None:
    class Lacking(Algorithm):
        """Defines all but one."""

        def networks(self) -> dict[str, Net]:
            return {"net": Net(Mlp(hidden=[]), {"obs": self.obs}, {"q": LinearHead(2)})}

        def collect_steps(self) -> Any:
            return []

        eval_steps = collect_steps

    delattr(Lacking, missing)

    def make_modes() -> None:
        made = Lacking(obs=OBS, action=DISCRETE)
        made.collect_mode(0)
        made.eval_mode(0)

    with pytest.raises(NotImplementedError, match=f"Lacking does not define {missing}"):
        make_modes()
