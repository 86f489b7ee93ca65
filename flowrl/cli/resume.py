"""The verb `resume`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from flowrl.cli import arguments as shared
from flowrl.cli.executed_run import execute, print_beginning
from flowrl.cli.run_arguments import (
    add_execution,
    add_limits,
    limits_of,
    rendezvous_of,
    watcher_of,
)
from flowrl.graph.model import Limits
from flowrl.runs.run_names import existing_run_path


def resume_arguments(parser: ArgumentParser) -> None:
    shared.add_run(parser)
    shared.add_set(parser)
    shared.add_placement(parser)
    add_limits(parser)
    add_execution(parser)


def resume(arguments: Namespace) -> int:
    from flowrl.runs.resume import resumed_run

    run, stored, difference = resumed_run(
        existing_run_path(arguments.run),
        settings=shared.settings(arguments),
        placement=arguments.placement or "serial",
        limits=limits_of(arguments, Limits()),
        rendezvous=rendezvous_of(arguments),
        watcher=watcher_of(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    print_beginning(arguments, "continues", stored, difference)
    return execute(arguments, run)
