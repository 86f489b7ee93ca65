"""How a run ended, as data and as text for a terminal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowrl.core.batch import Array
from flowrl.core.wording import count_text, size_text
from flowrl.runtime.status import NodeStats

if TYPE_CHECKING:
    from flowrl.runs.trained_policy import TrainedPolicy

SHOWN_SHUTDOWN_S = 0.1
Status = Literal["solved", "finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The summary of a run. Its fields are the keys of `summary.json` and of `flowrl run --json`."""

    graph: str
    run_dir: str
    placement: str
    status: Status
    deterministic: bool
    env_steps: int
    train_iters: int
    episodes: int
    eval_return: float | None
    best_return: float | None
    wall_s: float
    env_steps_per_s: float
    bottleneck: str
    digest: str
    seed: int = 0
    why: str = ""
    repeat: str = ""  # the command that repeats the run, if its cut was not known ahead
    resumed_after: int | None = None  # the rounds after which a run that was continued began
    recoveries: int = 0  # how often the run lost a site and went on by itself
    parent: dict[str, Any] | None = None  # the run from which it was forked, and its snapshot
    snapshot_rounds: int | None = None  # the completed rounds of the newest snapshot
    state_digest: str | None = None  # of everything that the snapshot holds
    resume: str = ""  # the command that continues the run from there
    setup_s: float = 0.0  # of `wall_s`: before the first firing
    training_s: float = 0.0  # from there to the cut
    shutdown_s: float = 0.0  # after it
    # By edge with `compress` or `dtype` between machines: the bytes of its `tokens`, and those that were `sent`.
    network_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    happened: tuple[str, ...] = ()  # irregularities: restarts, dropped tokens and the like
    warnings: tuple[str, ...] = ()  # of machines that differ, and of what was refused

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def metrics(self) -> dict[str, dict[str, Array]]:
        """What the nodes measured: columns by node and name, such as `metrics()["learner"]["loss"]`.

        A node's columns have a value for each of its reports; `env_steps` and `train_iters` say when it was made.
        """
        from flowrl.runs.metrics import metric_columns

        return metric_columns(Path(self.run_dir))

    def metrics_data_frame(self) -> Any:
        """What the nodes measured as a DataFrame of pandas, if it is installed: a row for each report."""
        from flowrl.runs.metrics import metrics_data_frame

        return metrics_data_frame(Path(self.run_dir))

    def policy(self, checkpoint: str | None = None, learner: str | None = None) -> TrainedPolicy:
        """The trained policy of this run. `checkpoint` is `best` or `last`; by default the best, if there is one.

        `learner` is the node whose policy it is, if the run has several.
        """
        from flowrl.runs.trained_policy import load_policy

        return load_policy(self.run_dir, checkpoint, learner)

    def __str__(self) -> str:
        """The summary in words, as the command line prints it."""
        return result_text(self)


def finite(value: float | None) -> float | None:
    """The value, or None if JSON cannot express it."""
    return value if value is not None and math.isfinite(value) else None


def bottleneck_sentence(
    nodes: Iterable[NodeStats],
    firing_s: float,
    remedy_of: Callable[[NodeStats], str] = lambda node: "",
) -> str:
    """Where the time of a run went, in one sentence. The time to make its nodes does not count.

    `remedy_of` says what can be changed if a node is the bottleneck.
    """
    fired = [times for times in nodes if times.busy_s and firing_s]
    if not fired:
        return "nothing fired"
    first, *others = sorted(fired, key=lambda a: (-a.busy_s, a.instance))
    shown = [
        _share(a, firing_s) for a in others[:3] if a.busy_s >= 0.01 * firing_s or _longest_wait(a)
    ]
    did = "answered calls" if first.is_service else "fired"
    share = f"{first.busy_s / firing_s:.0%}"
    text = f"{first.instance} is the bottleneck: it {did} for {share} of the time"
    text += _parts_text(first, firing_s)
    text += f" (then {', '.join(shown)})" if shown else ""
    remedy = remedy_of(first)
    return f"{text}; {remedy}" if remedy else text


def _share(times: NodeStats, firing_s: float) -> str:
    """The share of the time in which an instance fired, and its longest wait if it matters."""
    text = f"{times.instance} {times.busy_s / firing_s:.0%}{_parts_text(times, firing_s)}"
    wait = _longest_wait(times)
    if wait is None or wait[0] < 0.01 * firing_s:
        return text
    s, kind, edge = wait
    return f"{text}, {kind} {s / firing_s:.0%} {edge}"


def _parts_text(times: NodeStats, firing_s: float) -> str:
    """The parts of an instance that took a part of the time that matters."""
    parts = [(s / firing_s, part) for part, s in times.parts_s.items() if s >= 0.01 * firing_s]
    return "".join(f", its {part} {share:.0%}" for share, part in parts)


def _longest_wait(times: NodeStats) -> tuple[float, str, str] | None:
    """The longest of an instance's waits: seconds, kind, and the edge in words."""
    waits = [(s, "waiting", f"for {edge}") for edge, s in times.waiting_s.items()]
    waits += [(s, "blocked", f"on {edge}") for edge, s in times.blocked_s.items()]
    return max(waits, default=None)


def result_text(result: RunResult) -> str:
    """How a run ended, for a terminal. The reason of a failure is printed with its error instead."""
    done = f"{count_text(result.env_steps, 'env step')}, {count_text(result.train_iters, 'train iteration')}"
    spent = f"{result.setup_s:.1f} s to start, {result.training_s:.1f} s of training"
    ending = f", {result.shutdown_s:.1f} s to end" if result.shutdown_s >= SHOWN_SHUTDOWN_S else ""
    failure = "failed"
    if (Path(result.run_dir) / "error.txt").exists():  # not if the folder could not be written
        failure += ": its folder has an error.txt"
    lines = [
        failure if result.status == "failed" else f"{result.status}: {result.why}",
        f"{done}, {count_text(result.episodes, 'episode')}",
        f"{spent} ({result.env_steps_per_s:,.0f} env steps/s){ending}",
    ]
    if result.eval_return is not None:
        best = "" if result.best_return is None else f" (best {return_text(result.best_return)})"
        lines.append(f"evaluation return {return_text(result.eval_return)}{best}")
    if result.bottleneck:
        lines.append(result.bottleneck)
    lines += [
        f"{edge}: {size_text(counted['tokens'])} were sent as {size_text(counted['sent'])}"
        for edge, counted in result.network_bytes.items()
    ]
    lines += [f"note: {line}" for line in result.happened]
    lines += [f"warning: {line}" for line in result.warnings]
    if result.repeat:
        lines.append(f"to repeat: {result.repeat}")
    if result.resume:
        lines.append(f"to continue: {result.resume}")
    if result.digest:
        lines.append(f"digest {result.digest}")
    lines.append(f"run folder {result.run_dir}")
    return "\n".join(lines)


def return_text(value: float) -> str:
    """A return with one decimal, or with three significant digits if it is below 10."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"
