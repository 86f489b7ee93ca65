"""A snapshot of any placement continues in any placement, with the bits of an execution without a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.core import array_pieces
from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.plain_data import DataCodec
from flowrl.core.ports import In
from flowrl.core.saved_state import SavedState
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.runs import snapshot_files
from flowrl.runs.snapshot_files import SnapshotWriter
from flowrl.runtime import copies_ahead, stored_pieces
from flowrl.runtime.control import part_messages
from flowrl.runtime.control.messages import ArrayBytes, LoadParts, SavedParts
from flowrl.runtime.control.part_messages import ArrivedArrays, load_messages, saved_messages
from flowrl.runtime.part_hashes import digest_of_parts
from flowrl.runtime.snapshot_schedule import SnapshotSchedule
from tests.quick_selection import exhaustive_except
from tests.sites.bundled_cases import COMPARED, SMALL
from tests.sites.snapshots import Execution, StoringExecution, compare_continued, execute
from tests.sites.test_same_bits import GRAPHS
from tests.toys.toy_nodes import Learner
from tests.toys.toy_runs import toy_graph

LOAD: DataCodec[ArrayBytes | LoadParts | SavedParts] = DataCodec(
    ArrayBytes | LoadParts | SavedParts
)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_continues_from_a_snapshot(name: str) -> None:
    checked = check(load_data(GRAPHS[name])).require_sound()
    warm = sum(phase.rounds for phase in checked.program.warmup)
    compare_continued(checked, 4, {1, warm + 3}, "serial", "threads")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_continues_from_each_of_its_snapshots(name: str) -> None:
    checked = check(load_data(GRAPHS[name])).require_sound()
    warm = sum(phase.rounds for phase in checked.program.warmup)
    at = {1, 2, warm + 1, warm + 3, warm + 6} | ({warm} - {0})
    compare_continued(checked, 6, at, "serial", "threads")


@pytest.mark.slow
def test_a_bundled_graph_continues_from_each_of_its_snapshots() -> None:
    compare_bundled("cartpole_dqn_per", "threads")


@pytest.mark.parametrize("placement", ["serial", "threads"])
@pytest.mark.parametrize("end", ["train iterations", "verdict"])
def test_a_snapshot_due_after_a_round_within_which_the_run_ends_is_left_out(
    end: str, placement: str
) -> None:
    """The buffer has completed the round, and the learner never makes all priorities of it."""
    nodes: dict[str, Any] = {
        "c": "Source",
        "b": {"type": "Buffer", "updates": 4},
        "l": "Learner",
        "e": {"type": "Evaluator", **({"goal": 1} if end == "verdict" else {})},
    }
    edges = ["c -> b -> l", "l.priorities -> b.priorities", "l.weights -> c.weights"]
    graph = toy_graph(nodes, [*edges, {"l.weights -> e": {"every": 10}}])
    limits = Limits(rounds=5) if end == "verdict" else Limits(train_iters=10)
    found = execute(check(load_data(graph)).require_sound(), placement, limits, {2, 3})
    assert found.cut is not None
    assert (found.cut.rounds, found.cut.counts.train_iters) == (2, 10)
    assert found.snapshots.keys() == {2}
    assert not found.problems


def test_replicas_that_share_tokens_go_on_with_the_one_whose_turn_it_is() -> None:
    """A lossy edge lets one token pass in a round, so the two replicas get one in every other round each."""
    lossy = {"c -> r": {"when_full": "drop_oldest", "capacity": 1}}
    nodes = {"c": "Source", "r": "Relay", "d": {"type": "Drain", "replicas": 2, "clock": True}}
    checked = check(load_data(toy_graph(nodes, [lossy, "r -> d"]))).require_sound()
    assert checked.program.round.firings["c"] == 2
    compare_continued(checked, 6, {1, 2, 3}, "serial")


# BipedalWalker keeps its physical world in a reset, so that an episode depends on those before it.
EXACT = sorted(set(COMPARED) - {"bipedalwalker_tqc"})
# In CI: priorities, a queue, a group of learners, whole episodes, memory, real-valued actions, goals, and a team.
IN_CI = [
    *(("cartpole_dqn_per",), ("cartpole_impala",), ("cartpole_ppo_group",)),
    *(("cartpole_reinforce",), ("hiddencartpole_ppo",), ("pendulum_sac",)),
    *(("bitflip_dqn_her",), ("spread_mappo",)),
]


@pytest.mark.slow
@pytest.mark.parametrize("graph", exhaustive_except(IN_CI, EXACT))
def test_every_bundled_graph_continues_in_processes(graph: str, perturbed_processes: None) -> None:
    compare_bundled(graph, "processes")


def compare_bundled(graph: str, *placements: str) -> None:
    sets = {key: str(value) for key, value in SMALL[graph].items()}
    if "evaluator" in check(load_graph(graph, sets)).graph.nodes:
        sets["evaluator.stop_value"] = "null"  # the goals of short episodes are easy
    checked = check(load_graph(graph, sets)).require_sound()
    warm = sum(phase.rounds for phase in checked.program.warmup)
    compare_continued(checked, 3, {warm + 1, warm + 3}, *placements)


class KeepsRows(Node):
    """Stores ten rows in each of the first firings, in a ring of 95."""

    data = In("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(state_bytes=95 * 64, live_state_bytes=95 * 64)

    def setup(self) -> None:
        self.ring = Ring(95)

    def fire(self, data: Batch) -> None:
        if data["n"][0] > 500:
            return
        n = np.arange(10) + 10 * data["n"]
        self.ring.push({"obs": np.stack([n] * 8, 1)})

    def state_dict(self) -> dict[str, Any]:
        return self.ring.state_dict(self.ctx.reads_live_arrays)

    def load_state_dict(self, state: Any) -> None:
        self.ring.load_state_dict(state)


def test_large_arrays_are_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is larger than what a channel holds would leave no room for others."""
    monkeypatch.setattr(part_messages, "MESSAGE_BYTES", 4096)
    state = {"w": np.arange(3000.0).reshape(3, 1000), "b": np.ones(2), "n": np.ones((0, 4))}
    parts = {"node/l": SavedState.of(state), "node/k": SavedState.of({"w": np.ones(1024)})}
    for sent in (
        [LOAD.encode(m) for m in load_messages(3, parts, {"l": 4})],
        [LOAD.encode(m) for m in saved_messages(3, parts)],
    ):
        *arrays, last = [LOAD.decode(data) for data in sent]
        arrived = ArrivedArrays()
        for message in arrays:
            assert isinstance(message, ArrayBytes)
            assert message.content.nbytes <= 4096
            arrived.add(message)
        assert len(arrays) == 6 + 1 + 2
        assert isinstance(last, LoadParts | SavedParts)
        assert digest_of_parts(arrived.decode_parts(last.parts)) == digest_of_parts(parts)


