"""Stochastic policies: what a model's heads mean, in numpy to act and in torch to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.node import UnsoundError
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.model import Free, Heads, Linear
from flowrl.nodes.models.sampling import LOG_2PI, argmax, gaussian, multinomial

NAT_OF_UNIT_NORMAL = 0.5 + 0.5 * LOG_2PI  # entropy of one unit normal

Outputs = Mapping[str, Array]


class Distribution(Protocol):
    """What the heads of an actor mean."""

    heads: Heads
    columns: Schema  # what `sample` gives beside `logp`

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        """Drawn actions, and the logarithm of their likelihood."""

    def mode(self, out: Outputs) -> dict[str, Array]:
        """The likeliest actions."""

    def drawn(self, batch: Batch) -> Any:
        """What was drawn, as a tensor whose rows `logp_entropy` takes."""

    def logp_entropy(self, out: Mapping[str, Any], drawn: Any) -> tuple[Any, Any]:
        """Of each row (B,): the logarithm of the drawn actions' likelihood, and the entropy."""


def distribution_of(action: Column, init_std: float = 1.0) -> Distribution:
    """The distribution that fits a column of actions."""
    if action.n is not None and not action.shape:
        return Categorical(action)
    if np.dtype(action.dtype).kind == "f":
        return DiagonalGaussian(action, init_std)
    counts = choices(action)
    if counts is None:
        hint = "wrap the env: choices that begin at 0, or real numbers"
        raise UnsoundError(f"no distribution for actions {action}", hint, "policy")
    return Choices(action, counts)


def choices(action: Column) -> Array | None:
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
        self.heads: Heads = {"logits": Linear(action.n or 0, 0.01)}  # nearly uniform at first
        self.columns: Schema = {"action": action}

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        action, logp = multinomial(out["logits"], rng)
        return {"action": action.astype(self.dtype, copy=False), "logp": logp}

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": argmax(out["logits"]).astype(self.dtype, copy=False)}

    def drawn(self, batch: Batch) -> Any:
        return tensor(batch["action"]).unsqueeze(1)

    def logp_entropy(self, out: Mapping[str, Any], drawn: Any) -> tuple[Any, Any]:
        return _logp_entropy(out["logits"], drawn)


class Choices:
    """Several choices at once, each one of its own n: independent, as the heads are given.

    Their logits lie side by side; to be drawn they are laid out as one row a choice, padded.
    """

    def __init__(self, action: Column, counts: Array) -> None:
        self.action, self.counts = action, counts
        self.heads: Heads = {"logits": Linear(int(counts.sum()), 0.01)}
        self.columns: Schema = {"action": action}
        inside = np.arange(counts.max()) < counts[:, None]
        self.inside = inside  # (D, n): whether the choice has this value
        self.place = np.where(inside, np.cumsum(inside).reshape(inside.shape) - 1, 0)

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        rows = self._laid_out(out["logits"])
        drawn, logp = multinomial(rows.reshape(-1, rows.shape[2]), rng)
        return {"action": self._shaped(drawn), "logp": logp.reshape(rows.shape[:2]).sum(1)}

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": self._shaped(argmax(self._laid_out(out["logits"])))}

    def drawn(self, batch: Batch) -> Any:
        action = batch["action"]
        return tensor(action.reshape(len(action), -1).astype(np.int64, copy=False))

    def logp_entropy(self, out: Mapping[str, Any], drawn: Any) -> tuple[Any, Any]:
        found, first = [], 0
        for choice, count in enumerate(map(int, self.counts)):
            logits = out["logits"][:, first : first + count]
            found.append(_logp_entropy(logits, drawn[:, choice : choice + 1]))
            first += count
        logps, entropies = zip(*found, strict=True)
        return sum(logps), sum(entropies)

    def _laid_out(self, logits: Array) -> Array:
        return np.where(self.inside, logits[:, self.place], np.float32(-np.inf))  # (B, D, n)

    def _shaped(self, drawn: Array) -> Array:
        return drawn.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def _logp_entropy(logits: Any, drawn: Any) -> tuple[Any, Any]:
    """Of softmax(logits): the log-probability of the drawn (B, 1), and the entropy, both (B,)."""
    logp = logits.log_softmax(1)  # (B, A)
    return logp.gather(1, drawn).squeeze(1), -(logp.exp() * logp).sum(1)


class DiagonalGaussian:
    """Independent normals. Likelihoods are of what was drawn; the env gets that clipped."""

    def __init__(self, action: Column, init_std: float) -> None:
        n = math.prod(action.shape)
        self.action = action
        self.heads: Heads = {"mean": Linear(n, 0.01), "log_std": Free(n, math.log(init_std))}
        self.columns: Schema = {"action": action, "unclipped": Column("float32", (n,))}
        bounds = (
            np.broadcast_to(_flat(b, d), (n,))
            for b, d in ((action.low, -np.inf), (action.high, np.inf))
        )
        self.low, self.high = bounds

    def sample(self, out: Outputs, rng: np.random.Generator) -> dict[str, Array]:
        drawn, logp = gaussian(out["mean"], out["log_std"], rng)
        return {"action": self._clipped(drawn), "unclipped": drawn, "logp": logp}

    def mode(self, out: Outputs) -> dict[str, Array]:
        return {"action": self._clipped(out["mean"])}

    def drawn(self, batch: Batch) -> Any:
        return tensor(batch["unclipped"])

    def logp_entropy(self, out: Mapping[str, Any], drawn: Any) -> tuple[Any, Any]:
        log_std = out["log_std"]
        z = (drawn - out["mean"]) * torch.exp(-log_std)
        logp = (-0.5 * (z * z + LOG_2PI) - log_std).sum(1)
        return logp, (log_std + NAT_OF_UNIT_NORMAL).sum(1)

    def _clipped(self, drawn: Array) -> Array:
        clipped = np.clip(drawn, self.low, self.high)
        return clipped.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def _flat(bound: Any, default: float) -> Array:
    return np.asarray(default if bound is None else bound, np.float32).reshape(-1)
