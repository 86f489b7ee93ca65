"""The verb `chaos`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import replace

from flowrl.cli import arguments as shared
from flowrl.cli.run_arguments import add_hosts, add_limits, limits_of, rendezvous_of
from flowrl.cli.streams import stdout_to_stderr
from flowrl.core.errors import UsageError
from flowrl.runs.display import watcher_for
from flowrl.runs.watcher import Watcher


def chaos_arguments(parser: ArgumentParser) -> None:
    shared.add_graph(parser)
    shared.add_placement(parser, "processes")
    parser.add_argument(
        "--seed", type=shared.seed, metavar="N", help="the seed, instead of the graph's"
    )
    for option, target, does in (
        ("--kill", "NODE@TIME", "kill the process of a node so long after the first firing"),
        ("--stop", "NODE@TIME,FOR", "stop the process of a node for a while, as Ctrl-Z does"),
        ("--disconnect", "HOST@TIME,FOR", "let nothing be heard of a host for a while"),
    ):
        parser.add_argument(
            option, action="append", default=[], metavar=target, help=f"{does} (repeatable)"
        )
    add_limits(parser, time=False)
    add_hosts(parser)
    parser.add_argument(
        "--json", action="store_true", help="print only one line of JSON, at the end"
    )


def chaos(arguments: Namespace) -> int:
    """Run a graph undisturbed and disturbed. The exit status is 0 if both runs are equal, and 1 if not."""
    from flowrl.runs.chaos import read_fault, run_with_faults

    faults = [read_fault("kill", text) for text in arguments.kill]
    faults += [read_fault("stop", text) for text in arguments.stop]
    faults += [read_fault("disconnect", text) for text in arguments.disconnect]
    if not faults:
        raise UsageError("chaos: nothing is to happen; add a fault, such as --kill collector@5s")
    checked = shared.read_graph(arguments).require_sound()
    if arguments.seed is not None:
        checked = replace(checked, graph=replace(checked.graph, seed=arguments.seed))
    with stdout_to_stderr() if arguments.json else nullcontext():
        found = run_with_faults(
            checked,
            faults,
            arguments.placement or "processes",
            limits_of(arguments, checked.graph.limits),
            rendezvous=rendezvous_of(arguments),
            watcher=Watcher() if arguments.json else watcher_for(quiet=False),
        )
    print(json.dumps(found.as_dict()) if arguments.json else f"\n{found}", flush=True)
    return 0 if found.is_exact else 1
