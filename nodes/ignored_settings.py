"""Refuses settings of models that have no effect in the networks of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import PartSpec, field_extras
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.heads import FreeHead
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.models.model import Model

if TYPE_CHECKING:
    from flowrl.nodes.algorithm import Net


def check_models(config: BaseConfig, nets: Mapping[str, Net], prefix: str = "") -> None:
    """Refuse settings of models that have no effect in any of their networks, unless they have their defaults.

    `nets` have the models of `config`, before they are chosen for their inputs. `prefix` precedes the names of the
    parameters in errors.
    """
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        settings = value.config if isinstance(value, PartSpec | Model) else None
        using = {n: net for n, net in nets.items() if net.model.config is settings}
        if settings is None or not using:
            continue
        written = field_extras(field).get("written")
        defaults = written if isinstance(written, Mapping) else {}
        for setting, why in _ignored_settings(using).items():
            usual = type(settings).model_fields[setting].default
            if getattr(settings, setting) not in (usual, defaults.get(setting, usual)):
                what = f"`{setting}` of the {name} has no effect: {why}"
                raise UnsoundError(what, "leave it out", f"{prefix}{name}.{setting}")


def _ignored_settings(nets: Mapping[str, Net]) -> dict[str, str]:
    """The settings of one model that have no effect in any of these networks, each with the reason in the first."""
    found = [dict(net.model.ignored_settings(input_columns(net.inputs))) for net in nets.values()]
    for (name, net), ignored in zip(nets.items(), found, strict=True):
        if hasattr(net.model.config, "shared") and _trunk_users(net) <= 1:
            ignored["shared"] = f"the network '{name}' has one head"
    return {key: why for key, why in found[0].items() if all(key in ignored for ignored in found)}


def _trunk_users(net: Net) -> int:
    """How many heads of a network have a trunk below them."""
    return sum(not isinstance(head, FreeHead) for head in net.heads.values())
