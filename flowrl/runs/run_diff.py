"""Compares two runs of equal graphs: digests, environments, and the first token that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import RunError
from flowrl.core.json_text import parse_object
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.folder import ENVIRONMENT_FILE, SUMMARY_FILE
from flowrl.runs.token_diff import diff_tokens
from flowrl.runs.token_file import TOKEN_FILE

CUT_KEYS = ("env_steps", "train_iters", "episodes")  # equal if the cuts are
# What bits may depend on.
ENVIRONMENT_KEYS = ("flowrl", "python", "packages", "cpu", "choices", "git")

JsonObject = Mapping[str, Any]


def is_ended_run(folder: Path) -> bool:
    return (folder / SUMMARY_FILE).is_file()


def diff_runs(a: Path, b: Path, equal_graphs: bool) -> str:
    """Describe the difference of two runs. `equal_graphs`: their graphs compute the same."""
    first, second = _read_json(a / SUMMARY_FILE), _read_json(b / SUMMARY_FILE)
    lines = [*_digest_lines(first, second), *_environment_lines(a, b)]
    recorded = any((run / TOKEN_FILE).is_file() for run in (a, b))
    if recorded or first["digest"] != second["digest"]:
        lines.append(diff_tokens(a, b, equal_graphs))
    return "\n".join(lines)


def _digest_lines(first: JsonObject, second: JsonObject) -> Iterator[str]:
    one, two = first["digest"], second["digest"]
    if one == two:
        yield f"digest: {one[:12]}, the same" if one else "digest: no learner in either"
        return
    yield f"digest: {one[:12] or 'none'} -> {two[:12] or 'none'}"
    cuts = [(key, first[key], second[key]) for key in CUT_KEYS if first[key] != second[key]]
    if cuts:
        changes = ", ".join(f"{key} {old:,} -> {new:,}" for key, old, new in cuts)
        yield f"  they were cut at different positions: {changes}"


def _environment_lines(a: Path, b: Path) -> Iterator[str]:
    """The differences of the environments that bits may depend on."""
    if not all((run / ENVIRONMENT_FILE).is_file() for run in (a, b)):
        return
    first, second = (
        _flattened(_read_json(a / ENVIRONMENT_FILE)),
        _flattened(_read_json(b / ENVIRONMENT_FILE)),
    )
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            yield f"ran on: {key} {_shown(first.get(key))} -> {_shown(second.get(key))}"


def _flattened(environment: JsonObject) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ENVIRONMENT_KEYS:
        value = environment.get(key)
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": of for name, of in value.items()}
        else:
            found[key] = value
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else flow_text(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
