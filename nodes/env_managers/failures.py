"""What is done about envs that fail: how often they are tried again, how, and what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.nodes.env_managers.env_manager import EnvManager

MOST_PAUSE_S = 30.0


class FailureConfig(EnvManager.Config):
    """The parameters of managers that can begin a failed env anew."""

    max_retry: int = param(
        1,
        "attempts of an env to play an episode, the first included, before its failure ends the "
        "run; 1: none is tried again",
        ge=1,
    )
    retry_type: Literal["reset", "renew"] = param(
        "reset", "how a failed env is begun anew: by a reset (renewed if that fails), or made anew"
    )
    retry_waiting_time_s: float = param(
        0.1, "wait so long before another attempt, twice as long before each further one", ge=0
    )
    step_timeout_s: float | None = param(None, "a step that takes longer has failed", gt=0)
    reset_timeout_s: float | None = param(None, "a reset that takes longer has failed", gt=0)


def nondeterminism_of_retries(config: FailureConfig) -> str:
    """Retries hang on what fails when; a deadline that ends the run changes no result."""
    if config.max_retry == 1:
        return ""
    return "envs that fail are begun anew, and their unfinished trajectories are dropped"


@dataclass(slots=True)
class FailureCounts:
    """What happened so far."""

    failures: int = 0  # of steps and resets
    dropped_trajectories: int = 0
    dropped_steps: int = 0  # of those, the failed step included
    retries: int = 0
    replaced_workers: int = 0
    restored_envs: int = 0  # played again to where they were, after their worker was replaced
    unrestored_envs: int = 0  # begun anew: they did not come to be where they were saved
    late: int = 0  # steps and resets over their time, where that cannot be prevented
    dropped_output_bytes: int = 0  # printed by workers, and not kept


class FailureTracker:
    """Attempts and counts of one manager's envs."""

    def __init__(self, config: Any, ctx: Context) -> None:
        self._config, self._ctx = config, ctx
        self.attempts = [1] * config.count  # to play an episode to its end
        self.counts = FailureCounts()
        self._told = FailureCounts()

    def ended(self, index: int) -> None:
        """An episode was played to its end: it is as if nothing had failed before."""
        self.attempts[index] = 1

    def failed(self, index: int, dropped_steps: int | None) -> bool:
        """A step (of a trajectory so long) or a reset failed; whether there is another attempt."""
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

    def unrestored(self, index: int, steps: int, why: str) -> None:
        """An env (in an episode of so many steps) is not where it was saved: it is begun anew."""
        self.counts.unrestored_envs += 1
        self.counts.dropped_trajectories += 1
        self.counts.dropped_steps += steps
        self._ctx.log(f"env {index}: {why}; it is not restored, and is begun anew")

    def state_dict(self) -> dict[str, Any]:
        """Attempts and counts."""
        return {"attempts": list(self.attempts), "counts": asdict(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what was counted has been told."""
        self.attempts = list(state["attempts"])
        self.counts, self._told = FailureCounts(**state["counts"]), FailureCounts(**state["counts"])

    def pause_s(self, index: int) -> float:
        """How long to wait before this attempt."""
        doubled = self._config.retry_waiting_time_s * 2.0 ** (self.attempts[index] - 2)
        return float(min(doubled, MOST_PAUSE_S))

    def renews(self, index: int) -> bool:
        """Whether this attempt begins by making the env anew."""
        return self._config.retry_type == "renew" or self.attempts[index] > 2

    def tell(self) -> None:
        """What is new goes into metrics, and is reported as having happened."""
        if self.counts == self._told:
            return
        now, before = asdict(self.counts), asdict(self._told)
        for name, count in now.items():
            if count > before[name]:
                self._ctx.report_irregularity(name.replace("_", " "), count - before[name])
        self._ctx.metrics(now)
        self._told = FailureCounts(**now)
