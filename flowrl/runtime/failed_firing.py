"""The firing in which a node failed, as data: its inputs, and the states of the node and of the services that it calls.

The states are those at the failure: what the firing had changed by then is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.channels import UnsendableValue
from flowrl.core.errors import NodeError, attached_files
from flowrl.core.saved_state import SavedState
from flowrl.core.wording import size_text
from flowrl.runtime.instance import RAISED, Instance
from flowrl.runtime.instances import Instances
from flowrl.runtime.snapshot import instance_data, node_key
from flowrl.runtime.token_contents import decode_value, encode_value

MAX_BYTES = 64 << 20  # of the states, and of the inputs


@dataclass(frozen=True, slots=True)
class FailedFiring:
    """What a tape of a failed firing holds."""

    instance: str
    doing: str  # the firing in words
    rounds: int  # before the round of the firing, those of the warm-up included
    error: str
    inputs: Mapping[str, bytes]  # encoded values by input
    parts: Mapping[str, SavedState]  # as those of a snapshot
    stateless: str  # why there are no states; empty if there are some

    def encode(self) -> bytes:
        parts = {key: [dict(saved.arrays), saved.text] for key, saved in self.parts.items()}
        values = {name: getattr(self, name) for name in self.__slots__}
        return encode_value({**values, "inputs": dict(self.inputs), "parts": parts})

    @classmethod
    def decode(cls, content: bytes) -> FailedFiring:
        """Return the firing of these bytes; raise ValueError if they are none."""
        values = decode_value(content)
        try:
            parts = {
                key: SavedState(arrays, text) for key, (arrays, text) in values["parts"].items()
            }
            return cls(**{**values, "parts": parts})
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"a failed firing is malformed ({error})") from None


def keep_failed_firing(error: NodeError, instances: Instances) -> None:
    """Keep the firing with the error, if it is one of these instances, and its inputs are data of a usual size.

    A failed env leaves a file of its own, with which its episode is replayed. A replica of a group cannot fire alone.
    """
    instance = next((i for i in instances.all() if i.key == error.node), None)
    if instance is None or error.inputs is None or attached_files(error):
        return
    if instance.ctx.group is not None:
        return
    try:
        inputs = {port: encode_value(value) for port, value in error.inputs.items()}
    except UnsendableValue:
        return
    if sum(map(len, inputs.values())) > MAX_BYTES:
        return
    parts, stateless = _parts(instance, instances)
    error.failed_firing = FailedFiring(
        instance.key,
        error.doing,
        instances.site.rounds,
        str(error),
        inputs,
        parts,
        stateless,
    ).encode()


def _parts(instance: Instance, instances: Instances) -> tuple[dict[str, SavedState], str]:
    """Return the states of a failed node and of its services, or why there are none."""
    facts = instances.checked.facts[instance.spec.name]
    expected = max(facts.memory_bytes, facts.state_bytes)
    if expected > MAX_BYTES:
        return {}, f"it may have {size_text(expected)}"
    try:
        parts = {node_key(instance.key): SavedState.of(instance_data(instance))}
        parts |= {node_key(key): saved for key, saved in instances.save_services_of(instance)}
        size = sum(array.nbytes for saved in parts.values() for array in saved.arrays.values())
    except RAISED as problem:
        return {}, f"it cannot be saved: {problem}"
    return (parts, "") if size <= MAX_BYTES else ({}, f"it has {size_text(size)}")
