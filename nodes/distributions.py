"""Stochastic policies: what a model's heads mean, in numpy to act and in torch to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.node import UnsoundError
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.model import FreeHead, Heads, LinearHead
from flowrl.nodes.models.sampling import LOG_2PI, argmax, sample_categorical, sample_gaussian

UNIT_NORMAL_ENTROPY = 0.5 + 0.5 * LOG_2PI  # entropy of one unit normal

Outputs = Mapping[str, Array]


class Distribution(Protocol):
    """What the heads of an actor mean."""

    heads: Heads
    columns: Schema  # what `sample` gives beside `logp`

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        """Drawn actions, and the logarithm of their likelihood."""

    def mode(self, out: Outputs) -> dict[str, Array]:
        """The likeliest actions."""

    def sampled_actions(self, batch: Batch) -> Any:
        """What was drawn, as a tensor whose rows `logp_entropy` takes."""

    def logp_entropy(self, out: Mapping[str, Any], sampled_actions: Any) -> tuple[Any, Any]:
        """Of each row (B,): the logarithm of the drawn actions' likelihood, and the entropy."""


def distribution_of(action: Column, init_std: float = 1.0) -> Distribution:
    """The distribution that fits a column of actions."""
    if action.n is not None and not action.shape:
        return Categorical(action)
    if np.dtype(action.dtype).kind == "f":
        return DiagonalGaussian(action, init_std)
    counts = choice_counts(action)
    if counts is None:
        hint = "wrap the env: choices that begin at 0, or real numbers"
        raise UnsoundError(f"no distribution for actions {action}", hint, "policy")
    return MultiCategorical(action, counts)


def choice_counts(action: Column) -> Array | None:
    """How many values each of several discrete actions has, counted from 0."""
    if action.n is not None:
        return np.full(math.prod(action.shape), action.n)
    low, high = _flat(action.low, -1), _flat(action.high, np.inf)
    if np.any(low) or not np.isfinite(high).all():
        return None
    return np.broadcast_to(high.astype(np.int64) + 1, (math.prod(action.shape),))


class Categorical:
    """One of n actions, with probabilities softmax(logits)."""

    def __init__(self, action: Column) -> None:
        self.dtype = np.dtype(action.dtype)
        self.heads: Heads = {"logits": LinearHead(action.n or 0, 0.01)}  # nearly uniform at first
        self.columns: Schema = {"action": action}

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        action, logp = sample_categorical(out["logits"], rng)
        return {"action": action.astype(self.dtype, copy=False), "logp": logp}

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": argmax(out["logits"]).astype(self.dtype, copy=False)}

    def sampled_actions(self, batch: Batch) -> Any:
        return tensor(batch["action"]).unsqueeze(1)

    def logp_entropy(self, out: Mapping[str, Any], sampled_actions: Any) -> tuple[Any, Any]:
        return _logp_entropy(out["logits"], sampled_actions)


class MultiCategorical:
    """Several choices at once, each one of its own n: independent, as the heads are given.

    Their logits lie side by side; to be drawn they are laid out as one row a choice, padded.
    """

    def __init__(self, action: Column, counts: Array) -> None:
        self.action, self.counts = action, counts
        self.heads: Heads = {"logits": LinearHead(int(counts.sum()), 0.01)}
        self.columns: Schema = {"action": action}
        inside = np.arange(counts.max()) < counts[:, None]
        self.inside = inside  # (D, n): whether the choice has this value
        self.place = np.where(inside, np.cumsum(inside).reshape(inside.shape) - 1, 0)

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        rows = self._laid_out(out["logits"])
        sampled_actions, logp = sample_categorical(rows.reshape(-1, rows.shape[2]), rng)
        return {
            "action": self._shaped(sampled_actions),
            "logp": logp.reshape(rows.shape[:2]).sum(1),
        }

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": self._shaped(argmax(self._laid_out(out["logits"])))}

    def sampled_actions(self, batch: Batch) -> Any:
        action = batch["action"]
        return tensor(action.reshape(len(action), -1).astype(np.int64, copy=False))

    def logp_entropy(self, out: Mapping[str, Any], sampled_actions: Any) -> tuple[Any, Any]:
        found, first = [], 0
        for choice, count in enumerate(map(int, self.counts)):
            logits = out["logits"][:, first : first + count]
            found.append(_logp_entropy(logits, sampled_actions[:, choice : choice + 1]))
            first += count
        logps, entropies = zip(*found, strict=True)
        return sum(logps), sum(entropies)

    def _laid_out(self, logits: Array) -> Array:
        return np.where(self.inside, logits[:, self.place], np.float32(-np.inf))  # (B, D, n)

    def _shaped(self, sampled_actions: Array) -> Array:
        return sampled_actions.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def _logp_entropy(logits: Any, sampled_actions: Any) -> tuple[Any, Any]:
    """Of softmax(logits): the log-probability of the drawn (B, 1), and the entropy, both (B,)."""
    logp = logits.log_softmax(1)  # (B, A)
    return logp.gather(1, sampled_actions).squeeze(1), -(logp.exp() * logp).sum(1)


class DiagonalGaussian:
    """Independent normals. Likelihoods are of what was drawn; the env gets that clipped."""

    def __init__(self, action: Column, init_std: float) -> None:
        n = math.prod(action.shape)
        self.action = action
        self.heads: Heads = {
            "mean": LinearHead(n, 0.01),
            "log_std": FreeHead(n, math.log(init_std)),
        }
        self.columns: Schema = {"action": action, "unclipped": Column("float32", (n,))}
        bounds = (
            np.broadcast_to(_flat(b, d), (n,))
            for b, d in ((action.low, -np.inf), (action.high, np.inf))
        )
        self.low, self.high = bounds

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        sampled_actions, logp = sample_gaussian(out["mean"], out["log_std"], rng)
        return {
            "action": self._clipped(sampled_actions),
            "unclipped": sampled_actions,
            "logp": logp,
        }

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": self._clipped(out["mean"])}

    def sampled_actions(self, batch: Batch) -> Any:
        return tensor(batch["unclipped"])

    def logp_entropy(self, out: Mapping[str, Any], sampled_actions: Any) -> tuple[Any, Any]:
        log_std = out["log_std"]
        z = (sampled_actions - out["mean"]) * torch.exp(-log_std)
        logp = (-0.5 * (z * z + LOG_2PI) - log_std).sum(1)
        return logp, (log_std + UNIT_NORMAL_ENTROPY).sum(1)

    def _clipped(self, sampled_actions: Array) -> Array:
        clipped = np.clip(sampled_actions, self.low, self.high)
        return clipped.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def _flat(bound: Any, default: float) -> Array:
    return np.asarray(default if bound is None else bound, np.float32).reshape(-1)
