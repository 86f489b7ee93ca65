"""`stepping: independent`: envs step independently, and the rows are bit by bit those of `together`.

The order in which envs become ready depends on the clock; the rows must not. Two rules ensure this:

- The policy always computes the actions of all envs, because the numeric result of a row depends on
  the number of rows in the call, though not on the contents of the other rows.
- Round k is the k-th step of every env. Whenever an env reaches it, its actions are drawn from the
  state that the policy's generators have in round k when all envs step together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.actor import Actor, CollectedSteps
from flowrl.nodes.envs.steps import Episode


class GeneratorHistory:
    """The states of an act mode's random generators at the start of each round."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._has_state = hasattr(mode, "state_dict")
        self._round = 0  # the round whose actions the mode would draw next
        self._states = [self._copy_state()]

    def _copy_state(self) -> Any:
        return copy.deepcopy(self._mode.state_dict()) if self._has_state else None

    def restore(self, round_: int) -> None:
        """Set the generators to their state in a round that `advance` has reached before."""
        if self._has_state and self._round != round_:
            self._mode.load_state_dict(copy.deepcopy(self._states[round_]))
        self._round = round_

    def advance(self) -> None:
        """Record that a round's actions were drawn; raise unless the state changed as the first time."""
        if not self._has_state:
            return
        state, self._round = self._copy_state(), self._round + 1
        if self._round == len(self._states):
            self._states.append(state)
        elif not _states_equal(state, self._states[self._round]):
            raise ValueError(
                f"the state of {type(self._mode).__name__} depends on observations, so "
                "`stepping: independent` cannot reproduce the rows of `together`; use `together`"
            )


class IndependentStepping:
    """Collects rounds, in each of which every env takes one step."""

    def __init__(self, actor: Actor, least: int) -> None:
        """Let one call of the policy wait for `least` idle envs."""
        self._actor, self._least = actor, least

    def rounds(self, count: int) -> Iterator[CollectedSteps]:
        """Yield each round once it and all earlier ones are complete. Afterwards no step is pending."""
        actor, yielded = self._actor, 0
        history = GeneratorHistory(actor.mode)
        rounds = [RoundAssembly(actor.count) for _ in range(count)]
        done = np.zeros(actor.count, np.int64)  # rounds that each env has completed
        while yielded < count:
            self._send_idle(history, done, count)
            collected = actor.receive(least=min(self._least, int(actor.pending.sum())))
            assert collected.ids is not None  # None only if all envs step together
            received = collected.ids
            if len(collected.absent):
                received = np.concatenate([received, np.asarray(collected.absent, np.int64)])
            for round_ in np.unique(done[received]):
                members = received[done[received] == round_]
                rounds[round_].add(collected, done[collected.ids] == round_, members)
            done[received] += 1
            for complete in rounds[yielded : int(done.min())]:
                yielded += 1
                yield complete.collected_steps()
        history.restore(count)

    def _send_idle(self, history: GeneratorHistory, done: Array, count: int) -> None:
        """Send the idle envs round by round, from the earliest round on."""
        idle = np.flatnonzero(~self._actor.pending & (done < count))
        for round_ in np.unique(done[idle]):
            history.restore(int(round_))
            self._actor.send(idle[done[idle] == round_], infer_all=True)
            history.advance()


class RoundAssembly:
    """One step of every env, assembled as the steps arrive."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._acted = np.zeros(count, np.bool_)
        self._columns: dict[str, Array] = {}
        self._episodes: list[Episode] = []
        self._failed: list[int] = []

    def add(self, collected: CollectedSteps, mask: Array, members: Array) -> None:
        """Add the steps that `mask` marks, and what else is known of `members`, who took this step."""
        assert collected.ids is not None
        ids = collected.ids[mask]
        self._acted[ids] = True
        for name, value in collected.columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self._count, *value.shape[1:]), value.dtype)
            self._columns[name][ids] = value[mask]
        ids_of_members = set(members.tolist())
        self._episodes += [e for e in collected.episodes if e.env_id in ids_of_members]
        self._failed += [env for env in collected.failed if env in ids_of_members]

    def collected_steps(self) -> CollectedSteps:
        """The round, as if all envs had been stepped together."""
        episodes = sorted(self._episodes, key=lambda episode: episode.env_id)
        collected = CollectedSteps(None, self._columns, episodes, sorted(self._failed))
        return collected if self._acted.all() else collected.select(self._acted)


def _states_equal(one: Any, other: Any) -> bool:
    """Whether two state dicts are equal; arrays are compared by their values."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_states_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_states_equal, one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)
