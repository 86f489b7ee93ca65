"""Nodes and policies by hand: what users try is taken where its meaning is clear, and otherwise refused in words."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

import flowrl.nodes
from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes import (
    AdvancedReplayBuffer,
    Dqn,
    EpisodeReplayBuffer,
    Evaluator,
    Expert,
    Gymnasium,
    Learner,
    Mlp,
    NaiveReplayBuffer,
    Policy,
    QueueBuffer,
    SampleCollector,
    SequenceReplayBuffer,
    SerialEnvManager,
)
from flowrl.nodes.multi_agent import MultiAgent
from flowrl.nodes.observations import NestedColumns

CARTPOLE = gymnasium.spaces.Box(-5, 5, (4,), np.float32), Discrete(2)
ROW = {
    "obs": np.zeros(4),
    "next_obs": np.ones(4),
    "action": 1,
    "reward": 1.0,
    "discount": 0.99,
    "last": True,
    "terminated": True,
    "truncated": False,
}


def policy(**params: Any) -> Dqn:
    return Dqn(obs=CARTPOLE[0], action=CARTPOLE[1], model=Mlp(hidden=[8]), **params)


# spaces


def test_spaces_of_gymnasium_are_taken_for_columns() -> None:
    made = policy()
    assert made.obs == Column("float32", (4,))
    assert (made.action, made.action.n) == (Column("int64"), 2)
    nested = Dqn(obs=Dict({"a": Discrete(3), "b": Box(0, 1, (2,))}), action=Discrete(2))
    assert isinstance(nested.obs, NestedColumns)
    assert list(nested.obs.columns) == ["a", "b"]


def test_other_things_than_columns_and_spaces_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Dqn\.obs is 4; expected what `envs\.spec\(\)` says of it"
    ):
        Dqn(obs=4, action=CARTPOLE[1])
    with pytest.raises(TypeError, match=r"Dqn\.action is 2; expected .* or a space of gymnasium"):
        Dqn(obs=CARTPOLE[0], action=2)


# policies, modes and models


def test_a_mode_is_refused_where_a_policy_is_wanted() -> None:
    wanted = "policy is a NetworkActMode, which is a mode of a policy; give the policy itself"
    mode, env = policy().eval_mode(0), Gymnasium(id="CartPole-v1")
    with pytest.raises(TypeError, match=wanted):
        Learner(policy=mode)
    envs = SerialEnvManager(env=env, count=1)
    with pytest.raises(TypeError, match=wanted):
        SampleCollector(envs=envs, policy=mode)
    with pytest.raises(TypeError, match=wanted):
        Evaluator(env=env, policy=mode)
    with pytest.raises(TypeError, match=wanted):
        Expert(obs=CARTPOLE[0], action=CARTPOLE[1], checkpoint="x", trained=mode)
    envs.close()


def test_a_name_or_a_model_is_refused_where_a_policy_is_wanted() -> None:
    with pytest.raises(TypeError, match="policy is 'dqn'; expected a policy, such as Dqn"):
        Learner(policy="dqn")
    with pytest.raises(TypeError, match=r"Learner\.policy is the model Mlp; expected: policy"):
        Learner(policy=Mlp())
    with pytest.raises(TypeError, match=r"is the class Dqn; expected an object of it: Dqn\(…\)"):
        Learner(policy=Dqn)


@pytest.mark.parametrize("model", ["mlp", {"type": "mlp"}, torch.nn.Linear(4, 2)])
def test_a_model_is_an_object_of_a_model_class(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model is .*; expected a model, such as Mlp\(hidden="):
        Dqn(obs=CARTPOLE[0], action=CARTPOLE[1], model=model)


def test_parameters_by_position_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Learner takes its parameters by keyword, Learner\(policy=…"
    ):
        Learner(policy())  # type: ignore[misc]
    with pytest.raises(
        TypeError, match=r"Dqn takes its parameters by keyword, Dqn\(obs=…, action=…"
    ):
        Dqn(*CARTPOLE)  # type: ignore[misc, arg-type]
    with pytest.raises(TypeError, match=r"Mlp takes its parameters by keyword, Mlp\(.*hidden=…"):
        Mlp([64, 64])  # type: ignore[arg-type]


# every class of the catalogue


class Odd:
    """A value that no parameter takes."""


BOX = Box(-5, 5, (4,), np.float32)
CLASSES = [
    found
    for name in dir(flowrl.nodes)
    if isinstance(found := getattr(flowrl.nodes, name), type) and hasattr(found, "Config")
]
# Parts that are checked when the columns are known, with which they are made.
LATER = ("model", "policy", "trained", "learning_policy", "encoder", "env")


def spaces(cls: type[Any]) -> dict[str, Any]:
    is_continuous = getattr(cls, "actions", "any") == "real"
    if issubclass(cls, MultiAgent):
        obs = Dict({"agents": Box(-5, 5, (3, 4), np.float32), "alive": MultiBinary(3)})
        each = Box(-5, 5, (3, 2), np.float32) if is_continuous else MultiDiscrete([2, 2, 2])
        return {"obs": obs, "action": each}
    return {"obs": BOX, "action": BOX if is_continuous else Discrete(2)}


def required(cls: type[Any]) -> dict[str, Any]:
    """What the class cannot be made without, so that one wrong value is the only mistake."""
    known = {
        "env": Gymnasium(id="CartPole-v1"),
        "policy": policy(),
        "policies": {"all": policy()},
    }
    fields = cls.Config.model_fields.items()
    params = {name: known.get(name, 1) for name, field in fields if field.is_required()}
    return {**params, **(spaces(cls) if issubclass(cls, Policy) else {})}


def refusal(cls: type[Any], *args: Any, **params: Any) -> str:
    """How the class refuses a call."""
    with pytest.raises((TypeError, ValueError, UnsoundError)) as caught:
        cls(*args, **params)
    return str(caught.value)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_refuses_wrong_calls_in_words(cls: type[Any]) -> None:
    name = cls.__name__
    assert refusal(cls, 5).startswith(f"{name} takes its parameters by keyword")
    assert refusal(cls, **{**required(cls), "gone": 1}).startswith(
        f"{name}: unknown parameter 'gone'"
    )
    for param in cls.Config.model_fields:
        if param not in LATER:
            wrong = refusal(cls, **{**required(cls), param: Odd()})
            assert param in wrong
            assert "has no attribute" not in wrong


# batches


@pytest.mark.parametrize(
    "buffer",
    [
        NaiveReplayBuffer(size=10),
        AdvancedReplayBuffer(size=10),
        QueueBuffer(size=10),
        EpisodeReplayBuffer(size=10),
        SequenceReplayBuffer(size=10, unroll_steps=1),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_every_buffer_takes_a_list_of_rows_and_refuses_numbers(buffer: Any) -> None:
    buffer.push([ROW, ROW, ROW])
    assert buffer.count == 3
    with pytest.raises(TypeError, match=rf"{buffer.ctx.key}\.push: \[1, 2\] is not a batch"):
        buffer.push([1, 2])


def test_demonstrations_may_be_a_list_of_rows() -> None:
    buffer = NaiveReplayBuffer(size=10, batch_size=4)
    buffer.push_demos([ROW])
    buffer.push([ROW, ROW, ROW])
    assert buffer.sample()["is_demo"].sum() == 1


def test_a_learner_trains_on_a_list_of_rows_and_refuses_numbers() -> None:
    learner = Learner(policy=policy())
    learner.train([ROW, ROW])
    assert learner.train_iter == 1
    with pytest.raises(TypeError, match=r"Learner\.train: \[1, 2\] is not a batch; expected"):
        learner.train([1, 2])  # type: ignore[list-item]


def test_a_learner_names_the_columns_that_a_batch_lacks() -> None:
    row = {name: value for name, value in ROW.items() if name not in ("discount", "reward")}
    lacking = r"Learner\.train: the batch lacks the columns reward, discount; Dqn learns from obs, next_obs"
    with pytest.raises(ValueError, match=lacking):
        Learner(policy=policy()).train([row])
