"""How an episode begins: the arguments of `reset`, in a form that shared memory, histories and crash files hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_OPTIONS_BYTES = 1024  # of encoded options: shared rows have a field for them


class EpisodeStart(NamedTuple):
    """The seed and the encoded options of `reset`."""

    seed: int
    options: str = ""  # empty: `reset` is called without options

    def arguments(self) -> dict[str, Any]:
        """The arguments of `reset`."""
        if not self.options:
            return {"seed": self.seed}
        return {"seed": self.seed, "options": json.loads(self.options)}


def encode_options(options: Mapping[str, float]) -> str:
    """Encode the options of `reset`; the empty text if there are none."""
    if not options:
        return ""
    numbers = {name: float(value) for name, value in options.items()}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"env manager: the option '{name}' is {value}; give a finite number")
    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"))
    if len(text) > MAX_OPTIONS_BYTES:
        raise ValueError(
            f"env manager: the options of `reset` are {len(text)} bytes of JSON; the limit is "
            f"{MAX_OPTIONS_BYTES}; give fewer"
        )
    return text
