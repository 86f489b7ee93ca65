"""The verb `host`."""

from __future__ import annotations

import socket
from argparse import ArgumentParser, Namespace
from pathlib import Path

from flowrl.cli.arguments import add_key, seconds_of
from flowrl.core.errors import UsageError
from flowrl.graph.placement import HostOffer


def host_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--join", metavar="ADDRESS", help="where the run listens: tcp://head:5555")
    add_key(parser)
    parser.add_argument("--new-key", metavar="FILE", help="only create a key file")
    parser.add_argument(
        "--name", help="the name of this host in placements (default: the machine's name)"
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
        default="10m",
        metavar="TIME",
        help="how long to wait for the run (default: 10m)",
    )
    parser.add_argument(
        "--stay", action="store_true", help="after each run wait for the next one, without end"
    )


def host(arguments: Namespace) -> int:
    if arguments.new_key is not None:
        return _new_key(Path(arguments.new_key), arguments.join)
    if arguments.join is None:
        raise UsageError(
            "host: give --join tcp://ADDRESS:PORT, where the run listens; or --new-key FILE"
        )
    from flowrl.cluster.host import HostSettings, serve_runs

    name = arguments.name if arguments.name is not None else socket.gethostname()
    settings = HostSettings(
        arguments.join,
        HostOffer(name, tuple(arguments.labels)),
        Path(arguments.key) if arguments.key is not None else None,
        arguments.address,
        seconds_of("--within", arguments.within),
        arguments.stay,
    )
    serve_runs(settings)
    return 0


def _new_key(path: Path, join: str | None) -> int:
    from flowrl.channels.keys import write_key

    if join is not None:
        raise UsageError("host: --new-key makes a file and joins nothing; leave out --join")
    write_key(path)
    print(f"{path}: a new key; copy it to every machine of the run (scp -p)")
    return 0
