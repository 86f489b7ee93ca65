"""Heads: what a network outputs, by name. A model makes the layers of each head from the features below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flowrl.core.facts import UnsoundError


@dataclass(frozen=True, slots=True)
class LinearHead:
    """`n` outputs that are affine in the features, or `n` times `each`; `scale` is the gain of the initial weights."""

    n: int
    scale: float = 1.0
    each: int | None = None


@dataclass(frozen=True, slots=True)
class ScalarHead:
    """One number for each row, affine in the features, as an array (B,)."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DuelingHead:
    """Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al. 2016, equation 9).

    With `each`, there are so many numbers for each action, such as atoms or quantiles.
    """

    n: int
    each: int | None = None


@dataclass(frozen=True, slots=True)
class FreeHead:
    """`n` learned numbers, initially `value`, that do not depend on the observation."""

    n: int
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class ImplicitHead:
    """Quantiles Z_tau(s, a) at fractions tau (B, K) that are an input (Dabney et al. 2018b, equation 4): (B, K, n).

    The features are multiplied by an embedding of tau, which is a dense layer on `cosines` cosines. With `shares`,
    the name of a head before this one, fractions that are not given are the midpoints of its shares.
    """

    n: int
    cosines: int = 64
    dueling: bool = False
    shares: str = ""


@dataclass(frozen=True, slots=True)
class SharesHead:
    """The `n` shares into which proposed fractions divide [0, 1] (Yang et al. 2019, section 3.3).

    They are the softmax of a dense layer on the features, to which it gives no gradient.
    """

    n: int


Head = LinearHead | ScalarHead | DuelingHead | FreeHead | ImplicitHead | SharesHead
Heads = Mapping[str, Head]
NO_HEADS: Heads = {}


def check_heads(found: Any, heads: Heads, rows: int) -> None:
    """Compare what a module of one's own returned for so many rows with the heads that it was asked for."""
    if not isinstance(found, Mapping):
        what = f"the model returned a {type(found).__name__}"
        raise UnsoundError(what, f"return a mapping of its heads: {', '.join(heads)}", "model")
    for name, head in heads.items():
        if name not in found:
            shown = ", ".join(found) or "nothing"
            what = f"the model did not return the head '{name}'; it returned {shown}"
            raise UnsoundError(what, "TorchHead makes the layers of a head", "model")
        shape, expected = tuple(found[name].shape), _head_shape(head, rows)
        if len(shape) != len(expected) or any(
            n not in (None, m) for n, m in zip(expected, shape, strict=True)
        ):
            wanted = ", ".join("any" if n is None else str(n) for n in expected)
            what = f"the model's head '{name}' has the shape {shape} for {rows} rows; expected ({wanted})"
            raise UnsoundError(what, "TorchHead makes the layers of a head", "model")


def _head_shape(head: Head, rows: int) -> tuple[int | None, ...]:
    """The shape of a head for so many rows. The number of fractions is None."""
    if isinstance(head, ScalarHead):
        return (rows,)
    if isinstance(head, ImplicitHead):
        return (rows, None, head.n)
    each = getattr(head, "each", None)
    return (rows, head.n) if each is None else (rows, head.n, each)


def midpoints(shares: Any) -> Any:
    """The middle of each of the intervals into which shares (B, n) divide [0, 1]; arrays, or tensors."""
    return shares.cumsum(-1) - 0.5 * shares


def action_values(n: int, dueling: bool, each: int | None = None) -> LinearHead | DuelingHead:
    """The head of the values of `n` actions; with `each`, of so many numbers for each action."""
    return DuelingHead(n, each) if dueling else LinearHead(n, each=each)


INITIAL_VALUES = ("scale", "value")  # the fields of heads that only initial weights depend on


def acting_settings(head: Head) -> dict[str, Any]:
    """What the weights of a head, and what it does with them, depend on, as plain data."""
    given = {field.name: getattr(head, field.name) for field in fields(head)}
    kept = {name: value for name, value in given.items() if value and name not in INITIAL_VALUES}
    return {"type": type(head).__name__.removesuffix("Head").lower(), **kept}


def output_layers(head: Head) -> dict[str, tuple[int, float]]:
    """The dense layers of a head by name: their outputs, and the gain of their initial weights."""
    if isinstance(head, FreeHead):
        return {}
    if isinstance(head, ScalarHead):
        return {"out": (1, head.scale)}
    if isinstance(head, ImplicitHead):
        return (
            {"value": (1, 1.0), "advantage": (head.n, 1.0)}
            if head.dueling
            else {"out": (head.n, 1.0)}
        )
    if isinstance(head, SharesHead):
        return {"out": (head.n, 0.01)}  # initially nearly equal
    each = head.each or 1
    if isinstance(head, DuelingHead):
        return {"value": (each, 1.0), "advantage": (head.n * each, 1.0)}
    return {"out": (head.n * each, head.scale)}
