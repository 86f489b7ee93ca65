"""Schedules: numbers that change with the progress or the results of a run, such as exploration and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from flowrl.core.config import Config, param
from flowrl.core.errors import shortened_repr, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count

UNITS = ("env_steps", "train_iters", "episodes")


class NumberSchedule(Config, title="schedule"):
    """A number that goes from `start` to `end` within a number of env steps, train iterations or episodes."""

    start: float = param(..., "the value at the beginning")
    end: float = param(..., "the value after the decay, or that it approaches")
    env_steps: int | None = param(None, "the length of the decay in env steps", ge=1)
    train_iters: int | None = param(None, "the length of the decay in train iterations", ge=1)
    episodes: int | None = param(None, "the length of the decay in episodes", ge=1)
    shape: Literal["linear", "exponential", "cosine"] = param(
        "linear", "shape of the decay; `exponential`: the distance falls by a factor of e each time"
    )

    @model_validator(mode="after")
    def _check_unit(self) -> NumberSchedule:
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) != 1:
            what = f"a schedule needs one of {', '.join(UNITS)}"
            if not given:
                raise UnsoundError(what, "it has none of them")
            hint = f"it has {' and '.join(given)} (`{given[0]}: null` removes that of an extended graph)"
            raise UnsoundError(what, hint, given[0])
        return self

    def value(self, progress: Count) -> float:
        """The value at this progress."""
        [(unit, length)] = [(u, n) for u in UNITS if (n := getattr(self, u)) is not None]
        return SHAPES[self.shape](self.start, self.end, length, getattr(progress, unit))

    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]

    # A bound such as `ge=0` holds for a schedule if it holds for both of its ends.

    def __ge__(self, bound: float) -> bool:
        return self.start >= bound and self.end >= bound

    def __gt__(self, bound: float) -> bool:
        return self.start > bound and self.end > bound

    def __le__(self, bound: float) -> bool:
        return self.start <= bound and self.end <= bound

    def __lt__(self, bound: float) -> bool:
        return self.start < bound and self.end < bound


class ResultSchedule(Config, title="schedule by results"):
    """A number that depends on a metric of the newest evaluation; before the first one, that of the first point."""

    by: str = param(..., "the metric, such as `return_mean`", min_length=1)
    points: list[tuple[float, float]] = param(
        ..., "pairs of a value of the metric and the number there, by the metric", min_length=2
    )
    shape: Literal["linear", "steps"] = param(
        "linear", "lines between the points; or `steps`: the number of the last point reached"
    )

    @field_validator("points", mode="before")
    @classmethod
    def _read_pairs(cls, points: Any) -> Any:
        if not isinstance(points, list | tuple):
            return points
        if not all(isinstance(point, list | tuple) and len(point) == 2 for point in points):
            what = f"{shortened_repr(points)} is no list of pairs"
            raise UnsoundError(what, "expected pairs, such as [[0, 1.0], [200, 0.1]]")
        return [tuple(point) for point in points]

    @model_validator(mode="after")
    def _check_order(self) -> ResultSchedule:
        metrics = [metric for metric, _ in self.points]
        if sorted(set(metrics)) != metrics:
            what = f"the points are at {', '.join(f'{m:g}' for m in metrics)} of {self.by}"
            raise UnsoundError(what, "write them in rising order", "points")
        return self

    def value(self, found: Mapping[str, float]) -> float:
        """The value for these results."""
        metrics, numbers = zip(*self.points, strict=True)
        if not found or math.isnan(found.get(self.by, 0.0)):
            return float(numbers[0])
        if self.by not in found:
            known = ", ".join(found)
            raise ValueError(f"a schedule depends on '{self.by}', and the evaluation has {known}")
        if self.shape == "linear":
            return float(np.interp(found[self.by], metrics, numbers))
        reached = [number for metric, number in self.points if found[self.by] >= metric]
        return float(reached[-1] if reached else numbers[0])

    # A bound holds for a schedule if it holds for all of its points.

    def __ge__(self, bound: float) -> bool:
        return min(number for _, number in self.points) >= bound

    def __gt__(self, bound: float) -> bool:
        return min(number for _, number in self.points) > bound

    def __le__(self, bound: float) -> bool:
        return max(number for _, number in self.points) <= bound

    def __lt__(self, bound: float) -> bool:
        return max(number for _, number in self.points) < bound


def linear_decay(start: float, end: float, length: float, t: float) -> float:
    """A straight line from `start` at t = 0 to `end` at t = `length`; `end` from then on."""
    return end + (start - end) * max(0.0, 1.0 - t / length)


def exponential_decay(start: float, end: float, length: float, t: float) -> float:
    """An approach from `start` to `end` whose distance falls by a factor of e every `length`."""
    return end + (start - end) * math.exp(-t / length)


def cosine_decay(start: float, end: float, length: float, t: float) -> float:
    """Half a wave of the cosine from `start` at t = 0 to `end` at t = `length`; `end` from then on."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, t / length)))


