"""Checks the result of a firing against the node's ports and facts, and splits it into tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowrl.core.batch import Batch, Schema
from flowrl.core.context import Context
from flowrl.core.errors import InvalidResultError
from flowrl.core.node import Node
from flowrl.core.ports import Out
from flowrl.runtime.finite_numbers import check_finite_columns

HINT = "return what `describe` declares, or declare what is returned"


class OutputPorts:
    """The stream outputs of one instance."""

    def __init__(
        self,
        cls: type[Node],
        context: Context,
        learned_columns: Mapping[str, Iterable[str]],
        optional: bool = False,
    ) -> None:
        """`learned_columns` of each output must be finite. With `optional`, a firing returns any number of tokens up to
        the rates of the ports.
        """
        self.context = context
        self.learned_columns = {port: sorted(names) for port, names in learned_columns.items()}
        self.optional = optional
        self.single = {n: p.rate == 1 for n, p in cls.ports.items() if isinstance(p, Out)}

    def tokens(self, result: Any, consumed: Sequence[str]) -> list[Sequence[Any]]:
        """Return the tokens of each consumed output; raise an error if the number of tokens is wrong."""
        if self.optional:
            one = len(self.single) == 1
            by_port = dict.fromkeys(consumed, result) if one else result or {}
            return [self._optional_tokens(port, by_port.get(port)) for port in consumed]
        if len(self.single) == 1 or not consumed:
            return [self._port_tokens(port, result) for port in consumed]
        if not isinstance(result, Mapping):
            raise InvalidResultError(
                f"fire returned {_kind(result)}; a node with several outputs returns a mapping of them "
                f"({', '.join(self.single)})"
            )
        missing = [port for port in consumed if port not in result]
        if missing:
            returned = ", ".join(map(str, result)) or "none"
            raise InvalidResultError(
                f"fire did not return the output '{missing[0]}'; it returned {returned}"
            )
        return [self._port_tokens(port, result[port]) for port in consumed]

    def _optional_tokens(self, port: str, value: Any) -> Sequence[Any]:
        if value is None:
            return ()
        if self.single[port]:
            return (value,)
        rate = self.context.rates[port]
        if not isinstance(value, Sequence) or len(value) > rate:
            returned = f"{len(value)} tokens" if isinstance(value, Sequence) else _kind(value)
            raise InvalidResultError(
                f"output '{port}': fire returned {returned}; expected a list of at most {rate}"
            )
        return value

    def _port_tokens(self, port: str, value: Any) -> Sequence[Any]:
        if self.single[port]:
            return (value,)
        rate = self.context.rates[port]
        if not isinstance(value, Sequence):
            raise InvalidResultError(
                f"output '{port}': fire returned {_kind(value)}; expected a list of {rate} tokens"
            )
        if len(value) != rate:
            raise InvalidResultError(
                f"output '{port}': fire returned {len(value)} tokens; its rate is {rate} per firing"
            )
        return value

    def check(self, result: Any, consumed: Sequence[str]) -> None:
        """Check the result in full, including columns. Only the first firing is checked so, because it is slow."""
        if len(self.single) > 1 and isinstance(result, Mapping):
            unknown = [str(name) for name in result if name not in self.single]
            if unknown:
                outputs = ", ".join(self.single)
                raise InvalidResultError(f"fire returned '{unknown[0]}'; the outputs are {outputs}")
        for port, tokens in zip(consumed, self.tokens(result, consumed), strict=True):
            schema = self.context.outs.get(port)
            for token in tokens if schema is not None else ():
                _check_columns(port, token, schema or {})

    def check_numbers(self, result: Any, consumed: Sequence[str]) -> None:
        """Check that the columns from which learners learn are finite."""
        for port, tokens in zip(consumed, self.tokens(result, consumed), strict=True):
            if port in self.learned_columns:
                for token in tokens:
                    if isinstance(token, Batch):
                        check_finite_columns(port, token, self.learned_columns[port])


def _check_columns(port: str, token: Any, declared: Schema) -> None:
    if not isinstance(token, Batch):
        raise InvalidResultError(
            f"output '{port}': fire returned {_kind(token)}; expected a Batch, as declared"
        )
    returned = token.schema
    for name, column in declared.items():
        if name not in returned:
            shown = ", ".join(returned) or "none"
            raise InvalidResultError(
                f"output '{port}' lacks the column '{name}' ({column}); it has {shown}; {HINT}"
            )
        if returned[name] != column:
            raise InvalidResultError(
                f"output '{port}': column '{name}' is {returned[name]}, declared is {column}; {HINT}"
            )
    extra = [name for name in returned if name not in declared]
    if extra:
        raise InvalidResultError(
            f"output '{port}': column '{extra[0]}' ({returned[extra[0]]}) was not declared; {HINT}"
        )


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
