"""Which parameters of a graph are the names of files to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowrl.core.config import Config, PartSpec
from flowrl.graph.model import Graph
from flowrl.graph.param_reader import extra

Keys = tuple[str | int, ...]


def file_params(graph: Graph) -> list[Keys]:
    """Where in the graph's data there is the name of a file that is there."""
    return [
        ("nodes", name, *keys)
        for name, spec in graph.nodes.items()
        for keys in _file_params(spec.config)
    ]


def _file_params(config: Config) -> Iterator[Keys]:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, str) and extra(info).get("file") and Path(value).is_file():
            yield (name,)
        elif isinstance(value, tuple | list):
            yield from ((name, n, *keys) for n, v in enumerate(value) for keys in _inside(v))
        else:
            yield from ((name, *keys) for keys in _inside(value))


def _inside(value: Any) -> Iterator[Keys]:
    config = value.config if isinstance(value, PartSpec) else value
    if isinstance(config, Config):
        yield from _file_params(config)
