"""Whole episodes: stepping envs until each has played its quota, and the rows of these episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.actor import Actor, CollectedSteps

# Steps the envs or agents that a mask (B,) marks, and returns the steps of some of them.
StepFunction = Callable[[Array], CollectedSteps]


def episode_quotas(episodes: int, envs: int, first: int = 0) -> Array:
    """The number of episodes of each env; the remainder goes to the envs from `first` on."""
    return episodes // envs + ((np.arange(envs) - first) % envs < episodes % envs)


def play_quotas(
    step: StepFunction, quotas: Array, most_steps: int, together: int = 1
) -> Iterator[CollectedSteps]:
    """Step envs until each env or agent has played its quota of episodes.

    The quotas are fixed before any episode is played, because taking the episodes that end first would
    prefer short ones. An env that has played its quota is not stepped any more. Of the agents of an env
    and the envs of a pool, `together` ones always step together: one that has played its quota continues
    with the others, but its further steps are dropped. An episode longer than `most_steps` is an error,
    because it may never end.
    """
    left, lengths = quotas.copy(), np.zeros_like(quotas)
    mask = _mask_to_step(left, together)
    loops, next_check = 0, most_steps  # no episode can be too long before `next_check`
    while left.any():
        if loops == next_check:
            next_check = loops + _steps_to_limit(lengths * (left > 0), most_steps)
        loops += 1
        collected = step(mask)
        if together > 1:
            collected = _drop_finished(collected, left)
        yield collected
        lengths[slice(None) if collected.ids is None else collected.ids] += 1
        if len(collected.absent):
            lengths[collected.absent] += 1
        if collected.episodes:
            ended = [episode.env_id for episode in collected.episodes]
            left[ended] -= 1
            lengths[ended] = 0
            mask = _mask_to_step(left, together)
        if len(collected.failed):
            lengths[np.asarray(collected.failed)] = 0


def _mask_to_step(left: Array, together: int) -> Array:
    """Mark all that step together with one that has episodes left to play."""
    are_left = (left > 0).reshape(-1, together)
    return np.repeat(are_left.any(axis=1), together)


def _drop_finished(collected: CollectedSteps, left: Array) -> CollectedSteps:
    mask = left > 0 if collected.ids is None else left[collected.ids] > 0
    episodes = [episode for episode in collected.episodes if left[episode.env_id] > 0]
    if mask.all():  # an agent that never acted has an episode without a step
        return collected._replace(episodes=episodes)
    failed = [index for index in collected.failed if left[index] > 0]
    return collected.select(mask)._replace(episodes=episodes, failed=failed)


def _steps_to_limit(lengths: Array, most_steps: int) -> int:
    """The number of steps that the longest unfinished episode may still take."""
    longest = int(lengths.argmax())
    if lengths[longest] >= most_steps:
        raise ValueError(
            f"env {longest}: an episode has not ended after {most_steps:,} steps; give the env "
            "`max_episode_steps`, or this node more `most_steps`"
        )
    return most_steps - int(lengths[longest])


def step_together(actor: Actor) -> StepFunction:
    """Return a function that steps all ids of the mask, and waits for all of them."""

    def step(mask: Array) -> CollectedSteps:
        ids = np.flatnonzero(mask)
        return actor.step(None if len(ids) == actor.count else ids)

    return step


def step_when_ready(actor: Actor, least: int) -> StepFunction:
    """Return a function that sends all idle ids of the mask, and waits until `least` are ready."""

    def step(mask: Array) -> CollectedSteps:
        if len(ids := np.flatnonzero(mask & ~actor.pending)):
            actor.send(ids)
        return actor.receive(least=min(least, int(actor.pending.sum())))

    return step


def order_by_env(steps: Sequence[CollectedSteps], envs: int) -> dict[str, Array]:
    """Merge steps into columns (N, …), sorted by env and then by time, without failed episodes."""
    ids = np.concatenate([np.arange(envs) if s.ids is None else s.ids for s in steps])
    order = np.argsort(ids, kind="stable")
    names = steps[0].columns
    ordered = {n: np.concatenate([s.columns[n] for s in steps])[order] for n in names}
    if any(len(s.failed) for s in steps):
        failed = [np.isin(np.arange(envs) if s.ids is None else s.ids, s.failed) for s in steps]
        kept = _in_valid_episodes(ordered, np.concatenate(failed)[order])
        ordered = {name: array[kept] for name, array in ordered.items()}
    return ordered


def _in_valid_episodes(steps: Mapping[str, Array], failed: Array) -> Array:
    """Whether each step belongs to an episode that did not fail."""
    ends = steps["terminated"] | steps["truncated"] | failed
    episode: Array = np.cumsum(ends) - ends
    return ~failed[ends][episode]


def episode_offsets(last: Array) -> Array:
    """The index of each row in its episode, where `last` marks the last row of each."""
    index = np.arange(len(last))
    begins = np.append(True, last[:-1])
    lengths = np.diff(np.append(index[begins], len(last)))
    return (index - index[begins].repeat(lengths)).astype(np.int32)
