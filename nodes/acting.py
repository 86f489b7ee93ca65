"""How policies act: a network's heads go through a chain of small steps in numpy, which give the action.

A chain is a list of steps. An algorithm has one for collecting, which explores, and one for evaluating.
A step changes the columns of a dictionary: at first the network's heads (B, …), at the end the action and
what else the rows need. A graph may append steps to the chain of collecting (`policy: {explore: […]}`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.state import State
from flowrl.nodes.advantages import without_values
from flowrl.nodes.devices import CPU
from flowrl.nodes.distributions import Distribution, action_bounds
from flowrl.nodes.lazy import torch
from flowrl.nodes.models import sampling
from flowrl.nodes.models.action_mask import mask_scores, mask_tensor
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.model import InferenceModel
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.policy import act_by_id

Columns = dict[str, Array]
SCORES = "scores"  # the column with a score of each action
SCORE_HEADS = ("logits", "q")  # by which policies choose one of n actions


class ActingStep(Protocol):
    """A step of a chain.

    A step that can be exported has an attribute `in_torch`, a function of the columns and observations as tensors
    (nested ones by leaf) that does the same. `exportable` sets it.
    """

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        """Change the columns of the observations (B, …)."""


TensorStep = Callable[[dict[str, Any], Any], None]


def exportable(step: ActingStep, in_torch: TensorStep) -> ActingStep:
    """The step with what it does in torch, so that a policy that acts by it can be exported."""
    step.in_torch = in_torch  # type: ignore[attr-defined]
    return step


class NetworkActMode:
    """Acts with a network and a chain of steps.

    Its memory is that of a recurrent network, and what steps remember of each env. The caller keeps it: zeros where an
    episode begins.
    """

    def __init__(
        self,
        make_model: Callable[[str], InferenceModel],
        steps: Sequence[ActingStep],
        outputs: Schema,
        *,
        memory: Schema,
        rng: np.random.Generator,
        action_space: Column,
        to_env: Callable[[Array], Array] | None = None,
    ) -> None:
        """`make_model` makes the model on a device, `outputs` are the columns that the mode gives, `memory` is that of
        the model, and `to_env` converts actions.
        """
        self._make_model, self.model = make_model, make_model(CPU)
        self.steps, self.rng = tuple(steps), rng
        self.action_space, self._to_env = action_space, to_env
        self._is_recurrent = MEMORY in memory
        self.memory = {**memory}
        for step in steps:
            if (remembered := getattr(step, "memory_columns", None)) is not None:
                self.memory |= remembered(action_space)
        self.settings: Mapping[str, float] = {}  # the command that came with the weights
        columns = {**self.memory, **outputs}
        self._outputs = [(name, (-1, *c.shape), np.dtype(c.dtype)) for name, c in columns.items()]

    def use_device(self, device: str) -> None:
        """Act on another device than the CPU; weights are loaded afterwards."""
        self.model = self._make_model(device)

    def load(self, state: State) -> None:
        """Act with these weights, and the command that came with them, from now on."""
        self.model.load(without_values(state.arrays))
        self.settings = state.command

    def forward(
        self, obs: Array | dict[int, Array], memory: Mapping[str, Array] | None = None
    ) -> dict[Any, Array]:
        """Map observations (B, …), and the memory if there is any, to the outputs and the memory after the step.

        By hand, observations by id (`envs.ready_obs`) are mapped to actions by id.
        """
        if isinstance(obs, dict):
            return act_by_id(self, obs)
        if memory is None:
            columns = self.model(obs)
        else:
            known = self.model(obs, memory[MEMORY]) if self._is_recurrent else self.model(obs)
            columns = {**memory, **known}
        for step in self.steps:
            step(columns, obs, self)
        if self._to_env is not None:
            columns["action"] = self._to_env(columns["action"])
        return {
            name: columns[name].reshape(shape).astype(dtype, copy=False)
            for name, shape, dtype in self._outputs
        }

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


# Steps that choose one of n actions by scores (B, n)


def obey_mask(head: str, each: bool = False) -> ActingStep:
    """Give actions that the observed mask forbids a score that is never chosen."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns[head] = mask_scores(columns[head], obs, each)

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns[head] = mask_tensor(columns[head], obs[ACTION_MASK], each)

    return exportable(step, in_torch)


