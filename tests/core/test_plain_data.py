"""Dataclasses are converted to plain data and back, and data of another form is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from flowrl.core.plain_data import DataCodec, MalformedDataError
from flowrl.runtime.control.messages import COMMAND, CutAt, HashTokens
from flowrl.runtime.status import (
    RUN_STATUS,
    Activity,
    EdgeStats,
    NodeStats,
    RunStatus,
    SiteStatus,
)

SITE = SiteStatus(
    "thread:a",
    Activity("waiting", 0.5, "a", "b.out -> a.in", "thread:b"),
    rounds=3,
    nodes=(NodeStats("a", "thread:a", 3, 0.25, {"b.out -> a.in": 0.5}, train_iters=2),),
)
EDGE = EdgeStats(
    "b.out -> a.in", "stream", "b", "a", "thread:b", "thread:a", *(1, 0, None, None, 1, 4, 0)
)
STATUS = RunStatus(
    *("g", "threads", 0, "r", 7, "running", 1.0, 0.5, 30, 2, 1, None, 3.5), (SITE,), (EDGE,)
)


def encoded() -> Any:
    return json.loads(json.dumps(RUN_STATUS.encode(STATUS)))


def test_a_run_status_is_equal_after_conversion_to_json() -> None:
    assert RUN_STATUS.decode(encoded()) == STATUS


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": "0"},
        {"seed": 1.5},
        {"seed": True},
        {"graph": None},
        {"wall_s": "1.0"},
        {"sites": None},
        {"sites": [None]},
        {"sites": {"a": 1}},
        {"edges": [{**RUN_STATUS.encode(STATUS)["edges"][0], "held": "1"}]},
        {"more": 1},
        {1: 1},
    ],
)
def test_data_of_another_form_is_refused(changes: dict[Any, Any]) -> None:
    with pytest.raises(MalformedDataError):
        RUN_STATUS.decode({**encoded(), **changes})


@pytest.mark.parametrize("data", [None, 1, "x", [], {}, [["graph", "g"]]])
def test_data_that_is_no_run_status_is_refused(data: Any) -> None:
    with pytest.raises(MalformedDataError):
        RUN_STATUS.decode(data)


def test_an_unknown_activity_is_refused() -> None:
    data = encoded()
    data["sites"][0]["activity"]["kind"] = "dancing"
    with pytest.raises(MalformedDataError):
        RUN_STATUS.decode(data)


def test_members_of_a_union_are_tagged_with_their_class() -> None:
    assert COMMAND.encode(CutAt((3, 1))) == {"type": "CutAt", "position": [3, 1]}
    assert COMMAND.decode({"type": "CutAt", "position": [3, 1]}) == CutAt((3, 1))
    assert COMMAND.decode(COMMAND.encode(HashTokens())) == HashTokens()


@pytest.mark.parametrize(
    "data", [{}, {"type": "Exit"}, {"type": ["CutAt"]}, {"type": "CutAt"}, ["CutAt", [3]], "CutAt"]
)
def test_an_unknown_member_of_a_union_is_refused(data: Any) -> None:
    with pytest.raises(MalformedDataError):
        COMMAND.decode(data)


class Pair(NamedTuple):
    first: tuple[int, ...]
    second: float


@dataclass(frozen=True)
class Everything:
    text: str | None
    raw: bytes
    kind: Literal["a", "b"]
    pairs: tuple[Pair, ...]
    shares: Mapping[str, float]
    array: np.ndarray[Any, Any] | None
    anything: Any


def test_every_declared_type_is_converted_and_checked() -> None:
    codec: DataCodec[Everything] = DataCodec(Everything)
    value = Everything("t", b"r", "b", (Pair((1, 2), 0.5),), {"s": 1}, None, [1, "x"])
    data = codec.encode(value)
    assert data["pairs"] == [[[1, 2], 0.5]]
    assert codec.decode(data) == value
    assert codec.decode({**data, "text": None}) == replace(value, text=None)
    for key, wrong in {"kind": "c", "pairs": [[[1]]], "shares": {"s": "1"}, "raw": "r"}.items():
        with pytest.raises(MalformedDataError):
            codec.decode({**data, key: wrong})


def test_numbers_of_numpy_are_kept_as_they_are() -> None:
    codec: DataCodec[Any] = DataCodec(tuple[float, ...])
    (found,) = codec.decode([np.float32(0.1)])
    assert type(found) is np.float32
