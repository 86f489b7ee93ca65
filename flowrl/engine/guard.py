"""Nodes whose failures the graph allows: `on_failure: restart` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flowrl.engine.runner import Runner
from flowrl.errors import NodeError

RETRIES = 3  # times that a firing is tried again with a fresh node


MOST_FAILURES = 20  # that a summary tells; the nodes' logs tell all


@dataclass(slots=True)
class Happened:
    """What made this run differ from a deterministic one, if anything did."""

    restarts: int = 0
    ignored: int = 0
    dropped: int = 0
    failures: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The same in words."""
        counts = {
            "firings were tried again with a fresh node": self.restarts,
            "firings failed and were passed over": self.ignored,
            "tokens were dropped": self.dropped,
        }
        return [*(f"{n} {what}" for what, n in counts.items() if n), *self.failures]


class Guard:
    """Fires a node; where that fails, a fresh one tries again, or the firing is passed over."""

    def __init__(self, runner: Runner, happened: Happened, renew: Callable[[Runner], None]) -> None:
        self.runner, self.happened, self._renew = runner, happened, renew
        self._fire = runner.fire

    def fire(self) -> None:
        """One firing, whatever it takes."""
        queues = [queue for queues, _ in self.runner.waits_for for queue in queues]
        tokens = [list(queue) for queue in queues]
        for attempt in range(RETRIES + 1):
            try:
                return self._fire()
            except NodeError as error:
                if error.node != self.runner.key:
                    raise
                self._forget(error)
                if self.runner.spec.on_failure == "ignore":
                    return self._pass_over()
                if attempt == RETRIES:
                    raise
            for queue, before in zip(queues, tokens, strict=True):
                queue.clear()
                queue.extend(before)
            self.happened.restarts += 1
            self._renew(self.runner)
        raise AssertionError("a firing ends in the loop")

    def _forget(self, error: NodeError) -> None:
        """What the failed firing counted and recorded does not count; that it failed is told."""
        ctx = self.runner.ctx
        ctx.take_count()
        ctx.records.clear()
        ctx.dirty = False
        if len(self.happened.failures) < MOST_FAILURES:
            self.happened.failures.append(str(error))
        self.runner.on_record(self.runner, str(error))

    def _pass_over(self) -> None:
        self.happened.ignored += 1
        self.runner.fired += 1