def greedy(head: str) -> ActingStep:
    """Take the action with the highest score."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns["action"] = sampling.argmax(columns[head])

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns["action"] = columns[head].argmax(-1)

    return exportable(step, in_torch)


def keep_scores(head: str) -> ActingStep:
    """Give the scores by which an action was chosen as a column."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns[SCORES] = columns[head]

    return step


def epsilon_greedy(head: str, setting: str = "epsilon") -> ActingStep:
    """Take a random allowed action with the probability of the setting, otherwise that with the highest score."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        scores, epsilon = columns[head], acting.settings[setting]
        if obs.dtype.names is not None and ACTION_MASK in obs.dtype.names:
            allowed = obs[ACTION_MASK] != 0
            columns["action"] = sampling.masked_epsilon_greedy(scores, allowed, epsilon, acting.rng)
        else:
            columns["action"] = sampling.epsilon_greedy(scores, epsilon, acting.rng)

    return step


def softmax_draw(head: str, setting: str) -> ActingStep:
    """Draw from softmax(scores / temperature), with the temperature of the setting."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        logits = columns[head] / np.float32(acting.settings[setting])
        columns["action"], columns["logp"] = sampling.sample_categorical(logits, acting.rng)

    return step


def expected_values(head: str, atoms: Array) -> ActingStep:
    """Turn the logits (B, n, atoms) of distributions of returns into their means (B, n)."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        logits = columns[head]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        columns[head] = (p @ atoms) / p.sum(-1)

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns[head] = columns[head].softmax(-1) @ torch.from_numpy(atoms)

    return exportable(step, in_torch)


def quantile_means(head: str, axis: int = -1) -> ActingStep:
    """Turn quantiles of returns, along this axis, into their means (B, n)."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns[head] = columns[head].mean(axis)

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns[head] = columns[head].mean(axis)

    return exportable(step, in_torch)


# Steps that draw from a distribution of actions


def draw(distribution: Distribution) -> ActingStep:
    """Draw actions, and give the logarithm of their likelihood as `logp`."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns.update(distribution.sample(columns, acting.rng))

    return step


def most_likely(distribution: Distribution) -> ActingStep:
    """Take the most likely actions."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns.update(distribution.mode(columns))

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns["action"] = distribution.mode_in_torch(columns)

    return exportable(step, in_torch)


# Steps for real-valued actions in (-1, 1)


def tanh_action(head: str) -> ActingStep:
    """Squash a head into (-1, 1)."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        columns["action"] = np.tanh(columns[head])

    def in_torch(columns: dict[str, Any], obs: Any) -> None:
        columns["action"] = columns[head].tanh()

    return exportable(step, in_torch)


def draw_squashed(mean: str, log_std: str) -> ActingStep:
    """Draw from a normal distribution with these heads, and squash into (-1, 1)."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        limited = np.clip(columns[log_std], *sampling.LOG_STD_LIMITS)
        drawn, _ = sampling.sample_gaussian(columns[mean], limited, acting.rng)
        columns["action"] = np.tanh(drawn)

    return step


def add_noise(setting: str) -> ActingStep:
    """Add normal noise with the deviation of the setting, and clip the action to [-1, 1]."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        std = np.float32(acting.settings[setting])
        noise = acting.rng.standard_normal(columns["action"].shape, np.float32)
        columns["action"] = np.clip(columns["action"] + std * noise, -1, 1)

    return step


class ActionBox:
    """The bounds of real-valued actions, to which (-1, 1) is scaled."""

    def __init__(self, action: Column) -> None:
        self.dims = len(action.shape)
        low, high = action_bounds(action)
        self.middle = ((low + high) / 2).astype(np.float32)
        self.half = ((high - low) / 2).astype(np.float32)

    def to_env(self, action: Array) -> Array:
        """Scale actions (B, n) from (-1, 1) to the bounds."""
        scaled: Array = action * self.half + self.middle
        return scaled
