"""How steps become rows of a token: one by one, or as unrolls of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.collectors.transitions import transitions
from flowrl.nodes.policy import Policy, unroll_column


@dataclass(frozen=True, slots=True)
class Cut:
    """What a policy wants its rows to be; without unrolls a piece is one step."""

    gamma: float
    nstep: int  # rewards in a row's `reward`
    length: int  # steps in a piece
    overlap: int  # steps that a piece has in common with the one before it
    unrolls: bool  # whether a row is a whole piece, (T, …), or a step
    memory: frozenset[str]  # columns of which an unroll has only the first

    @classmethod
    def of(cls, policy: Policy) -> Cut:
        """As the policy says."""
        steps, memory = policy.unroll_steps, frozenset(policy.memory_columns())
        overlap = policy.burn_in_steps if steps else 0
        return cls(policy.gamma, policy.nstep, steps or 1, overlap, steps is not None, memory)

    @property
    def stride(self) -> int:
        """Steps from one piece to the next."""
        return self.length - self.overlap

    @property
    def ahead(self) -> int:
        """Steps that an env must have taken beyond so many strides, to have so many pieces."""
        return self.overlap + self.nstep - 1

    def pieces(self, held: Array) -> int:
        """How many whole pieces there are in so many steps of each env."""
        return int((np.maximum(held - self.ahead, 0) // self.stride).sum())

    def steps_for(self, pieces: int, held: Array) -> int:
        """How many steps all envs must take together until there are so many pieces."""
        spare = held - self.ahead
        steps = max(0, -(-(pieces * self.stride - int(spare.sum())) // len(held)))
        while self.pieces(held + steps) < pieces:
            steps += 1
        return steps

    def choose(self, begin: Array, steps: int, pieces: int) -> tuple[Array, Array]:
        """The earliest pieces of envs whose steps go from `begin` to `steps`: env and first step.

        Sorted by env and then by time.
        """
        at = np.arange(steps - self.nstep + 1) - begin[:, None] + 1  # (B, M): steps up to here
        ends = (at >= self.length) & ((at - self.overlap) % self.stride == 0)
        time, env = np.nonzero(ends.T)  # by time, then by env
        order = np.argsort(env[:pieces], kind="stable")
        return env[order], time[order] + 1 - self.length

    def rows(
        self, steps: Mapping[str, Array], env: Array, first: Array, whole: bool
    ) -> dict[str, Array]:
        """The rows of pieces; `whole`: they are all that there is, in its order."""
        rows = transitions(steps, self.gamma, self.nstep)
        if self.unrolls:
            return self._unrolls(rows, env, first)
        ends = np.append(env[1:] != env[:-1], True)
        if whole:  # without the gather
            found = {k: v.reshape(len(env), *v.shape[2:]) for k, v in rows.items()}
        else:
            found = {k: v[env, first] for k, v in rows.items()}
        found["last"] |= ends  # what follows is in another token, or of another env
        return found

    def _unrolls(self, rows: Mapping[str, Array], env: Array, first: Array) -> dict[str, Array]:
        time = first[:, None] + np.arange(self.length)
        found = {
            name: array[env, first] if name in self.memory else array[env[:, None], time]
            for name, array in rows.items()
        }
        found["last"][:, -1] = True  # what follows is another unroll
        return found


def cut_schema(rows: Schema, policy: Policy) -> Schema:
    """The columns of a token whose steps have these: with unrolls, each (T, …)."""
    cut = Cut.of(policy)
    if not cut.unrolls:
        return rows
    return {
        name: column if name in cut.memory else unroll_column(column, cut.length)
        for name, column in rows.items()
    }
