"""A host: a machine that waits for a run, and executes some of its sites."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from flowrl.cluster.host_session import HostSession, RunLost, RunRefused
from flowrl.cluster.join_file import JoinInfo, JoinSource
from flowrl.graph.host_offers import HostOffer

POLL_S = 0.2
NEXT_RUN_S = 0.5  # between two runs


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a machine is offered to runs."""

    run: JoinSource
    offer: HostOffer  # a name that ends with `*` is given a number by the run
    address: str | None = None  # at which other machines reach this one
    within_s: float | None = 600.0  # how long to wait for a run
    stay: bool = False  # wait for the next run after each
    rejoin_s: float = 0.0  # how long to try to join the run again when it is lost


def print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def serve_runs(settings: HostSettings, show: Callable[[str], None] = print_to_stderr) -> None:
    """Serve one run, or with `stay` one after the other. Raises `RunLost` if a run did not end well."""
    within_s = None if settings.stay else settings.within_s
    deadline = _after(within_s)
    while True:
        info = _wait_for_join_file(settings, deadline, show)
        session = HostSession(settings.offer, settings.address, info, show)
        try:
            session.serve(deadline)
        except RunRefused as error:
            if not settings.stay:
                raise
            show(f"flowrl: {error}")
        except RunLost as error:
            if session.has_joined and not settings.stay:
                deadline = _after(settings.rejoin_s)
            if deadline is not None and time.monotonic() >= deadline:
                raise
            show(f"flowrl: {error}; trying to join it again")
        else:
            if not settings.stay:
                return
        finally:
            session.close()
        time.sleep(NEXT_RUN_S)


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait_for_join_file(
    settings: HostSettings, deadline: float | None, show: Callable[[str], None]
) -> JoinInfo:
    """Return where the run listens, as soon as its join file is there."""
    began, info, has_shown = time.monotonic(), settings.run(), False
    while info is None:
        if deadline is not None and time.monotonic() > deadline:
            waited_s = round(deadline - began, 1)
            raise RunLost(
                f"{settings.run.file}: no run has written this file within {waited_s:g} s"
            )
        if not has_shown:
            show(f"host '{settings.offer.name}': waiting for the join file {settings.run.file}")
        has_shown = True
        time.sleep(POLL_S)
        info = settings.run()
    return info
