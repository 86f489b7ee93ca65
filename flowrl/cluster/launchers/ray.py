"""Starts hosts as the actors of a Ray cluster. Ray only starts them: all data goes from host to host."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.config import param
from flowrl.core.errors import UsageError

END_S = 15.0  # in which the driver ends the hosts and leaves Ray


class Ray(Launcher):
    """Hosts that are actors, each in a bundle of a placement group. Ray starts them again when a machine is lost."""

    class Config(Launcher.Config):
        hosts: int = param(2, "how many hosts are started", ge=1, le=10_000)
        cluster: str = param(
            "auto", "the Ray cluster: auto (that of this machine), HOST:PORT, or ray://HOST:PORT"
        )
        address: str | None = param(
            None, "the name or address at which hosts reach the machine of the run"
        )
        cpus: float | int = param(1, "cores of each host, as Ray counts them", ge=0)
        gpus: float | int = param(0, "GPUs of each host", ge=0)
        memory_gb: float | int | None = param(None, "memory of each host, in GB", gt=0)
        resources: dict[str, float | int] = param({}, "other resources of Ray that each host needs")
        spread: bool = param(True, "each host on a machine of its own")
        restarts: int = param(3, "how often a host that has died is started again", ge=0, le=1000)

    _process: subprocess.Popen[str] | None = None

    @property
    def host_count(self) -> int:
        return int(self.config.hosts)

    def machine_of_run(self) -> str:
        return str(self.config.address or super().machine_of_run())

    def start(self, order: HostOrder) -> None:
        if find_spec("ray") is None:
            raise UsageError("the package ray is not installed; pip install 'flowrl[ray]'")
        self._log = order.folder / f"{order.label}.ray.log"
        self._status = LaunchStatus(waiting=f"joining the Ray cluster {self.config.cluster}")
        self._news: list[str] = []
        self._lock = threading.Lock()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flowrl.cluster.ray.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(self._order_of_driver(order)) + "\n")
            self._process.stdin.flush()
        threading.Thread(target=self._read, name="ray", daemon=True).start()

    def _order_of_driver(self, order: HostOrder) -> dict[str, Any]:
        config = self.config
        amounts = {"CPU": config.cpus, "GPU": config.gpus, **config.resources}
        if config.memory_gb is not None:
            amounts["memory"] = int(config.memory_gb * 1e9)
        return {
            "cluster": config.cluster,
            "hosts": config.hosts,
            "bundle": {name: amount for name, amount in amounts.items() if amount}
            or {"CPU": 0.001},
            "strategy": "STRICT_SPREAD" if config.spread else "SPREAD",
            "restarts": config.restarts,
            "join": order.info.text(),
            "options": order.options,
            "logs": str(order.folder / f"{order.label}.{{}}.log"),
        }

    def _read(self) -> None:
        """Keep what the driver says of the hosts, in a thread of its own."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                with self._lock:
                    self._status = LaunchStatus(said.get("waiting", ""), said.get("failure", ""))
                    self._news += said.get("news", ())

    def watch(self) -> LaunchStatus:
        assert self._process is not None
        with self._lock:
            news, self._news = self._news, []
            status = self._status
        if self._process.poll() is not None and not status.failure:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            why = lines[-1].strip() if lines else f"status {self._process.returncode}"
            return LaunchStatus(failure=f"Ray is lost: {why}; see {self._log}", news=news)
        return LaunchStatus(status.waiting, status.failure, news)

    def end(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def facts(self) -> dict[str, str]:
        return {"cluster": self.config.cluster}
