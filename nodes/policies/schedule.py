"""Schedules: a setting as a function of progress."""

from __future__ import annotations

import math


def linear(start: float, end: float, length: float, t: float) -> float:
    """A straight line from `start` at 0 to `end` at `length`, and `end` ever after."""
    return end + (start - end) * max(0.0, 1.0 - t / length)


def exponential(start: float, end: float, length: float, t: float) -> float:
    """From `start` towards `end`: what is left falls by a factor of e every `length`."""
    return end + (start - end) * math.exp(-t / length)
