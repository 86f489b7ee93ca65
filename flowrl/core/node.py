"""The node: typed ports, parameters, private state in attributes, and a `fire` that the engine calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flowrl.core.attribute_state import (
    attribute_kinds,
    load_attributes,
    refuse_other_attributes,
    state_of_attributes,
)
from flowrl.core.config import BaseConfig, make_config, replaced_params
from flowrl.core.context import Context
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.ports import AUTO, BEGIN, In, Link, Out, Port, Service, StateIn, StateOut
from flowrl.core.reseeding import Reseeding
from flowrl.core.saved_state import UnsavableStateError
from flowrl.core.signatures import KeywordSignature, document_parameters, refuse_positional
from flowrl.core.state import State

if TYPE_CHECKING:
    from typing_extensions import Self

Role = Literal["", "collector", "learner", "evaluator"]

RESERVED = frozenset(
    {"type", "replicas", "on_failure", "torch_threads", "seed", "context", "config"}
)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a node in a run of which it was the bottleneck."""

    each_s: float  # of one of its firings, or calls, on average
    torch_threads: int = 1  # in its firings
    idle_cores: int = 0  # of this machine, which nothing of the run used


class Node:
    """The base of all nodes.

    A subclass declares ports and a `Config`, builds itself in `setup`, and works in `fire`. The parameters of `fire`
    are the stream and state inputs, in the order of their declaration. All state that lasts from one firing to the
    next is in attributes.
    """

    role: ClassVar[Role] = ""
    # "all" or "any" stream inputs; on "any", inputs without tokens are None. Or a parameter: "any" where it is set.
    fires_on: ClassVar[str] = "all"
    # Whether it may give a verdict (`ctx.verdict`). If a node that fires in rounds may, placed runs copy the learner's
    # state in every round, because the verdict may cut the run in an earlier one.
    may_end_run: ClassVar[bool] = True
    # Whether replicas of it form a group, which is one node to the graph: they fire together, each with its part of the
    # rows of each token, and exchange values by `ctx.group`. Records and states are those of replica 0.
    replicas_form_group: ClassVar[bool] = False
    # The names of attributes that are no state, such as caches and open files. Snapshots leave them out.
    unsaved: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type[BaseConfig]] = BaseConfig
    ports: ClassVar[Mapping[str, Port]] = {}
    __signature__ = KeywordSignature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kinds = (In, StateIn, Link, Out, StateOut, Service)
        found = {
            k: v
            for base in reversed(cls.__mro__)
            for k, v in vars(base).items()
            if isinstance(v, kinds)
        }
        cls.ports = {k: v for k, v in found.items() if isinstance(getattr(cls, k, None), kinds)}
        _check_names(cls)
        _check_rates(cls)
        _check_fires_on(cls)
        _check_fire(cls)
        document_parameters(cls)

    def __new__(cls, *args: Any, **params: Any) -> Self:
        refuse_positional(cls, args)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        config: BaseConfig | None = None,
        context: Context | None = None,
        seed: int = 0,
        **params: Any,
    ):
        """Without an engine, parameters and linked services are passed by keyword; the engine passes the rest."""
        links = {
            k: params.pop(k) for k, p in self.ports.items() if isinstance(p, Link) and k in params
        }
        owner = type(self).__name__
        _refuse_replaced(owner, self.Config, params, links)
        self.config: Any = config if config is not None else make_config(owner, self.Config, params)
        self.ctx = context if context is not None else Context(owner, seed=seed)
        self.__class__ = type(self).configured(self.config)
        for name, port in self.ports.items():
            if isinstance(port, Link):
                if name not in links and not port.optional:
                    raise TypeError(f"{owner}: missing the link '{name}'; give it by keyword")
                setattr(self, name, links.get(name))
        self.setup()
        self._kinds_after_setup = attribute_kinds(self, self._attributes_without_state())

    @classmethod
    def configured(cls, config: Any) -> type[Self]:
        """Return the class of nodes with these parameters.

        A type whose ports depend on its parameters returns `cls.with_ports(…)`.
        """
        return cls

    @classmethod
    def with_ports(cls, ports: Mapping[str, Port]) -> type[Self]:
        """Return a subclass that declares these ports after its own.

        `fire` receives the values of the added inputs after the others, as `*inputs`.
        """
        for name in ports:
            if not name.isidentifier() or name in {
                *dir(cls),
                *_OWN_NAMES,
                *cls.Config.model_fields,
            }:
                what = f"'{name}' cannot be the name of a port of {cls.__name__}"
                raise UnsoundError(what, "choose another name, of letters, digits and _")
        own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": None}
        is_configured = {"configured": classmethod(lambda cls, config: cls)}
        return type(cls.__name__, (cls,), {**own, **is_configured, **ports})

    @classmethod
    def fires_on_any(cls, config: Any) -> bool:
        """Return whether a node with these parameters fires on any stream input."""
        if cls.fires_on in ("all", "any"):
            return cls.fires_on == "any"
        return getattr(config, cls.fires_on) is not None

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Return the node's facts. By default, outputs have the columns of the first stream input of their type."""
        first = {
            cls.ports[n].type: schema for n, schema in reversed([*surroundings.inputs.items()])
        }
        outs = {n: first.get(p.type) for n, p in cls.ports.items() if isinstance(p, Out)}
        return Facts(outs=outs)

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        """What its type needs of a graph beside its inputs, by topic, such as `columns`; `flowrl nodes` shows it."""
        return {}

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """Return what can be changed if a node with this config is the bottleneck of a run; empty: nothing is known."""
        return ""

    def setup(self) -> None:
        """Prepare the node for firing. `config`, `ctx` and the links are set before."""

    def fire(self, *inputs: Any) -> Any:
        """Fire once. Return the output's token, or a mapping of outputs if there are several."""
        raise NotImplementedError(f"{type(self).__name__} does not define fire")

    def state(self, port: str) -> State:
        """Return the newest version of a state output, in arrays that are never written to again."""
        raise NotImplementedError(f"{type(self).__name__} does not define state('{port}')")

    def state_dict(self) -> Any:
        """Return everything that the next firing depends on, as arrays, numbers, texts, and lists and dicts of them.

        Arrays must be copies, or for a snapshot (`ctx.reads_live_arrays`) `LiveArray`. Snapshots hold the state, and a
        learner's checkpoints do. By default it is the state of all attributes; `UnsavableStateError` names an attribute
        that cannot be saved, or that a new node could not load.
        """
        without = self._attributes_without_state()
        try:
            found = state_of_attributes(self, without)
            refuse_other_attributes(self, self._kinds_after_setup, without)
            return found
        except UnsavableStateError as error:
            hint = "name the attribute in `unsaved` of the class if it is no state"
            raise UnsavableStateError(f"{error}; {hint}") from None

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state that `state_dict` returned."""
        load_attributes(self, state, self._attributes_without_state())

    def reseeded(self, state: Any, reseeding: Reseeding) -> Any:
        """Return a saved state with other random numbers, for `load_state_dict` in a forked run.

        By default all random generators in it draw other numbers. A node that saves seeds replaces them, too.
        """
        return reseeding.generators(state)

    def _attributes_without_state(self) -> set[str]:
        return {"config", "ctx", "_kinds_after_setup", *self.ports, *self.unsaved}

    def reconfigure(self, **params: Any) -> None:
        """Change parameters that are declared with `phase`, because a warm-up phase begins or ends."""
        raise NotImplementedError(f"{type(self).__name__} does not define reconfigure")

    def close(self) -> None:
        """Release resources such as processes, files and windows."""


_OWN_NAMES = frozenset(dir(Node)) | {"config", "ctx"}


def _check_names(cls: type[Node]) -> None:
    """Refuse names of ports and parameters that the engine or the graph format uses."""
    hidden = _OWN_NAMES & set(cls.ports)
    if hidden:
        raise TypeError(
            f"{cls.__name__}: a port cannot be named '{min(hidden)}'; every node has it"
        )
    if BEGIN in dir(cls) and any(isinstance(port, Service) for port in cls.ports.values()):
        raise TypeError(
            f"{cls.__name__}: a service cannot have the attribute '{BEGIN}'; its clients on other sites "
            "start calls by that name"
        )
    clash = RESERVED & set(cls.Config.model_fields)
    if clash:
        raise TypeError(f"{cls.__name__}.Config: '{min(clash)}' is a word of the graph format")
    both = set(cls.ports) & set(cls.Config.model_fields)
    if both:
        raise TypeError(f"{cls.__name__}: '{min(both)}' is a port and a parameter")


def _refuse_replaced(
    owner: str, config: type[BaseConfig], params: Mapping[str, Any], links: Mapping[str, Any]
) -> None:
    """Refuse a parameter that has no effect, because a link that is given takes its place."""
    for name, link in replaced_params(config).items():
        if params.get(name) is not None and links.get(link) is not None:
            raise TypeError(
                f"{owner}: '{name}' has no effect, because '{link}' takes its place; give one of them"
            )


def _check_rates(cls: type[Node]) -> None:
    """Refuse a rate that is neither a whole number from 1, nor AUTO, nor the name of a parameter."""
    for name, port in cls.ports.items():
        rate = port.rate if isinstance(port, In | Out) else AUTO
        fields = cls.Config.model_fields
        named = isinstance(rate, str) and rate in fields and fields[rate].annotation is int
        good = rate == AUTO or named or (isinstance(rate, int) and rate >= 1)
        if not good:
            raise TypeError(
                f"{cls.__name__}.{name}: the rate {rate!r} is neither a number from 1, "
                "nor AUTO, nor a parameter of type int"
            )


def _check_fires_on(cls: type[Node]) -> None:
    """Refuse a `fires_on` that is neither `all`, nor `any`, nor a parameter."""
    if cls.fires_on not in ("all", "any", *cls.Config.model_fields):
        raise TypeError(
            f"{cls.__name__}: fires_on is '{cls.fires_on}', which is neither all, nor any, nor a parameter"
        )


def _check_fire(cls: type[Node]) -> None:
    """Refuse a wrong signature of `fire` when the class is defined, instead of in the middle of a run."""
    if cls.fire is Node.fire:
        return
    expected = [name for name, port in cls.ports.items() if isinstance(port, In | StateIn)]
    parameters = [*inspect.signature(cls.fire).parameters.values()][1:]
    takes_more = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    declared = [parameter.name for parameter in parameters]
    fits = declared[:-1] == expected[: len(declared) - 1] if takes_more else declared == expected
    if not fits:
        raise TypeError(
            f"{cls.__name__}.fire takes ({', '.join(declared)}); its input ports are ({', '.join(expected)}), "
            "and both must agree in name and order"
        )
