"""The verbs about players that meet each other: league, tournament."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, replace
from pathlib import Path

from flowrl.cli import arguments as shared
from flowrl.cli.streams import stdout_to_stderr
from flowrl.runs.run_names import existing_run_path

NEWEST = 0  # a row's number counts from 1


def league_arguments(parser: ArgumentParser) -> None:
    shared.add_run(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to draw who won against whom, as .png or .svg (default: league/payoff.png in the run's folder)",
    )
    parser.add_argument(
        "--dot", metavar="FILE.dot", help="also write who began as a copy of whom, as a DOT graph"
    )
    parser.add_argument(
        "--replay",
        type=shared.count,
        nargs="?",
        const=NEWEST,
        metavar="ROW",
        help="play the match of a row of league/payoff.jsonl again, and compare its result (default: the newest row); "
        "nothing else is shown",
    )
    parser.add_argument(
        "--all", action="store_true", help="list every player (default: the best 20)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one line of JSON; nothing is drawn without -o"
    )


def league(arguments: Namespace) -> int:
    from flowrl.runs.figure_file import check_ending
    from flowrl.runs.league_files import FOLDER, read_league
    from flowrl.runs.league_report import LeagueReport
    from flowrl.runs.payoff_picture import draw_payoff

    run = existing_run_path(arguments.run)
    if arguments.replay is not None:
        return _replay(arguments, run)
    report = LeagueReport(read_league(run))
    picture = Path(arguments.output) if arguments.output else run / FOLDER / "payoff.png"
    check_ending("league", picture)
    if arguments.dot:
        Path(arguments.dot).write_text(report.ancestry_dot(), encoding="utf-8")
    is_drawn = bool(arguments.output or not arguments.json) and bool(report.elos)
    if is_drawn:
        draw_payoff(
            report.counts,
            [name for name in report.ranking if name in report.elos],
            run.absolute().name,
            picture,
        )
    if arguments.json:
        print(json.dumps(report.as_dict()))
        return 0
    print(report.text(arguments.all))
    for path in (picture if is_drawn else None, arguments.dot):
        if path:
            print(path)
    return 0


def _replay(arguments: Namespace, run: Path) -> int:
    """Play the match of a row again. The status is 1 if its result is another one."""
    from flowrl.runs.league_files import read_league
    from flowrl.runs.league_report import result_text, row_of
    from flowrl.runs.match_replay import replay_rows

    files = read_league(run)
    number = len(files.rows) if arguments.replay == NEWEST else arguments.replay
    recorded = row_of(files, number)
    with stdout_to_stderr():
        [found] = replay_rows(run, [asdict(recorded)])
    replayed = replace(recorded, **{**found, "returns": tuple(found["returns"])})
    is_equal = replayed == recorded
    if arguments.json:
        words = {"row": number, "equal": is_equal, "recorded": asdict(recorded), "replayed": found}
        print(json.dumps(words))
        return 0 if is_equal else 1
    print(f"row {number}: {recorded}")
    print(f"  recorded: {result_text(recorded)}")
    print(f"  replayed: {result_text(replayed)}")
    print("the result is equal" if is_equal else "the result is another one")
    return 0 if is_equal else 1


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
