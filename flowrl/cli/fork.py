"""The verb `fork`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from flowrl.cli import arguments as shared
from flowrl.cli.executed_run import execute, print_beginning
from flowrl.cli.run_arguments import (
    add_execution,
    add_limits,
    add_out,
    limits_of,
    rendezvous_of,
    watcher_of,
)
from flowrl.graph.model import Limits
from flowrl.runs.run_names import existing_run_path


def fork_arguments(parser: ArgumentParser) -> None:
    shared.add_run(parser)
    parser.add_argument(
        "--at",
        type=shared.count,
        metavar="N",
        help="begin from the snapshot after N rounds, those of the warm-up included (default: the newest)",
    )
    shared.add_set(parser)
    shared.add_placement(parser)
    parser.add_argument(
        "--seed",
        type=shared.seed,
        metavar="N",
        help="the seed of the new random numbers (default: it follows from the snapshot and the settings)",
    )
    parser.add_argument(
        "--same-random",
        action="store_true",
        help="continue the random numbers of the run, as `flowrl resume` does",
    )
    add_limits(parser)
    add_out(parser)
    add_execution(parser)


def fork(arguments: Namespace) -> int:
    from flowrl.runs.fork import forked_run

    run, stored, difference = forked_run(
        existing_run_path(arguments.run),
        after_rounds=arguments.at,
        settings=shared.settings(arguments),
        seed=arguments.seed,
        same_random=arguments.same_random,
        limits=limits_of(arguments, Limits()),
        out=arguments.out,
        placement=arguments.placement or "serial",
        rendezvous=rendezvous_of(arguments),
        watcher=watcher_of(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    how = "random numbers of its parent" if arguments.same_random else f"seed {run.seed}"
    print_beginning(arguments, f"a fork, with the {how}, begins", stored, difference)
    return execute(arguments, run)
