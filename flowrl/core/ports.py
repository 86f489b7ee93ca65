"""Ports: the inputs, outputs, states, links and services that a node type declares.

They are declared as class attributes of a node; the attribute's name is the port's name:

    class Reward(Node):
        data = In("samples")
        out = Out("samples")

There are three kinds of connection: streams carry tokens, states carry versions, links carry calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

Kind = Literal["stream", "state", "link"]
Rate = int | str  # a number, the name of a parameter, or AUTO

AUTO = "auto"
ANY = "any"  # the port type that fits every stream


@dataclass(frozen=True, slots=True)
class In:
    """A stream input. Each firing takes `rate` tokens, as a list unless the rate is the literal 1.

    `initial` makes the value of one initial token, so that the input can close a feedback loop: before round 0, one
    round of such tokens lies on its edge. `may_idle` says that a phase of the warm-up which feeds another input of the
    node may leave this one without tokens; its value is then None. `unlike` names an input of the node whose tokens
    must come from elsewhere, as those of an agent and of an expert.
    """

    type: str
    rate: Rate = 1
    optional: bool = False
    initial: Callable[[], object] | None = None
    about: str = ""
    may_idle: bool = False
    unlike: str = ""
    kind: Kind = "stream"


@dataclass(frozen=True, slots=True)
class Out:
    """A stream output. Each firing gives `rate` tokens, as a list unless the rate is the literal 1."""

    type: str
    rate: Rate = 1
    optional: bool = False
    about: str = ""
    kind: Kind = "stream"


@dataclass(frozen=True, slots=True)
class StateIn:
    """A state input. Each firing gets the version that the schedule assigns to it."""

    type: str
    optional: bool = False
    about: str = ""
    kind: Kind = "state"


@dataclass(frozen=True, slots=True)
class StateOut:
    """A state output. `Node.state(port)` returns the newest version, and is called only if a consumer sees it."""

    type: str
    optional: bool = False
    about: str = ""
    kind: Kind = "state"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another node's service. The attribute holds the service when `setup` is called.

    With `many`, several nodes can be linked; the attribute is a list in the order of the edge.
    """

    type: str
    optional: bool = False
    about: str = ""
    many: bool = False
    kind: Kind = "link"


BEGIN = "begin"  # the method of a client stub that starts a call without waiting


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a node: its clients call the named methods of the node."""

    type: str
    methods: tuple[str, ...]
    stateful: bool = True  # a stateful service has one client
    values: tuple[Any, ...] = ()  # the named tuples and dataclasses that calls take or return
    optional: bool = False
    about: str = ""
    kind: Kind = "link"

    def __post_init__(self) -> None:
        if BEGIN in self.methods:
            raise TypeError(
                f"a service cannot have a method '{BEGIN}'; clients start calls by that name"
            )
        for kind in self.values:
            if not (is_dataclass(kind) or hasattr(kind, "_fields")):
                raise TypeError(f"{kind.__name__} is neither a named tuple nor a dataclass")


Input = In | StateIn | Link
Output = Out | StateOut | Service
Port = Input | Output
