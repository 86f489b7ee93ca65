"""The difference of two graphs, node by node and edge by edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from flowrl.graph.model import Edge, Graph, Limits, NodeSpec, Phase, paths_text
from flowrl.graph.param_reader import written_params, written_value
from flowrl.graph.yaml_text import flow_text

How = Literal["added", "removed", "changed"]
NOTHING = "no difference"
_SIGNS: Mapping[How, str] = {"added": "+", "removed": "-", "changed": "~"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: in which section, of what, and how; with the old and the new value of each key."""

    section: str  # graph, node, edge, warmup or placement
    name: str
    how: How
    about: str = ""  # what was added or removed
    values: tuple[tuple[str, Any, Any], ...] = ()  # changed: key, old value, new value (None: none)

    def __str__(self) -> str:
        head = f"{_SIGNS[self.how]} {self.section} {self.name}".rstrip()
        if len(self.values) == 1 and not self.about:
            return f"{head}: {_change_text(*self.values[0])}"
        lines = [f"{head}: {self.about}" if self.about else head]
        return "\n".join([*lines, *(f"    {_change_text(*value)}" for value in self.values)])


def diff_graphs(a: Graph, b: Graph) -> str:
    """The difference as text: `+`, `-` and `~` lines, or "no difference"."""
    found = changes(a, b)
    if not found:
        return NOTHING
    return "\n".join([f"{a.name} -> {b.name}: {_summary(found)}", *map(str, _merge_alike(found))])


def changes(a: Graph, b: Graph) -> list[Change]:
    """The changes that turn graph `a` into graph `b`."""
    return [*_graph(a, b), *_nodes(a, b), *_edges(a, b), *_phases(a, b), *_placements(a, b)]


def compute_alike(a: Graph, b: Graph) -> bool:
    """Whether two graphs compute the same: they differ at most in where they run and where they end."""
    return all(
        change.section == "placement"
        or (change.section == "graph" and change.values[0][0].startswith("limits."))
        for change in changes(a, b)
    )


def _merge_alike(found: list[Change]) -> list[Change]:
    """Changes that are the same for several nodes (a shared section changed) become one."""
    merged: list[Change] = []
    for change in found:
        alike = next((t for t in merged if replace(t, name=change.name) == change), None)
        if alike is None or change.section != "node" or change.how != "changed":
            merged.append(change)
        else:
            merged[merged.index(alike)] = replace(alike, name=f"{alike.name}, {change.name}")
    return merged


def _summary(found: list[Change]) -> str:
    """The number of changes of each sort: `1 node added, 1 edge changed`."""
    counts: dict[tuple[str, How], int] = {}
    for change in found:
        key = (change.section, change.how)
        counts[key] = counts.get(key, 0) + 1
    names = {"graph": "setting", "warmup": "warm-up phase"}
    shown = []
    for (section, how), count in counts.items():
        word = names.get(section, section)
        shown.append(f"{count} {word}{'s' if count > 1 else ''} {how}")
    return ", ".join(shown)


def _graph(a: Graph, b: Graph) -> Iterator[Change]:
    """Changes of the settings of the whole graph. Its name and its `about` are left out."""
    old, new = _settings(a), _settings(b)
    for values in _values(old, new):
        yield Change("graph", "", "changed", values=(values,))


def _settings(graph: Graph) -> dict[str, Any]:
    limits = {f"limits.{n}": getattr(graph.limits, n) for n in Limits.__dataclass_fields__}
    return {"seed": graph.seed, "torch_threads": graph.torch_threads, **limits}


def _nodes(a: Graph, b: Graph) -> Iterator[Change]:
    for name, spec in a.nodes.items():
        if name not in b.nodes:
            yield Change("node", name, "removed", spec.type)
        elif b.nodes[name].type != spec.type:
            other = b.nodes[name]
            values = (("type", spec.type, other.type), *_values(_kept(spec), _kept(other)))
            yield Change("node", name, "changed", values=values)
        elif values := tuple(_values(_params(spec), _params(b.nodes[name]))):
            yield Change("node", name, "changed", values=values)
    for name, spec in b.nodes.items():
        if name not in a.nodes:
            yield Change("node", name, "added", spec.type)


