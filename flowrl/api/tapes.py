"""The functions of the Python interface about tapes: record what passes edges, and run nodes against it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

from flowrl.api.arguments import joined_watcher, parse_count, parse_limits, parse_words
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.runs.recording import Recording, find_inputs
from flowrl.runs.repeated_run import repeated_run
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.run_names import existing_run_path
from flowrl.runs.tape_file import Tape
from flowrl.runs.tape_replay import ReplayResult, fire_again, replay_part
from flowrl.runs.watcher import Watcher


def record(
    run: str | Path,
    edges: str | Iterable[str],
    *,
    at: int | None = None,
    tape: str | Path | None = None,
    placement: str = "serial",
    rendezvous: Rendezvous | None = None,
    steps: float | None = None,
    train_iters: float | None = None,
    time: str | float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    watcher: Watcher | None = None,
) -> RunResult:
    """Repeat a run that has ended in a new folder, and record what passes some edges, as `flowrl record RUN` does.

    It begins with the snapshot after `at` rounds (0: from the beginning); by default with the newest snapshot before
    its end. `edges` and `tape` are those of `FlowGraph.record`, and `replay` runs nodes against the tape.
    """
    begun_s = perf_counter()
    rounds = at if at == 0 else parse_count("at", at)
    repeated = repeated_run(
        existing_run_path(str(run)),
        rounds,
        parse_limits(steps, train_iters, time),
        out=out,
        placement=placement,
        rendezvous=rendezvous,
        watcher=joined_watcher(quiet, watcher),
        begun_s=begun_s,
    )
    return record_run(repeated, edges, tape)


def record_run(run: Run, edges: str | Iterable[str], tape: str | Path | None) -> RunResult:
    """Run, and record what passes these edges."""
    path = Path(tape) if tape is not None else None
    run.recording = Recording(find_inputs(run.graph, parse_words("edges", edges)), path)
    return run.run()


def replay(tape: str | Path, *nodes: str) -> ReplayResult:
    """Run nodes against a tape in this process, as `flowrl replay TAPE NODE` does, and compare what they give.

    Several nodes are replayed together, as a part of their graph. `.is_exact` of the result says whether all recorded
    outputs were equal, `.difference` names the first that was not, and `.equal` counts the others by edge. An error of
    a node is raised. The tape of a node that failed needs no names: its last firing is fired again.
    """
    found = Tape(Path(tape))
    if found.facts.firing is None:
        if not nodes:
            raise UsageError(
                f"{tape}: name a node that is run against it, such as replay(tape, 'learner')"
            )
        return replay_part(found, nodes)
    if nodes:
        raise UsageError(f"{tape}: is of one failed firing, so a node has no meaning; leave it out")
    again = fire_again(found)
    if again.error is not None:
        raise again.error
    return ReplayResult((), {}, "")
