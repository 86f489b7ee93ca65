"""Makes a stateless node type from a plain function.

    @flowrl.as_node
    def clip_reward(data: Batch, *, low: float = -1.0, high: float = 1.0) -> Batch:
        return data.replace(reward=data["reward"].clip(low, high))

Positional parameters are stream inputs. One with a default is optional, and None if nothing is connected. Keyword-only
parameters are the node's parameters. A port's type is `samples` for a Batch and `any` for everything else. The output
is named `out`; a function that is annotated to return None has none.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import create_model

from flowrl.core.batch import Batch
from flowrl.core.config import REQUIRED, Config
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Out

F = TypeVar("F", bound=Callable[..., Any])


def as_node(function: F) -> F:
    """Set the function's attribute `node` to a node type that calls it. The function itself stays callable."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise TypeError(f"{function.__name__}: a node function names its inputs, not '{p}'")
    inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not inputs:
        raise TypeError(f"{function.__name__}: a node function takes at least one positional input")
    ports: dict[str, Any] = {
        p.name: In(_port_type(hints.get(p.name)), optional=p.default is not p.empty) for p in inputs
    }
    if hints.get("return", Any) is not type(None):
        ports["out"] = Out(_port_type(hints.get("return")))
    fields = {
        p.name: (hints.get(p.name, Any), REQUIRED if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    }
    function.node = _node_type(function, ports, fields, [p.name for p in inputs])  # type: ignore[attr-defined]
    return function


def _node_type(
    function: Callable[..., Any],
    ports: dict[str, Any],
    fields: dict[str, Any],
    inputs: Sequence[str],
) -> type[Node]:
    def setup(self: Any) -> None:
        self.params = {name: getattr(self.config, name) for name in fields}

    def fire(self: Any, *tokens: Any) -> Any:
        return function(*tokens, **self.params)

    parameter = inspect.Parameter
    names = [parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
    signature = inspect.Signature([parameter("self", parameter.POSITIONAL_ONLY), *names])
    fire.__signature__ = signature  # type: ignore[attr-defined]
    body = {
        **ports,
        "Config": create_model(f"{function.__name__}_config", __base__=Config, **fields),
        "setup": setup,
        "fire": fire,
        "__doc__": function.__doc__ or f"The function {function.__name__}.",
        "__module__": function.__module__,
    }
    return type(function.__name__, (Node,), body)


def _port_type(hint: Any) -> str:
    """Return the port type of an annotation. `Batch | None` is `samples` as well."""
    return "samples" if Batch in (hint, *typing.get_args(hint)) else ANY
