"""The difference of two runs beside their graphs: digests, what they ran on, and the first token that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import RunError
from flowrl.graph.yaml_text import flow_text
from flowrl.runs.token_diff import diff_tokens
from flowrl.runs.token_file import NAME

SUMMARY, ENVIRONMENT = "summary.json", "environment.json"
CUT = ("env_steps", "train_iters", "episodes")  # equal where two runs were cut at one place
BITS = ("flowrl", "python", "packages", "cpu", "choices", "git")  # what bits may depend on

Facts = Mapping[str, Any]


def is_run(folder: Path) -> bool:
    """Whether this is the folder of a run that has ended."""
    return (folder / SUMMARY).is_file()


def diff_runs(a: Path, b: Path, alike: bool) -> str:
    """The difference of two runs in words; `alike`: their graphs compute the same."""
    first, second = _read(a / SUMMARY), _read(b / SUMMARY)
    lines = [*_digests(first, second), *_surroundings(a, b)]
    recorded = any((run / NAME).is_file() for run in (a, b))
    if recorded or first["digest"] != second["digest"]:
        lines.append(diff_tokens(a, b, alike))
    return "\n".join(lines)


def _digests(first: Facts, second: Facts) -> Iterator[str]:
    one, two = first["digest"], second["digest"]
    if one == two:
        yield f"digest: {one[:12]}, the same" if one else "digest: no learner in either"
        return
    yield f"digest: {one[:12] or 'none'} -> {two[:12] or 'none'}"
    cuts = [(key, first[key], second[key]) for key in CUT if first[key] != second[key]]
    if cuts:
        told = ", ".join(f"{key} {old:,} -> {new:,}" for key, old, new in cuts)
        yield f"  they were not cut at the same place: {told}"


def _surroundings(a: Path, b: Path) -> Iterator[str]:
    """What they ran on, as far as bits may depend on it."""
    if not all((run / ENVIRONMENT).is_file() for run in (a, b)):
        return
    first, second = _flat(_read(a / ENVIRONMENT)), _flat(_read(b / ENVIRONMENT))
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            yield f"ran on: {key} {_told(first.get(key))} -> {_told(second.get(key))}"


def _flat(known: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in BITS:
        value = known.get(key)
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": of for name, of in value.items()}
        else:
            found[key] = value
    return found


def _told(value: Any) -> str:
    return "none" if value is None else flow_text(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    return found
