"""The difference of two graphs, node by node and edge by edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from flowrl.core.wording import count_text, list_text
from flowrl.core.written_config import differing_values, flattened, written_params, written_value
from flowrl.graph.launch import launcher_label
from flowrl.graph.model import EDGE_OPTIONS, SNAPSHOT_KEYS, Graph, Limits, NodeSpec, paths_text
from flowrl.graph.param_reader import named_parts_fields, part_fields
from flowrl.graph.yaml_writer import flow_text

How = Literal["added", "removed", "changed"]
NOTHING = "no difference"
_SIGNS: Mapping[How, str] = {"added": "+", "removed": "-", "changed": "~"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two graphs."""

    section: str  # graph, node, edge, warmup, placement or launch
    name: str
    how: How
    about: str = ""  # describes what was added or removed
    values: tuple[tuple[str, Any, Any], ...] = ()  # of a change: key, old value, new value

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
    """The changes that turn graph `a` into graph `b`. Its name and its `about` are left out."""
    return [
        *(
            Change("graph", "", "changed", values=(v,))
            for v in differing_values(_settings(a), _settings(b))
        ),
        *_entry_changes("node", _node_entries(a, b), _node_entries(b, a)),
        *_entry_changes("edge", _edge_entries(a), _edge_entries(b)),
        *_entry_changes("warmup", _phase_entries(a), _phase_entries(b)),
        *_entry_changes("placement", _placement_entries(a), _placement_entries(b)),
        *_entry_changes("launch", _launch_entries(a), _launch_entries(b)),
    ]


def unread_note(a: Graph, b: Graph) -> str:
    """A note on the nodes of which the difference may have settings that they do not read; empty if there are none.

    Which settings of a policy are read where it acts is known from envs only, which a comparison does not make.
    """
    names = [
        change.name
        for change in changes(a, b)
        if change.section == "node" and change.how == "changed"
        if any(_may_be_unread(b.nodes[change.name], key) for key, _, _ in change.values)
    ]
    if not names:
        return ""
    return (
        f"diff makes no envs: what is shown of {list_text(names)} may include settings of a policy "
        "that are not read where it acts"
    )


def _may_be_unread(spec: NodeSpec, key: str) -> bool:
    name, _, below = key.partition(".")
    known = part_fields(type(spec.config)) | named_parts_fields(type(spec.config))
    declared = known.get(name, {})
    is_policy = "policy" in (declared.get("part"), declared.get("named_parts"))
    is_known = bool(declared.get("reads")) or not below
    return is_policy and not is_known and spec.cls.role in ("collector", "evaluator")


def compute_alike(a: Graph, b: Graph) -> bool:
    """Whether two graphs compute the same: they differ at most in where they run and end, and in how they send."""
    return all(map(_keeps_bits, changes(a, b)))


def _keeps_bits(change: Change) -> bool:
    keys = [key for key, _, _ in change.values]
    if change.section == "edge" and change.how == "changed":
        return all(EDGE_OPTIONS[key].changes_bytes_only for key in keys)
    if change.section == "graph":
        return all(key.startswith(("limits.", "snapshots.")) for key in keys)
    return change.section in ("placement", "launch")


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
        shown.append(f"{count_text(count, word)} {how}")
    return ", ".join(shown)


# what is compared

Entries = Mapping[str, tuple[str, Mapping[str, Any]]]  # by name: a description, and values by key


def _entry_changes(section: str, old: Entries, new: Entries) -> Iterator[Change]:
    for name, (about, values) in old.items():
        if name not in new:
            yield Change(section, name, "removed", about)
        elif changed := tuple(differing_values(values, new[name][1])):
            yield Change(section, name, "changed", values=changed)
    for name, (about, _) in new.items():
        if name not in old:
            yield Change(section, name, "added", about)


def _settings(graph: Graph) -> dict[str, Any]:
    limits = {f"limits.{n}": getattr(graph.limits, n) for n in Limits.__dataclass_fields__}
    names = (*SNAPSHOT_KEYS, "is_off")
    snapshots = {f"snapshots.{n}": getattr(graph.snapshots, n) for n in names}
    return {"seed": graph.seed, "torch_threads": graph.torch_threads, **limits, **snapshots}


def _node_entries(graph: Graph, other: Graph) -> Entries:
    """The nodes of a graph. A node that has another type in the other graph is compared without its parameters."""
    found = {}
    for name, spec in graph.nodes.items():
        engine_keys = ("type", "on_failure", "torch_threads")
        values = {key: getattr(spec, key) for key in engine_keys}
        values["replicas"] = spec.written_replicas
        if name in other.nodes and other.nodes[name].type == spec.type:
            params = flattened("", written_params(spec.config))
            values |= {key: value for key, value in params.items() if _is_read(spec, key)}
        found[name] = (spec.type, values)
    return found


def _is_read(spec: NodeSpec, key: str) -> bool:
    """Whether a node reads a parameter, as far as its type declares it."""
    name, _, below = key.partition(".")
    reads = part_fields(type(spec.config)).get(name, {}).get("reads")
    return not reads or below.partition(".")[0] in ("", "type", *reads)


def _edge_entries(graph: Graph) -> Entries:
    """The edges of a graph by their ends."""
    return {str(e): (_options_text(e.changed_options()), e.options()) for e in graph.edges}


def _options_text(options: Mapping[str, Any]) -> str:
    return flow_text(options) if options else ""


def _phase_entries(graph: Graph) -> Entries:
    """The phases of the warm-up by their active paths."""
    found = {}
    for phase in graph.phases:
        lengths = {"steps": phase.steps, "rounds": phase.rounds}
        values = {key: length for key, length in lengths.items() if length is not None}
        for key, value in phase.settings_by_path().items():
            values[f"set.{key}"] = _short_value(written_value(value))
        found[paths_text(phase)] = (flow_text(values), values)
    return found


def _short_value(value: Any) -> Any:
    """A part without parameters is shown by its type."""
    return value["type"] if isinstance(value, Mapping) and set(value) == {"type"} else value


def _placement_entries(graph: Graph) -> Entries:
    return {name: (flow_text(sites), sites) for name, sites in graph.placements.items()}


def _launch_entries(graph: Graph) -> Entries:
    """The launchers of a graph by their labels."""
    found = {}
    for spec in graph.launch:
        values = flattened("", written_params(spec.config))
        found[launcher_label(spec)] = (spec.type, {"type": spec.type, **values})
    return found


# comparison


def _change_text(key: str, old: Any, new: Any) -> str:
    return f"{key} {flow_text(old)} -> {flow_text(new)}"
