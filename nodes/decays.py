"""Decays of settings with progress, for example of exploration and learning rates."""

from __future__ import annotations

import math


def linear_decay(start: float, end: float, length: float, t: float) -> float:
    """A straight line from `start` at t = 0 to `end` at t = `length`; `end` from then on."""
    return end + (start - end) * max(0.0, 1.0 - t / length)


def exponential_decay(start: float, end: float, length: float, t: float) -> float:
    """An approach from `start` to `end` whose distance falls by a factor of e every `length`."""
    return end + (start - end) * math.exp(-t / length)


DECAYS = {"linear": linear_decay, "exponential": exponential_decay}
