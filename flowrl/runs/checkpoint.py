"""Checkpoints: safetensors files with arrays named `node/name`, and one metadata entry with commands and counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import RunError
from flowrl.core.json_text import parse_object
from flowrl.core.state import State

METADATA_KEY = "flowrl"


def checkpoint_bytes(states: Mapping[str, State], info: Mapping[str, Any]) -> bytes:
    """The content of a checkpoint's file."""
    from safetensors.numpy import save

    arrays = {f"{k}/{n}": a.copy() for k, state in states.items() for n, a in state.arrays.items()}
    first = next(iter(states.values()))
    meta = {
        "command": {key: dict(s.command) for key, s in states.items()},
        "version": first.version,
        "env_steps": first.clock.total.env_steps,
        "train_iters": first.clock.total.train_iters,
        "info": dict(info),
    }
    # one entry: safetensors writes several in any order, but equal checkpoints must be equal files
    return bytes(save(arrays, {METADATA_KEY: json.dumps(meta)}))


def read_checkpoint(path: Path) -> tuple[State, dict[str, Any]]:
    """The state of a checkpoint's first node, and its `info` with the counters and the name of this `node`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            meta, names = parse_object(file.metadata()[METADATA_KEY]), sorted(file.keys())
            key = names[0].rpartition("/")[0] if names else ""
            own = [n for n in names if n.rpartition("/")[0] == key]
            arrays = {n.rpartition("/")[2]: file.get_tensor(n) for n in own}
        counts = {k: int(meta[k]) for k in ("env_steps", "train_iters")}
        command = meta["command"].get(key, {})
        if not isinstance(command, dict):
            raise ValueError(f"the command of '{key}' is no object")
        info = {**meta["info"], **counts, "node": key}
        return State(arrays, command, int(meta["version"])), info
    except FileNotFoundError:
        raise RunError(
            f"{path}: there is no such checkpoint; the run has not saved one yet"
        ) from None
    except KeyError as missing:
        raise RunError(f"{path}: is not a checkpoint of flowrl: it has no {missing}") from missing
    except (
        SafetensorError, OSError, ValueError, TypeError, AttributeError, OverflowError,
    ) as error:  # fmt: skip
        raise RunError(f"{path}: is not a checkpoint of flowrl: {error}") from error