def test_a_graph_continues_from_parts_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_messages, "MESSAGE_BYTES", 1024)
    graph = toy_graph(
        {"c": "Source", "l": f"{__name__}:LearnerWithManyWeights"},
        ["c -> l", "l.weights -> c.weights"],
    )
    checked = check(load_data(graph)).require_sound()
    compare_continued(checked, 6, {2, 3}, "threads", "c=main,l=thread")


class KeepsManyRows(Node):
    """Stores 140 MB of rows in each of the first two firings."""

    data = In("samples")

    def setup(self) -> None:
        self.ring = Ring(35_000)

    def fire(self, data: Batch) -> None:
        if data["n"][0] < 2:
            self.ring.push({"obs": np.full((17_500, 1000), data["n"][0] + 0.5)})

    def state_dict(self) -> dict[str, Any]:
        return self.ring.state_dict(self.ctx.reads_live_arrays)

    def load_state_dict(self, state: Any) -> None:
        self.ring.load_state_dict(state, self.ctx.keeps_loaded_arrays)


@pytest.mark.slow
def test_a_state_of_more_than_a_channel_holds_continues() -> None:
    nodes = {"c": "Source", "l": "Learner", "k": f"{__name__}:KeepsManyRows"}
    checked = check(load_data(toy_graph(nodes, ["c -> l, k", "l.weights -> c.weights"])))
    compare_continued(checked.require_sound(), 10, {3, 9}, "c=main,l=main,k=process")


class LearnerWithManyWeights(Learner):
    def setup(self) -> None:
        super().setup()
        self.sum = np.arange(3000.0).reshape(1500, 2)


@pytest.fixture
def rows_graph(monkeypatch: pytest.MonkeyPatch) -> CheckedGraph:
    """A graph with a ring of 6080 bytes, in pieces of 500 bytes."""
    for module in (stored_pieces, snapshot_files):
        monkeypatch.setattr(module, "LARGE_BYTES", 1000)
    monkeypatch.setattr(array_pieces, "PIECE_BYTES", 500)
    monkeypatch.setattr(part_messages, "MESSAGE_PIECES", 2)
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "k": f"{__name__}:KeepsRows"},
        ["c -> l, k", "l.weights -> c.weights"],
    )
    return check(load_data(graph)).require_sound()


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_snapshot_that_leaves_out_what_is_stored_is_whole_on_the_disk(
    placement: str, rows_graph: CheckedGraph, tmp_path: Path
) -> None:
    """Only the newest snapshot is kept, and the ring is full long before the last one."""
    checked = rows_graph
    at, limits = [9, 14, 15, 20, 28, 30], Limits(rounds=30)
    whole = execute(checked, "serial", limits, at)
    sink = StoringExecution(SnapshotSchedule(known=at), writer=SnapshotWriter(tmp_path, keep=1))
    stored = execute(checked, placement, limits, at, sink=sink)
    assert stored.digests() == whole.digests()
    if placement == "serial":  # other sites may be told too late what is stored
        assert sink.left_out > 15


