"""The torch side of features, and their running moments, which are a part of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flowrl.core.batch import Column
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.features import (
    BYTE,
    FEATURE_LIMIT,
    MOMENTS,
    feature_width,
    is_discrete,
    measured_features,
)
from flowrl.nodes.moments import MIN_VARIANCE, Moments

Obs = Tensor | Mapping[str, Tensor]


def leaf(obs: Obs, name: str) -> Tensor:
    """One leaf of observations; a plain observation is its own."""
    return obs if isinstance(obs, Tensor) else obs[name]


class Encoder(Protocol):
    """A module that makes features of observations."""

    width: int  # of the features

    def __call__(self, obs: Obs) -> Tensor:
        """Observations (B, …) to features (B, F)."""

    def observe(self, obs: Obs) -> None:
        """Takes observations into running moments, if there are any."""


class TorchFeatures(nn.Module):
    """Observations (B, …) to features (B, F)."""

    def __init__(self, columns: Mapping[str, Column], scale_bytes: bool, normalise: bool) -> None:
        super().__init__()
        self.columns, self.scale_bytes = columns, scale_bytes
        self.width = sum(feature_width(column) for column in columns.values())
        self.moments = RunningMoments(columns) if normalise else None

    def forward(self, obs: Obs) -> Tensor:
        features = self._raw(obs)
        return features if self.moments is None else self.moments(features)

    def observe(self, obs: Obs) -> None:
        """Takes observations into the moments, if there are any."""
        if self.moments is not None:
            self.moments.fold(self._raw(obs))

    def _raw(self, obs: Obs) -> Tensor:
        parts = [self._of(leaf(obs, name), column) for name, column in self.columns.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _of(self, obs: Tensor, column: Column) -> Tensor:
        if is_discrete(column):
            return F.one_hot(obs, column.n or 0).float()
        x = obs.reshape(len(obs), -1)
        if self.scale_bytes and x.dtype == torch.uint8:
            return x * float(BYTE)
        return x.float()


class RunningMoments(nn.Module):
    """Brings features to mean 0 and deviation 1, by what the learner has seen so far.

    The moments are buffers: they travel with the weights and are saved with them, so that whoever
    acts with a version measures as that version does.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        self.measured = tensor(measured_features(columns))
        sizes = {"count": 1, "mean": len(self.measured), "squares": len(self.measured)}
        for name in MOMENTS:
            self.register_buffer(name, torch.zeros(sizes[name], dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        variance = self.squares / self.count.clamp(min=1)
        std = torch.where(variance > MIN_VARIANCE, variance.sqrt(), 1.0)
        shift = torch.where(self.measured, self.mean, 0.0).float()
        scale = torch.where(self.measured, 1 / std, 1.0).float()
        return ((features - shift) * scale).clamp(-float(FEATURE_LIMIT), float(FEATURE_LIMIT))

    def fold(self, features: Tensor) -> None:
        """Takes more rows (B, F) in."""
        moments = Moments()
        moments.load_state_dict({name: getattr(self, name).numpy() for name in MOMENTS})
        moments.update(features.numpy())
        for name, value in moments.state_dict().items():
            getattr(self, name).copy_(torch.as_tensor(value))
