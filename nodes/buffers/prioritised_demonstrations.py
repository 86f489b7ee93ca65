"""Demonstrations of a buffer that draws by priority: rows (DQfD, R2D3's demo ratio), or sequences of steps (R2D3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.demonstrations import Demonstrations, DemosConfig, check_demos
from flowrl.nodes.buffers.episodes.sequences import SequenceCutter
from flowrl.nodes.buffers.sampling.prioritised_ring import SAMPLERS, PrioritisedRing
from flowrl.nodes.nstep import NstepRule

ADDED = dict.fromkeys(("valid", "weight"))  # the columns that a buffer adds to sequences


class PrioritisedDemosConfig(DemosConfig):
    """The parameters of demonstrations that are drawn by priority."""

    demo_draw: Literal["fixed", "binomial", "priority"] = param(
        "fixed",
        "how many of a batch are demonstrations: fixed: always the same number; binomial: each row is one with "
        "probability `demo_share`; priority: as many as the priorities of all rows, the agent's and these, decide",
        only_with="demos",
    )
    demo_priority_least: float | None = param(
        None,
        "added to each priority of demonstrations; default: `priority_least`",
        gt=0,
        only_with="demos",
    )


def check_prioritised_demos(config: Any, surroundings: Surroundings) -> None:
    """Refuse demonstrations that grow for ever, and a common draw that would not be one by priorities."""
    check_demos(config, surroundings)
    if config.demo_draw != "priority" or "demos" not in surroundings.inputs:
        return
    if config.demo_share != type(config).model_fields["demo_share"].default:
        what = (
            "`demo_share` has no effect with `demo_draw: priority`, which draws by priorities alone"
        )
        raise UnsoundError(what, "leave it out", "demo_share")
    if "priorities" not in surroundings.inputs:
        what = "`demo_draw: priority` draws by the learner's priorities, and none arrive"
        hint = "connect them: `learner.priorities -> buffer.priorities`"
        raise UnsoundError(what, hint, "demo_draw")
    if getattr(config, "priority", "proportional") == "rank":
        what = "`demo_draw: priority` compares priorities, and `priority: rank` ranks the agent's rows alone"
        raise UnsoundError(what, "write `priority: proportional`", "priority")
    if not config.replace:
        what = "`demo_draw: priority` draws with replacement"
        raise UnsoundError(
            what, "leave out `replace: false`, or write `demo_draw: fixed`", "replace"
        )


class PrioritisedDemonstrations(Demonstrations):
    """Demonstrations with priorities.

    With `demo_draw: priority`, each row of a batch is a demonstration with the share of the demonstrations in the
    sum of all weights, so that all rows are drawn as from one table (DQfD: Hester et al. 2018).

    The demonstration that arrived as the k-th, from 0, has the number -1 - k, which differs from those of the agent's
    rows. A new one gets the highest priority that any demonstration ever had.
    """

    def __init__(
        self,
        context: Context,
        config: Any,
        kind: str = "proportional",
        rule: NstepRule | None = None,
    ) -> None:
        super().__init__(context, config, rule)
        self._kind, self._alpha, self._share = kind, config.alpha, config.demo_share
        self._least = config.demo_priority_least or config.priority_least
        self._arrived = 0
        self._highest = 1.0
        self.numbers = np.empty(0, np.int64)  # of what can be drawn, descending from -1
        self.priority = np.empty(0)
        self._make_sampler()

    def push(self, demos: Batch) -> int:
        added = super().push(demos)
        if added and self.table is not None:
            self._add(added)
            self._keep(np.arange(self.count) >= self.count - len(self.table))
        return added

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def total_weight(self) -> float:
        """The sum of the weights by which demonstrations are drawn."""
        return float(self.sampler.total_weight) if self.count else 0.0

    def share(self, agent: PrioritisedRing | None) -> float:
        """Which share of all rows are demonstrations, beside the agent's rows in this ring."""
        if self._mode != "priority" or agent is None:
            return self._share
        own = self.total_weight
        return own / (own + agent.sampler.total_weight) if own else 0.0

    def common_frequencies(
        self, agent: Array, demos: Array, ring: PrioritisedRing | None
    ) -> tuple[Array, Array]:
        """Return the relative frequencies of the agent's rows and of demonstrations in a draw from both.

        What arrives is relative to uniform draws from the own table. With `demo_draw: priority`, what is returned is
        relative to uniform draws from all rows. Otherwise the shares of both are given, and nothing changes.
        """
        if self._mode != "priority" or ring is None or not ring.live:
            return agent, demos
        share, rows = self.share(ring), ring.live + self.count
        return agent * ((1 - share) * rows / ring.live), demos * (share * rows / self.count)

    def draw(
        self, rng: np.random.Generator, rows: Sequence[int], replace: bool
    ) -> tuple[Array, Array]:
        """Draw `rows[k]` demonstrations for batch k; return their indices and their relative frequencies."""
        most = max(rows)
        self.require(most, 1 if replace else most)
        index, probability = [np.empty(0, np.int64)], [np.empty(0)]
        for count in filter(None, rows):
            drawn = (
                self.sampler.draw(rng, 1, count)
                if replace
                else self.sampler.draw_distinct(rng, count)
            )
            index.append(drawn[0])
            probability.append(drawn[1])
        return np.concatenate(index), np.concatenate(probability) * self.count

    def update(self, numbers: Array, priorities: Array) -> int:
        """Set the priorities of demonstrations by their numbers; return how many of them no longer exist."""
        index = np.searchsorted(-self.numbers, -numbers)
        held = index < self.count
        held[held] = self.numbers[index[held]] == numbers[held]
        if held.any():
            index, new = index[held], priorities[held] + self._least
            self.priority[index] = new
            self.sampler.set(index, new)
            self._highest = max(self._highest, float(new.max()))
        return int(np.count_nonzero(~held))

    def _add(self, count: int) -> None:
        """Add numbers and priorities of new demonstrations."""
        new = -1 - self._arrived - np.arange(count)
        self._arrived += count
        self.numbers = np.append(self.numbers, new)
        self.priority = np.append(self.priority, np.full(count, self._highest))

    def _keep(self, kept: Array) -> None:
        """Keep the numbers and priorities of some."""
        self.numbers, self.priority = self.numbers[kept], self.priority[kept]
        self._make_sampler()

    def _make_sampler(self) -> None:
        self.sampler: Any = SAMPLERS[self._kind](max(1, self.count), self._alpha)
        self.sampler.set(np.arange(self.count), self.priority)

    def state_dict(self) -> dict[str, Any]:
        priorities = {
            "arrived": self._arrived,
            "highest": self._highest,
            "numbers": self.numbers,
            "priority": self.priority.copy(),
        }
        return {**super().state_dict(), "priorities": priorities}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        found = state["priorities"]
        self._arrived, self._highest = int(found["arrived"]), float(found["highest"])
        self.numbers, self.priority = np.array(found["numbers"]), np.array(found["priority"])
        self._make_sampler()


