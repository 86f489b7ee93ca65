"""Opens a run to its hosts, and puts together what is needed until it has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.cluster.compatibility import host_warnings, machine_facts
from flowrl.cluster.control_socket import ControlSocket
from flowrl.cluster.host_admission import HostAdmission
from flowrl.cluster.host_wait import HostWait
from flowrl.cluster.join_file import JOIN_FILE, JoinInfo
from flowrl.cluster.join_files import JoinFiles
from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.launcher import HostOrder, Launcher
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.cluster.site_hosts import SiteHosts
from flowrl.graph.launch import launcher_label
from flowrl.runtime.sites.graph_transfer import SentGraph
from flowrl.runtime.status import HostStatus

HOSTS_FOLDER = "hosts"  # in the run's folder: logs of hosts, and files of launchers


class RunHosts:
    """All hosts of a run. The coordinator's thread owns it; other threads may call `statuses`."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        sent: SentGraph,
        control: ControlSocket,
        launched: LaunchedHosts,
        files: JoinFiles,
        folder: Path,
        show: Callable[[str], None],
    ) -> None:
        self._files, self._show, self._is_closed = files, show, False
        self.launched, self.machine_facts = launched, machine_facts()
        admission = HostAdmission(self.machine_facts, files.identity)
        title = sent.config["title"]
        self._joined = JoinedHosts(control, admission, title, show, folder, self._show_news)
        self.sites = SiteHosts(self._joined, sent, control.machine, rendezvous.within_s)
        self.arrival = HostWait(
            self._joined,
            admission,
            launched,
            needed=rendezvous.hosts or 1,
            within_s=rendezvous.within_s,
            address=control.join_address,
        )

    def facts_by_host(self) -> dict[str, Any]:
        """The rows of `environment.json` about hosts that are there."""
        return {host.name: host.facts() for host in self._joined.present()}

    def statuses(self) -> tuple[HostStatus, ...]:
        """All hosts that have joined, also those that are lost."""
        return tuple(host.status(self.sites.sites_of(host)) for host in self._joined.all())

    def warnings(self) -> list[str]:
        """How hosts that have a site differ from this machine, and which messages were refused."""
        lines = [
            line
            for name, host in sorted(self.sites.used().items())
            for line in host_warnings(name, self.machine_facts, host.join.machine)
        ]
        return [*lines, *self._joined.refusals()]

    def _show_news(self) -> None:
        for line in self.launched.take_news():
            self._show(line)

    def close(self, how: str) -> None:
        """Notify all hosts that the run is over, and end those that were launched."""
        if self._is_closed:
            return
        self._is_closed = True
        self._files.end()
        self._joined.close(how)
        self.launched.end()
        self._show_news()


def open_to_hosts(
    rendezvous: Rendezvous,
    sent: SentGraph,
    run_folder: Path,
    show: Callable[[str], None],
    useful_hosts: int = 0,
) -> RunHosts:
    """Let hosts join a run from now on, and start those that are launched. `close` of the result ends both.

    `sent` is the graph for the hosts; `show` shows a line to the user. So many hosts can have a site of the run: they
    may all join at once, also if it begins with fewer.
    """
    launchers: dict[str, Launcher] = {
        launcher_label(spec): spec.make() for spec in rendezvous.launchers()
    }
    folder, files = run_folder.absolute() / HOSTS_FOLDER, JoinFiles(run_folder)
    if rendezvous.hosts is None:
        needed = sum(launcher.host_count for launcher in launchers.values())
        rendezvous = replace(rendezvous, hosts=needed or 1)
    with ExitStack() as undo:
        undo.callback(files.end)
        if launchers:
            folder.mkdir(exist_ok=True)
            if rendezvous.key is None:
                rendezvous = replace(rendezvous, key=files.make_key(folder / "key"))
        control = ControlSocket(rendezvous, useful_hosts)
        undo.callback(control.close)
        info = JoinInfo(control.join_address, files.identity, rendezvous.keys())
        files.write(info)
        orders = {}
        for label, launcher in launchers.items():
            own = replace(info, address=control.address_at(launcher.machine_of_run()))
            join_file = folder / f"{label}.{JOIN_FILE}"
            files.write(own, join_file)
            order = _order(own, join_file, folder, label, launcher, run_folder.name)
            orders[label] = launcher, order
        launched = LaunchedHosts(orders)
        undo.pop_all()
    return RunHosts(rendezvous, sent, control, launched, files, folder, show)


def _order(
    info: JoinInfo, join_file: Path, folder: Path, label: str, launcher: Launcher, run_name: str
) -> HostOrder:
    """What one launcher is to start."""
    patience = launcher.config.rejoin
    options = ("--name", f"{label}-*", "--label", label, "--rejoin", patience, "--within", patience)
    return HostOrder(info, join_file, folder, label, run_name, options)
