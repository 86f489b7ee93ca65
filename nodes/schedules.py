"""Schedules: numbers that change with the progress of a run, such as exploration and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from flowrl.core.config import Config, param
from flowrl.core.errors import shortened_repr, spelling_hint
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
            found = " and ".join(given) or "none of them"
            hint = f" (`{given[0]}: null` removes that of an extended graph)" if given else ""
            raise ValueError(f"a schedule needs one of {', '.join(UNITS)}; it has {found}{hint}")
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


def linear_decay(start: float, end: float, length: float, t: float) -> float:
    """A straight line from `start` at t = 0 to `end` at t = `length`; `end` from then on."""
    return end + (start - end) * max(0.0, 1.0 - t / length)


def exponential_decay(start: float, end: float, length: float, t: float) -> float:
    """An approach from `start` to `end` whose distance falls by a factor of e every `length`."""
    return end + (start - end) * math.exp(-t / length)


def cosine_decay(start: float, end: float, length: float, t: float) -> float:
    """Half a wave of the cosine from `start` at t = 0 to `end` at t = `length`; `end` from then on."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, t / length)))


SHAPES = {"linear": linear_decay, "exponential": exponential_decay, "cosine": cosine_decay}


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in NumberSchedule.model_fields]
        if unknown:
            hint = spelling_hint(unknown[0], NumberSchedule.model_fields)
            raise ValueError(f"a schedule has no key '{unknown[0]}'; {hint}")
        return NumberSchedule.model_validate(dict(value))
    if isinstance(value, bool) or not isinstance(value, int | float | NumberSchedule):
        example = "{start: 0.95, end: 0.1, env_steps: 10_000}"
        raise ValueError(f"{shortened_repr(value)} is neither a number nor a schedule, {example}")
    return value


def complete_schedules(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Let a schedule that names only some of its keys keep the others of its default, except another unit."""
    found = dict(values)
    for name in scheduled_fields(config):
        default, given = config.model_fields[name].default, found.get(name)
        if isinstance(given, Mapping) and isinstance(default, NumberSchedule):
            kept = {k: getattr(default, k) for k in NumberSchedule.model_fields}
            if any(unit in given for unit in UNITS):
                kept = {k: v for k, v in kept.items() if k not in UNITS}
            found[name] = {**kept, **given}
    return found


# The type of a parameter that `scheduled` declares.
Scheduled = Annotated[float | NumberSchedule, BeforeValidator(_read)]


def scheduled(default: float | Mapping[str, Any], about: str, **limits: Any) -> Any:
    """Declare a parameter that is a number or a schedule (`{start: 0.95, end: 0.1, env_steps: 10_000}`).

    Limits (`ge`, `gt`, `le`, `lt`) hold for a number and for both ends of a schedule.
    """
    extra: dict[str, Any] = {"phase": False, "file": False, "scheduled": True}
    value = _read(default)
    return Field(value, description=about, json_schema_extra=extra, **limits)


def scheduled_fields(config: type[Config]) -> tuple[str, ...]:
    """The names of the parameters that `scheduled` declares."""
    extras = {name: info.json_schema_extra for name, info in config.model_fields.items()}
    return tuple(n for n, e in extras.items() if isinstance(e, dict) and e.get("scheduled"))


def current_value(setting: float | NumberSchedule, progress: Count) -> float:
    """The value of a number or schedule at this progress."""
    return setting.value(progress) if isinstance(setting, NumberSchedule) else float(setting)