def _kept(spec: NodeSpec) -> dict[str, Any]:
    """The keys that a node keeps when its type changes."""
    return {"replicas": spec.replicas, "on_failure": spec.on_failure}


def _params(spec: NodeSpec) -> dict[str, Any]:
    """The parameters of a node. Those of parts are keyed by their path."""
    return {**_kept(spec), **_flattened("", written_params(spec.config))}


def _flattened(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key in sorted(value, key=lambda key: key != "type"):
        found.update(_flattened(f"{path}.{key}" if path else str(key), value[key]))
    return found


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The keys whose values differ. Below a part whose type differs, nothing is compared."""
    other = [
        key.removesuffix("type")
        for key in old
        if key.endswith(".type") and new.get(key) != old[key]
    ]
    for key in [*old, *(k for k in new if k not in old)]:
        below = any(key.startswith(part) and key != f"{part}type" for part in other)
        if not below and (key not in old or key not in new or not _is_same(old[key], new[key])):
            yield key, old.get(key), new.get(key)


def _is_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _edges(a: Graph, b: Graph) -> Iterator[Change]:
    """Changes of edges. An edge is identified by its ends; its options are what can change."""
    old, new = ({e.to: e for e in graph.edges} for graph in (a, b))
    for to, edge in old.items():
        other = new.get(to)
        if other is None or other.sources != edge.sources:
            yield Change("edge", str(edge), "removed", _options(edge))
        elif values := tuple(_option_values(edge, other)):
            yield Change("edge", str(edge), "changed", values=values)
    for to, edge in new.items():
        if to not in old or old[to].sources != edge.sources:
            yield Change("edge", str(edge), "added", _options(edge))


def _options(edge: Edge) -> str:
    options = edge.changed_options()
    return flow_text(options) if options else ""


def _option_values(old: Edge, new: Edge) -> Iterator[tuple[str, Any, Any]]:
    names = (*old.changed_options(), *new.changed_options())
    yield from _values({n: getattr(old, n) for n in names}, {n: getattr(new, n) for n in names})


def _phases(a: Graph, b: Graph) -> Iterator[Change]:
    """Changes of warm-up phases. A phase is identified by its active paths."""
    old, new = ({paths_text(p): _phase(p) for p in graph.phases} for graph in (a, b))
    for paths, phase in old.items():
        if paths not in new:
            yield Change("warmup", paths, "removed", flow_text(phase))
        elif values := tuple(_values(phase, new[paths])):
            yield Change("warmup", paths, "changed", values=values)
    for paths, phase in new.items():
        if paths not in old:
            yield Change("warmup", paths, "added", flow_text(phase))


def _phase(phase: Phase) -> dict[str, Any]:
    lengths = {"steps": phase.steps, "rounds": phase.rounds}
    settings = {
        f"set.{node}.{key}": _short_value(written_value(value))
        for node, of in phase.settings.items()
        for key, value in of.items()
    }
    return {**{k: v for k, v in lengths.items() if v is not None}, **settings}


def _short_value(value: Any) -> Any:
    """A part without parameters is shown by its type."""
    return value["type"] if isinstance(value, Mapping) and set(value) == {"type"} else value


def _placements(a: Graph, b: Graph) -> Iterator[Change]:
    for name, sites in a.placements.items():
        if name not in b.placements:
            yield Change("placement", name, "removed", flow_text(sites))
        elif values := tuple(_values(sites, b.placements[name])):
            yield Change("placement", name, "changed", values=values)
    for name, sites in b.placements.items():
        if name not in a.placements:
            yield Change("placement", name, "added", flow_text(sites))


def _change_text(key: str, old: Any, new: Any) -> str:
    return f"{key} {flow_text(old)} -> {flow_text(new)}"
