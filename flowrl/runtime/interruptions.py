"""Exceptions that leave the serial program from within a firing or a wait.

All derive from BaseException, so that neither a node's `except Exception` nor the failure guard catches them: they are
not failures of the node. `SiteStopped` and `FiringAbandoned` interrupt only firings beyond the cut, which do not count.

- `SiteStopped` is raised when a site would begin a round, fire or wait beyond the cut, and when the coordinator ends
  the site. `SiteScheduler.live` catches it and ends the program.
- `FiringAbandoned` is raised when a paced schedule waits for a token that may never come, because the cut is known.
  `SiteScheduler.run_unsynchronised` catches it and leaves the schedule. The round goes on up to the cut.
- `ChannelFailure` is raised when a channel breaks during a firing. `run_site` catches it and reports the failure.
- `RunInterrupted` is raised in the main thread when a person stops the run at once, such as by the second Ctrl-C.
  `Run.run` catches it and raises KeyboardInterrupt. A KeyboardInterrupt that a node's own code raises is its failure.

On one site nothing fires beyond the cut: `SerialExecutor` leaves its program between firings by `CutReached`.
"""

from __future__ import annotations

from flowrl.channels import ChannelError


class SiteStopped(BaseException):
    """The program of this site is over: the coordinator has ended the site, or the cut is passed."""


class FiringAbandoned(BaseException):
    """A paced schedule cannot go on: the cut is known, and the token that it waits for may never come."""


class RunInterrupted(BaseException):
    """A person stops the run at once."""


class ChannelFailure(BaseException):
    """A channel broke during a firing. This is not a failure of the node."""

    def __init__(self, error: ChannelError) -> None:
        self.error = error
        super().__init__(str(error))
