"""The process that speaks to Ray for a run.

It is not the run's own process, as Ray ends each process of its own that loses the cluster's head. Ray ends the actors
of a driver, and releases its placement group, when the driver ends, however it does. It ends when its standard input
is closed: with the run at the latest.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flowrl.cluster.ray.host_actor import HostActor
from flowrl.core.wording import count_text

POLL_S = 1.0
ANSWER_S = 5.0  # within which actors answer that are not lost
END_S = 3.0  # for the hosts


@dataclass
class PlacedHost:
    """An actor, and what was heard of it."""

    name: str
    actor: Any
    log: Path
    restarts: int = 0
    is_lost: bool = False
    is_over: bool = False
    last_line: str = ""


class RayDriver:
    """Starts the actors of an order and looks after them."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order, self._ray = order, import_module("ray")
        self._ray.init(address=order["cluster"], namespace="flowrl", log_to_driver=False)
        groups = import_module("ray.util.placement_group")
        self._remove = groups.remove_placement_group
        self._group = groups.placement_group(
            [order["bundle"]] * order["hosts"], strategy=order["strategy"]
        )
        self._ready = self._group.ready()
        self._hosts: list[PlacedHost] = []

    def hosts_status(self) -> dict[str, Any]:
        """The status of the hosts."""
        if not self._hosts:
            done, _ = self._ray.wait([self._ready], timeout=POLL_S)
            if not done:
                return {"waiting": self._waiting_text()}
            self._start()
        refs = [host.actor.take_report.remote() for host in self._hosts]
        done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=ANSWER_S)
        news = [
            line
            for host, ref in zip(self._hosts, refs, strict=True)
            if not host.is_over and (line := self._news_of(host, ref if ref in done else None))
        ]
        failure = ""
        if all(host.is_over for host in self._hosts):
            failure = f"no host is left; the last one: {news[-1] if news else 'it has ended'}"
        return {"failure": failure, "news": news}

    def _waiting_text(self) -> str:
        amounts = ", ".join(f"{name} {amount:g}" for name, amount in self._order["bundle"].items())
        there = [node for node in self._ray.nodes() if node["Alive"]]
        return (
            f"waiting until Ray has place for {count_text(self._order['hosts'], 'host')} ({amounts} each, "
            f"{self._order['strategy']}); the cluster has {count_text(len(there), 'machine')}"
        )

    def _start(self) -> None:
        placing = import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        bundle = dict(self._order["bundle"])
        options: dict[str, Any] = {
            "num_cpus": bundle.pop("CPU", 0),
            "num_gpus": bundle.pop("GPU", 0),
            "memory": bundle.pop("memory", None),
            "resources": bundle,
            "max_restarts": -1,
            "max_task_retries": 0,
        }
        cls = self._ray.remote(HostActor)
        for number in range(self._order["hosts"]):
            place = placing(self._group, placement_group_bundle_index=number)
            made = cls.options(**options, scheduling_strategy=place)
            actor = made.remote(self._order["join"], self._order["options"])
            log = Path(self._order["logs"].format(number))
            self._hosts.append(PlacedHost(f"host {number}", actor, log))

    def _news_of(self, host: PlacedHost, ref: Any) -> str:
        """What is new of a host; `ref` is the answer of its actor, if there is one."""
        try:
            if ref is None:
                return ""  # its machine is slow, or Ray starts the actor
            end, ended_well, text = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            return self._after_loss(host, error)
        host.is_lost = False
        if text:
            with host.log.open("a", encoding="utf-8") as log:
                log.write(text)
            host.last_line = text.strip().rpartition("\n")[2].strip() or host.last_line
        if not end:
            return ""
        what = f"{host.name} {end}" + (f" ({host.last_line})" if host.last_line else "")
        if ended_well or host.restarts >= self._order["restarts"]:
            host.is_over = True
            return what
        host.restarts += 1
        host.actor.start_host.remote()
        return f"{what}; starting it again ({host.restarts} of {self._order['restarts']})"

    def _after_loss(self, host: PlacedHost, error: Exception) -> str:
        if host.is_lost:
            return ""
        host.is_lost = True
        why = str(error).strip().splitlines()
        return f"{host.name}: its actor is lost; Ray starts it again ({why[0] if why else error})"

    def end(self) -> None:
        """End the hosts and release their places."""
        refs = [host.actor.end_host.remote() for host in self._hosts]
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=END_S)
        self._remove(self._group)
        self._ray.shutdown()


def main() -> None:
    output = sys.stdout
    sys.stdout = sys.stderr  # Ray prints, too
    order = json.loads(sys.stdin.readline())
    is_ending = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_ending.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    driver = RayDriver(order)
    while not is_ending.is_set():
        print(json.dumps(driver.hosts_status()), file=output, flush=True)
        is_ending.wait(POLL_S)
    driver.end()


if __name__ == "__main__":
    main()
