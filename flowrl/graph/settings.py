"""The settings of a graph as flat keys and plain values, for trackers of experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.core.written_config import written_params
from flowrl.graph.model import Graph, NodeSpec
from flowrl.graph.param_reader import part_fields
from flowrl.graph.yaml_writer import flow_text

Setting = bool | int | float | str


def graph_settings(graph: Graph) -> dict[str, Setting]:
    """Every value that `--set` can change, by its key: `policy.lr`, `collector.n_sample`, `evaluator.weights.every`.

    Defaults are included. What nodes take from a section at the top of the graph is listed once, under the section.
    """
    found: dict[str, Setting] = {"seed": graph.seed}
    for spec in graph.nodes.values():
        sections = _sections_used(spec)
        for name, value in written_params(spec.config).items():
            if value is None and name in sections:
                continue  # a link takes its place
            found |= _flat(sections.get(name, f"{spec.name}.{name}"), value)
    for edge in graph.edges:
        for option, value in edge.changed_options().items():
            found |= _flat(f"{edge.to}.{option}", value)
    return found


def policy_settings(graph: Graph) -> dict[str, Setting]:
    """The settings of each learner's policy, such as `learner.policy.lr`, also if the graph has them in a section."""
    found: dict[str, Setting] = {}
    for name in graph.nodes_of_role("learner"):
        policy = written_params(graph.nodes[name].config).get("policy")
        found |= _flat(f"{name}.policy", policy) if policy else {}
    return found


def _sections_used(spec: NodeSpec) -> dict[str, str]:
    """The parameters that the node takes unchanged from a section at the top, with the section's name."""
    parts = part_fields(type(spec.config))
    return {
        name: str(about["shared"])
        for name, about in parts.items()
        if about["shared"] in spec.shared and name not in spec.written.fields
    }


def _flat(key: str, value: Any) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key, value if isinstance(value, Setting) else flow_text(value)
