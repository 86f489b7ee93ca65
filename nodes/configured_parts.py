"""The parts of a config as objects: those of a graph, those made by hand, and the defaults."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from flowrl.core.config import Config, Part, PartSpec, field_extras
from flowrl.core.errors import shortened_repr
from flowrl.nodes.catalogue import CATALOGUE

AnyPart = TypeVar("AnyPart", bound=Part)


def configured_part(config: Config, name: str) -> Any:
    """The part that the parameter `name` stands for; None if it has none and no default."""
    value = getattr(config, name)
    if isinstance(value, PartSpec):
        return value.make()
    extras = field_extras(type(config).model_fields[name])
    if value is None and (written := extras["written"]) is not None:
        return _make(str(extras["part"]), written)
    return value


def configured_parts(config: Config, name: str, cls: type[AnyPart]) -> list[AnyPart]:
    """The parts in the list that is the parameter `name`; anything else that was given by hand is an error."""
    found = [one.make() if isinstance(one, PartSpec) else one for one in getattr(config, name)]
    for one in found:
        if not isinstance(one, cls):
            raise TypeError(
                f"{name} has {shortened_repr(one)}; expected objects of subclasses of {cls.__name__}, "
                f"such as {_example(cls)}"
            )
    return found


def _example(cls: type[Part]) -> str:
    """The first class of the catalogue of this kind, as it is made by hand."""
    return next(iter(CATALOGUE[cls.kind].values())).partition(":")[2] + "(…)"


def _make(kind: str, written: str | Mapping[str, Any]) -> Any:
    """Make a part as it is written in YAML: a type's name, or a mapping with `type`."""
    params = {"type": written} if isinstance(written, str) else dict(written)
    module, _, cls = CATALOGUE[kind][params.pop("type")].partition(":")
    return getattr(importlib.import_module(module), cls)(**params)
