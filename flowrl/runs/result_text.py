"""How a run ended and where its time went, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.core.wording import count_text
from flowrl.runs.result import RunResult
from flowrl.runtime.executor import InstanceTimes


def bottleneck_sentence(instance_times: Iterable[InstanceTimes], firing_s: float) -> str:
    """Where the time of a run went, in one sentence. The time to make its nodes does not count."""
    fired = [times for times in instance_times if times.busy_s and firing_s]
    if not fired:
        return "nothing fired"
    first, *others = sorted(fired, key=lambda a: (-a.busy_s, a.key))
    shown = [
        _share(a, firing_s) for a in others[:3] if a.busy_s >= 0.01 * firing_s or _longest_wait(a)
    ]
    share = f"{first.busy_s / firing_s:.0%}"
    text = f"{first.key} is the bottleneck: it fired for {share} of the time"
    return f"{text} (then {', '.join(shown)})" if shown else text


def _share(times: InstanceTimes, firing_s: float) -> str:
    """The share of the time in which an instance fired, and its longest wait if it matters."""
    text = f"{times.key} {times.busy_s / firing_s:.0%}"
    wait = _longest_wait(times)
    if wait is None or wait[0] < 0.01 * firing_s:
        return text
    s, kind, edge = wait
    return f"{text}, {kind} {s / firing_s:.0%} {edge}"


def _longest_wait(times: InstanceTimes) -> tuple[float, str, str] | None:
    """The longest of an instance's waits: seconds, kind, and the edge in words."""
    waits = [(s, "waiting", f"for {edge}") for edge, s in times.waiting_s.items()]
    waits += [(s, "blocked", f"on {edge}") for edge, s in times.blocked_s.items()]
    return max(waits, default=None)


def result_text(result: RunResult) -> str:
    """How a run ended, for a terminal. The reason of a failure is printed with its error instead."""
    done = f"{count_text(result.env_steps, 'env step')}, {count_text(result.train_iters, 'train iteration')}"
    pace = f"in {result.wall_s:.1f} s ({result.env_steps_per_s:,.0f} env steps/s)"
    lines = [
        "failed: its folder has an error.txt"
        if result.status == "failed"
        else f"{result.status}: {result.why}",
        f"{done}, {count_text(result.episodes, 'episode')} {pace}",
    ]
    if result.eval_return is not None:
        best = "" if result.best_return is None else f" (best {return_text(result.best_return)})"
        lines.append(f"evaluation return {return_text(result.eval_return)}{best}")
    if result.bottleneck:
        lines.append(result.bottleneck)
    lines += [f"note: {line}" for line in result.happened]
    lines += [f"warning: {line}" for line in result.warnings]
    if result.repeat:
        lines.append(f"the same again: {result.repeat}")
    if result.digest:
        lines.append(f"digest {result.digest}")
    lines.append(f"run folder {result.run_dir}")
    return "\n".join(lines)


def return_text(value: float) -> str:
    """A return with one decimal, or with three significant digits if it is below 10."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"
