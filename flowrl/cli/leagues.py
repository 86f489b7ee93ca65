"""The verbs about players that meet each other: tournament."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from flowrl.cli import arguments as shared
from flowrl.cli.streams import stdout_to_stderr


def tournament_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two or more runs, each named as for `flowrl eval`; RUN:CHECKPOINT names a checkpoint, or a player of its "
        "league such as main@3",
    )
    parser.add_argument(
        "--games",
        type=shared.count,
        default=50,
        metavar="N",
        help="how many games of each pair from each side (default: 50)",
    )
    parser.add_argument(
        "--seed",
        type=shared.seed,
        default=0,
        metavar="N",
        help="the seed of the games (default: 0)",
    )
    parser.add_argument(
        "--explore",
        action="store_true",
        help="let policies act as in collectors, which draw their actions (default: greedily)",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON, with every game")


def tournament(arguments: Namespace) -> int:
    from flowrl.runs.tournament import play_tournament

    with stdout_to_stderr():
        played = play_tournament(arguments.runs, arguments.games, arguments.seed, arguments.explore)
    print(json.dumps(played.as_dict()) if arguments.json else played)
    return 0
