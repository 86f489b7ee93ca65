"""A value that is sent to a worker process arrives as what it was, or is refused."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from enum import Enum, Flag, IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.portable import from_portable, to_portable


class Size(NamedTuple):
    width: int
    place: tuple[float, float] = (0.0, 0.0)


class Level(Enum):
    EASY = "easy"


class Speed(IntEnum):
    FAST = 3


class Walls(Flag):
    LEFT = 1
    RIGHT = 2


class Maze:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    @classmethod
    def of_size(cls, size: Size) -> Maze:
        return cls(size)

    def copy(self) -> Maze:
        return Maze(*self.arguments)


class Label(str):
    pass


Misnamed = namedtuple("OtherName", "x")  # type: ignore[name-match]  # its import path leads nowhere


def sent(value: Any) -> Any:
    return from_portable(json.loads(json.dumps(to_portable(value))))


@pytest.mark.parametrize(
    "value",
    [
        Size(3, (0.5, 1.5)),
        (1, [2, (3,)]),
        {"size": Size(1), "deep": [Size(2)]},
        Level.EASY,
        Speed.FAST,
        np.float64(0.1),
        np.int8(3),
        True,
        Maze,
        Maze.of_size,
    ],
    ids=repr,
)
def test_a_value_arrives_as_what_it_was(value: Any) -> None:
    found = sent(partial(Maze, value, key=value))
    for arrived in (*found.args, found.keywords["key"]):
        assert arrived == value
        assert type(arrived) is type(value)


def test_a_named_tuple_within_a_named_tuple_arrives_as_one() -> None:
    assert type(sent(Size(1, Size(2))).place) is Size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        Misnamed(1),
        Label("maze"),
        OrderedDict(a=1),
        Walls.LEFT | Walls.RIGHT,
        Maze().copy,
        object(),
    ],
    ids=["misnamed tuple", "str", "dict", "flags", "bound method", "object"],
)
def test_what_would_arrive_as_something_else_is_refused(value: Any) -> None:
    with pytest.raises(UnsoundError, match="another process"):
        to_portable(partial(Maze, value))


def test_an_env_of_the_script_that_was_started_is_refused() -> None:
    with pytest.raises(UnsoundError) as raised:
        to_portable(Gymnasium(id="__main__:Maze"))
    assert str(raised.value) == (
        "env.id is '__main__:Maze' of the script that was started, which another process cannot import; "
        "define it at the top of a module of its own"
    )
