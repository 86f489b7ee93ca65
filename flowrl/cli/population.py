"""The verb `population`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from flowrl.cli import arguments as shared
from flowrl.cli.streams import stdout_to_stderr


def population_arguments(parser: ArgumentParser) -> None:
    shared.add_graph(parser)
    parser.add_argument(
        "--perturb",
        action="append",
        default=[],
        metavar="KEY[=HOW]",
        help="a setting that is changed: multiplied or divided by a factor (policy.lr=1.5; default: 1.2), or to one of "
        "several values (buffer.batch_size=32,64); repeatable",
    )
    parser.add_argument(
        "--steps",
        type=shared.count,
        required=True,
        metavar="N",
        help="the env steps of each generation",
    )
    parser.add_argument(
        "--members",
        type=shared.count,
        default=4,
        metavar="N",
        help="how many runs train side by side (default: 4)",
    )
    parser.add_argument(
        "--generations",
        type=shared.count,
        default=5,
        metavar="N",
        help="how many generations there are (default: 5)",
    )
    parser.add_argument(
        "--seed", type=shared.seed, metavar="N", help="the seed (default: the graph's)"
    )
    shared.add_placement(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the folder of the runs; the same command continues them (default: runs/<graph>-population)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one line of JSON at the end: every member"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def population(arguments: Namespace) -> int:
    from flowrl.runs.perturbation import read_perturbation
    from flowrl.runs.population import Member, Population, members_table

    members: list[Member] = []

    def note(member: Member) -> None:
        members.append(member)
        if not arguments.quiet and not arguments.json:
            print(f"{member.run}: score {member.score:g}, {member.origin}", flush=True)

    out = Path(arguments.out or f"runs/{Path(arguments.graph).stem}-population")
    with stdout_to_stderr() if arguments.json else nullcontext():
        trained = Population(
            arguments.graph,
            [read_perturbation(text) for text in arguments.perturb],
            out=out,
            members=arguments.members,
            generations=arguments.generations,
            steps=arguments.steps,
            settings=shared.settings(arguments),
            seed=arguments.seed,
            placement=arguments.placement or "serial",
            on_member=note,
        ).train()
    if arguments.json:
        every = [asdict(member) for member in members]
        print(json.dumps({"out": str(out), "best": trained[0].run, "members": every}))
    elif not arguments.quiet:
        print(f"\n{members_table(trained)}\n\nthe best: {out / trained[0].run}")
    return 0