Schedule = NumberSchedule | ResultSchedule
SHAPES = {"linear": linear_decay, "exponential": exponential_decay, "cosine": cosine_decay}


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _read_schedule({name: given for name, given in value.items() if given is not None})
    if isinstance(value, bool) or not isinstance(value, float | int | Schedule):
        example = "{start: 0.95, end: 0.1, env_steps: 10_000}"
        raise ValueError(f"{shortened_repr(value)} is neither a number nor a schedule, {example}")
    if isinstance(value, float | int) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


def _read_schedule(given: dict[str, Any]) -> Schedule:
    kind = ResultSchedule if "by" in given or "points" in given else NumberSchedule
    unknown = [name for name in given if name not in kind.model_fields]
    if not unknown:
        return kind.model_validate(given)
    if kind is ResultSchedule and set(unknown) <= NumberSchedule.model_fields.keys():
        removed = ", ".join(f"{name}: null" for name in unknown)
        raise ValueError(
            f"a schedule by results has no {' and '.join(unknown)} (`{removed}` removes that of an extended graph)"
        )
    known = {**NumberSchedule.model_fields, **ResultSchedule.model_fields}
    raise ValueError(f"a schedule has no key '{unknown[0]}'; {spelling_hint(unknown[0], known)}")


def complete_schedules(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Let a schedule that names only some of its keys keep the others of its default, except another unit."""
    found = dict(values)
    for name in scheduled_fields(config):
        default, given = config.model_fields[name].default, found.get(name)
        if isinstance(given, Mapping) and isinstance(default, NumberSchedule) and "by" not in given:
            kept = {k: getattr(default, k) for k in NumberSchedule.model_fields}
            if any(unit in given for unit in UNITS):
                kept = {k: v for k, v in kept.items() if k not in UNITS}
            found[name] = {**kept, **given}
    return found


# The type of a parameter that `scheduled` declares.
Scheduled = Annotated[float | NumberSchedule | ResultSchedule, BeforeValidator(_read)]


def scheduled(default: float | Mapping[str, Any], about: str, **limits: Any) -> Any:
    """Declare a parameter that is a number or a schedule.

    A schedule is `{start: 0.95, end: 0.1, env_steps: 10_000}` or `{by: return_mean, points: [[0, 0.95], [200, 0.1]]}`.
    Limits (`ge`, `gt`, `le`, `lt`) hold for a number, and for all numbers of a schedule.
    """
    extra: dict[str, Any] = {"phase": False, "file": False, "scheduled": True}
    value = _read(default)
    return Field(value, description=about, json_schema_extra=extra, **limits)


def scheduled_fields(config: type[Config]) -> tuple[str, ...]:
    """The names of the parameters that `scheduled` declares."""
    extras = {name: info.json_schema_extra for name, info in config.model_fields.items()}
    return tuple(n for n, e in extras.items() if isinstance(e, dict) and e.get("scheduled"))


def current_value(
    setting: float | Schedule, progress: Count, found: Mapping[str, float] = MappingProxyType({})
) -> float:
    """The value of a number or schedule at this progress, and with these results of the newest evaluation."""
    if isinstance(setting, ResultSchedule):
        return setting.value(found)
    return setting.value(progress) if isinstance(setting, NumberSchedule) else float(setting)
