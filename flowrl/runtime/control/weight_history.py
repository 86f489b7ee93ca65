"""Keeps earlier versions of learners' weights, until no cut can fall before them."""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import schedule_of_round
from flowrl.checks.serial_program import SerialProgram
from flowrl.checks.site_kinds import is_paced_by_one_learner
from flowrl.core.state import State
from flowrl.runtime.control.cuts import includes
from flowrl.runtime.instance import Instance
from flowrl.runtime.instances import Instances
from flowrl.runtime.site_state import Position

States = dict[str, State]  # by `learner.port`


class WeightHistory:
    """The states of one learner at the positions where a cut may still fall.

    Most limits are known before the run, and the learner stops there. A requested cut is in the newest round that any
    site has begun. Verdicts are not known: a cut may fall after a version that paced an evaluator, or after any firing
    of a learner that is paced itself. Other verdicts and limits may cut in any past round, in some graphs.
    """

    def __init__(
        self,
        checked: CheckedGraph,
        instances: Instances,
        learner: Instance,
        may_cut_past_rounds: bool,
    ) -> None:
        self.learner = learner
        self._instances = instances
        program, name = checked.program, learner.spec.name
        self._program = program
        self.fires_in_rounds = name in program.round.order
        self._paces = [p.every for p in program.paced if p.source.node == name]
        # The length of its positions' prefix: the round, and four numbers for each level of pacing.
        self._prefix_length = 1 + 4 * _pacing_depth(program, name)
        self._is_only_pacer = is_paced_by_one_learner(checked)
        self._keeps_rounds = may_cut_past_rounds
        self._kept: list[tuple[Position, int, States]] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Keep the newest states only, with which a run begins or continues."""
        self._kept = [((), self.learner.fired, self.newest_states())]

    def newest_states(self) -> States:
        return self._instances.states_of(self.learner)

    @property
    def state_bytes(self) -> int:
        """The bytes of one version."""
        total = 0
        for state in self._kept[0][2].values():
            total += sum(array.nbytes for array in state.arrays.values())
            if state.whole is not None:
                total += sum(array.nbytes for array in state.whole.arrays.values())
        return total

    # keeping

    def after_firing(self) -> None:
        """Keep the newest states. Called for a learner that is paced itself, after each firing of the site."""
        self._keep()

    def after_iteration(self) -> None:
        """Keep the newest states if they paced other nodes, which may give a verdict."""
        if self._is_pacing(self.learner.fired):
            self._keep()

    def after_round(self) -> None:
        """Keep the newest states if a cut may fall after the learner in this round, or at the end of it."""
        if self._keeps_rounds:
            self._keep()

    def _keep(self) -> None:
        if self._kept[-1][1] != self.learner.fired:
            position, version = self._last_position(), self.learner.fired
            self._kept.append((position, version, self.newest_states()))

    def _last_position(self) -> Position:
        """The position of the learner's last firing, which was in this round.

        Where a round may pass without a firing of the learner, states are kept in each round.
        """
        learner, order_index = self.learner, self.learner.order_index
        prefix = self._instances.site.position_prefix[: self._prefix_length]
        if self.fires_in_rounds:  # a new phase, with another order, may have begun since
            order, name = schedule_of_round(self._program, prefix[0]).order, learner.spec.name
            order_index = order.index(name) if name in order else -1  # -1: in an earlier round
        return (*prefix, order_index, learner.ctx.replica, learner.fired - 1)

    def settle(self, rounds: int, paced_rounds: int) -> None:
        """Forget states that no cut can recall.

        No cut falls in rounds before `rounds`. In rounds before `paced_rounds`, cuts only fall after versions that
        pace.
        """
        del self._kept[: self._last_before(rounds)]
        last = self._last_before(paced_rounds)
        if self._is_only_pacer and last > 1:
            self._kept[1:last] = [kept for kept in self._kept[1:last] if self._is_pacing(kept[1])]

    def _last_before(self, rounds: int) -> int:
        """Return the index of the last states of rounds before this one."""
        kept = enumerate(self._kept)
        return [n for n, (position, *_) in kept if not position or position[0] < rounds][-1]

    def _is_pacing(self, version: int) -> bool:
        return any(version % every == 0 for every in self._paces)

    # recalling

    def states_at(self, cut: Position) -> States:
        """Return the states at a cut."""
        self._keep()
        return next(states for at, _, states in reversed(self._kept) if includes(cut, at))


class WeightHistories:
    """The weight histories of the learners of one site.

    All firings of a free site count, wherever the run is cut. So it keeps no earlier versions.
    """

    def __init__(
        self,
        checked: CheckedGraph,
        instances: Instances,
        may_cut_past_rounds: bool,
        is_free: bool,
    ) -> None:
        learners = [one for one in instances.all() if one.is_learner and not one.follows]
        self._all = [
            WeightHistory(checked, instances, learner, may_cut_past_rounds) for learner in learners
        ]
        self._is_free = is_free
        self._kept = [] if is_free else self._all
        self._paced = [history for history in self._kept if not history.fires_in_rounds]

    @property
    def state_bytes(self) -> int:
        """The bytes that are kept for each round of a lease."""
        return sum(history.state_bytes for history in self._kept)

    def begin_anew(self) -> None:
        """Keep the newest states only, with which a run begins or continues."""
        for history in self._all:
            history.begin_anew()

    def after_firing(self) -> None:
        """Keep what is due after a firing of the site."""
        for history in self._paced:
            history.after_firing()

    def after_iteration(self, learner: Instance) -> None:
        """Keep what is due after a train iteration of a learner."""
        for history in self._kept:
            if history.learner is learner:
                history.after_iteration()

    def after_round(self) -> None:
        """Keep what is due after a round."""
        for history in self._kept:
            history.after_round()

    def settle(self, rounds: int, paced_rounds: int) -> None:
        """Forget states that no cut can recall, see `WeightHistory.settle`."""
        for history in self._kept:
            history.settle(rounds, paced_rounds)

    def states_at(self, cut: Position) -> States:
        """Return the states of all learners at the cut; of a free site, the newest states."""
        found: States = {}
        for history in self._all:
            found |= history.newest_states() if self._is_free else history.states_at(cut)
        return found


def _pacing_depth(program: SerialProgram, name: str) -> int:
    """Return the number of nodes that pace one another, of which the last one paces this node."""
    for paced in program.paced:
        if name in paced.schedule.firings:
            return 1 + _pacing_depth(program, paced.source.node)
    return 0
