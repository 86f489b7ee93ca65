"""Arguments that the verbs share which run a graph: their declaration, and what their values stand for."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from flowrl.cli import arguments as shared
from flowrl.cluster.rendezvous import HOSTS_WITHIN_S, Rendezvous
from flowrl.graph.launch import load_launch
from flowrl.graph.model import Limits
from flowrl.runs.display import watcher_for
from flowrl.runs.metrics_table import MetricsTable
from flowrl.runs.watcher import Watcher, Watchers


def add_limits(parser: ArgumentParser, time: bool = True) -> None:
    """Add the limits of a run, with or without that of its time."""
    parser.add_argument(
        "--steps",
        type=shared.count,
        metavar="N",
        help="cut at the end of the round that reaches N env steps",
    )
    parser.add_argument(
        "--train-iters", type=shared.count, metavar="N", help="cut after the N-th train iteration"
    )
    if time:
        parser.add_argument(
            "--time",
            metavar="10m",
            help="cut after this time of training (30s, 10m, 2h); it begins when all nodes are made",
        )


def add_out(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", help="the run's folder (default: runs/<graph>-seed<seed>-<time>)"
    )


def add_hosts(parser: ArgumentParser) -> None:
    """Add what says where hosts join."""
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="where hosts join, as tcp://10.0.0.1:5555; for placements that name hosts (docs/hosts.md)",
    )
    parser.add_argument(
        "--launch",
        metavar="FILE",
        help="start the hosts as this YAML file says, instead of by hand; or a launcher as YAML, such as local or "
        "'{type: local, hosts: 3}' (docs/clusters.md)",
    )
    shared.add_key(parser)
    parser.add_argument(
        "--hosts",
        type=shared.count,
        metavar="N",
        help="how many hosts to wait for (default: all that are launched, or 1)",
    )
    parser.add_argument(
        "--hosts-within",
        metavar="TIME",
        help="how long to wait for them (default: 60s)",
    )


def add_recovery(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-recover",
        action="store_true",
        help="fail when a process or a host dies, instead of going on from the newest snapshot",
    )


def add_display(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print only one line of JSON, at the end"
    )
    parser.add_argument(
        "--table", metavar="10s", help="print the newest metrics of all nodes so often, as a table"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def add_execution(parser: ArgumentParser) -> None:
    """Add how a run is executed and shown: its hosts, its recovery and what is printed."""
    add_hosts(parser)
    add_recovery(parser)
    add_display(parser)


def limits_of(arguments: Namespace, of_graph: Limits) -> Limits:
    """Return the limits of a graph, except where the arguments give others."""
    time = getattr(arguments, "time", None)
    time_s = None if time is None else shared.seconds_of("--time", time)
    given = Limits(steps=arguments.steps, train_iters=arguments.train_iters, time_s=time_s)
    return of_graph.overridden_by(given)


def rendezvous_of(arguments: Namespace) -> Rendezvous | None:
    """Return where hosts join, if there are hosts."""
    launch = () if arguments.launch is None else load_launch(arguments.launch)
    given = (arguments.listen, arguments.key, arguments.hosts, arguments.hosts_within)
    if not launch and all(value is None for value in given):
        return None
    within_s = HOSTS_WITHIN_S
    if arguments.hosts_within is not None:
        within_s = shared.seconds_of("--hosts-within", arguments.hosts_within)
    key = Path(arguments.key) if arguments.key is not None else None
    return Rendezvous(arguments.listen, key, arguments.hosts, within_s, launch)


def watcher_of(arguments: Namespace) -> Watcher:
    display = watcher_for(quiet=arguments.quiet or arguments.json)
    if arguments.table is None:
        return display
    return Watchers(display, MetricsTable(shared.seconds_of("--table", arguments.table)))
