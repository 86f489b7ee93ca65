"""Where instances live, and what joins those that live apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowrl.graph.model import Edge
from flowrl.graph.replica_pairs import ReplicaPair
from flowrl.runtime.instance import SiteState
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import Push, Queue, Take, Token

if TYPE_CHECKING:
    from flowrl.runtime.instances import Instances


class EdgeFactory:
    """Where instances live, and what joins those that live apart. The base: all live here."""

    def __init__(self) -> None:
        self.site = SiteState()

    def has(self, node: str, replica: int) -> bool:
        """Whether an instance lives on this site."""
        return True

    def taking(self, edge: Edge, lane: ReplicaPair, tokens: list[Token]) -> Queue:
        """A queue that another site fills; the initial tokens come first."""
        raise AssertionError("everything lives here")

    def giving(self, edge: Edge, lane: ReplicaPair) -> Queue:
        """A queue that another site empties."""
        raise AssertionError("everything lives here")

    def joined(self, edge: Edge, replica: int, queues: list[Queue]) -> Queue:
        """Several queues as one that gives what comes first."""
        raise AssertionError("everything lives here")

    def view(self, edge: Edge, replica: int) -> Take:
        """How an instance here sees the state of a node that lives elsewhere."""
        raise AssertionError("everything lives here")

    def paced(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """What sends a version of a node that lives here to those elsewhere that it paces."""
        return []

    def readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        """Ways to the instances elsewhere that see a state of a node that lives here."""
        return []

    def firings(self, node: str) -> Callable[[], bool]:
        """Whether a node that lives elsewhere, and may find too few tokens, has fired once more."""
        raise AssertionError("everything lives here")

    def told_firings(self, node: str) -> list[Push]:
        """Ways to those elsewhere who want to know that of a node here."""
        return []

    def stub(self, instances: Instances, edge: Edge, replica: int, fresh: bool) -> Any:
        """What an instance here calls in the place of a service that lives elsewhere; anew if `fresh`."""
        raise AssertionError("everything lives here")

    def serve(self, instances: Instances, node: str, replica: int) -> None:
        """An instance here that does not fire is ready to be called by those who live elsewhere."""
