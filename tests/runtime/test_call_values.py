"""Arguments and replies of calls are encoded and decoded without loss."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.core.batch import Batch, Column
from flowrl.core.ports import Service
from flowrl.runtime.remote.call_values import CallValueCodec
from tests.channels.test_codec import encode_and_decode


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Box:
    inside: Any
    label: str = ""


CODEC = CallValueCodec((Pair, Box))

VALUES = [
    *(None, True, 3, 1.5, "word", b"bytes"),
    [1, (2, 3), {"a": [()]}],
    Pair(1, Pair((2,), None)),
    Box([Pair(Box(0), ())], "deep"),
    {"k": Pair("a", Box("b"))},
    Column("float32", (2, 3), low=(0.0, 1.0), high=1.0),
    (Pair, Box)[0](-1, -1),
    (-1, 0, 1),
]


def transfer(value: Any) -> Any:
    """Encode and decode a value as a call between sites does."""
    return CODEC.decode(encode_and_decode(CODEC.encode(value)))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_decoded_as_it_was(value: Any) -> None:
    for came in (CODEC.decode(CODEC.encode(value)), transfer(value)):
        assert came == value
        assert type(came) is type(value)


def test_arrays_and_batches_are_passed_on() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    came = transfer(Pair(rows, Batch({"obs": rows})))
    assert came.left.tolist() == rows.tolist()
    assert came.right["obs"].tolist() == rows.tolist()


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, OrderedDict(a=1), [Pair], slice(1)],
    ids=["object", "set", "ordered", "class", "slice"],
)
def test_an_object_of_another_class_is_refused(value: Any) -> None:
    with pytest.raises(UnsendableValue, match="a call between sites cannot carry a "):
        CODEC.encode([value])


def test_a_type_that_the_service_does_not_name_is_refused() -> None:
    with pytest.raises(
        UnsendableValue, match=r"test_call_values\.Box; name it in the service's `values`"
    ):
        CallValueCodec((Pair,)).encode(Box(1))


@pytest.mark.parametrize("data", [(9, 1), (-2,), ("Pair", 1, 2), (True, 1), (), (1.0, 2)])
def test_an_unknown_type_number_is_refused(data: Any) -> None:
    with pytest.raises(RefusedMessage, match="unknown record"):
        CODEC.decode(data)


def test_a_service_can_only_name_types_with_fields() -> None:
    with pytest.raises(TypeError, match="int is neither a named tuple nor a dataclass"):
        Service("s", ("draw",), values=(int,))
