"""The command line as a parser: each verb, its words, and where its function is.

Nothing heavy is imported here: `flowrl --help` must answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from flowrl.version import VERSION

ABOUT = (
    "Train reinforcement-learning agents as dataflow graphs in YAML. Placement is not semantics."
)

Parser = argparse.ArgumentParser
Verb = Callable[[str, str, str], Parser]  # makes one: its name, its function, what it is for


def make_parser() -> Parser:
    """The whole command line."""
    parser = Parser("flowrl", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"flowrl {VERSION}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")

    def verb(name: str, target: str, about: str) -> Parser:
        made: Parser = verbs.add_parser(name, help=about, description=about)
        made.set_defaults(verb=target)
        return made

    _run(verb("run", "run:run", "run a graph"))
    _graphs(verb)
    _ended(verb)
    _live(verb)
    _replay(verb("replay", "runs:replay", "run a crashed env again, from its crash file"))
    _host(verb("host", "hosts:host", "offer this machine to a run"))
    new = verb("new", "project:new", "a starting project in a new folder")
    new.add_argument("dir", metavar="DIR")
    verb("doctor", "project:doctor", "what is wrong with this installation")
    return parser


def _graphs(verb: Verb) -> None:
    """The verbs that look at graphs, and at what they are made of."""
    check = verb("check", "graphs:check", "prove a graph sound, or list every problem")
    _graph(check)
    check.add_argument("--json", action="store_true", help="one line of JSON")
    without = "make no envs: leave out what only they can show (columns, env steps of warm-ups)"
    check.add_argument("--no-envs", action="store_true", help=without)
    draw = verb("draw", "graphs:draw", "draw a graph: DOT, SVG, PNG, Mermaid or HTML")
    _graph(draw)
    _placement(draw)
    endings = "by its ending: .dot .svg .png .md .html (default: DOT here)"
    draw.add_argument("-o", "--output", metavar="FILE", help=endings)
    about = "the resolved graph: every default, and where each value came from"
    _graph(verb("expand", "graphs:expand", about))
    about = "the difference of two graphs; of two runs also the first token that differs"
    diff = verb("diff", "graphs:diff", about)
    diff.add_argument("a", metavar="A", help="a graph, or a run's folder")
    diff.add_argument("b", metavar="B", help="another")
    about = "the catalogue of types; of one: its ports, parameters and defaults"
    nodes = verb("nodes", "graphs:nodes", about)
    nodes.add_argument("name", nargs="?", metavar="NAME", help="a type")
    verb("graphs", "graphs:graphs", "the bundled graphs")
    verb("schema", "graphs:schema", "JSON schema of the graph format, for editors")


def _ended(verb: Verb) -> None:
    """The verbs that work with what runs have left."""
    _eval(verb("eval", "runs:evaluate", "judge the best checkpoint of a run"))
    plot = verb("plot", "runs:plot", "the learning curves of runs, as a picture")
    plot.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    where = "where to (default: plot.png in the first run's folder)"
    plot.add_argument("-o", "--output", metavar="FILE.png", help=where)


def _live(verb: Verb) -> None:
    """The verbs that look at runs while they go on."""
    ps = verb("ps", "live:ps", "the runs that go on: of this user, on this machine")
    ps.add_argument("--json", action="store_true", help="one line of JSON: a list")
    top = verb("top", "live:top", "where the time of a run goes, and what lies on its edges")
    _a_run(top)
    top.add_argument("--once", action="store_true", help="print it once (q ends it otherwise)")
    top.add_argument("--json", action="store_true", help="one line of JSON, once")
    why = verb("why", "live:why", "who waits for whom in a run, on which edge, since when")
    _a_run(why)
    why.add_argument("--json", action="store_true", help="one line of JSON")
    stop = verb("stop", "live:stop", "end a run at its next cut, as Ctrl-C does")
    _a_run(stop)
    stop.add_argument("--now", action="store_true", help="at once, as a second Ctrl-C does")
    logs = verb("logs", "logs:logs", "what the nodes of a run have told; of ended runs too")
    _a_run(logs)
    logs.add_argument("node", nargs="?", metavar="NODE", help="only this node (and its replicas)")
    logs.add_argument("-f", "--follow", action="store_true", help="until the run ends")


def _replay(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="crash-*.json of a failed run's folder")
    parser.add_argument("--pdb", action="store_true", help="stop in the debugger where it fails")


def _a_run(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run's folder, its name or how that begins, a pid, or 'last'"
    )


def _graph(parser: Parser) -> None:
    parser.add_argument(
        "graph", metavar="GRAPH", help="a graph file, or the name of a bundled graph"
    )
    _sets(parser)


def _sets(parser: Parser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help="set one value: node.parameter, node.input.option, section.key (repeatable)",
    )


def _placement(parser: Parser) -> None:
    parser.add_argument(
        "--placement",
        metavar="P",
        help="a placement's name or file, or node=place,… (default: serial)",
    )


def _run(parser: Parser) -> None:
    _graph(parser)
    _placement(parser)
    parser.add_argument("--seed", type=_seed, metavar="N", help="instead of the graph's")
    parser.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help="cut at the end of the round that reaches N env steps",
    )
    parser.add_argument(
        "--train-iters", type=_count, metavar="N", help="cut after the N-th train iteration"
    )
    parser.add_argument(
        "--time", metavar="10m", help="cut when so much time has passed (30s, 10m, 2h)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the run's folder (default: runs/<graph>-<time>)"
    )
    _hosts(parser)
    parser.add_argument(
        "--no-recover", action="store_true", help="end the run when a part of it dies"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="end with one line of JSON, and print nothing else there",
    )
    parser.add_argument(
        "--hash-tokens",
        action="store_true",
        help="note a hash of every token in the run's folder, for `flowrl diff RUN RUN`",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _hosts(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="where hosts join, as tcp://10.0.0.1:5555; for placements that name hosts (docs/hosts.md)",
    )
    _key(parser)
    parser.add_argument(
        "--hosts", type=_count, default=1, metavar="N", help="how many to wait for (default: 1)"
    )
    parser.add_argument(
        "--hosts-within", default="60s", metavar="TIME", help="how long to wait (default: 60s)"
    )


def _key(parser: Parser) -> None:
    parser.add_argument(
        "--key", metavar="FILE", help="the key of the run and its hosts; not needed on the loopback"
    )


def _host(parser: Parser) -> None:
    parser.add_argument("--join", metavar="ADDRESS", help="where the run listens: tcp://head:5555")
    _key(parser)
    parser.add_argument("--new-key", metavar="FILE", help="make a key file, and do nothing else")
    parser.add_argument("--name", help="what placements call this host (default: the machine's)")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        dest="labels",
        help="what else they may call it, and others (repeatable)",
    )
    parser.add_argument(
        "--address", help="where other hosts reach this one (default: as it reaches the run)"
    )
    parser.add_argument(
        "--within",
        default="10m",
        metavar="TIME",
        help="how long to wait for the run (default: 10m)",
    )
    parser.add_argument(
        "--stay", action="store_true", help="wait for the next run after each, without end"
    )


def _eval(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--episodes", type=_count, metavar="N", help="instead of the graph's number"
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of the episodes (default: 0)"
    )
    parser.add_argument(
        "--video",
        metavar="FILE|DIR",
        help="film the worst, the median and the best episode: into a file (.mp4, .gif) one after "
        "another, into a folder one file each",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _count(text: str) -> int:
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2^63 - 1")
    return int(text)
