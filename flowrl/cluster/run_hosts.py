"""Opens a run to its hosts: its key, its join file, the socket at which they join, and their launchers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flowrl.channels.keys import write_key
from flowrl.cluster.join_file import (
    JOIN_FILE,
    JoinInfo,
    RunIdentity,
    earlier_identity,
)
from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.launcher import HostOrder, Launcher
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.graph.launch import launcher_label
from flowrl.machine.network_address import ANY_MACHINE
from flowrl.runtime.sites.graph_transfer import SentGraph

HOSTS_FOLDER = "hosts"  # in the run's folder: logs of hosts, and files of launchers


def open_to_hosts(
    rendezvous: Rendezvous,
    sent: SentGraph,
    run_folder: Path,
    show: Callable[[str], None],
    useful_hosts: int = 0,
) -> JoinedHosts:
    """Let hosts join a run from now on, and start those that are launched. `close` of the result ends both.

    So many hosts can have a site of the run.
    """
    launchers: dict[str, Launcher] = {
        launcher_label(spec): spec.make() for spec in rendezvous.launchers()
    }
    folder = run_folder.absolute() / HOSTS_FOLDER
    key_file = folder / "key"
    if launchers:
        folder.mkdir(exist_ok=True)
        if rendezvous.key is None:
            key_file.unlink(missing_ok=True)  # that of an earlier start, whose hosts are refused
            write_key(key_file)
            rendezvous = replace(rendezvous, key=key_file)
    if rendezvous.hosts is None:
        needed = sum(launcher.host_count for launcher in launchers.values())
        rendezvous = replace(rendezvous, hosts=needed or 1)
    identity = _next_identity(run_folder)
    hosts = JoinedHosts(rendezvous, sent, show, identity, folder, useful_hosts)
    hosts.own_key = key_file if rendezvous.key == key_file else None
    try:
        info = JoinInfo(hosts.join_address, identity, rendezvous.keys())
        hosts.write_join_file(run_folder / JOIN_FILE, info)
        if launchers:
            orders = {
                label: (launcher, _order(hosts, info, folder, label, launcher, run_folder.name))
                for label, launcher in launchers.items()
            }
            hosts.launched = LaunchedHosts(orders)
    except BaseException:
        hosts.close("it could not be opened to hosts")
        raise
    return hosts


def _next_identity(run_folder: Path) -> RunIdentity:
    """The identity of this start: a run keeps its name when it is resumed."""
    before = earlier_identity(run_folder / JOIN_FILE)
    if before is None:
        return RunIdentity(f"{run_folder.name}-{secrets.token_hex(4)}", 0)
    return RunIdentity(before.run, before.epoch + 1)


def _order(
    hosts: JoinedHosts,
    info: JoinInfo,
    folder: Path,
    label: str,
    launcher: Launcher,
    run_name: str,
) -> HostOrder:
    """What one launcher is to start. Its join file has the address at which its hosts reach the run."""
    if hosts.machine == ANY_MACHINE:
        info = replace(info, address=hosts.address.replace(ANY_MACHINE, launcher.machine_of_run()))
    join_file = folder / f"{label}.{JOIN_FILE}"
    hosts.write_join_file(join_file, info)
    patience = launcher.config.rejoin
    options = ("--name", f"{label}-*", "--label", label, "--rejoin", patience, "--within", patience)
    return HostOrder(info, join_file, folder, label, run_name, options)
