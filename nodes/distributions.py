"""Distributions of actions, parametrised by a model's heads; they sample in numpy and evaluate in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import FreeHead, Heads, LinearHead
from flowrl.nodes.models.sampling import (
    LOG_2PI,
    argmax,
    sample_categorical,
    sample_gaussian,
    uniform_allowed,
)

UNIT_NORMAL_ENTROPY = 0.5 + 0.5 * LOG_2PI

HeadArrays = Mapping[str, Array]


class Distribution(Protocol):
    """A distribution of actions."""

    heads: Heads  # the parameters of the distribution
    columns: Schema  # the columns that `sample` returns, without `logp`
    drawn: str  # the one of these columns whose likelihood is meant

    def sample(self, heads: HeadArrays, rng: np.random.Generator) -> dict[str, Array]:
        """Draw actions; return their columns, and the logarithm of their likelihood as `logp`."""

    def mode(self, heads: HeadArrays) -> dict[str, Array]:
        """The most likely actions."""

    def mode_in_torch(self, heads: Mapping[str, Any]) -> Any:
        """The most likely actions (B, …) as a tensor, for exported policies."""

    def logp_entropy(self, heads: Mapping[str, Any], b: Any) -> tuple[Any, Any]:
        """For each row (…), the logarithm of the likelihood of the batch's actions, and the entropy."""

    def divergence(self, heads: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
        """KL(p || q) for each row (…), where p has the first heads and q the others."""


COUNT_FROM_0 = "wrap the env so that its choices count from 0 or are real numbers"


def distribution_of(action: Column, init_std: float = 1.0) -> Distribution:
    """The distribution for a column of actions."""
    if action.n is not None and not action.shape:
        return Categorical(action)
    if np.dtype(action.dtype).kind == "f":
        return DiagonalGaussian(action, init_std)
    counts = choice_counts(action)
    if counts is None:
        raise UnsoundError(f"no distribution for actions {action}", COUNT_FROM_0, "policy")
    return MultiCategorical(action, counts)


def choice_counts(action: Column) -> Array | None:
    """The number of values of each of several discrete actions; None if they do not count from 0."""
    if action.n is not None:
        return np.full(math.prod(action.shape), action.n)
    low, high = action_bounds(action)
    if np.any(low) or not np.isfinite(high).all():
        return None
    return high.astype(np.int64) + 1


def uniform_choices(action: Column, rows: int, rng: np.random.Generator) -> Array:
    """Discrete actions (rows, …), each drawn uniformly from its values."""
    size, dtype = (rows, *action.shape), np.dtype(action.dtype)
    if action.n is not None:
        return rng.integers(action.n, size=size, dtype=dtype)
    low, high = (bound.reshape(action.shape) for bound in action_bounds(action))
    return rng.integers(low, high, size, dtype=dtype, endpoint=True)


def uniform_allowed_choices(action: Column, allowed: Array, rng: np.random.Generator) -> Array:
    """Discrete actions (B, …), each drawn uniformly from those of its values that the mask allows.

    The mask (B, n) has a flag for each value of each action.
    """
    counts = choice_counts(action)
    if counts is None:
        raise ValueError(f"a mask needs actions that count from 0, and these are {action}")
    masks = np.split(allowed, np.cumsum(counts)[:-1], axis=1)
    chosen = [uniform_allowed(mask, rng) for mask in masks]
    return np.stack(chosen, 1).reshape(-1, *action.shape).astype(action.dtype, copy=False)


def action_bounds(action: Column) -> tuple[Array, Array]:
    """The bounds of each component of an action, flattened; infinite where there are none."""
    size = (math.prod(action.shape),)
    low = np.reshape(-np.inf if action.low is None else action.low, -1)
    high = np.reshape(np.inf if action.high is None else action.high, -1)
    return np.broadcast_to(low, size), np.broadcast_to(high, size)


class Categorical:
    """One of n actions, with probabilities softmax(logits)."""

    drawn = "action"

    def __init__(self, action: Column) -> None:
        self.dtype = np.dtype(action.dtype)
        self.heads: Heads = {"logits": LinearHead(action.n or 0, 0.01)}  # initially nearly uniform
        self.columns: Schema = {"action": action}

    def sample(self, heads: HeadArrays, rng: np.random.Generator) -> dict[str, Array]:
        action, logp = sample_categorical(heads["logits"], rng)
        return {"action": action.astype(self.dtype, copy=False), "logp": logp}

    def mode(self, heads: HeadArrays) -> dict[str, Array]:
        return {"action": argmax(heads["logits"]).astype(self.dtype, copy=False)}

    def mode_in_torch(self, heads: Mapping[str, Any]) -> Any:
        return heads["logits"].argmax(-1)

    def logp_entropy(self, heads: Mapping[str, Any], b: Any) -> tuple[Any, Any]:
        return _categorical_logp_entropy(heads["logits"], b.action.unsqueeze(-1))

    def divergence(self, heads: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
        return _categorical_divergence(heads["logits"], others["logits"])


class MultiCategorical:
    """Several independent categorical choices, whose logits are one head.

    To sample, logits are padded to one row for each choice.
    """

    drawn = "action"

    def __init__(self, action: Column, counts: Array) -> None:
        self.action, self.counts = action, counts
        self.heads: Heads = {"logits": LinearHead(int(counts.sum()), 0.01)}
        self.columns: Schema = {"action": action}
        inside = np.arange(counts.max()) < counts[:, None]
        self.inside = inside  # (D, n): whether choice d has value n
        self.position = np.where(inside, np.cumsum(inside).reshape(inside.shape) - 1, 0)

    def sample(self, heads: HeadArrays, rng: np.random.Generator) -> dict[str, Array]:
        rows = self._padded_logits(heads["logits"])
        actions, logp = sample_categorical(rows.reshape(-1, rows.shape[2]), rng)
        return {
            "action": self._reshaped(actions),
            "logp": logp.reshape(rows.shape[:2]).sum(1),
        }

    def mode(self, heads: HeadArrays) -> dict[str, Array]:
        return {"action": self._reshaped(argmax(self._padded_logits(heads["logits"])))}

    def mode_in_torch(self, heads: Mapping[str, Any]) -> Any:
        chosen = [logits.argmax(-1) for logits in self._choices(heads["logits"])]
        return torch.stack(chosen, -1).reshape(-1, *self.action.shape)

    def logp_entropy(self, heads: Mapping[str, Any], b: Any) -> tuple[Any, Any]:
        actions = b.action.reshape(*heads["logits"].shape[:-1], -1).long()
        pairs = [
            _categorical_logp_entropy(logits, actions[..., choice : choice + 1])
            for choice, logits in enumerate(self._choices(heads["logits"]))
        ]
        logps, entropies = zip(*pairs, strict=True)
        return sum(logps), sum(entropies)

    def divergence(self, heads: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
        pairs = zip(self._choices(heads["logits"]), self._choices(others["logits"]), strict=True)
        return sum(_categorical_divergence(p, q) for p, q in pairs)

    def _choices(self, logits: Any) -> Any:
        """The logits of each choice."""
        return logits.split(self.counts.tolist(), -1)

    def _padded_logits(self, logits: Array) -> Array:
        return np.where(self.inside, logits[:, self.position], np.float32(-np.inf))  # (B, D, n)

    def _reshaped(self, actions: Array) -> Array:
        return actions.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def _categorical_logp_entropy(logits: Any, actions: Any) -> tuple[Any, Any]:
    """The log-probability of actions (…, 1) under softmax(logits), and the entropy, both (…)."""
    logp = logits.log_softmax(-1)  # (…, A)
    return logp.gather(-1, actions).squeeze(-1), -(logp.exp() * logp).sum(-1)


def _categorical_divergence(p: Any, q: Any) -> Any:
    """sum p (log p - log q), of logits (…, A)."""
    logp, logq = p.log_softmax(-1), q.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1)


class DiagonalGaussian:
    """Independent normal distributions. The env gets clipped actions; likelihoods are of unclipped ones."""

    drawn = "unclipped"

    def __init__(self, action: Column, init_std: float) -> None:
        n = math.prod(action.shape)
        self.action = action
        self.heads: Heads = {
            "mean": LinearHead(n, 0.01),
            "log_std": FreeHead(n, math.log(init_std)),
        }
        self.columns: Schema = {"action": action, "unclipped": Column("float32", (n,))}
        low, high = action_bounds(action)
        self.low, self.high = low.astype(np.float32), high.astype(np.float32)

    def sample(self, heads: HeadArrays, rng: np.random.Generator) -> dict[str, Array]:
        unclipped, logp = sample_gaussian(heads["mean"], heads["log_std"], rng)
        return {
            "action": self._clipped(unclipped),
            "unclipped": unclipped,
            "logp": logp,
        }

    def mode(self, heads: HeadArrays) -> dict[str, Array]:
        return {"action": self._clipped(heads["mean"])}

    def mode_in_torch(self, heads: Mapping[str, Any]) -> Any:
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        return heads["mean"].clamp(low, high).reshape(-1, *self.action.shape)

    def logp_entropy(self, heads: Mapping[str, Any], b: Any) -> tuple[Any, Any]:
        log_std = heads["log_std"]
        z = (b.unclipped - heads["mean"]) * torch.exp(-log_std)
        logp = (-0.5 * (z * z + LOG_2PI) - log_std).sum(-1)
        return logp, (log_std + UNIT_NORMAL_ENTROPY).sum(-1)

    def divergence(self, heads: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
        """log s_q - log s_p + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2, summed over components."""
        (m_p, log_p), (m_q, log_q) = ((h["mean"], h["log_std"]) for h in (heads, others))
        spread = (2 * log_p).exp() + (m_p - m_q).square()
        return (log_q - log_p + 0.5 * spread * (-2 * log_q).exp() - 0.5).sum(-1)

    def _clipped(self, actions: Array) -> Array:
        clipped = np.clip(actions, self.low, self.high)
        return clipped.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)
