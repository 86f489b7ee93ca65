"""The Minari format (extra `flowrl[minari]`): episodes in a local folder, which are read and written as rows."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.nodes.buffers.episodes.segments import segment_bounds
from flowrl.nodes.datasets.metadata import NO_METADATA, DatasetMetadata

FOLDER_NAME = re.compile(r".+-v\d+$")  # such as `expert-v0` in `cartpole/expert-v0`
HINT = "a folder such as ~/.minari/datasets/cartpole/expert-v0, which has a folder `data`"
STEP_COLUMNS = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


def read_schema(path: Path) -> tuple[Schema, int]:
    """Return the columns and the number of rows. One episode is read."""
    data = _open(path)
    first = next(iter(data.iterate_episodes([data.episode_indices[0]])))
    schema = {n: Column(str(a.dtype), a.shape[1:]) for n, a in _rows(first, path).items()}
    return read_metadata(path).add_facts(schema), int(data.total_steps)


def read_metadata(path: Path) -> DatasetMetadata:
    """Return the facts of columns that the spaces state. A row is one step, so `nstep` is 1."""
    data = _open(path)
    facts = {"action": _space_facts(data.action_space)}
    for leaf, space in _leaves(data.observation_space):
        for name in ("obs", "next_obs"):
            facts[_join_names(name, leaf)] = _space_facts(space)
    return DatasetMetadata({name: fact for name, fact in facts.items() if fact}, {"nstep": 1})


def read(path: Path, rows: int | None = None) -> Batch:
    """Read the table, or its first rows."""
    parts: list[dict[str, Array]] = []
    missing = np.inf if rows is None else rows
    for episode in _open(path).iterate_episodes():
        if missing <= 0:
            break
        parts.append(_rows(episode, path))
        missing -= len(episode.rewards)
    return Batch({n: np.concatenate([part[n] for part in parts])[:rows] for n in parts[0]})


def write(path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
    """Write episodes to a temporary folder, and rename it, so that readers never see an incomplete one.

    An episode whose rows stop before its end (at the end of a token or of the table) is marked as truncated.
    """
    if (nstep := metadata.rows.get("nstep", 1)) != 1:
        what = f"the rows sum {nstep} rewards each, so they are not steps of episodes"
        raise UnsoundError(what, "record them from a collector or an evaluator", "path")
    required = ("action", "reward", "terminated", "truncated", "last")
    missing = [name for name in required if name not in table]
    if missing:
        raise UnsoundError(f"the rows have no column '{missing[0]}'", "connect a collector", "path")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write(temporary, path.name, table, metadata)
        if path.exists():
            os.replace(path, temporary / "old")
        os.replace(temporary / "new", path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(temporary: Path, name: str, table: Batch, metadata: DatasetMetadata) -> None:
    minari = _import_minari()
    folder = temporary / "new" / "data"
    folder.mkdir(parents=True)
    spaces = importlib.import_module("gymnasium.spaces")
    storage = minari.dataset.minari_storage.MinariStorage.new(
        folder,
        observation_space=_observation_space(table, metadata, spaces),
        action_space=_space("action", table, metadata, spaces),
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    storage.update_episodes(_episodes(table, minari.data_collector.EpisodeBuffer))


def _episodes(table: Batch, buffer: Any) -> Iterator[Any]:
    """Yield the episodes of a table, which are its segments of consecutive rows."""
    for k, (begin, end) in enumerate(zip(*segment_bounds(table["last"]), strict=True)):
        rows = table.take(slice(begin, end))
        truncated = rows["truncated"].copy()
        truncated[-1] |= not rows["terminated"][-1]
        yield buffer(
            id=k,
            observations=_observations(rows),
            actions=rows["action"],
            rewards=rows["reward"].astype(np.float64),
            terminations=rows["terminated"],
            truncations=truncated,
        )


def _observations(rows: Batch) -> Any:
    """Return the observations of an episode, including the last one, so one more than rows."""
    observations: dict[str, Array] = {}
    for name in rows:
        if name.split("/")[0] == "obs":
            observations[name[4:]] = np.append(rows[name], rows[f"next_{name}"][-1:], 0)
    return observations.get("", observations)


def _observation_space(table: Batch, metadata: DatasetMetadata, spaces: Any) -> Any:
    names = [name for name in table if name.split("/")[0] == "obs"]
    if not names or any(f"next_{name}" not in table for name in names):
        raise UnsoundError("the rows have no `obs` and `next_obs`", "connect a collector", "path")
    leaves = {name[4:]: _space(name, table, metadata, spaces) for name in names}
    return leaves[""] if "" in leaves else spaces.Dict(leaves)


def _space(name: str, table: Batch, metadata: DatasetMetadata, spaces: Any) -> Any:
    array, facts = table[name], metadata.columns.get(name, {})
    if array.ndim == 1 and array.dtype.kind in "iu":
        return spaces.Discrete(int(facts.get("n") or array.max() + 1))
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        low, high = facts.get("low", limits.min), facts.get("high", limits.max)
    else:
        low, high = facts.get("low", -np.inf), facts.get("high", np.inf)
    bounds = (np.broadcast_to(np.asarray(b, array.dtype), array.shape[1:]) for b in (low, high))
    return spaces.Box(*bounds, dtype=array.dtype)


def _rows(episode: Any, path: Path) -> dict[str, Array]:
    """Return the rows of an episode as collectors emit them, without the columns that a policy adds."""
    rows: dict[str, Array] = {}
    for leaf, array in _arrays(episode.observations):
        rows[_join_names("obs", leaf)] = array[:-1]
        rows[_join_names("next_obs", leaf)] = array[1:]
    if not isinstance(episode.actions, np.ndarray):
        raise UnsoundError(f"'{path}' has actions of several parts", "flatten them first", "path")
    rows["action"] = episode.actions
    for attribute, name in STEP_COLUMNS.items():
        kind = np.float32 if name == "reward" else np.bool_
        rows[name] = np.asarray(getattr(episode, attribute), kind)
    rows["last"] = rows["terminated"] | rows["truncated"]
    rows["last"][-1] = True
    return rows


def _arrays(value: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the leaves of nested arrays, with their names."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _arrays(part, _join_names(prefix, str(name)))
    elif isinstance(value, tuple):
        for k, part in enumerate(value):
            yield from _arrays(part, _join_names(prefix, str(k)))
    else:
        yield prefix, np.asarray(value)


def _leaves(space: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested space, with their names."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        yield prefix, space
    else:
        named = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        for name, part in named:
            yield from _leaves(part, _join_names(prefix, str(name)))


def _space_facts(space: Any) -> dict[str, Any]:
    return {"n": int(space.n)} if hasattr(space, "n") and np.ndim(space.n) == 0 else {}


def _join_names(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix and name else prefix or name


def _open(path: Path) -> Any:
    if not (path / "data").is_dir():
        raise UnsoundError(f"'{path}' is not a Minari dataset", HINT, "path")
    minari = _import_minari()
    try:
        return minari.MinariDataset(path / "data")
    except (OSError, ValueError, KeyError) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def _import_minari() -> Any:
    try:
        importlib.import_module("minari.data_collector")
        return importlib.import_module("minari")
    except ImportError as missing:
        hint = "pip install 'flowrl[minari]'"
        raise MissingPackageError(
            "Minari datasets require the package minari", hint, "path"
        ) from missing
