"""Other random numbers for a saved state, so that a forked run does not repeat those of its parent."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.saved_state import SavedState

RANDOM_VERSION, RANDOM_WORDS = 3, 625  # of the state of Python's generator
TORCH_BYTES = 5056  # of the state of torch's generator on the CPU


class Reseeding:
    """Replaces the generators of one node's saved state.

    The new ones follow from the saved ones and a key: equal keys repeat the same numbers, and generators that were
    different stay different.
    """

    def __init__(self, key: str) -> None:
        """`key` names the forked run and the node."""
        self._key = key

    def seed(self, saved: int) -> int:
        """Return a 63-bit seed in place of a saved one."""
        return self._derived(f"seed {saved}") >> 1

    def generators(self, state: Any) -> Any:
        """Return a saved state in which the state of every generator of numpy, Python and torch is another one."""
        if isinstance(state, Mapping):
            if "bit_generator" in state and "state" in state:
                return self._numpy_state(state)
            return {key: self.generators(value) for key, value in state.items()}
        if isinstance(state, tuple) and _is_python_state(state):
            return random.Random(self._derived(repr(state))).getstate()
        if isinstance(state, list | tuple):
            found = [self.generators(value) for value in state]
            return tuple(found) if isinstance(state, tuple) else found
        if isinstance(state, np.ndarray) and _is_torch_state(state):
            return self._torch_state(state)
        return state

    def _derived(self, saved: str) -> int:
        digest = hashlib.sha256(f"{self._key}/{saved}".encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def _numpy_state(self, state: Mapping[str, Any]) -> Any:
        kind = getattr(np.random, str(state["bit_generator"]))
        arrays, text = SavedState.of(state).parts()
        saved = [text, *(f"{name}:{array.tobytes().hex()}" for name, array in arrays.items())]
        return kind(self._derived("/".join(saved))).state

    def _torch_state(self, state: Array) -> Array:
        generator = sys.modules["torch"].Generator()
        generator.manual_seed(self._derived(state.tobytes().hex()) >> 1)
        found: Array = generator.get_state().numpy().copy()
        return found


def _is_python_state(state: tuple[Any, ...]) -> bool:
    """Return whether this is the state of a `random.Random`."""
    is_triple = len(state) == 3 and state[0] == RANDOM_VERSION and isinstance(state[1], tuple)
    return is_triple and len(state[1]) == RANDOM_WORDS


def _is_torch_state(state: Array) -> bool:
    """Return whether torch takes this as the state of a generator. A node that has one has loaded torch."""
    torch = sys.modules.get("torch")
    if torch is None or state.dtype != np.uint8 or state.shape != (TORCH_BYTES,):
        return False
    try:
        torch.Generator().set_state(torch.from_numpy(np.array(state)))
    except RuntimeError:
        return False
    return True
