"""What nodes write outside of the run's folder: the files and folders that parameters declared with `output` name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.core.errors import UsageError
from flowrl.graph.model import Graph

Change = Callable[[str, str], str]  # of the key of a parameter and its path


def output_paths(graph: Graph) -> dict[str, str]:
    """Return the paths that nodes write, by the keys of the parameters that name them."""
    found: dict[str, str] = {}

    def note(key: str, path: str) -> str:
        found[key] = path
        return path

    _with_changed_paths(graph, note)
    return found


def with_outputs_in(graph: Graph, folder: Path) -> Graph:
    """Return the graph with everything that nodes write in this folder, so that a trial leaves no file elsewhere."""

    def moved(key: str, path: str) -> str:
        own_folder = folder / key.replace("/", "__")
        own_folder.mkdir(parents=True, exist_ok=True)
        return str(own_folder / Path(path).name)

    return _with_changed_paths(graph, moved)


def refuse_shared_outputs(graph: Graph, command: str) -> None:
    """Refuse a graph whose runs would all write the same files."""
    for key, path in output_paths(graph).items():
        raise UsageError(
            f"{command}: all runs would write the same '{path}' ({key}); leave the node out, or start runs one by one, "
            f"each with another path (--set {key}=PATH)"
        )


def _with_changed_paths(graph: Graph, change: Change) -> Graph:
    nodes = {
        name: replace(spec, config=_changed_config(spec.config, name, change))
        for name, spec in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)


def _changed_config(config: Config, key: str, change: Change) -> Config:
    changed: dict[str, Any] = {}
    for name, about in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, str) and field_extras(about).get("output"):
            changed[name] = change(f"{key}.{name}", value)
        elif isinstance(value, PartSpec | Config | Mapping | list | tuple):
            changed[name] = _changed_value(value, f"{key}.{name}", change)
    return config.model_copy(update=changed)


def _changed_value(value: Any, key: str, change: Change) -> Any:
    if isinstance(value, PartSpec):
        return replace(value, config=_changed_config(value.config, key, change))
    if isinstance(value, Config):
        return _changed_config(value, key, change)
    if isinstance(value, Mapping):
        return {name: _changed_value(v, f"{key}.{name}", change) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed_value(v, f"{key}.{k}", change) for k, v in enumerate(value))
    return value
