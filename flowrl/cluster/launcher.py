"""The interface of launchers, which start the hosts of a run through ssh, Slurm, Kubernetes, Ray or on this machine.

A launcher starts copies of one command, `flowrl host`, watches them and ends them. Everything else is the run's: which
hosts take part, what their names are, and which nodes they execute. So a launcher needs no ranks, and a host that is
started again is the same case as the first one.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import field_validator

from flowrl.cluster.join_file import JoinInfo
from flowrl.core.config import Config, Part, param
from flowrl.graph.host_offers import RESERVED
from flowrl.graph.sections import parse_seconds

HOST_NAME = r"^[A-Za-z][\w.-]{0,40}$"


@dataclass(frozen=True, slots=True)
class HostOrder:
    """What a launcher needs to start the hosts of a run."""

    info: JoinInfo  # with the key, which must never be among the arguments of a command
    join_file: Path  # the same information, in a file that only its owner can read
    folder: Path  # in the run's folder, for the launcher's logs and files; absolute
    label: str  # of the hosts
    run_name: str  # for people, such as `cartpole_dqn-seed0-…`
    options: tuple[str, ...]  # of the command, beside `--join`

    def command(self, python: Sequence[str], join: str) -> list[str]:
        """The command that is a host. `join` is the path of the join file there, or `-` for standard input."""
        return [*python, "-m", "flowrl", "host", "--join", join, *self.options]


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """What has become of the hosts that a launcher has started."""

    waiting: str = ""  # why hosts cannot have joined yet, such as a job that is queued
    failure: str = ""  # why no host will come any more
    news: Sequence[str] = field(default=())  # lines for the user, since the last status
    missing: str = ""  # why some hosts will not come, while others may


class Launcher(Part):
    """The base of launchers. One thread calls `start`, then `watch` about once a second, and at last `end`.

    `start` and `watch` should return within some seconds, because the run ends only after them. They raise
    `FlowError` with the reason if no host can be started.
    """

    kind = "launcher"

    class Config(Config):
        label: str | None = param(
            None,
            "the label of its hosts in placements, and the beginning of their names: label-0, label-1, …; by default "
            "the launcher's type",
            pattern=HOST_NAME,
        )
        rejoin: str = param(
            "60s", "how long a host tries to join the run again when it has lost it, before it ends"
        )

        @field_validator("label")
        @classmethod
        def _check_label(cls, label: str | None) -> str | None:
            if label in RESERVED:
                raise ValueError(f"'{label}' is a place of this machine; expected another word")
            return label

        @field_validator("rejoin")
        @classmethod
        def _check_time(cls, time: str) -> str:
            if parse_seconds(time) is None:
                raise ValueError(f"'{time}' is no time; expected a time such as 30s or 10m")
            return time

    @property
    @abstractmethod
    def host_count(self) -> int:
        """How many hosts it starts, for all of which a run waits."""

    def machine_of_run(self) -> str:
        """The name or address at which its hosts reach the machine of the run."""
        return socket.gethostname()

    @abstractmethod
    def start(self, order: HostOrder) -> None:
        """Begin to start the hosts."""

    @abstractmethod
    def watch(self) -> LaunchStatus:
        """Look after the hosts; start those again that have died, if that is this launcher's task."""

    @abstractmethod
    def end(self) -> None:
        """End all hosts that are left, in bounded time. They have been asked to leave."""

    def facts(self) -> dict[str, str]:
        """What `flowrl hosts` shows of it, such as the number of a job."""
        return {}
