"""Reads one node of a graph file: its type, its parameters, and the keys that every node has."""

from __future__ import annotations

from typing import NamedTuple, cast

from flowrl.core.errors import Problems, shortened_repr, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn
from flowrl.graph.catalogue import Catalogue, UnknownTypeError
from flowrl.graph.keywords import FAILURES, NODE_KEYS, REPLICA_RANGE, TORCH_THREADS
from flowrl.graph.model import NodeSpec, NodeType, OnFailure
from flowrl.graph.param_reader import ParamReader, Shared, named_parts_fields, part_fields
from flowrl.graph.sections import read_number
from flowrl.graph.yaml_text import YamlValue

MOST_REPLICAS = 10_000


class EngineKeys(NamedTuple):
    """What a node has beside its type and its parameters."""

    replicas: int
    least_replicas: int | None  # None: all of them
    on_failure: OnFailure
    torch_threads: int | None


class NodeReader:
    """Reads nodes and collects problems."""

    def __init__(self, catalogue: Catalogue, problems: Problems) -> None:
        self.catalogue, self.problems = catalogue, problems
        self.params = ParamReader(catalogue, problems)

    def read_type(self, name: str, item: YamlValue) -> YamlValue | None:
        """The type as it is written; None, and a problem, where there is none."""
        if not isinstance(item.value, dict):
            what = f"nodes.{name}: expected a type, or a mapping with 'type'"
            self.problems.add(
                item.entry_location, what, spelling_hint("", self.catalogue.names("node"))
            )
            return None
        named = item.fields.get("type")
        if named is not None and isinstance(named.value, str):
            return named
        if named is None:
            what, location = f"nodes.{name}: missing 'type'", item.entry_location
        else:
            what, location = f"nodes.{name}.type is {shortened_repr(named.plain())}", named.location
        self.problems.add(location, what, spelling_hint("", self.catalogue.names("node")))
        return None

    def read_node(
        self, name: str, type_name: YamlValue, item: YamlValue, shared: Shared
    ) -> NodeSpec | None:
        """The node; None, and problems, if something is wrong with it."""
        path = f"nodes.{name}"
        try:
            cls = self.catalogue.find("node", str(type_name.value))
        except UnknownTypeError as error:
            self.problems.add(type_name.location, f"{path}: {error.what}", error.hint)
            return None
        own = {k: v for k, v in item.fields.items() if k not in NODE_KEYS}
        for port in [key for key in own if key in cls.ports]:
            self.report_port(name, port, cls, own.pop(port))
        written = YamlValue(own, item.location, item.key_location)
        abouts = part_fields(cls.Config) | named_parts_fields(cls.Config)
        self.params.used_sections |= {about["shared"] for about in abouts.values()}
        config = self.params.read_config(cls.Config, written, shared, path, NODE_KEYS)
        keys = self.read_engine_keys(name, item, cls)
        if config is None:
            return None
        try:
            cls = cls.configured(config)
        except UnsoundError as error:
            location = own[error.key].entry_location if error.key in own else item.entry_location
            self.problems.add(location, f"{path}: {error.what}", error.hint)
            return None
        text = str(type_name.value)
        return NodeSpec(name, text, cls, config, written, *keys, shared)

    def report_port(self, name: str, port: str, cls: NodeType, item: YamlValue) -> None:
        """Report a port that is written like a parameter."""
        kind = cls.ports[port]
        ends = (
            f"NODE -> {name}.{port}" if isinstance(kind, In | StateIn) else f"{name}.{port} -> NODE"
        )
        edge = f"{name}.{port} <-> NODE" if kind.kind == "link" else ends
        what = f"nodes.{name}: '{port}' is a port, not a parameter"
        self.problems.add(item.entry_location, what, f"connect it under `edges`: '{edge}'")

    def read_engine_keys(self, name: str, item: YamlValue, cls: NodeType | None) -> EngineKeys:
        """The engine's keys of a node, or of a part-graph (`cls` is None)."""
        replicas, on_failure = item.fields.get("replicas"), item.fields.get("on_failure")
        count, least = self.read_replicas(f"nodes.{name}.replicas", replicas)
        threads = item.fields.get("torch_threads")
        torch_threads = self.read_number(f"nodes.{name}.torch_threads", threads, TORCH_THREADS)
        if torch_threads is not None and threads is not None and cls is not None:
            self.check_fires(name, "torch_threads", threads, cls)
        failure = "stop" if on_failure is None else on_failure.value
        if on_failure is not None and failure not in FAILURES:
            what = f"nodes.{name}.on_failure is {shortened_repr(on_failure.plain())}"
            self.problems.add(on_failure.location, what, f"expected {', '.join(FAILURES)}")
            failure = "stop"
        elif on_failure is not None and failure != "stop" and cls is not None:
            self.check_on_failure(name, on_failure, cls)
        if replicas is not None and count > 1 and cls is not None:
            self.check_replicas(name, replicas, cls)
        return EngineKeys(count, least, cast(OnFailure, failure), torch_threads)

    def read_replicas(self, path: str, item: YamlValue | None) -> tuple[int, int | None]:
        """The number of replicas, and how many must be there: `4`, or `2..16`."""
        found = (
            REPLICA_RANGE.fullmatch(item.value) if item and isinstance(item.value, str) else None
        )
        if found is None or item is None:
            return self.read_number(path, item, (1, MOST_REPLICAS)) or 1, None
        least, most = int(found["least"]), int(found["most"])
        if least < most <= MOST_REPLICAS:
            return most, least
        hint = f"expected a smaller and a greater number, up to {MOST_REPLICAS}, such as 2..16"
        self.problems.add(item.location, f"{path} is {item.value}", hint)
        return 1, None

    def read_number(
        self, path: str, item: YamlValue | None, between: tuple[int, int]
    ) -> int | None:
        """A whole number; None if it is not written, and also, with a problem, if it is none."""
        return None if item is None else read_number(item, path, between, self.problems)

    def check_fires(self, name: str, key: str, item: YamlValue, cls: type[Node]) -> None:
        """Refuse a key about firings at a service, which has none."""
        if cls.fire is Node.fire:
            what = f"nodes.{name}: a service computes within the firing of its client"
            self.problems.add(item.entry_location, what, f"give {key} to the client")

    def check_replicas(self, name: str, item: YamlValue, cls: type[Node]) -> None:
        """Refuse several replicas of a learner that would learn different weights."""
        if cls.role == "learner" and not cls.replicas_form_group:
            what = f"nodes.{name}: replicas of {cls.__name__} would each learn weights of their own"
            hint = "leave replicas out, or take a type whose replicas learn as a group, such as `learner`"
            self.problems.add(item.location, what, hint)

    def check_on_failure(self, name: str, item: YamlValue, cls: type[Node]) -> None:
        if cls.role == "learner":
            what = f"nodes.{name}: a learner's failure stops the run"
            self.problems.add(item.entry_location, what, "leave on_failure out")
        elif cls.fire is Node.fire:
            what = f"nodes.{name}: a service fails within the firing of its client"
            self.problems.add(item.entry_location, what, "give on_failure to the client")
