"""Failures of envs: the parameters of retries and deadlines, the number of attempts, and the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import model_validator

from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.env_manager import EnvManager

MAX_RETRY_DELAY_S = 30.0


class FailureConfig(EnvManager.Config):
    """The parameters of managers that can restart a failed env."""

    max_retry: int = param(
        1,
        "attempts of an env to finish an episode, the first included, before its failure ends the run; 1: no retry",
        ge=1,
    )
    retry_type: Literal["reset", "renew"] = param(
        "reset",
        "how a failed env is restarted: it is reset (and recreated if that fails), or recreated at once",
    )
    retry_waiting_time_s: float = param(
        0.1, "delay before the first retry; it doubles with each further retry", ge=0
    )
    step_timeout_s: float | None = param(None, "a step that takes longer has failed", gt=0)
    reset_timeout_s: float | None = param(None, "a reset that takes longer has failed", gt=0)

    @model_validator(mode="after")
    def _check_retries(self) -> FailureConfig:
        fields = type(self).model_fields
        for name in ("retry_type", "retry_waiting_time_s"):
            if self.max_retry == 1 and getattr(self, name) != fields[name].default:
                what = f"`{name}` has no effect, because a failed env is not restarted"
                raise UnsoundError(what, "give `max_retry`, or leave it out", name)
        return self


def nondeterminism_of_retries(config: FailureConfig) -> str:
    """Why two runs may differ: retries depend on time. (A deadline that ends the run changes no result.)"""
    if config.max_retry == 1:
        return ""
    return "failed envs are restarted, and their unfinished trajectories are dropped"


@dataclass(slots=True)
class FailureCounts:
    """The failures of a manager's envs so far. The names are those of metrics."""

    failures: int = 0  # of steps and resets
    dropped_trajectories: int = 0
    dropped_steps: int = 0  # the steps of dropped trajectories, the failed step included
    retries: int = 0
    replaced_workers: int = 0
    restored_envs: int = 0  # replayed to their state after their worker was replaced
    unrestored_envs: int = 0  # restarted, because replaying a saved env did not lead to its state
    late: int = 0  # steps and resets that exceeded a deadline that cannot be enforced
    dropped_output_bytes: int = 0  # of the output of workers


class FailureTracker:
    """The attempts of one manager's envs, and the counts of their failures."""

    def __init__(self, config: Any, ctx: Context) -> None:
        self._config, self._ctx = config, ctx
        self.attempts = [1] * config.count  # of each env to finish an episode
        self.counts = FailureCounts()
        self._reported = FailureCounts()

    def reset_attempts(self, index: int) -> None:
        """Forget earlier failures: the env finished an episode."""
        self.attempts[index] = 1

    def count_failure(self, index: int, dropped_steps: int | None) -> bool:
        """Count a failed step, whose trajectory is dropped, or a failed reset (None). Return whether to retry."""
        counts = self.counts
        counts.failures += 1
        if dropped_steps is not None:
            counts.dropped_trajectories += 1
            counts.dropped_steps += dropped_steps
        self.attempts[index] += 1
        if self.attempts[index] > self._config.max_retry:
            return False
        counts.retries += 1
        return True

    def count_unrestored(self, index: int, dropped_steps: int, reason: str) -> None:
        """Count a saved env that is restarted, because replaying its episode did not lead to its state."""
        self.counts.unrestored_envs += 1
        self.counts.dropped_trajectories += 1
        self.counts.dropped_steps += dropped_steps
        self._ctx.log(f"env {index}: not restored: {reason}; it starts a new episode")

    def count_dropped_output(self, dropped_bytes: int) -> None:
        self.counts.dropped_output_bytes += dropped_bytes

    def state_dict(self) -> dict[str, Any]:
        """The attempts and counts."""
        return {"attempts": list(self.attempts), "counts": asdict(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these attempts and counts, which have been reported."""
        self.attempts = list(state["attempts"])
        self.counts = FailureCounts(**state["counts"])
        self._reported = FailureCounts(**state["counts"])

    def retry_delay_s(self, index: int) -> float:
        """The delay before this attempt."""
        doubled = self._config.retry_waiting_time_s * 2.0 ** (self.attempts[index] - 2)
        return float(min(doubled, MAX_RETRY_DELAY_S))

    def recreates_env(self, index: int) -> bool:
        """Whether this attempt begins by recreating the env."""
        return self._config.retry_type == "renew" or self.attempts[index] > 2

    def report(self) -> None:
        """Record new counts as metrics, and as irregularities of the run."""
        if self.counts == self._reported:
            return
        now, before = asdict(self.counts), asdict(self._reported)
        for name, count in now.items():
            if count > before[name]:
                self._ctx.report_irregularity(name.replace("_", " "), count - before[name])
        self._ctx.metrics(now)
        self._reported = FailureCounts(**now)
