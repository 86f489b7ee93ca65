"""Sums gradients with torch.distributed, which chooses the order of additions (`reduce: fast`)."""

from __future__ import annotations

import importlib
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.replica_group import ReplicaGroup
from flowrl.nodes.groups import GraphGroup

if TYPE_CHECKING:
    from torch import Tensor

WAIT_S = 3600.0  # for the slowest learner
LOOPBACK = "127.0.0.1"
IDENTITIES = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/mnt")
NOT_EXACT = "reduce fast (the order of additions depends on the placement)"


class FastGroup(GraphGroup):
    """A group whose gradients gloo adds, if each learner has a process of its own on one machine.

    Otherwise the engine adds them, which is exact: gloo connects learners without encryption, and a process has one
    learner for it. Other sums are always those of the engine, which notices that a learner is lost or stopped.
    """

    def __init__(self, replicas: ReplicaGroup, report: Callable[[str], None]) -> None:
        """`report` is told once that the sums are not exact."""
        super().__init__(replicas)
        self._report = report
        self._has_joined = False
        self._gloo: Any = None

    def sum_gradients(self, grads: Tensor) -> None:
        if not self._has_joined:
            self._has_joined, self._gloo = True, self._join()
        if self._gloo is None:
            super().sum_gradients(grads)
            return
        try:
            self._gloo.allreduce([grads]).wait()
        except RuntimeError:
            self.close()
            # Another learner was lost, was stopped at the cut, or failed. The engine knows, and ends this wait.
            self._replicas.gather("the sum of gradients failed")
            raise

    def close(self) -> None:
        """Close the connections, so that no other learner waits for this one."""
        self._gloo = None

    def _join(self) -> Any:
        """Connect the learners; return None if the engine has to add."""
        places = self._replicas.gather([_machine(), os.getpid()])
        machines = {machine for machine, _ in places}
        if len(machines) > 1 or len({pid for _, pid in places}) < self.size:
            return None
        with tempfile.TemporaryDirectory() as own_folder:
            folder = self._replicas.gather(own_folder)[0]
            gloo = self._connected(Path(folder) / "addresses")
            self._replicas.gather("connected")
        self._report("group whose gradients torch.distributed added, in an order of its own")
        return gloo

    def _connected(self, addresses: Path) -> Any:
        distributed: Any = importlib.import_module("torch.distributed")
        options = distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=WAIT_S)
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        store = distributed.FileStore(str(addresses), self.size)
        return distributed.ProcessGroupGloo(store, self.replica, self.size, options)


def _machine() -> str:
    """Identify this machine, and what of its network and its files this process sees."""
    found = [platform.node()]
    for path in IDENTITIES:
        with suppress(OSError):
            found.append(os.readlink(path) if os.path.islink(path) else Path(path).read_text())
    return " ".join(found)
