"""The options of an edge: which kinds of edge they fit, and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.errors import Problem, spelling_hint
from flowrl.graph.model import Edge
from flowrl.graph.yaml_reader import YamlValue

OPTIONS: Mapping[str, tuple[tuple[str, ...], str]] = {  # option: the kinds of edge, what it takes
    "lag": (("state",), "a whole number of rounds, 0 to 1,000,000"),
    "every": (("state",), "a whole number of firings, 1 to 1,000,000"),
    "latest": (("state",), "true or false"),
    "max_staleness": (("stream", "state"), "a whole number of rounds, 0 to 1,000,000"),
    "merge": (("stream",), "'order' or 'any'"),
    "capacity": (("stream",), "a whole number of tokens, 1 to 1,000,000"),
    "when_full": (("stream",), "'wait' or 'drop_oldest'"),
}
_CHOICES = {"merge": ("order", "any"), "when_full": ("wait", "drop_oldest")}
_LEAST = {"lag": 0, "every": 1, "max_staleness": 0, "capacity": 1}
_MOST = 1_000_000  # more is a mistake, and would fill the memory


def checked_option(edge: Edge, name: str, item: YamlValue) -> Problem | None:
    """What is wrong with an option of this edge, if anything is."""
    kinds, _ = OPTIONS.get(name, ((edge.kind,), ""))
    if edge.kind not in kinds:
        fitting = [n for n, (fits, _) in OPTIONS.items() if edge.kind in fits]
        what = f"edges: '{name}' is an option of {' and '.join(kinds)} edges; {edge.to} is a {edge.kind}"
        hint = f"options of a {edge.kind} edge: {', '.join(fitting)}"
        return Problem(str(item.entry_location), what, hint if fitting else "a link has no options")
    return written_option(str(edge.to), name, item)


def written_option(to: str, name: str, item: YamlValue) -> Problem | None:
    """What is wrong with an option as it is written, whatever edge it is for."""
    if name not in OPTIONS:
        return Problem(
            str(item.entry_location),
            f"edges: unknown option '{name}'",
            spelling_hint(name, OPTIONS),
        )
    if not _right(name, item.value):
        what = f"edges: {to}: {name} is {item.plain()!r}"
        return Problem(str(item.location), what, f"expected {OPTIONS[name][1]}")
    return None


def _right(name: str, value: Any) -> bool:
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name == "latest":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and _LEAST[name] <= value <= _MOST
