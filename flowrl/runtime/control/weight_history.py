"""Learners' states that a cut may ask for, after the learner has gone on: kept until they are settled."""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.checks.serial_program import SerialProgram
from flowrl.checks.site_kinds import is_paced_by_one_learner
from flowrl.core.ports import StateOut
from flowrl.core.state import State
from flowrl.graph.model import PortRef
from flowrl.runtime.control.cuts import includes
from flowrl.runtime.instance import Instance
from flowrl.runtime.instances import Instances
from flowrl.runtime.site_state import Position
from flowrl.runtime.state_versions import StateVersions

States = dict[str, State]  # by `learner.port`


class WeightHistory:
    """The states of one learner.

    Most limits are known before the run, and its learner stops there. What is not known is where a verdict
    falls: after a version that paced an evaluator, between any two slots of a round in which others fire, or
    after any firing of a learner that is paced itself. And a run may be ended after any round, or the learner's
    last firing in it.
    """

    def __init__(self, checked: CheckedGraph, instances: Instances, learner: Instance) -> None:
        self.learner = learner
        self._wired = instances
        program, name = checked.program, learner.spec.name
        self.fires_in_rounds = name in program.round.order
        self._paces = [p.every for p in program.paced if p.source.node == name]
        self._depth = 1 + 4 * _level(checked.program, name)  # of positions around it
        self._alone = is_paced_by_one_learner(checked)
        self._kept: list[tuple[Position, int, States]] = [((), 0, self.states())]

    def states(self) -> States:
        """The newest version; copied once for all who see it."""
        name, key = self.learner.spec.name, self.learner.key
        ports = self.learner.spec.cls.ports.items()
        outs = [port for port, kind in ports if isinstance(kind, StateOut)]
        return {f"{key}.{port}": self._versions(PortRef(name, port)).newest() for port in outs}

    @property
    def state_bytes(self) -> int:
        """What one version takes."""
        states = self._kept[0][2].values()
        return sum(array.nbytes for state in states for array in state.arrays.values())

    def _versions(self, source: PortRef) -> StateVersions:
        versions = self._wired.versions.get(source)
        if versions is not None and versions.instance is self.learner:
            return versions
        return StateVersions(self.learner, source.port)

    # keeping: after which firing, which version, the states

    def after_firing(self) -> None:
        """Something has fired: this learner, if it is paced itself."""
        self._keep()

    def after_iteration(self) -> None:
        """A version that paced others may be where the run is cut."""
        if self._is_paced_by(self.learner.fired):
            self._keep()

    def after_round(self) -> None:
        """Others fire in the round, and any of them may give a verdict; or the run ends here."""
        self._keep()

    def _keep(self) -> None:
        if self._kept[-1][1] != self.learner.fired:
            self._kept.append((self._last(), self.learner.fired, self.states()))

    def _last(self) -> Position:
        """The position of the last firing, which was in this round: what others left is kept."""
        learner = self.learner
        around = self._wired.site.position_prefix[: self._depth]
        return (*around, learner.order_index, learner.ctx.replica, learner.fired - 1)

    def settle(self, rounds: int, fired: int) -> None:
        """No cut falls before this round: forget the older states but the last of them.

        In what has `fired` in rounds there is none either, but after versions that pace.
        """
        del self._kept[: self._last_before(rounds)]
        last = self._last_before(fired)
        if self._alone and last > 1:
            between = [kept for kept in self._kept[1:last] if self._is_paced_by(kept[1])]
            self._kept[1:last] = between

    def _last_before(self, rounds: int) -> int:
        return [n for n, (at, *_) in enumerate(self._kept) if not at or at[0] < rounds][-1]

    def _is_paced_by(self, version: int) -> bool:
        return any(version % every == 0 for every in self._paces)

    # recalling

    def at(self, cut: Position) -> States:
        """The states at a cut."""
        self._keep()
        return next(states for at, _, states in reversed(self._kept) if includes(cut, at))


def _level(program: SerialProgram, name: str) -> int:
    """How many nodes pace one another, and the last of them this one."""
    for paced in program.paced:
        if name in paced.schedule.firings:
            return 1 + _level(program, paced.source.node)
    return 0
