"""The `launch` section: what starts the hosts of a run, in a graph, in a file of its own, or in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrl.core.config import PartSpec
from flowrl.core.errors import GraphError, Problems, UsageError, shortened_repr
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.param_reader import ParamReader
from flowrl.graph.tree import as_mapping
from flowrl.graph.yaml_text import SourceLocation, YamlValue, item_of, parse_yaml, read_yaml

Launchers = tuple[PartSpec, ...]
GIVEN = "--launch"


def launcher_label(spec: PartSpec) -> str:
    """The label of a launcher's hosts: what its parameter `label` says, or its type."""
    config: Any = spec.config
    return str(config.label or spec.type.rpartition(":")[2].lower())


def read_launch(item: YamlValue | None, params: ParamReader, path: str = "launch") -> Launchers:
    """The launchers of a section: one, or a list of them."""
    if item is None or item.value is None:
        return ()
    items = item.items if isinstance(item.value, list) else [item]
    found = [
        params.make_part_spec("launcher", as_mapping(one), None, {}, where)
        for one, where in zip(items, _paths(path, item, len(items)), strict=True)
    ]
    specs = tuple(spec for spec in found if isinstance(spec, PartSpec))
    labels = [launcher_label(spec) for spec in specs]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        params.report(item, f"{path}: two launchers have the label '{label}'", "give one a `label`")
    return specs


def _paths(path: str, item: YamlValue, count: int) -> list[str]:
    return [f"{path}[{n}]" for n in range(count)] if isinstance(item.value, list) else [path]


def load_launch(given: Any) -> Launchers:
    """The launchers that `--launch` or Python names: a YAML file, a type, or a launcher as YAML or plain data."""
    item = _written_launch(given)
    problems = Problems()
    here = Path(item.location.file).parent if item.location.line else Path()
    launchers = read_launch(item, ParamReader(Catalogue((here.resolve(),)), problems), GIVEN)
    if problems:
        raise GraphError(list(problems))
    if not launchers:
        raise UsageError(f"{GIVEN}: it names no launcher; write {{type: local, hosts: 2}}")
    return launchers


def _written_launch(given: Any) -> YamlValue:
    if isinstance(given, Mapping | Sequence) and not isinstance(given, str):
        return item_of(given, SourceLocation(GIVEN))
    if not isinstance(given, str | Path):
        raise UsageError(
            f"launch is {shortened_repr(given)}; expected a YAML file, a launcher's type, or a mapping with it"
        )
    text = str(given)
    if not text.endswith((".yaml", ".yml")):
        return parse_yaml(text, GIVEN)
    if not Path(text).is_file():
        raise UsageError(
            f"{GIVEN} {text}: there is no such file; write {{type: local, hosts: 2}} in it"
        )
    return read_yaml(Path(text))
