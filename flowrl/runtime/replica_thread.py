"""A thread in which a replica of a group fires while another replica of the same site has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LEAVE_S = 1.0  # for a call that was interrupted while it ran; any other one ends at once


class FiringEnded(BaseException):
    """Leaves the firing of a replica, because another replica of its group has failed or was stopped."""


class ReplicaThread:
    """Makes calls in a thread of its own. Either this thread runs, or the one that resumes it, and never both.

    So the replicas of one site take turns: to a node it makes no difference that it has a thread of its own.
    """

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        """`prepare` is called in the thread, before anything else."""
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._prepare = prepare
        self._may_run, self._may_return = threading.Lock(), threading.Lock()
        self._may_run.acquire()
        self._may_return.acquire()
        self._call: Callable[[], Any] | None = None
        self._request: Any = None
        self._error: BaseException | None = None
        self._is_leaving = False
        self.answer: Any = None  # to the newest request, for when the thread is resumed
        self.is_over = True  # whether the call has returned
        self.result: Any = None

    # called by the thread that resumes this one

    def begin(self, call: Callable[[], Any]) -> None:
        """Make a call when the thread is resumed."""
        self._call, self.is_over = call, False

    def resume(self) -> Any:
        """Go on until the call has a request, and return it, or until it returns (`is_over`). Raise its error."""
        if self._thread.ident is None:
            self._thread.start()
        self._request = None
        self._may_run.release()
        self._may_return.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._request

    def leave(self) -> None:
        """End the call, if there is one, and the thread. A call that is interrupted ends when it next has a request."""
        if not self._is_leaving:
            self._is_leaving = True
            if self._thread.ident is not None:
                self._may_run.release()
                self._thread.join(LEAVE_S)

    # called in the thread

    def request(self, request: Any) -> Any:
        """Let the other thread go on with a request; return its answer."""
        self._request = request
        self._may_return.release()
        self._may_run.acquire()
        if self._is_leaving:
            raise FiringEnded
        return self.answer

    def _live(self) -> None:
        self._may_run.acquire()
        try:
            self._prepare()
        except BaseException as error:
            self._error = error
        while not self._is_leaving:
            if self._error is None and self._call is not None:
                self._make_call(self._call)
            if not self._is_leaving:
                self.is_over = True
                self._may_return.release()
                self._may_run.acquire()

    def _make_call(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except FiringEnded:
            pass
        except BaseException as error:
            self._error = error
