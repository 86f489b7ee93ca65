"""The arguments of Python functions, converted to what the engine takes; a wrong one is refused in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from flowrl.core.errors import UsageError, shortened_repr
from flowrl.graph.model import Limits
from flowrl.graph.sections import parse_seconds
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.display import watcher_for
from flowrl.runs.watcher import Watcher, Watchers


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


def parse_count(name: str, value: float | None) -> int | None:
    """A limit: a whole number, which may be written 1e5."""
    if value is None:
        return None
    is_number = isinstance(value, int | float | Integral) and not isinstance(value, bool)
    if is_number and value >= 1 and value % 1 == 0:
        return int(value)
    raise UsageError(f"run: {name} is {value!r}; expected a whole number of 1 or more")


def parse_seed(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise UsageError(f"run: seed is {value!r}; expected a whole number from 0 to 2^63 - 1")


def parse_time(time: str | float | None) -> float | None:
    found = None if time is None else parse_seconds(time)
    if time is not None and found is None:
        raise UsageError(f"run: time is {time!r}; expected seconds, or a time such as 30s or 10m")
    return found


def parse_limits(
    steps: float | None, train_iters: float | None, time: str | float | None = None
) -> Limits:
    """Limits of a run; None where there is none."""
    return Limits(
        steps=parse_count("steps", steps),
        train_iters=parse_count("train_iters", train_iters),
        time_s=parse_time(time),
    )


def joined_watcher(quiet: bool, watcher: Watcher | None) -> Watcher:
    """The display of a run, joined with the watcher of the caller."""
    if not (watcher is None or isinstance(watcher, Watcher)):
        raise UsageError(
            f"run: watcher is {shortened_repr(watcher)}; expected an object of a class that extends "
            "flowrl.Watcher, which defines what it is notified of"
        )
    return Watchers(watcher_for(quiet), *([watcher] if watcher else []))


def parse_words(name: str, words: str | Iterable[str]) -> list[str]:
    """A list of texts; a single text is a list of one."""
    found = [words] if isinstance(words, str) else words
    if not (isinstance(found, Iterable) and all(isinstance(word, str) for word in found)):
        raise UsageError(f"{name} is {shortened_repr(words)}; expected a text, or a list of texts")
    return [*found]
