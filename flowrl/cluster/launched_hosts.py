"""The hosts that launchers start for a run. A thread calls the launchers, whose commands may take seconds."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.errors import FlowError
from flowrl.runtime.status import LauncherStatus

WATCH_S = 1.0  # between two calls of `Launcher.watch`
END_TIMEOUT_S = 30.0  # within which launchers end what they have started


class LaunchedHosts:
    """The launchers of a run, by label. The run's thread owns this object, and another one the launchers."""

    def __init__(self, launchers: Mapping[str, tuple[Launcher, HostOrder]]) -> None:
        self._launchers = launchers
        self._statuses: dict[str, LaunchStatus] = {}
        self._facts: dict[str, Mapping[str, str]] = {}
        self._news: list[str] = []
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="launchers", daemon=True)
        if launchers:
            self._thread.start()

    @property
    def are_any(self) -> bool:
        """Whether launchers start hosts, and not people."""
        return bool(self._launchers)

    @property
    def is_waiting(self) -> bool:
        """Whether hosts cannot have joined yet, for a reason that may last, such as a queue."""
        with self._lock:
            if len(self._statuses) < len(self._launchers):
                return True  # it is still being started
            return any(status.waiting for status in self._statuses.values())

    @property
    def failure(self) -> str:
        """Why hosts that a launcher should start will not come."""
        with self._lock:
            failed = (
                f"launch {label}: {s.failure}" for label, s in self._statuses.items() if s.failure
            )
            return "; ".join(failed)

    @property
    def missing(self) -> str:
        """Why some hosts that a launcher should start will not come."""
        with self._lock:
            return "; ".join(
                f"launch {label}: {why}"
                for label, s in self._statuses.items()
                if (why := s.failure or s.missing)
            )

    def take_news(self) -> list[str]:
        """The lines for the user since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def statuses(self) -> tuple[LauncherStatus, ...]:
        """What the launchers say of themselves."""
        with self._lock:
            return tuple(
                LauncherStatus(label, status.waiting, status.failure, self._facts[label])
                for label, status in self._statuses.items()
            )

    def end(self) -> None:
        """End all hosts that are left, in bounded time."""
        self._is_ending.set()
        if self.are_any:
            self._thread.join(END_TIMEOUT_S)

    # in the launchers' thread

    def _look_after(self) -> None:
        for label, (launcher, order) in self._launchers.items():
            if not self._is_ending.is_set():
                self._report(label, launcher, self._started(launcher, order))
        while not self._is_ending.wait(WATCH_S):
            for label, (launcher, _) in self._launchers.items():
                if not self._statuses[label].failure:
                    self._report(label, launcher, self._watched(launcher))
        for label, (launcher, _) in self._launchers.items():
            self._end(label, launcher)

    def _end(self, label: str, launcher: Launcher) -> None:
        try:
            launcher.end()
        except (FlowError, OSError) as error:
            with self._lock:
                what = f"launch {label}: what it has started may be left: {_error_text(error)}"
                self._news.append(what)

    def _started(self, launcher: Launcher, order: HostOrder) -> LaunchStatus:
        try:
            launcher.start(order)
        except (FlowError, OSError) as error:
            return LaunchStatus(failure=_error_text(error))
        return self._watched(launcher)

    def _watched(self, launcher: Launcher) -> LaunchStatus:
        try:
            return launcher.watch()
        except (FlowError, OSError) as error:
            return LaunchStatus(failure=_error_text(error))

    def _report(self, label: str, launcher: Launcher, status: LaunchStatus) -> None:
        with self._lock:
            before = self._statuses.get(label, LaunchStatus())
            if status.waiting and status.waiting != before.waiting:
                self._news.append(f"launch {label}: {status.waiting}")
            if status.failure:
                self._news.append(f"launch {label}: {status.failure}")
            self._news += [f"launch {label}: {line}" for line in status.news]
            self._statuses[label] = status
            self._facts[label] = launcher.facts()


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
