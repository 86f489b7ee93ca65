"""Checkpoints: safetensors files with weights that suffice to act, and with the whole state of their learners.

act/KEY/NAME     the weights by which a policy acts; KEY is a node or its state output, such as `learner.weights`
learn/KEY/PATH   the arrays of the learner's whole state, where it has any
`flowrl`         metadata, one JSON object: the rest of both, counters, versions of libraries, settings, and digests

Nothing in such a file is executed. `read_acting` reads the first part alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.core.batch import Array
from flowrl.core.errors import RunError
from flowrl.core.json_text import parse_object
from flowrl.core.saved_state import SavedState
from flowrl.core.state import State

METADATA_KEY, FORMAT = "flowrl", "flowrl checkpoint 1"
SUFFIX = ".safetensors"


def checkpoint_bytes(
    states: Mapping[str, State], info: Mapping[str, Any], facts: Mapping[str, Any] | None = None
) -> bytes:
    """The content of a checkpoint's file. `facts` are about the whole run, such as versions of libraries."""
    from safetensors.numpy import save

    first = next(iter(states.values()))
    whole = {key: state.whole for key, state in states.items() if state.whole is not None}
    act = {f"act/{k}/{n}": a for k, state in states.items() for n, a in state.arrays.items()}
    learn = {f"learn/{k}/{n}": a for k, saved in whole.items() for n, a in saved.arrays.items()}
    weights = {
        key: {"names": sorted(s.arrays), "command": dict(s.command)} for key, s in states.items()
    }
    rest = {key: json.loads(saved.text) for key, saved in whole.items()}
    meta = {
        "format": FORMAT,
        "act": weights,
        "learn": rest,
        "digests": {"act": _digest(weights, act), "learn": _digest(rest, learn)},
        "version": first.version,
        "env_steps": first.clock.total.env_steps,
        "train_iters": first.clock.total.train_iters,
        "info": dict(info),
        **(facts or {}),
    }
    # one entry: safetensors writes several in any order, but equal checkpoints must be equal files
    arrays = {name: array.copy(order="C") for name, array in {**act, **learn}.items()}
    return bytes(save(arrays, {METADATA_KEY: json.dumps(meta)}))


def read_acting(path: Path) -> tuple[State, dict[str, Any]]:
    """The weights of a checkpoint's first node, and its `info` with the counters and the name of this `node`."""
    states, info = read_all_acting(path)
    key = min(states)
    return states[key], {**info, "node": key}


def read_all_acting(path: Path) -> tuple[dict[str, State], dict[str, Any]]:
    """The weights of a checkpoint by their keys, and its `info` with the counters."""
    with _opened(path) as (file, meta):
        parts = {k: _acting_part(file, k, part) for k, part in _object(meta, "act").items()}
        if not parts:
            raise ValueError("it has no weights")
        arrays = {f"act/{k}/{n}": a for k, part in parts.items() for n, a in part[0].items()}
        _check_digest(meta, "act", arrays)
        counts = {name: int(meta[name]) for name in ("env_steps", "train_iters")}
        version = int(meta["version"])
        states = {key: State(*part, version=version) for key, part in parts.items()}
        return states, {**_object(meta, "info"), **counts}


def read_whole(path: Path, node: str) -> dict[str, Any]:
    """The `state_dict` of a learner: of the node with this name, or of the only one that the checkpoint has."""
    states = read_all_wholes(path)
    with _opened(path):  # a missing name is a problem of the file
        return states[_key_of(states, node)]


def read_all_wholes(path: Path) -> dict[str, dict[str, Any]]:
    """The `state_dict` of each learner of a checkpoint, by `learner.port`."""
    with _opened(path) as (file, meta):
        rest = _object(meta, "learn")
        names = [name for name in file.keys() if name.startswith("learn/")]  # noqa: SIM118
        arrays = {name.removeprefix("learn/"): file.get_tensor(name) for name in names}
        _check_digest(meta, "learn", {f"learn/{short}": a for short, a in arrays.items()})
        found = {}
        for key, text in rest.items():
            own = {
                n.removeprefix(f"{key}/"): a for n, a in arrays.items() if n.startswith(f"{key}/")
            }
            found[key] = SavedState(own, json.dumps(text)).state_dict()
        return found


def _key_of(rest: Mapping[str, Any], node: str) -> str:
    if not rest:
        raise ValueError(
            "it has weights to act with, and no state of a learner; give one that was written by a learner, such as "
            "`last.safetensors`"
        )
    own = [key for key in rest if key.partition(".")[0] == node]
    if not own and len(rest) > 1:
        raise ValueError(f"it has the learners {', '.join(sorted(rest))}, and not '{node}'")
    return min(own or rest)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a checkpoint, and read its metadata. Whatever is wrong with the file is a `RunError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            meta = parse_object((file.metadata() or {})[METADATA_KEY])
            if meta.get("format") != FORMAT:
                found = meta.get("format", "older than that")
                raise ValueError(f"its format is {found!r:.60}; expected '{FORMAT}'")
            yield file, meta
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


def _acting_part(file: Any, key: str, part: Any) -> tuple[dict[str, Array], dict[str, float]]:
    """The weights and the command of one node."""
    if not isinstance(part, dict) or not isinstance(part.get("command"), dict):
        raise ValueError(f"the command of '{key}' is no object")
    arrays = {name: file.get_tensor(f"act/{key}/{name}") for name in part["names"]}
    return arrays, part["command"]


def _object(meta: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = meta[name]
    if not isinstance(found, dict):
        raise ValueError(f"its '{name}' is no object")
    return found


def _check_digest(meta: Mapping[str, Any], part: str, arrays: Mapping[str, Array]) -> None:
    if _object(meta, "digests").get(part) != _digest(_object(meta, part), arrays):
        raise ValueError(f"it is damaged: the digest of its part '{part}' is another one")


def _digest(rest: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """The SHA-256 over JSON and named arrays."""
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
