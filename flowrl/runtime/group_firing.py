"""The firing of a group: the replicas of a node on one site fire together with those on other sites.

It is one firing of the serial program: its position is that of replica 0, and no cut falls between two replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowrl.core.errors import NodeError
from flowrl.core.replica_group import Exchange, refuse_exchange
from flowrl.core.state import EMPTY_CLOCK
from flowrl.machine.numerics import reset_numerics
from flowrl.runtime.group_exchange import GroupExchange
from flowrl.runtime.instance import Instance
from flowrl.runtime.replica_thread import ReplicaThread


class GroupFiring:
    """Fires the replicas of a group that live on this site.

    The first of them fires in the site's own thread, and each other one in a thread that runs only while the first one
    waits for it: before each exchange, all others are resumed up to theirs.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        exchange: GroupExchange,
        torch_threads: int,
        may_have_different_pasts: bool,
    ) -> None:
        """If each replica takes the tokens of another producer, they `may_have_different_pasts`."""
        self.instances = instances
        self._exchange, self._merges_clocks = exchange, may_have_different_pasts
        self._threads = {
            instance.ctx.replica: ReplicaThread(
                instance.key, partial(reset_numerics, torch_threads)
            )
            for instance in instances[1:]
        }

    def close(self) -> None:
        """End the threads, and the firings in them that are not over."""
        for thread in self._threads.values():
            thread.leave()

    def fire(self) -> None:
        taken = [instance.take_values() for instance in self.instances]
        if self._merges_clocks:
            self._merge_clocks()
        calls = [
            partial(instance.call, values)
            for instance, values in zip(self.instances, taken, strict=True)
        ]
        for thread, call in zip(self._threads.values(), calls[1:], strict=True):
            thread.begin(call)
        self._allow_exchanges(True)
        try:
            outputs = [calls[0]()]
            for instance, thread in zip(self.instances[1:], self._threads.values(), strict=True):
                self._finish(instance, thread)
                outputs.append(thread.result)
        except BaseException:
            self.close()
            raise
        finally:
            self._allow_exchanges(False)
        for instance, tokens in zip(self.instances, outputs, strict=True):
            instance.complete(tokens)

    def _allow_exchanges(self, allowed: bool) -> None:
        for instance in self.instances:
            group = instance.ctx.group
            assert group is not None
            group.exchange = partial(self._exchange_of, instance) if allowed else refuse_exchange

    def _merge_clocks(self) -> None:
        """Give all replicas the same past, on which their settings depend."""
        given = {instance.ctx.replica: instance.ctx.clock for instance in self.instances}
        merged = EMPTY_CLOCK
        for clock in self._exchange.gather(given):
            merged = merged.merge(clock)
        for instance in self.instances:
            instance.ctx.clock = merged

    def _exchange_of(self, instance: Instance, kind: Exchange, value: Any) -> Any:
        """Exchange a value of one replica with those of the others."""
        replica = instance.ctx.replica
        if replica in self._threads:
            return self._threads[replica].request((kind, value))
        requests = {replica: (kind, value)}
        for other, thread in zip(self.instances[1:], self._threads.values(), strict=True):
            requests[other.ctx.replica] = self._request_of(other, thread, kind)
        given = {k: value for k, (_, value) in requests.items()}
        result = self._exchange.gather(given) if kind == "gather" else self._exchange.sum(given)
        for thread in self._threads.values():
            thread.answer = _copied(result)
        return result

    def _request_of(self, instance: Instance, thread: ReplicaThread, kind: Exchange) -> Any:
        """Let a replica go on up to its next exchange, which must be one of this kind."""
        request = None if thread.is_over else self._timed(instance, thread.resume)
        if request is None or request[0] != kind:
            what = "no further value" if request is None else f"a {request[0]}"
            raise _different_exchanges(self.instances[0], f"a {kind}", instance, what)
        return request

    def _finish(self, instance: Instance, thread: ReplicaThread) -> None:
        """Let a replica go on to the end of its firing."""
        request = None if thread.is_over else self._timed(instance, thread.resume)
        if request is not None:
            what = f"a {request[0]}"
            raise _different_exchanges(self.instances[0], "no further value", instance, what)

    def _timed(self, instance: Instance, resume: Callable[[], Any]) -> Any:
        """Count the time of a replica's thread as its own, and not as that of the first replica."""
        began_s = time.perf_counter()
        try:
            return resume()
        finally:
            lasted_s = time.perf_counter() - began_s
            instance.busy_s += lasted_s
            instance.site.last_fired_s += lasted_s


def _copied(result: Any) -> Any:
    """Return what another replica may change: an array may become a tensor's memory."""
    return list(result) if isinstance(result, list) else result.copy()


def _different_exchanges(first: Instance, own: str, other: Instance, its: str) -> NodeError:
    what = (
        f"the replicas of a group exchange different values: {first.key} {own}, and {other.key} {its}; "
        "all replicas must exchange the same in the same order"
    )
    return NodeError(other.key, f"firing {other.fired}", RuntimeError(what))
