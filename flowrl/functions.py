"""A stateless node as a plain function.

    @flowrl.node
    def clip_reward(data: Batch, *, low: float = -1.0, high: float = 1.0) -> Batch:
        return data.replace(reward=data["reward"].clip(low, high))

Positional parameters are stream inputs, keyword-only ones are the node's parameters. A port's type is
`samples` for a Batch and `any` for everything else; the output is named `out`, and there is none where the
function is annotated to return None.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from pydantic import create_model

from flowrl.batch import Batch
from flowrl.config import REQUIRED, Config
from flowrl.node import Node
from flowrl.ports import ANY, In, Out


def node(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a node type of a function; the function itself stays callable, the type is its `.node`."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    inputs = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not inputs:
        raise TypeError(f"{function.__name__}: a node function takes at least one positional input")
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), REQUIRED if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    }
    ports: dict[str, Any] = {name: In(_type(hints.get(name))) for name in inputs}
    if hints.get("return", Any) is not type(None):
        ports["out"] = Out(_type(hints.get("return")))

    def fire(self: Node, *tokens: Any) -> Any:
        return function(*tokens, **self.params)  # type: ignore[attr-defined]

    def setup(self: Node) -> None:
        self.params = {name: getattr(self.config, name) for name in fields}  # type: ignore[attr-defined]

    own = inspect.Parameter
    signature = [
        own("self", own.POSITIONAL_ONLY),
        *(own(n, own.POSITIONAL_OR_KEYWORD) for n in inputs),
    ]
    fire.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    body = {
        **ports,
        "Config": create_model(f"{function.__name__}_config", __base__=Config, **fields),
        "fire": fire,
        "setup": setup,
        "__doc__": function.__doc__ or f"The function {function.__name__}.",
        "__module__": function.__module__,
    }
    function.node = type(function.__name__, (Node,), body)  # type: ignore[attr-defined]
    return function


def _type(hint: Any) -> str:
    return "samples" if hint is Batch else ANY
