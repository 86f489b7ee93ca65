"""Minari data sets in local folders (extra `flowrl[minari]`): whole episodes, read and written as rows."""

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
from flowrl.core.node import MissingPackageError, UnsoundError
from flowrl.nodes.datasets.about import NOTHING, About

NAME = re.compile(r".+-v\d+$")  # of a folder: `cartpole/expert-v0`
HINT = "a folder such as ~/.minari/datasets/cartpole/expert-v0, which has a folder `data`"
STEPS = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


def read_schema(path: Path) -> tuple[Schema, int]:
    """The columns and the number of rows; one episode is read."""
    data = _open(path)
    first = next(iter(data.iterate_episodes([data.episode_indices[0]])))
    schema = {n: Column(str(a.dtype), a.shape[1:]) for n, a in _rows(first, path).items()}
    return about_of(path).told(schema), int(data.total_steps)


def about_of(path: Path) -> About:
    """What the spaces say of columns; a row is one step."""
    data = _open(path)
    facts = {"action": _facts(data.action_space)}
    for leaf, space in _leaves(data.observation_space):
        for name in ("obs", "next_obs"):
            facts[_joined(name, leaf)] = _facts(space)
    return About({name: fact for name, fact in facts.items() if fact}, {"nstep": 1})


def read(path: Path, rows: int | None = None) -> Batch:
    """The table, or its first rows."""
    parts: list[dict[str, Array]] = []
    missing = np.inf if rows is None else rows
    for episode in _open(path).iterate_episodes():
        if missing <= 0:
            break
        parts.append(_rows(episode, path))
        missing -= len(episode.rewards)
    return Batch({n: np.concatenate([part[n] for part in parts])[:rows] for n in parts[0]})


def write(path: Path, table: Batch, about: About = NOTHING) -> None:
    """Write the rows' episodes beside the folder, then put them in its place.

    Rows that end without an episode's end (a token's, or the table's) are written as truncated there.
    """
    if about.rows.get("nstep", 1) != 1:
        what = f"rows that sum {about.rows['nstep']} rewards are no steps of episodes"
        raise UnsoundError(what, "record them with `nstep: 1`", "path")
    needed = ("action", "reward", "terminated", "truncated", "last")
    missing = [name for name in needed if name not in table]
    if missing:
        raise UnsoundError(f"the rows have no column '{missing[0]}'", "connect a collector", "path")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _write(aside, path.name, table, about)
        if path.exists():
            os.replace(path, aside / "old")
        os.replace(aside / "new", path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(aside: Path, name: str, table: Batch, about: About) -> None:
    minari = _minari()
    folder = aside / "new" / "data"
    folder.mkdir(parents=True)
    spaces = importlib.import_module("gymnasium.spaces")
    storage = minari.dataset.minari_storage.MinariStorage.new(
        folder,
        observation_space=_space_of(table, about, spaces),
        action_space=_space("action", table, about, spaces),
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    storage.update_episodes(_episodes(table, minari.data_collector.EpisodeBuffer))


def _episodes(table: Batch, buffer: Any) -> Iterator[Any]:
    """Runs of rows that follow each other."""
    ends = np.flatnonzero(table["last"]) + 1
    if len(table) and (not len(ends) or ends[-1] < len(table)):
        ends = np.append(ends, len(table))
    for k, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        rows = table.take(slice(begin, end))
        truncated = rows["truncated"].copy()
        truncated[-1] |= not rows["terminated"][-1]
        yield buffer(
            id=k,
            observations=_seen(rows),
            actions=rows["action"],
            rewards=rows["reward"].astype(np.float64),
            terminations=rows["terminated"],
            truncations=truncated,
        )


def _seen(rows: Batch) -> Any:
    """The observations of an episode, the last one with them: one more than rows."""
    found: dict[str, Array] = {}
    for name in rows:
        if name.split("/")[0] == "obs":
            found[name[4:]] = np.append(rows[name], rows[f"next_{name}"][-1:], 0)
    return found.get("", found)


def _space_of(table: Batch, about: About, spaces: Any) -> Any:
    names = [name for name in table if name.split("/")[0] == "obs"]
    if not names or any(f"next_{name}" not in table for name in names):
        raise UnsoundError("the rows have no `obs` and `next_obs`", "connect a collector", "path")
    leaves = {name[4:]: _space(name, table, about, spaces) for name in names}
    return leaves[""] if "" in leaves else spaces.Dict(leaves)


def _space(name: str, table: Batch, about: About, spaces: Any) -> Any:
    array, facts = table[name], about.columns.get(name, {})
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
    """An episode's rows: as collectors give them, but for what a policy adds."""
    found: dict[str, Array] = {}
    for leaf, array in _arrays(episode.observations):
        found[_joined("obs", leaf)] = array[:-1]
        found[_joined("next_obs", leaf)] = array[1:]
    if not isinstance(episode.actions, np.ndarray):
        raise UnsoundError(f"'{path}' has actions of several parts", "flatten them first", "path")
    found["action"] = episode.actions
    for given, name in STEPS.items():
        kind = np.float32 if name == "reward" else np.bool_
        found[name] = np.asarray(getattr(episode, given), kind)
    found["last"] = found["terminated"] | found["truncated"]
    found["last"][-1] = True
    return found


def _arrays(value: Any, before: str = "") -> Iterator[tuple[str, Array]]:
    """The leaves of nested arrays, by their names."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _arrays(part, _joined(before, str(name)))
    elif isinstance(value, tuple):
        for k, part in enumerate(value):
            yield from _arrays(part, _joined(before, str(k)))
    else:
        yield before, np.asarray(value)


def _leaves(space: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested space, by their names."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        yield before, space
    else:
        named = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        for name, part in named:
            yield from _leaves(part, _joined(before, str(name)))


def _facts(space: Any) -> dict[str, Any]:
    return {"n": int(space.n)} if hasattr(space, "n") and np.ndim(space.n) == 0 else {}


def _joined(before: str, name: str) -> str:
    return f"{before}/{name}" if before and name else before or name


def _open(path: Path) -> Any:
    if not (path / "data").is_dir():
        raise UnsoundError(f"'{path}' is no Minari data set", HINT, "path")
    minari = _minari()
    try:
        return minari.MinariDataset(path / "data")
    except (OSError, ValueError, KeyError) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def _minari() -> Any:
    try:
        importlib.import_module("minari.data_collector")
        return importlib.import_module("minari")
    except ImportError as missing:
        hint = "pip install 'flowrl[minari]'"
        raise MissingPackageError(
            "Minari data sets need the package minari", hint, "path"
        ) from missing
