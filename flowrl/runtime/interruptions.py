"""Exceptions that leave the serial program from within a firing or a wait.

All derive from BaseException: a node's `except Exception` and the failure guard let them pass, because they are no
failures of the node. `SiteStopped` and `FiringAbandoned` only interrupt firings beyond the cut, which do not count.

- `SiteStopped` is raised where a site would begin a round, fire or wait beyond the cut, and when the coordinator ends
  the site. `SiteScheduler.live` catches it: the site's program is over.
- `FiringAbandoned` is raised where a paced schedule waits for a token that may never come, because the cut is known.
  `SiteScheduler.run_unsynchronised` catches it: the schedule is left, and the round goes on up to the cut.
- `ChannelFailure` is raised where a channel breaks under a firing. `run_site` catches it: the site is reported as lost.

On one site nothing fires beyond the cut: `SerialExecutor` leaves its program between firings, by `CutReached`.
"""

from __future__ import annotations

from flowrl.channels import ChannelError


class SiteStopped(BaseException):
    """The program of this site is over: the coordinator has ended it, or the cut is passed."""


class FiringAbandoned(BaseException):
    """A paced schedule cannot go on: the cut is known, and the token that it waits for may never come."""


class ChannelFailure(BaseException):
    """A channel broke while a firing used it. This is not the firing's failure."""

    def __init__(self, error: ChannelError) -> None:
        self.error = error
        super().__init__(str(error))
