"""Whole episodes: playing each env's share of them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.acting import Acting, Taken
from flowrl.nodes.collectors.transitions import transitions

Step = Callable[[Array], Taken]  # send on whoever is wanted (B,) bool; gives what some did


def quotas(episodes: int, envs: int, first: int = 0) -> Array:
    """How many episodes each env plays: as even as possible, some from `first` on one more."""
    return episodes // envs + ((np.arange(envs) - first) % envs < episodes % envs)


def play(step: Step, left: Array, most_steps: int, agents: int = 1) -> Iterator[Taken]:
    """Step envs until each has played as many episodes as are `left` to it.

    Which episodes count is settled before any is played. To take the first that end, wherever they
    end, would prefer short ones. An env that has played its quota is not stepped any more; an agent
    that has, goes on with the others of its env (`agents` each), and what it does has no row.
    An episode of more than `most_steps` may have no end, and nothing else would ever end the wait.
    """
    left, lengths = left.copy(), np.zeros_like(left)
    wanted = _wanted(left, agents)
    loops, due = 0, most_steps  # before so many nothing can be too long
    while left.any():
        if loops == due:
            due = loops + _spare(lengths * (left > 0), most_steps)
        loops += 1
        taken = step(wanted)
        if agents > 1:
            taken = _counted(taken, left)
        yield taken
        lengths[slice(None) if taken.ids is None else taken.ids] += 1
        if len(taken.absent):
            lengths[taken.absent] += 1
        if taken.episodes:
            ended = [episode.env_id for episode in taken.episodes]
            left[ended] -= 1
            lengths[ended] = 0
            wanted = _wanted(left, agents)
        if len(taken.failed):
            lengths[np.asarray(taken.failed)] = 0


def _wanted(left: Array, agents: int) -> Array:
    """Whoever has episodes left, and all who are in an env with such."""
    left_of_env = (left > 0).reshape(-1, agents)
    return np.repeat(left_of_env.any(axis=1), agents)


def _counted(taken: Taken, left: Array) -> Taken:
    """Without those who have played their quota."""
    rows = left > 0 if taken.ids is None else left[taken.ids] > 0
    if rows.all():
        return taken
    episodes = [episode for episode in taken.episodes if left[episode.env_id] > 0]
    failed = [index for index in taken.failed if left[index] > 0]
    return taken.of(rows)._replace(episodes=episodes, failed=failed)


def _spare(lengths: Array, most_steps: int) -> int:
    """How many steps the longest of the episodes under way may still take."""
    longest = int(lengths.argmax())
    if lengths[longest] >= most_steps:
        raise ValueError(
            f"env {longest}: an episode goes on after {most_steps:,} steps; give the env "
            "`max_episode_steps`, or this node more `most_steps`"
        )
    return most_steps - int(lengths[longest])


def all_at_once(acting: Acting) -> Step:
    """Steps the envs that are left together."""

    def step(wanted: Array) -> Taken:
        ids = np.flatnonzero(wanted)
        return acting.together(None if len(ids) == acting.count else ids)

    return step


def as_ready(acting: Acting, least: int) -> Step:
    """Steps each env as soon as it, and at least so many, are ready."""

    def step(wanted: Array) -> Taken:
        if len(ids := np.flatnonzero(wanted & ~acting.under_way)):
            acting.send(ids)
        return acting.receive(least=min(least, int(acting.under_way.sum())))

    return step


def in_order(steps: Sequence[Taken], envs: int) -> dict[str, Array]:
    """The columns of all steps, env by env and each in the order of time: (1, N, …).

    Of an episode that failed, nothing is left.
    """
    ids = np.concatenate([np.arange(envs) if s.ids is None else s.ids for s in steps])
    order = np.argsort(ids, kind="stable")
    names = steps[0].columns
    found = {n: np.concatenate([s.columns[n] for s in steps])[order] for n in names}
    if any(len(s.failed) for s in steps):
        void = [np.isin(np.arange(envs) if s.ids is None else s.ids, s.failed) for s in steps]
        kept = _whole(found, np.concatenate(void)[order])
        found = {name: array[kept] for name, array in found.items()}
    return {name: array[None] for name, array in found.items()}


def _whole(steps: Mapping[str, Array], void: Array) -> Array:
    """Which steps are of episodes that did not fail."""
    ends = steps["terminated"] | steps["truncated"] | void
    episode: Array = np.cumsum(ends) - ends
    return ~void[ends][episode]


def episode_rows(steps: Mapping[str, Array], gamma: float, nstep: int) -> dict[str, Array]:
    """The rows of whole episodes that follow each other, (1, N, …)."""
    # Every episode has its end, so no window reaches into the next one's steps; the steps that are
    # added at the end only make the last windows whole.
    longer = {n: np.concatenate([a, a[:, :1].repeat(nstep - 1, 1)], 1) for n, a in steps.items()}
    rows = transitions(longer if nstep > 1 else steps, gamma, nstep)
    return {name: array[0] for name, array in rows.items()}


def offsets(last: Array) -> Array:
    """How many rows of its episode come before each row."""
    at = np.arange(len(last))
    begins = np.append(True, last[:-1])
    return (at - at[begins].repeat(np.diff(np.append(at[begins], len(last))))).astype(np.int32)
