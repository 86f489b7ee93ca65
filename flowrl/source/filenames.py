"""Which parameters of a graph are the names of files to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowrl.config import Config, PartSpec
from flowrl.graph import Graph
from flowrl.source.params import extra

Keys = tuple[str, ...]


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
        if isinstance(value, PartSpec):
            value = value.config
        if isinstance(value, Config):
            yield from ((name, *keys) for keys in _file_params(value))
        elif isinstance(value, str) and extra(info).get("file") and Path(value).is_file():
            yield (name,)
