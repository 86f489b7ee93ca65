"""Writes the resolved graph as YAML, with every default and every port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowrl.core.written_config import written_params, written_value
from flowrl.graph.model import SNAPSHOT_KEYS, Edge, Graph, Limits, NodeSpec, Phase, SnapshotSettings
from flowrl.graph.needed_files import modules_beside
from flowrl.graph.param_reader import named_parts_fields, part_fields
from flowrl.graph.tree import as_mapping
from flowrl.graph.yaml_text import YamlValue
from flowrl.graph.yaml_writer import flow_text, scalar_text

_COLUMN = 44  # where the comments begin


def expand(graph: Graph, origins: bool = False) -> str:
    """YAML that reads as the same graph. With `origins`, a comment on each line says where its value was written."""
    lines = [f"# {graph.name}, resolved: this file alone repeats the run"]
    if graph.about:
        lines.append(f"about: {scalar_text(graph.about)}")
    lines += [f"seed: {graph.seed}", f"torch_threads: {graph.torch_threads}"]
    if modules := _modules(graph):
        lines.append(f"modules: {flow_text(modules)}")
    if graph.limits != Limits():
        lines.append(f"limits: {flow_text(_limits(graph.limits))}")
    if graph.snapshots != SnapshotSettings():
        lines.append(f"snapshots: {flow_text(_given(graph.snapshots))}")
    lines += ["", "nodes:"]
    for spec in graph.nodes.values():
        lines += _node(spec, origins)
    lines += ["", "edges:" if graph.edges else "edges: []"]
    lines += [_edge(edge, origins) for edge in graph.edges]
    if graph.phases:
        lines += ["", "warmup:", *map(_phase, graph.phases)]
    if graph.placements:
        lines += ["", "placements:"]
        lines += [
            f"  {scalar_text(name)}: {flow_text(sites)}" for name, sites in graph.placements.items()
        ]
    if graph.launch:
        lines += ["", f"launch: {flow_text([written_value(spec) for spec in graph.launch])}"]
    return "\n".join(lines) + "\n"


def _modules(graph: Graph) -> list[str]:
    """The folders whose modules the graph names, as absolute paths, because the resolved graph is in another folder."""
    return sorted({str(folder.resolve()) for folder in modules_beside(graph).values()})


def _limits(limits: Limits) -> dict[str, Any]:
    named = {"time" if n == "time_s" else n: getattr(limits, n) for n in Limits.__slots__}
    return {k: v for k, v in named.items() if v is not None}


def _given(settings: SnapshotSettings) -> dict[str, Any] | bool:
    if settings.is_off:
        return False
    named = {n: getattr(settings, n) for n in SNAPSHOT_KEYS}
    return {k: v for k, v in named.items() if v is not None}


def _node(spec: NodeSpec, origins: bool) -> Iterator[str]:
    yield f"  {scalar_text(spec.name)}:"
    yield f"    type: {scalar_text(spec.type)}"
    if spec.replicas != 1:
        yield f"    replicas: {spec.written_replicas}"
    if spec.on_failure != "stop":
        yield f"    on_failure: {spec.on_failure}"
    if spec.torch_threads is not None:
        yield f"    torch_threads: {spec.torch_threads}"
    parts = part_fields(type(spec.config))
    sources: dict[str, list[YamlValue]] = {
        name: [
            i
            for i in (spec.written.fields.get(name), spec.shared.get(about["shared"]))
            if i is not None
        ]
        for name, about in parts.items()
        if getattr(spec.config, name) is not None
    }
    for name, about in named_parts_fields(type(spec.config)).items():
        sources[name] = _of_named_parts(spec, name, about["shared"])
    for name, value in written_params(spec.config).items():
        written = sources.get(name) or [i for i in [spec.written.fields.get(name)] if i is not None]
        yield from parameter_lines(name, value, 2, [as_mapping(i) for i in written], origins)


def _of_named_parts(spec: NodeSpec, name: str, section: str) -> list[YamlValue]:
    """Where parts by name were written: by the node, and as the section, which stands for each of them."""
    if name not in spec.written.fields:
        return []
    own = spec.written.fields[name]
    if section not in spec.shared:
        return [own]
    of_section = dict.fromkeys(own.fields, spec.shared[section])
    return [own, YamlValue(of_section, spec.shared[section].location)]


def parameter_lines(
    name: str, value: Any, depth: int, written: Sequence[YamlValue] = (), origins: bool = False
) -> Iterator[str]:
    """The lines of a parameter. Parts and mappings take several. `written` is where it was written."""
    pad = "  " * depth
    if isinstance(value, Mapping) and value:
        yield f"{pad}{scalar_text(name)}:"
        for key, inner in value.items():
            below = [i.fields[key] for i in written if key in i.fields]
            yield from parameter_lines(
                str(key),
                inner,
                depth + 1,
                [as_mapping(i) for i in below] if isinstance(inner, Mapping) else below,
                origins,
            )
        return
    line = f"{pad}{scalar_text(name)}: {flow_text(value)}"
    if origins:
        line = f"{line:<{_COLUMN}}  # {written[0].location if written else 'default'}"
    yield line


def _edge(edge: Edge, origins: bool) -> str:
    source: Any = str(edge.source) if len(edge.sources) == 1 else [str(s) for s in edge.sources]
    fields = {"from": source, "to": str(edge.to), **edge.changed_options()}
    if edge.kind == "link":
        fields["link"] = True
    line = f"  - {flow_text(fields)}"
    return f"{line:<{_COLUMN}}  # {edge.location}" if origins else line


def _phase(phase: Phase) -> str:
    paths = [f"{', '.join(starts)} -> {', '.join(ends)}" for starts, ends in phase.paths]
    fields: dict[str, Any] = {"edges": paths}
    fields |= {k: v for k, v in (("steps", phase.steps), ("rounds", phase.rounds)) if v is not None}
    settings = {key: written_value(value) for key, value in phase.settings_by_path().items()}
    if settings:
        fields["set"] = settings
    return f"  - {flow_text(fields)}"
