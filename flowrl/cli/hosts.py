"""The verbs `host`, which offers this machine to a run, and `hosts`, which shows those of a run."""

from __future__ import annotations

import json
import socket
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.cli.arguments import add_key, add_run, seconds_of
from flowrl.core.errors import UsageError
from flowrl.core.text_table import table_lines
from flowrl.core.wording import size_text
from flowrl.graph.host_offers import HostOffer

if TYPE_CHECKING:
    from flowrl.cluster.host import HostSettings
    from flowrl.runtime.status import HostStatus, LauncherStatus, RunStatus

WITHIN_S = 600.0  # how long a host waits for a run by default
SILENT_S = 3.0  # after which a host that sends a message each second is called silent


def host_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--join",
        metavar="RUN",
        help="where the run listens: tcp://head:5555; or its join file, RUN/join.json; or - to read that file from "
        "standard input (default: the text of that file in $FLOWRL_JOIN)",
    )
    add_key(parser)
    parser.add_argument("--new-key", metavar="FILE", help="only create a key file")
    parser.add_argument(
        "--name",
        help="the name of this host in placements, where the run puts a number for a * at the end "
        "(default: the machine's name)",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        dest="labels",
        help="another name in placements, which several hosts may share (repeatable)",
    )
    parser.add_argument(
        "--address",
        help="where other hosts reach this one (default: the address from which it reaches the run)",
    )
    parser.add_argument(
        "--within",
        metavar="TIME",
        help="how long to wait for the run (default: 10m)",
    )
    parser.add_argument(
        "--rejoin",
        default=None,
        metavar="TIME",
        help="how long to try to join the run again when it is lost (default: not at all)",
    )
    parser.add_argument(
        "--stay", action="store_true", help="after each run wait for the next one, without end"
    )


def host(arguments: Namespace) -> int:
    if arguments.new_key is not None:
        return _new_key(Path(arguments.new_key), arguments.join)
    from flowrl.cluster.host import print_to_stderr, serve_runs
    from flowrl.cluster.join_file import RunHasEnded

    try:
        serve_runs(_host_settings(arguments))
    except RunHasEnded as ended:  # before this host could join: nothing is left to do
        print_to_stderr(f"flowrl: {ended}")
    return 0


def _host_settings(arguments: Namespace) -> HostSettings:
    from flowrl.cluster.host import HostSettings
    from flowrl.cluster.join_file import join_source

    for option in ("within", "rejoin"):
        if arguments.stay and getattr(arguments, option) is not None:
            raise UsageError(
                f"host: --stay waits for runs without a time limit, and --{option} sets one; leave out one of them"
            )
    name = arguments.name if arguments.name is not None else socket.gethostname()
    return HostSettings(
        join_source(arguments.join, Path(arguments.key) if arguments.key is not None else None),
        HostOffer(name, tuple(arguments.labels)),
        arguments.address,
        WITHIN_S if arguments.within is None else seconds_of("--within", arguments.within),
        arguments.stay,
        0.0 if arguments.rejoin is None else seconds_of("--rejoin", arguments.rejoin),
    )


def hosts_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one line of JSON: hosts and launchers")


def hosts(arguments: Namespace) -> int:
    from flowrl.runs.queries import query_status
    from flowrl.runs.run_names import find_live_run
    from flowrl.runtime.status import RUN_STATUS

    status = query_status(find_live_run(arguments.run))
    if arguments.json:
        data = RUN_STATUS.encode(status)
        print(json.dumps({key: data[key] for key in ("hosts", "launchers")}))
    else:
        print(hosts_text(status))
    return 0


def hosts_text(status: RunStatus) -> str:
    """The launchers and the hosts of a run, as a table."""
    lines = [_launcher_line(launcher) for launcher in status.launchers]
    if not status.hosts:
        return "\n".join([*lines, "no host has joined the run"])
    head = ["host", "labels", "address", "cores", "memory", "GPUs", "sites", "state", "CPU"]
    rows = [
        [
            *(h.name, " ".join(h.labels), h.address),
            *(str(h.cores), size_text(h.memory_bytes), str(h.gpus)),
            *(" ".join(h.sites), _state(h), h.cpu),
        ]
        for h in status.hosts
    ]
    return "\n".join([*lines, *table_lines([head, *rows], "lllrrrlll")])


def _launcher_line(launcher: LauncherStatus) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in launcher.facts.items())
    state = launcher.failure or launcher.waiting or "its hosts run"
    return f"launch {launcher.label}: {state}{facts and f' ({facts})'}"


def _state(host: HostStatus) -> str:
    if host.why_lost:
        return f"lost: {host.why_lost}"
    if host.silent_s > SILENT_S:
        return f"silent for {host.silent_s:.0f} s"
    return "at work" if host.sites else "waits"


def _new_key(path: Path, join: str | None) -> int:
    from flowrl.channels.keys import write_key

    if join is not None:
        raise UsageError("host: --new-key makes a file and joins nothing; leave out --join")
    write_key(path)
    print(f"{path}: a new key; copy it to every machine of the run (scp -p)")
    return 0
