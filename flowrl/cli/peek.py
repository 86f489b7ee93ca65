"""The verb peek, which shows what passes an edge of an active run."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser, Namespace

from flowrl.cli.arguments import add_run, seconds_of
from flowrl.core.errors import FlowError
from flowrl.runs.peek import (
    TOKEN_SUMMARY,
    find_edge,
    output_of,
    peek_text,
    visible_edges,
    wait_for_summary,
)
from flowrl.runs.queries import NoAnswerError, query_status
from flowrl.runs.registry import is_active
from flowrl.runs.run_names import find_live_run
from flowrl.runs.why import verdict

UNLIMITED_WIDTH = 1 << 20
EXPLAIN_AFTER_S = 3.0  # of waiting for a token, the reason is printed


def peek_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "edge",
        nargs="?",
        metavar="EDGE",
        help="its name, as `top` shows it; one of its ports (buffer.data), or its nodes; without it, the edges are "
        "listed",
    )
    parser.add_argument("--wait", default="60s", metavar="TIME", help="for a token (default: 60s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def peek(arguments: Namespace) -> int:
    wait_s = seconds_of("--wait", arguments.wait)
    entry = find_live_run(arguments.run)
    status = query_status(entry)
    if arguments.edge is None:
        names = [edge.edge for edge in visible_edges(status)]
        print(json.dumps(names) if arguments.json else "\n".join(names))
        return 0
    edge, explained = find_edge(status, arguments.edge), False

    def go_on(waited_s: float) -> bool:
        nonlocal explained
        if waited_s > EXPLAIN_AFTER_S and not explained:
            explained = True
            why = verdict(query_status(entry))
            print(f"waiting for the next firing of {edge.producer}: {why}", file=sys.stderr)
        return waited_s < wait_s

    try:
        found = wait_for_summary(entry, edge, go_on)
    except NoAnswerError:
        if is_active(entry):
            raise
        raise FlowError(
            f"{entry.run_dir}: the run ended before {output_of(edge)} gave anything"
        ) from None
    if found is None:
        raise FlowError(
            f"{edge.edge}: {edge.producer} gave nothing in {wait_s:g} s; see `flowrl why`"
        )
    if arguments.json:
        print(json.dumps({"edge": edge.edge, **TOKEN_SUMMARY.encode(found)}))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED_WIDTH
        print(peek_text(edge, found, width))
    return 0
