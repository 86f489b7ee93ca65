"""Tokens as bytes that a tape holds. Reading such bytes executes nothing."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from flowrl.channels import RefusedMessage
from flowrl.channels.codec import ALIGN, IncomingPayload, decode, encode
from flowrl.core.batch import Array
from flowrl.core.state import Clock
from flowrl.runtime.streams import Token

SURROGATES = "surrogatepass"


def encode_value(value: Any) -> bytes:
    """Return a value as bytes; raise `UnsendableValue` if it is no data."""
    tree, payload = encode(value)
    found: bytes = msgpack.packb([tree, payload.as_bytes()], unicode_errors=SURROGATES)
    return found


def decode_value(content: bytes) -> Any:
    """Return the value of these bytes; raise ValueError if they are none."""
    try:
        tree, payload = msgpack.unpackb(
            content, unicode_errors=SURROGATES, max_map_len=0, max_ext_len=0
        )
        memory = _aligned(payload)
        return decode(tree, IncomingPayload(memory, 0, len(memory)))
    except (RefusedMessage, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"a value is malformed ({type(error).__name__}: {error})") from None


def encode_token(token: Token) -> bytes:
    return encode_value(token)


def decode_token(content: bytes) -> Token:
    """Return a value with its clock; raise ValueError if the bytes are none."""
    token = decode_value(content)
    if not (type(token) is tuple and len(token) == 2 and type(token[1]) is Clock):
        raise ValueError("a token has no clock")
    return token


def _aligned(payload: bytes) -> Array:
    """Return a read-only copy that begins at an aligned address, on which the results of BLAS depend."""
    room = np.empty(len(payload) + ALIGN, np.uint8)
    begin = -room.ctypes.data % ALIGN
    memory: Array = room[begin : begin + len(payload)]
    memory[:] = np.frombuffer(payload, np.uint8)
    memory.flags.writeable = False
    return memory
