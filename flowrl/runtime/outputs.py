"""What a firing gave, against what its ports and its `describe` promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.batch import Batch, Schema
from flowrl.core.context import Context
from flowrl.core.node import Node
from flowrl.core.ports import Out

MEND = "give what `describe` declares, or declare what is given"


class OutputPorts:
    """The stream outputs of one node instance."""

    def __init__(self, cls: type[Node], context: Context, may_lack: bool = False) -> None:
        """`may_lack`: it decides in each firing how much it gives, up to its rates."""
        self.context = context
        self.may_lack = may_lack
        self.single = {n: p.rate == 1 for n, p in cls.ports.items() if isinstance(p, Out)}

    def tokens(self, gave: Any, wanted: Sequence[str]) -> list[Sequence[Any]]:
        """The tokens of each wanted output; raises where they are missing, too few or too many."""
        if self.may_lack:
            each = dict.fromkeys(wanted, gave) if len(self.single) == 1 else gave or {}
            return [self._at_most(port, each.get(port)) for port in wanted]
        if len(self.single) == 1 or not wanted:
            return [self._counted(port, gave) for port in wanted]
        if not isinstance(gave, Mapping):
            raise TypeError(
                f"fire gave {_kind(gave)}; a node with several outputs gives a mapping of them "
                f"({', '.join(self.single)})"
            )
        missing = [port for port in wanted if port not in gave]
        if missing:
            given = ", ".join(map(str, gave)) or "none"
            raise ValueError(f"fire did not give the output '{missing[0]}'; it gave {given}")
        return [self._counted(port, gave[port]) for port in wanted]

    def _at_most(self, port: str, gave: Any) -> Sequence[Any]:
        """What a node gives that decides in each firing whether it gives anything."""
        if gave is None:
            return ()
        if self.single[port]:
            return (gave,)
        rate = self.context.rates[port]
        if not isinstance(gave, Sequence) or len(gave) > rate:
            given = f"{len(gave)} tokens" if isinstance(gave, Sequence) else _kind(gave)
            raise ValueError(f"output '{port}': fire gave {given}; a list of {rate} at most is due")
        return gave

    def _counted(self, port: str, gave: Any) -> Sequence[Any]:
        if self.single[port]:
            return (gave,)
        rate = self.context.rates[port]
        if not isinstance(gave, Sequence):
            raise TypeError(
                f"output '{port}': fire gave {_kind(gave)}; a list of {rate} tokens is due"
            )
        if len(gave) != rate:
            raise ValueError(
                f"output '{port}': fire gave {len(gave)} tokens; its rate is {rate} a firing"
            )
        return gave

    def check(self, gave: Any, wanted: Sequence[str]) -> None:
        """Everything that can be wrong: done for the first firing, and too slow for all."""
        if len(self.single) > 1 and isinstance(gave, Mapping):
            unknown = [str(name) for name in gave if name not in self.single]
            if unknown:
                outputs = ", ".join(self.single)
                raise ValueError(f"fire gave '{unknown[0]}'; the outputs are {outputs}")
        for port, tokens in zip(wanted, self.tokens(gave, wanted), strict=True):
            schema = self.context.outs.get(port)
            for token in tokens if schema is not None else ():
                _check_table(port, token, schema or {})


def _check_table(port: str, token: Any, declared: Schema) -> None:
    if not isinstance(token, Batch):
        raise TypeError(f"output '{port}': fire gave {_kind(token)}; a Batch is due, as declared")
    given = token.schema
    for name, column in declared.items():
        if name not in given:
            shown = ", ".join(given) or "none"
            raise ValueError(
                f"output '{port}' lacks the column '{name}' ({column}); it has {shown}; {MEND}"
            )
        if given[name] != column:
            raise ValueError(
                f"output '{port}': column '{name}' is {given[name]}, declared is {column}; {MEND}"
            )
    extra = [name for name in given if name not in declared]
    if extra:
        raise ValueError(
            f"output '{port}': column '{extra[0]}' ({given[extra[0]]}) was not declared; {MEND}"
        )


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
