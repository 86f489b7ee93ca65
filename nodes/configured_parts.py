"""The parts of a config as objects: those of a graph, those made by hand, and the defaults."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.nodes.catalogue import CATALOGUE


def configured_part(config: Config, name: str) -> Any:
    """The part that the parameter `name` stands for; None if it has none and no default."""
    value = getattr(config, name)
    if isinstance(value, PartSpec):
        return value.make()
    extras = field_extras(type(config).model_fields[name])
    if value is None and (written := extras["written"]) is not None:
        return _make(str(extras["part"]), written)
    return value


def _make(kind: str, written: str | Mapping[str, Any]) -> Any:
    """Make a part as it is written in YAML: a type's name, or a mapping with `type`."""
    params = {"type": written} if isinstance(written, str) else dict(written)
    module, _, cls = CATALOGUE[kind][params.pop("type")].partition(":")
    return getattr(importlib.import_module(module), cls)(**params)