@pytest.fixture
def copied_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site copies two pieces at a time, and leaves five to the snapshot: two pushes change four."""
    monkeypatch.setattr(copies_ahead, "COPY_AHEAD_BYTES", 1000)
    monkeypatch.setattr(copies_ahead, "REST_BYTES", 2500)


@pytest.mark.slow
@pytest.mark.usefixtures("copied_in_small_steps")
@pytest.mark.parametrize("placement", ["serial", "threads", "l=main,c=thread,k=main"])
def test_a_large_buffer_is_copied_ahead_of_a_requested_snapshot(
    placement: str, rows_graph: CheckedGraph, tmp_path: Path
) -> None:
    limits, schedule = Limits(rounds=3000), SnapshotSchedule()
    sink = StoringExecution(schedule, writer=SnapshotWriter(tmp_path, keep=1))
    sink.at_record = {1500: schedule.request}  # when no more rows are stored
    stored = execute(rows_graph, placement, limits, [], sink=sink)
    assert not stored.problems
    [rounds] = stored.snapshots
    whole = execute(rows_graph, "serial", limits, [rounds])
    assert stored.digests() == whole.digests()
    assert (sink.ahead, sink.left_out) == (13, 13)


@pytest.mark.usefixtures("copied_in_small_steps")
def test_a_large_buffer_is_copied_ahead_of_a_known_round(
    rows_graph: CheckedGraph, tmp_path: Path
) -> None:
    sink = StoringExecution(SnapshotSchedule(known=[40]), writer=SnapshotWriter(tmp_path, keep=1))
    stored = execute(rows_graph, "serial", Limits(rounds=40), [], sink=sink)
    assert stored.digests() == execute(rows_graph, "serial", Limits(rounds=40), [40]).digests()
    assert sink.ahead >= 13


@pytest.mark.slow
@pytest.mark.usefixtures("copied_in_small_steps")
@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_snapshot_whose_copies_cannot_be_written_ahead_is_given_up(
    placement: str, rows_graph: CheckedGraph
) -> None:
    sink = Execution(SnapshotSchedule())  # which writes nothing
    sink.at_record = {200: sink.schedule.request}
    found = execute(rows_graph, placement, Limits(rounds=1000), [], sink=sink)
    assert not found.snapshots
    assert sink.schedule.due_within(1001, 1001) == set()  # it is requested no more
    assert found.digest == execute(rows_graph, "serial", Limits(rounds=1000), []).digest


class KeepsAnObject(Node):
    """A node with an attribute that cannot be saved."""

    data = In("samples")

    def setup(self) -> None:
        self.cache = object()

    def fire(self, data: Batch) -> None:
        pass


class NamesItsCache(KeepsAnObject):
    unsaved = ("cache",)


def with_object(kind: str, **more: Any) -> Any:
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "k": f"{__name__}:{kind}"}, ["c -> l, k"], **more
    )
    return check(load_data(graph)).require_sound()


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_node_that_cannot_be_saved_is_an_error_before_the_first_firing(placement: str) -> None:
    checked = with_object("KeepsAnObject", snapshots={"every_rounds": 100})
    with pytest.raises(NodeError, match=r"'k', saving its state: .*keepsanobject\.cache is"):
        execute(checked, placement, Limits(rounds=4), [])


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_snapshot_that_was_not_announced_may_fail(placement: str) -> None:
    found = execute(with_object("KeepsAnObject"), placement, Limits(rounds=4), [2])
    assert not found.snapshots
    assert "keepsanobject.cache is a object" in found.problems[0]
    assert (
        found.digest == execute(with_object("NamesItsCache"), "serial", Limits(rounds=4), []).digest
    )


class LearnerWithAnObject(Learner):
    def setup(self) -> None:
        super().setup()
        self.optimiser = object()


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_learner_that_cannot_be_saved_still_learns(placement: str) -> None:
    nodes = {"c": "Source", "l": f"{__name__}:LearnerWithAnObject", "e": "Evaluator"}
    edges = ["c -> l", {"l.weights -> e": {"every": 2}}]
    checked = check(load_data(toy_graph(nodes, edges))).require_sound()
    assert execute(checked, placement, Limits(rounds=4), []).digest


def test_attributes_that_are_named_as_no_state_are_left_out() -> None:
    found = execute(with_object("NamesItsCache"), "serial", Limits(rounds=4), [2])
    assert found.snapshots.keys() == {2}
