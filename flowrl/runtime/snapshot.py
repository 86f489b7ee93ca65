"""Saves and loads what the instances of a site hold between two rounds, as data that no placement is part of.

The data consists of parts by key:

| key | part |
|---|---|
| `node/KEY` | an instance: its firings, its counts, and its node's `state_dict`; or a node that is only called |
| `edge/INPUT:PAIR` | the tokens on an edge between two replicas |
| `versions/OUTPUT` | the versions of a state that later rounds read |

A node on a site and the tokens that it takes are saved there, and so are the services that it calls.

The parts of sites that have completed the same rounds fit together. Tokens of a node that may lack some belong to no
round: those that have arrived are saved, and those on their way from other sites are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from flowrl.checks.lossy_edges import nodes_that_may_skip_firings
from flowrl.core.errors import LOADING_STATE, FlowError, NodeError, RunError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State
from flowrl.graph.model import PortRef
from flowrl.graph.replica_pairs import ReplicaPair
from flowrl.runtime.instance import RAISED, Instance
from flowrl.runtime.instances import Instances
from flowrl.runtime.linked_nodes import RESEED, load_node_state
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.stored_pieces import StoredPieces
from flowrl.runtime.streams import AwaitedQueue, Queue, Token

Parts = Mapping[str, SavedState]


def node_key(instance: str) -> str:
    return f"node/{instance}"


def is_node_key(key: str) -> bool:
    return key.startswith(node_key(""))


def edge_key(to: PortRef, pair: ReplicaPair) -> str:
    return f"edge/{to}:{pair[0]}.{pair[1]}.{pair[2]}"


def versions_key(source: PortRef) -> str:
    return f"versions/{source}"


# saving


def collect_parts(instances: Instances, may_wait: bool = True) -> dict[str, SavedState]:
    """Return the parts of a site, whose large arrays may be live. All its instances have completed the same rounds.

    Without `may_wait`, it is an error if tokens of these rounds are still on their way from other sites.
    """
    parts = {}
    for instance in instances.all():  # before services, whose pending calls it may have to finish
        parts[node_key(instance.key)] = live_state(instance)
    for key, saved in instances.save_services():
        parts[node_key(key)] = saved
    may_skip = nodes_that_may_skip_firings(instances.checked.program)
    for key, owner, queue, initial in _queues(instances):
        save = _arrived_data if owner in may_skip else partial(_queue_data, initial, may_wait)
        parts[key] = _saved(owner, partial(save, queue))
    for source, versions in instances.versions.items():
        parts[versions_key(source)] = _saved(source.node, partial(_versions_data, versions))
    return parts


def save_parts(
    instances: Instances, rounds: int, stored: StoredPieces, may_wait: bool = True
) -> dict[str, SavedState]:
    """Return the parts of a site as data that no later firing changes. Pieces that are stored already are left out."""
    return stored.copy_changed(rounds, collect_parts(instances, may_wait))


def _saved(owner: str, make: Callable[[], Mapping[str, Any]]) -> SavedState:
    """Return data as a part; an error names the instance that it belongs to."""
    try:
        saved = SavedState.of(make())
        saved.parts()
        return saved
    except FlowError:
        raise
    except RAISED as error:
        raise NodeError(owner, "saving its state", error) from error


def live_state(instance: Instance) -> SavedState:
    """Return the part of an instance, whose large arrays may be live."""
    return _saved(instance.key, partial(_live_instance_data, instance))


def _live_instance_data(instance: Instance) -> dict[str, Any]:
    instance.ctx.reads_live_arrays = True
    try:
        return instance_data(instance)
    finally:
        instance.ctx.reads_live_arrays = False


def instance_data(instance: Instance) -> dict[str, Any]:
    """Return the part of an instance."""
    turns = [shared.turn for shared in instance.shared_outputs]
    return {
        "fired": instance.fired,
        "counts": list(instance.counts),
        "clock": _clock_data(instance.ctx.clock),
        "restarts": instance.ctx.restarts,
        **({"turns": turns} if turns else {}),
        "state": instance.node.state_dict(),
    }


def _versions_data(versions: StateVersions) -> dict[str, Any]:
    return {"states": [_state_data(state) for state in versions.of_later_rounds]}


def _queues(instances: Instances) -> Iterator[tuple[str, str, Queue, int]]:
    """Yield the key, the consumer, the queue, and the initial tokens of each edge that ends on this site.

    With `merge: any` several pairs share a queue, which then has the key of the first of them.
    """
    initial = instances.checked.program.initial
    seen: set[int] = set()
    for to, by_pair in instances.queues.items():
        for pair, queue in sorted(by_pair.items()):
            is_local = any(i.ctx.replica == pair[2] for i in instances.by_node.get(to.node, ()))
            if is_local and id(queue) not in seen:
                seen.add(id(queue))
                yield edge_key(to, pair), to.node, queue, initial.get(to, 0)


def _arrived_data(queue: Queue) -> dict[str, Any]:
    """Return the tokens on an edge that have arrived."""
    if isinstance(queue, AwaitedQueue):
        queue.hold_arrived()
    return {"tokens": [_token_data(token) for token in queue]}


def _queue_data(initial: int, may_wait: bool, queue: Queue) -> dict[str, Any]:
    """Return the tokens on an edge. Between two rounds these are as many as there were at the beginning.

    If they come from another site, some may be on their way, and some may belong to later rounds.
    """
    tokens = list(queue)
    if isinstance(queue, AwaitedQueue):
        if not may_wait and len(queue) < initial:
            raise RuntimeError("a token of an unfinished firing was taken already")
        queue.fill(initial)
        tokens = list(islice(queue, initial))
    return {"tokens": [_token_data(token) for token in tokens]}


def _token_data(token: Token) -> dict[str, Any]:
    value, clock = token
    return {"value": value, "clock": _clock_data(clock)}


def _state_data(state: State) -> dict[str, Any]:
    return {
        "arrays": dict(state.arrays),
        "command": dict(state.command),
        "version": state.version,
        "clock": _clock_data(state.clock),
    }


def _clock_data(clock: Clock) -> dict[str, list[int]]:
    return {node: list(count) for node, count in sorted(clock.counts.items())}


# loading


def load_parts(instances: Instances, parts: Parts) -> None:
    """Load the parts of this site. The instances are new, and in the phase in which the parts were saved.

    Nodes may keep arrays of the parts, and write to those that are not read-only.
    """
    for key, load in instances.service_loaders():
        load(_part(parts, node_key(key)))
    for instance in instances.all():
        data = _part(parts, node_key(instance.key)).state_dict()
        _loading(instance.key, partial(_hand_over, instance, data))
    for key, owner, queue, _ in _queues(instances):
        saved = _part(parts, key).state_dict()["tokens"]
        tokens = _loading(owner, partial(_tokens, saved))
        queue.clear()
        queue.extend(tokens)
    for source, versions in instances.versions.items():
        states = _part(parts, versions_key(source)).state_dict()["states"]
        versions.continue_with([_state(one) for one in states])


def reseeded_parts(parts: Parts) -> dict[str, SavedState]:
    """Return parts whose nodes get other random numbers when they are loaded, by the seed of the new run."""
    return {
        key: SavedState.of({**saved.state_dict(), RESEED: True}) if is_node_key(key) else saved
        for key, saved in parts.items()
    }


def _part(parts: Parts, key: str) -> SavedState:
    if key not in parts:
        raise RunError(f"the snapshot has no part '{key}'; it is of another graph")
    return parts[key]


def _loading(owner: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except FlowError:
        raise
    except RAISED as error:
        raise NodeError(owner, LOADING_STATE, error) from error


def _hand_over(instance: Instance, data: Mapping[str, Any]) -> None:
    """Load the part of an instance, whose arrays nothing else will read."""
    instance.ctx.keeps_loaded_arrays = True
    try:
        load_instance(instance, data)
    finally:
        instance.ctx.keeps_loaded_arrays = False


def load_instance(instance: Instance, data: Mapping[str, Any]) -> None:
    """Load the part of an instance."""
    instance.fired = int(data["fired"])
    instance.counts = Count(*data["counts"])
    instance.ctx.clock = _clock(data["clock"])
    instance.ctx.restarts = int(data["restarts"])
    for shared, turn in zip(instance.shared_outputs, data.get("turns", ()), strict=True):
        shared.turn = int(turn)
    load_node_state(instance.node, data)


def _tokens(data: Sequence[Mapping[str, Any]]) -> list[Token]:
    return [_token(one) for one in data]


def _token(data: Mapping[str, Any]) -> Token:
    return data["value"], _clock(data["clock"])


def _state(data: Mapping[str, Any]) -> State:
    return State(data["arrays"], data["command"], int(data["version"]), _clock(data["clock"]))


def _clock(data: Mapping[str, Any]) -> Clock:
    counts = {node: Count(*count) for node, count in data.items()}
    return Clock(counts) if counts else EMPTY_CLOCK
