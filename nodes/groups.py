"""Groups of learners that train one policy together: each learns from a part of the rows, all have the same weights.

What a group computes is what one learner would compute from all rows, up to the rounding of sums: gradients are
weighted by rows and added in the order of the replicas, random numbers are drawn for all rows, and advantages are
normalised over all rows.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Array
from flowrl.core.replica_group import ReplicaGroup
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

WAIT_S = 600.0  # for the slowest learner of a group


class Group:
    """One learner's view of its group. This class is a learner alone; others override `sum`."""

    def __init__(self, replica: int = 0, size: int = 1) -> None:
        self.replica, self.size = replica, size
        self.rows = self.begin = (
            0  # of the batch: the rows of all learners, and the first one of this learner
        )
        self.share = 1.0  # the share of the rows behind the next gradient that are this learner's

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values that all learners give, added in the order of the replicas."""
        return values

    def set_rows(self, own: int) -> None:
        """Begin with a batch, of which this learner has so many rows."""
        if self.size > 1:
            counts = self._counts(own)
            self.rows, self.begin = sum(counts), sum(counts[: self.replica])
            self.share = own / self.rows

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all learners of each of these numbers."""
        if self.size == 1:
            return list(numbers)
        found: list[float] = self.sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
        return found

    def sum_gradients(self, grads: Tensor) -> None:
        """Replace gradients, each weighted by its share, by their sum."""
        grads.copy_(self.sum(grads))

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (N, …) of all learners, in the order of the replicas."""
        if self.size == 1:
            return rows
        counts = self._counts(len(rows))
        begin = sum(counts[: self.replica])
        joined = rows.new_zeros((sum(counts), *rows.shape[1:]))
        joined[begin : begin + len(rows)] = rows
        return self.sum(joined)

    def own_part(self, joined: Any, own: int) -> Any:
        """The rows of this learner, of which there are so many, among those that `gather` returned."""
        begin = sum(self._counts(own)[: self.replica]) if self.size > 1 else 0
        return joined[begin : begin + own]

    def count_all(self, own: int) -> int:
        """The rows of all learners, of which this one has so many."""
        return sum(self._counts(own))

    def close(self) -> None:
        """Release what it holds, because this learner ends or has failed."""

    def _counts(self, own: int) -> Sequence[int]:
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.replica] = own
        found: Sequence[int] = self.sum(counts).tolist()
        return found


class GraphGroup(Group):
    """A group whose learners are the replicas of a node in a graph. The engine adds, in the order of the replicas."""

    def __init__(self, replicas: ReplicaGroup) -> None:
        super().__init__(replicas.replica, replicas.size)
        self._replicas = replicas

    def sum(self, values: Tensor) -> Tensor:
        return tensor(self._replicas.sum(to_numpy(values))).to(values.device)

    def gather(self, rows: Tensor) -> Tensor:
        parts = self._replicas.gather(to_numpy(rows).copy())
        joined: Tensor = torch.cat([tensor(part) for part in parts])
        return joined.to(rows.device)

    def _counts(self, own: int) -> Sequence[int]:
        return self._replicas.gather(own)


class ThreadGroup(Group):
    """A group whose learners are in threads of this process, which must all learn at the same time."""

    def __init__(
        self, replica: int, size: int, barrier: threading.Barrier, given: list[Tensor | None]
    ) -> None:
        super().__init__(replica, size)
        self._barrier, self._given = barrier, given

    @classmethod
    def of_size(cls, size: int) -> list[ThreadGroup]:
        """The views of all learners of a new group."""
        barrier = threading.Barrier(size, timeout=WAIT_S)
        given: list[Tensor | None] = [None] * size
        return [cls(replica, size, barrier, given) for replica in range(size)]

    def sum(self, values: Tensor) -> Tensor:
        self._given[self.replica] = values
        self._meet()
        total = added_in_order([x for x in self._given if x is not None])
        self._meet()  # values may change afterwards
        return total

    def leave(self) -> None:
        """Let the others fail, because this learner has failed."""
        self._barrier.abort()

    def _meet(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError(
                f"learner {self.replica} waits in vain: another one of its group of {self.size} has failed, or takes "
                f"longer than {WAIT_S:g} s"
            ) from None


def check_equal_weights(
    group: ReplicaGroup, train_iter: int, names: Sequence[str], weights: Mapping[str, Array]
) -> None:
    """Raise an error if the learners of a group have different weights, or metrics of different names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    found = group.gather([digest.hexdigest(), *names])
    for replica, (theirs, *their_names) in enumerate(found):
        if their_names != found[0][1:]:
            only = ", ".join(sorted(set(their_names) ^ set(found[0][1:])))
            raise RuntimeError(
                f"replica {replica} of the group and replica 0 have different metrics ({only}); what is reported "
                "must not depend on the rows of one replica"
            )
        if theirs != found[0][0]:
            raise RuntimeError(
                f"after train iteration {train_iter}, replica {replica} of the group has other weights than replica 0; "
                "what changes weights beside gradients, such as a hook, must not depend on the rows of one replica"
            )


def added_in_order(values: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, from the first to the last."""
    total = values[0].clone()
    for value in values[1:]:
        total.add_(value)
    return total


ALONE = Group()
