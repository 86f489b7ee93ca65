"""The functions of the Python interface about runs: continue, fork and save one, and act with what it has learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from flowrl.api.arguments import (
    joined_watcher,
    override_texts,
    parse_count,
    parse_limits,
    parse_seed,
)
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.runs.fork import forked_run
from flowrl.runs.queries import save_snapshot
from flowrl.runs.result import RunResult
from flowrl.runs.resume import resumed_run
from flowrl.runs.run_names import existing_run_path, find_live_run
from flowrl.runs.trained_policy import TrainedPolicy, load_policy
from flowrl.runs.watcher import Watcher


def resume(
    run: str | Path,
    *,
    placement: str = "serial",
    rendezvous: Rendezvous | None = None,
    set: Mapping[str, Any] | None = None,
    steps: float | None = None,
    train_iters: float | None = None,
    time: str | float | None = None,
    quiet: bool = False,
    watcher: Watcher | None = None,
    recover: bool = True,
) -> RunResult:
    """Continue a run in its folder from its newest snapshot, as `flowrl resume` does.

    `run` is a run's folder or its name in `runs`, or `last` for the newest run. The placement may be another one. The
    limits are those of the run, except where others are given. `set` changes values that leave its bits as they are.
    """
    begun_s = perf_counter()
    continued, _, _ = resumed_run(
        existing_run_path(str(run)),
        settings=override_texts(set),
        placement=placement,
        limits=parse_limits(steps, train_iters, time),
        rendezvous=rendezvous,
        watcher=joined_watcher(quiet, watcher),
        recovers=recover,
        begun_s=begun_s,
    )
    return continued.run()


def fork(
    run: str | Path,
    *,
    at: int | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    same_random: bool = False,
    placement: str = "serial",
    rendezvous: Rendezvous | None = None,
    steps: float | None = None,
    train_iters: float | None = None,
    time: str | float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    watcher: Watcher | None = None,
    recover: bool = True,
) -> RunResult:
    """Run from a snapshot of another run, in a folder of its own and with changed settings, as `flowrl fork` does.

    `at` is the number of rounds after which the snapshot was saved; by default it is the newest. The random numbers are
    other ones than those of `run`, and follow from `seed`; without one, from the snapshot and the settings.
    """
    begun_s = perf_counter()
    forked, _, _ = forked_run(
        existing_run_path(str(run)),
        after_rounds=parse_count("at", at),
        settings=override_texts(set),
        seed=parse_seed(seed),
        same_random=same_random,
        limits=parse_limits(steps, train_iters, time),
        out=out,
        placement=placement,
        rendezvous=rendezvous,
        watcher=joined_watcher(quiet, watcher),
        recovers=recover,
        begun_s=begun_s,
    )
    return forked.run()


def snapshot(run: str | Path) -> int:
    """Let an active run save a snapshot, as `flowrl snapshot` does, and wait until it is written.

    Returns the completed rounds of the run at the snapshot, those of the warm-up included.
    """
    return save_snapshot(find_live_run(str(run)))


def policy(
    run: str | Path, checkpoint: str | None = None, learner: str | None = None
) -> TrainedPolicy:
    """Load the trained policy of a run, with its model and weights, to act outside of the run: `policy(run).act(obs)`.

    `run` is a run's folder or its name in `runs`, `last` for the newest run, or a checkpoint's file. `checkpoint` is
    `best` or `last`; by default the best, if there is one. `learner` is the node whose policy it is, if the run has
    several.
    """
    return load_policy(run, checkpoint, learner)
