"""Items: what sites say to each other. A message is a list of them; an item is a list that begins with its kind.

Every item of a lane carries the lane's name and epoch, and a number: a token's place in the lane, or how many tokens
the other end has taken, or the first one that it has not seen. Numbers only ever grow, so an item that comes twice,
late or never does no harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.channels.errors import RefusedMessage
from flowrl.core.batch import Batch
from flowrl.core.state import State

Item = list[Any]

(
    TOKEN,  # lane, epoch, number, clock, tree, where, bytes: a value, encoded
    GIVEN,  # lane, epoch, number, clock, value, bytes: a value, by reference (never on a socket)
    END,  # lane, epoch, number, reason: in a token's place, there are no more
    CREDIT,  # lane, epoch, number: so many tokens were taken
    WANT,  # lane, epoch, number: send again from this one on
    ASK,  # lane, epoch, number: so many were sent; how many were taken?
    BREAK,  # lane, epoch, number, reason: the receiver is gone, and took in so many
    ASIDE,  # text: of no lane; what a site does just now
    SLAB,  # number, pid, fd, slot_bytes, slots: open this shared memory
    OPENED,  # number, whether that worked
    FORGET,  # number: this shared memory is not used any more
) = range(11)

TOKEN_PARTS = 8
_LANE = (str, int, int)
SHAPES: dict[int, tuple[type, ...]] = {
    END: (*_LANE, str),
    CREDIT: _LANE,
    WANT: _LANE,
    ASK: _LANE,
    BREAK: (*_LANE, str),
    ASIDE: (str,),
    SLAB: (int, int, int, int, int),
    OPENED: (int, bool),
    FORGET: (int,),
}


def check_item(item: Any) -> Item:
    """The item, if it has the form of one that may come through a socket."""
    if type(item) is not list or not item or type(item[0]) is not int:
        raise RefusedMessage("malformed")
    if item[0] == TOKEN:
        if len(item) != TOKEN_PARTS or type(item[1]) is not str:
            raise RefusedMessage("malformed")
        if not type(item[2]) is type(item[3]) is type(item[7]) is int or item[7] < 0:
            raise RefusedMessage("malformed")
        return item
    shape = SHAPES.get(item[0])
    if shape is None or len(item) != len(shape) + 1:
        raise RefusedMessage("malformed")
    for value, kind in zip(item[1:], shape, strict=True):
        if type(value) is not kind:
            raise RefusedMessage("malformed")
    return item


def size_bytes(value: object) -> int:
    """About how much memory a value takes: its arrays, strings and bytes."""
    if isinstance(value, Batch | np.ndarray):
        return value.nbytes
    if isinstance(value, State):
        return sum(array.nbytes for array in value.arrays.values())
    if isinstance(value, list | tuple):
        return sum(map(size_bytes, value))
    if isinstance(value, dict):
        return sum(map(size_bytes, value.values()))
    return len(value) if isinstance(value, str | bytes) else 8
