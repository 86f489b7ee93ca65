"""How a learn mode computes, which is a matter of the learner and not of the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.nodes.devices import CPU


@dataclass(frozen=True, slots=True)
class Compute:
    """How a learn mode computes."""

    device: str = CPU  # of torch: where its networks and batches are


DEFAULT = Compute()
