"""Decides which hosts may join a run."""

from __future__ import annotations

from collections.abc import Collection

from flowrl.cluster.compatibility import MachineFacts, incompatibilities
from flowrl.cluster.join_file import RunIdentity
from flowrl.cluster.joined_host import JoinedHost
from flowrl.cluster.messages import PROTOCOL, Join
from flowrl.graph.host_offers import HostOffer

NAME_TAKEN = "another host has this name already; give it another with --name"


class HostAdmission:
    """Admits hosts that fit the run, and remembers those that do not."""

    def __init__(self, run_facts: MachineFacts, identity: RunIdentity | None = None) -> None:
        """`run_facts` are those of the run's machine. With an identity, hosts of other runs and epochs are refused."""
        self.run_facts = run_facts
        self._identity = identity
        self.unfit: list[tuple[HostOffer, str]] = []  # hosts that cannot take part, and why

    def admit(self, host: JoinedHost, taken_names: Collection[str]) -> str:
        """Give the host its number, if its name asks for one. Return why it is refused; empty if it may join."""
        host.give_number(taken_names)
        if host.name in taken_names:
            return NAME_TAKEN
        why = self._why_unfit(host.join)
        if why:
            self.unfit.append((host.offer, why))
        return why

    def _why_unfit(self, join: Join) -> str:
        if join.protocol != PROTOCOL:
            return f"it speaks version {join.protocol} of the protocol, and the run {PROTOCOL}"
        if self._identity is not None and join.run:
            why = self._identity.refusal_of(RunIdentity(join.run, join.epoch))
            if why:
                return why
        found = "; ".join(incompatibilities(self.run_facts, join.machine))
        return f"{found}; install the same versions" if found else ""
