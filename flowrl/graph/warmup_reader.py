"""Reads the `warmup` section: the phases that come before round 0."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from flowrl.core.config import REQUIRED, field_extras
from flowrl.core.errors import Problems, shortened_repr, spelling_hint
from flowrl.graph.keywords import PHASE_KEYS
from flowrl.graph.model import Graph, Phase, PortRef
from flowrl.graph.param_reader import ParamReader
from flowrl.graph.sections import part_members
from flowrl.graph.yaml_text import YamlValue

Paths = list[tuple[tuple[str, ...], tuple[str, ...]]]

_MOST = 2**62  # steps or rounds


class PhaseReader:
    """Reads phases and collects problems."""

    def __init__(
        self,
        graph: Graph,
        parts: Mapping[str, Mapping[str, PortRef]],
        broken: set[str],
        params: ParamReader,
        problems: Problems,
    ) -> None:
        self.graph, self.broken_nodes, self.params, self.problems = graph, broken, params, problems
        self.part_members = part_members(graph, parts)
        self.known_names = {*graph.nodes, *parts, *broken}

    def read(self, item: YamlValue) -> list[Phase]:
        if item.value is None:
            return []
        if not isinstance(item.value, list):
            hint = "warmup: [{edges: [a -> b], steps: 1000}]"
            self.problems.add(item.location, "warmup: expected a list of phases", hint)
        return [phase for entry in item.items if (phase := self.read_phase(entry)) is not None]

    def read_phase(self, item: YamlValue) -> Phase | None:
        if not isinstance(item.value, dict):
            hint = "{edges: [collector -> buffer], steps: 1000}"
            self.problems.add(item.location, "warmup: expected a phase", hint)
            return None
        for name, entry in item.value.items():
            if name not in PHASE_KEYS:
                hint = spelling_hint(name, PHASE_KEYS)
                self.problems.add(entry.entry_location, f"warmup: unknown key '{name}'", hint)
        paths = self.read_paths(item)
        lengths = {
            k: self.read_length(k, i) for k, i in item.value.items() if k in ("steps", "rounds")
        }
        if len(lengths) != 1:
            what = "warmup: a phase has one length"
            self.problems.add(item.location, what, "give either 'steps' or 'rounds'")
            return None
        settings = self.read_settings(item.fields.get("set"))
        if None in lengths.values() or not paths:
            return None
        return Phase(tuple(paths), item.location, settings=settings, **lengths)

    def read_paths(self, item: YamlValue) -> Paths:
        edges = item.fields.get("edges", YamlValue(None, item.location))
        if not isinstance(edges.value, list) or not edges.items:
            what = "warmup: a phase lists its active edges"
            self.problems.add(edges.location, what, "edges: [collector -> buffer]")
        return [path for entry in edges.items for path in self.read_path(entry)]

    def read_path(self, item: YamlValue) -> Paths:
        """`a -> b` as pairs of nodes: every stream between a and b is active."""
        text = item.value if isinstance(item.value, str) else ""
        ends = [[name.strip() for name in end.split(",")] for end in text.split("->")]
        if len(ends) < 2:
            what = f"warmup: {shortened_repr(item.plain())} is not an edge"
            self.problems.add(item.location, what, "write 'a -> b'")
            return []
        for name in dict.fromkeys(n for end in ends for n in end if n not in self.known_names):
            hint = spelling_hint(name, self.known_names)
            if name.partition(".")[0] in self.known_names:
                hint = f"name the node: '{name.partition('.')[0]}'"
            self.problems.add(item.location, f"warmup: unknown node '{name}'", hint)
        groups = [
            tuple(m for n in end if n in self.known_names for m in self.part_members.get(n, (n,)))
            for end in ends
        ]
        return [(a, b) for a, b in pairwise(groups) if a and b]

    def read_length(self, key: str, item: YamlValue) -> int | None:
        value = item.value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
            return value
        what = f"warmup.{key} is {shortened_repr(item.plain())}"
        self.problems.add(item.location, what, "expected a whole number, 0 or more")
        return None

    def read_settings(self, item: YamlValue | None) -> dict[str, dict[str, Any]]:
        """The values that parameters have during the phase: node -> parameter -> value."""
        found: dict[str, dict[str, Any]] = {}
        if item is not None and not isinstance(item.value, dict):
            hint = "set: {collector.policy: random}"
            self.problems.add(item.location, "warmup.set: expected a mapping", hint)
        for path, value in (item.fields if item else {}).items():
            node, _, key = path.partition(".")
            if node not in self.known_names:
                what = f"warmup: unknown node '{node}'"
                self.problems.add(value.entry_location, what, spelling_hint(node, self.known_names))
            elif not key:
                hint = f"write '{node}.PARAMETER'"
                self.problems.add(
                    value.entry_location, f"warmup.set: '{path}' names no parameter", hint
                )
            elif node not in self.broken_nodes:
                setting = self.read_setting(value, node, key)
                if setting is not REQUIRED:
                    found.setdefault(node, {})[key] = setting
        return found

    def read_setting(self, item: YamlValue, node: str, key: str) -> Any:
        """The value of a setting, checked like the node's parameter."""
        if node in self.part_members:
            hint = f"set a node of it: '{node}/NODE.{key}'"
            self.problems.add(item.entry_location, f"warmup: '{node}' is a part-graph", hint)
            return REQUIRED
        spec = self.graph.nodes[node]
        fields = spec.cls.Config.model_fields
        free = [n for n, info in fields.items() if field_extras(info).get("phase")]
        if key not in fields:
            what = f"warmup: '{node}' has no parameter '{key}'"
            self.problems.add(item.entry_location, what, spelling_hint(key, free or fields))
            return REQUIRED
        if key not in free:
            hint = f"it may set: {', '.join(free) or 'nothing'}"
            self.problems.add(
                item.entry_location, f"warmup: a phase cannot set '{node}.{key}'", hint
            )
            return REQUIRED
        written = YamlValue(
            {**spec.written.fields, key: item}, spec.written.location, spec.written.key_location
        )
        config = self.params.read_config(spec.cls.Config, written, spec.shared, f"warmup: {node}")
        return REQUIRED if config is None else getattr(config, key)
