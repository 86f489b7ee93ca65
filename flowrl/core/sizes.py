"""Sizes in bytes as they are written in graphs: `800MB`, `1.5 GB`, `2GiB`."""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BYTES_PATTERN = r"^(\d+(?:\.\d+)?) ?(?:([KMGT])(i?))?B$"


def parse_bytes(text: str) -> int:
    """Parse a size: `2GB` is 2 * 10**9, `2GiB` is 2 * 2**30."""
    match = re.match(BYTES_PATTERN, text)
    if match is None:
        raise ValueError(f"'{text}' is not a size in bytes; examples are 800MB, 1.5GB and 2GiB")
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 ** "_KMGT".index(unit) if binary else UNITS[unit]))
