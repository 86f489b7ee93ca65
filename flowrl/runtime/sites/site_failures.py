"""The failures of sites as errors, and which of several failures is the first cause."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.core.errors import FlowError, NodeError
from flowrl.runtime.control.messages import ConnectionFailure, Failure, NodeFailure, SiteFailure
from flowrl.runtime.remote.errors import RemoteTraceback, restore_error


class SiteLost(FlowError):
    """A site ended without a reason, lost its connection, or did not respond in time."""


class SiteFailed(SiteLost):
    """A site raised an error that is not a node's, or was not ready in time. It would happen again."""


def first_cause(failures: Mapping[str, Failure], dead: Mapping[str, str]) -> FlowError:
    """Return the first cause of failures, by site, and of the ends of `dead` sites, each with the reason.

    The error of a node comes before the end of a process, and that before the broken connections of other sites.
    """
    silent = [name for name in dead if name not in failures]
    if not has_node_failure(failures) and silent:
        return SiteLost(f"site '{silent[0]}' has ended: {dead[silent[0]]}")
    kinds = (NodeFailure, SiteFailure, ConnectionFailure)
    site = next(site for kind in kinds for site in _of_kind(kind, failures))
    return _as_error(site, failures[site])


def has_node_failure(failures: Mapping[str, Failure]) -> bool:
    """Return whether a node has failed, which is the first cause."""
    return bool(_of_kind(NodeFailure, failures))


def _of_kind(kind: type[Failure], failures: Mapping[str, Failure]) -> list[str]:
    return [site for site, failure in failures.items() if isinstance(failure, kind)]


def _as_error(site: str, failure: Failure) -> FlowError:
    if isinstance(failure, NodeFailure):
        error = restore_error(site, failure.error)
        assert isinstance(error, NodeError)
        return error
    kind = SiteFailed if isinstance(failure, SiteFailure) else SiteLost
    lost = kind(f"site '{site}': {failure.text}")
    text = f"on site '{site}'\n{failure.traceback}"
    lost.__cause__ = RemoteTraceback(text, text)
    return lost