class SequenceDemonstrations(PrioritisedDemonstrations):
    """Demonstrations that are drawn as sequences of steps, cut as those of the agent are.

    Steps without the columns of the agent's memory get zeros, which is the memory at the start of an episode.
    """

    def __init__(self, context: Context, config: Any, cutter: SequenceCutter) -> None:
        super().__init__(context, config)
        self._cutter, self._memory_columns = cutter, config.memory_columns
        self._steps = 0  # that arrived
        self._first, self._length = np.empty(0, np.int64), np.empty(0, np.int64)

    def push(self, demos: Batch) -> int:
        # A segment ends with its token; its continuation is found by the origin columns.
        if len(demos):
            last = demos["last"].copy()
            last[-1:] = True
            demos = demos.replace(last=last)
        added = Demonstrations.push(self, demos)
        if not added:
            return 0
        firsts, lengths = self._cutter.push(demos.columns, self._steps)
        self._steps += len(demos)
        self._first = np.append(self._first, firsts)
        self._length = np.append(self._length, lengths)
        self._add(len(firsts))
        kept = self._first >= self._oldest
        self._first, self._length = self._first[kept], self._length[kept]
        self._keep(kept)
        self._cutter.forget_before(self._oldest)
        return added

    @property
    def _oldest(self) -> int:
        """The number of the oldest step that is held."""
        return self._steps - (0 if self.table is None else len(self.table))

    def take(self, index: Array, agent: Mapping[str, Array]) -> dict[str, Array]:
        """Return the sequences at `index`, with the columns of the agent's, and which of their steps are `valid`."""
        length = self._length[index]
        numbers, valid = self._cutter.rows_of(self._first[index], length)
        steps = numbers - self._oldest
        memory = {name: like for name, like in agent.items() if name in self._memory_columns}
        rest = {name: like[:, 0] for name, like in agent.items() if name not in memory | ADDED}
        flat = super().take(steps.reshape(-1), rest)
        columns = {name: a.reshape(*steps.shape, *a.shape[1:]) for name, a in flat.items()}
        assert self.table is not None
        for name, like in memory.items():
            initial = np.zeros((len(index), *like.shape[1:]), like.dtype)
            columns[name] = self.table[name][steps[:, 0]] if name in self.table else initial
        columns["last"] = np.arange(valid.shape[1]) >= length[:, None] - 1
        return {**columns, "valid": valid}

    @property
    def schema(self) -> Schema:
        """The columns of the steps."""
        return {} if self.table is None else self.table.schema

    def state_dict(self) -> dict[str, Any]:
        sequences = {"first": self._first, "length": self._length, "steps": self._steps}
        return {**super().state_dict(), "sequences": sequences, "cutter": self._cutter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        found = state["sequences"]
        self._first, self._length = np.array(found["first"]), np.array(found["length"])
        self._steps = int(found["steps"])
        self._cutter.load_state_dict(state["cutter"])
