"""What a run answers to the queries of `flowrl top`, `why`, `stop`, `snapshot` and `peek`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl.core.errors import UsageError
from flowrl.runs.peek import PeekAnswers
from flowrl.runs.run_status import status_of
from flowrl.runtime.status import RUN_STATUS

if TYPE_CHECKING:
    from flowrl.runs.run import Run


class QueryAnswers:
    """Answers queries about one run. The thread of the query server calls it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._peek_answers = PeekAnswers()

    def answer(self, query: Mapping[str, Any]) -> dict[str, Any]:
        run = self._run
        if query.get("ask") == "status":
            answer: dict[str, Any] = RUN_STATUS.encode(status_of(run))
            return answer
        if query.get("ask") == "stop":
            run.stop(now=bool(query.get("now")))
            return {"stopping": True}
        if query.get("ask") == "snapshot":
            return self._answer_about_snapshots(bool(query.get("request")))
        if query.get("ask") == "peek":
            return self._peek_answers.answer(run.executor, query)
        raise UsageError(f"unknown query {query.get('ask')!r}; known: status, stop, snapshot, peek")

    def _answer_about_snapshots(self, is_request: bool) -> dict[str, Any]:
        """Say after how many rounds the newest snapshot was saved; ask for another one if this is a request."""
        snapshots = self._run.snapshots
        if snapshots is None:
            raise UsageError("the run cannot save a snapshot: it has not begun")
        if is_request:
            snapshots.schedule.request()
        newest = snapshots.newest.rounds if snapshots.newest else None
        pieces = snapshots.written_pieces
        return {"newest": newest, "problems": list(snapshots.problems), "pieces": pieces}
