"""Configs as plain data (mappings, lists, texts and numbers), and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.core.config import Config, PartSpec


def written_params(config: Config) -> dict[str, Any]:
    """A config as plain data, with every default, that reads back as the same config."""
    return {name: written_value(getattr(config, name)) for name in type(config).model_fields}


def written_value(value: Any) -> Any:
    if isinstance(value, PartSpec):
        return {"type": value.type, **written_params(value.config)}
    if isinstance(value, Config):  # a value with keys, of which those that are not set say nothing
        return {name: v for name, v in written_params(value).items() if v is not None}
    if isinstance(value, Mapping):
        return {k: written_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [written_value(v) for v in value]
    return value


def flattened(path: str, value: Any) -> dict[str, Any]:
    """Nested parameters, keyed by their path. The type of a part comes before its other parameters."""
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key in sorted(value, key=lambda key: key != "type"):
        found.update(flattened(f"{path}.{key}" if path else str(key), value[key]))
    return found


def differing_values(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """The keys whose values differ. Below a part whose type differs, only what both types have is compared."""
    changed_parts = [
        key.removesuffix("type")
        for key in old
        if key.endswith(".type") and new.get(key) != old[key]
    ]
    for key in [*old, *(k for k in new if k not in old)]:
        if key in old and key in new:
            differs = not _is_same(old[key], new[key])
        else:
            differs = not any(key.startswith(part) for part in changed_parts)
        if differs:
            yield key, old.get(key), new.get(key)


def _is_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
