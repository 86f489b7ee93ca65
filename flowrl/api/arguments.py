"""What is given to the functions of the Python interface, in the forms in which the engine takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from flowrl.core.errors import UsageError, shortened_repr
from flowrl.graph.model import Limits
from flowrl.graph.sections import parse_seconds
from flowrl.graph.yaml_text import flow_text
from flowrl.runs.display import Watcher, Watchers, watcher_for


def override_texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    """The values as `--set` takes them."""
    if not (values is None or isinstance(values, Mapping)):
        raise UsageError(
            f"set is {shortened_repr(values)}; expected values by key, such as {{'policy.lr': 0.001}}"
        )
    texts = {}
    for key, value in (values or {}).items():
        try:
            texts[key] = flow_text(value)
        except TypeError:
            what = f"set: {key} is {shortened_repr(value)}"
            raise UsageError(
                f"{what}; expected numbers, texts, lists and mappings, as in a graph file"
            ) from None
    return texts


def count_given(name: str, value: float | None) -> int | None:
    """A limit: a whole number, which may be written 1e5."""
    if value is None:
        return None
    is_number = isinstance(value, int | float | Integral) and not isinstance(value, bool)
    if is_number and value >= 1 and value % 1 == 0:
        return int(value)
    raise UsageError(f"run: {name} is {value!r}; expected a whole number of 1 or more")


def seed_given(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise UsageError(f"run: seed is {value!r}; expected a whole number from 0 to 2^63 - 1")


def seconds_given(time: str | float | None) -> float | None:
    found = None if time is None else parse_seconds(time)
    if time is not None and found is None:
        raise UsageError(f"run: time is {time!r}; expected seconds, or a time such as 30s or 10m")
    return found


def limits_given(
    steps: float | None, train_iters: float | None, time: str | float | None = None
) -> Limits:
    """The limits that are given; those that are not are None."""
    return Limits(
        steps=count_given("steps", steps),
        train_iters=count_given("train_iters", train_iters),
        time_s=seconds_given(time),
    )


def watcher_given(quiet: bool, watcher: Watcher | None) -> Watcher:
    """The watcher of a run: its display, and the one that is given."""
    if not (watcher is None or isinstance(watcher, Watcher)):
        raise UsageError(
            f"run: watcher is {shortened_repr(watcher)}; expected an object of a class that extends "
            "flowrl.Watcher, which defines what it is notified of"
        )
    return Watchers(watcher_for(quiet), *([watcher] if watcher else []))


def words_given(name: str, words: str | Iterable[str]) -> list[str]:
    """One word, or several."""
    found = [words] if isinstance(words, str) else words
    if not (isinstance(found, Iterable) and all(isinstance(word, str) for word in found)):
        raise UsageError(f"{name} is {shortened_repr(words)}; expected a text, or a list of texts")
    return [*found]
