"""The machines that are offered to a run, and which of them a placement means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from flowrl.core.errors import UsageError
from flowrl.graph.keywords import ANY_HOST
from flowrl.graph.places import LOCAL_PLACES
from flowrl.machine.resources import NO_RESOURCES, MachineResources

RESERVED = (*LOCAL_PLACES, ANY_HOST, "coordinator")  # no names of hosts
_NAME = re.compile(r"\w[\w.-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostOffer:
    """A machine that is offered to a run, with the names that a placement can use for it, and what it has."""

    name: str
    labels: tuple[str, ...] = ()
    resources: MachineResources = NO_RESOURCES
    machine_id: str = ""  # equal for hosts that share a network link; empty if it is not known

    def __post_init__(self) -> None:
        for word in (self.name, *self.labels):
            name = word.removesuffix("*") if word == self.name else word  # the run puts a number
            if not _NAME.fullmatch(name) or name in RESERVED:
                what = f"host: '{word}' cannot be a host's name or label"
                raise UsageError(
                    f"{what}; expected up to 63 letters, digits, '.', '-' and '_', "
                    f"and not {', '.join(RESERVED)}"
                )

    def matches(self, machine: str) -> bool:
        """Whether the machine of a place means this one, perhaps among others."""
        words = (self.name, *self.labels)
        return machine == ANY_HOST or any(fnmatchcase(word, machine) for word in words)

    def __str__(self) -> str:
        return f"{self.name} ({self.resources})"


def matching_hosts(machine: str, offers: Iterable[HostOffer]) -> list[HostOffer]:
    """The hosts that a place means, in natural order of their names: cpu-2 comes before cpu-10."""
    return sorted((o for o in offers if o.matches(machine)), key=lambda o: _natural_key(o.name))


def _natural_key(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]
