"""The exchange of a group whose replicas live on several sites.

Small values are sent to all sites. A large sum is added in pieces: replica k receives piece k of all replicas, adds
them in the order of the replicas, and sends the result to all. So each site sends and receives about twice the size of
the array, however many replicas there are, and the additions are those of one site.

No replica waits for ever: an exchange needs nothing but the messages of this exchange, which each site sends before it
waits, and a channel has room for those of two exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.channels import ChannelLimits, SiteChannels
from flowrl.core.batch import Array
from flowrl.core.context import instance_key
from flowrl.core.state import EMPTY_CLOCK
from flowrl.runtime.group_exchange import GroupExchange, added_in_order
from flowrl.runtime.remote.edges import RemoteInput, RemoteOutput
from flowrl.runtime.remote.waiting import SiteWaits

# Smaller arrays are sent whole, which needs one message instead of two.
LEAST_BYTES_OF_PIECES = 1 << 15
LIMITS = ChannelLimits(tokens=16)


class SiteGroupExchange(GroupExchange):
    """The exchange of a group, as one of the sites on which its replicas live."""

    def __init__(
        self,
        node: str,
        sites: Sequence[str],
        site: str,
        channels: SiteChannels,
        waits: SiteWaits,
    ) -> None:
        """`sites` are those of the replicas, in order; `site` is this one."""
        self._sites, self._site, self._channels = sites, site, channels
        self._own = [replica for replica, at in enumerate(sites) if at == site]
        self._peers = sorted(set(sites) - {site})
        self._outputs: dict[tuple[int, str], RemoteOutput] = {}
        self._inputs: dict[int, RemoteInput] = {}
        first = instance_key(node, self._own[0])
        for replica in self._own:
            for peer in self._peers:
                sender = channels.open_sender(_channel(node, replica, peer), peer, limits=LIMITS)
                wait = waits.on_group(instance_key(node, replica), first, peer, "blocked")
                self._outputs[replica, peer] = RemoteOutput(waits, sender, wait)
        for replica, peer in enumerate(sites):
            if peer != site:
                receiver = channels.open_receiver(
                    _channel(node, replica, site), peer, limits=LIMITS
                )
                wait = waits.on_group(instance_key(node, replica), first, peer, "waiting")
                self._inputs[replica] = RemoteInput(waits, receiver, wait)

    def gather(self, given: Mapping[int, Any]) -> list[Any]:
        for (replica, _), output in self._outputs.items():
            output.append((("gather", given[replica]), EMPTY_CLOCK))
        self._channels.flush()
        return [
            given[replica] if replica in given else self._receive(replica, "gather")
            for replica in range(len(self._sites))
        ]

    def sum(self, given: Mapping[int, Array]) -> Array:
        own = given[self._own[0]]
        if own.nbytes < LEAST_BYTES_OF_PIECES:
            return super().sum({replica: array.copy() for replica, array in given.items()})
        what = f"sum of {own.dtype}{list(own.shape)}"
        flat = {replica: array.reshape(-1) for replica, array in given.items()}
        for (replica, peer), output in self._outputs.items():
            pieces = [flat[replica][piece].copy() for piece in self._pieces_of(peer, own.size)]
            output.append(((what, pieces), EMPTY_CLOCK))
        self._channels.flush()
        pieces_of = {
            k: [array[p] for p in self._pieces_of(self._site, own.size)]
            for k, array in flat.items()
        }
        pieces_of |= {replica: self._receive(replica, what) for replica in self._inputs}
        ordered = [pieces_of[replica] for replica in sorted(pieces_of)]
        sums = [added_in_order(pieces) for pieces in zip(*ordered, strict=True)]
        return self._with_sums_of_others(own, what, sums)

    def _with_sums_of_others(self, like: Array, what: str, sums: list[Array]) -> Array:
        """Exchange the sums of pieces; return all of them as one array."""
        for peer in self._peers:
            self._outputs[self._own[0], peer].append(((what, sums), EMPTY_CLOCK))
        self._channels.flush()
        total = np.empty(like.size, like.dtype)
        for site in (self._site, *self._peers):
            found = sums if site == self._site else self._receive(self._sites.index(site), what)
            for piece, added in zip(self._pieces_of(site, like.size), found, strict=True):
                total[piece] = added
        return total.reshape(like.shape)

    def _pieces_of(self, site: str, size: int) -> list[slice]:
        """The pieces that the replicas of a site add."""
        count = len(self._sites)
        return [
            slice(size * k // count, size * (k + 1) // count)
            for k, at in enumerate(self._sites)
            if at == site
        ]

    def _receive(self, replica: int, what: str) -> Any:
        (given, value), _ = self._inputs[replica].popleft()
        if given != what:
            raise RuntimeError(
                f"the replicas of a group exchange different values: replica {self._own[0]} a {what}, and replica "
                f"{replica} a {given}; all replicas must exchange the same in the same order"
            )
        return value


def _channel(node: str, replica: int, site: str) -> str:
    return f"{node}+{replica}:{site}"
