"""The promises of channels, checked over every transport."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.channels import (
    ChannelBroken,
    ChannelClosed,
    ChannelLimits,
    PeerLost,
    Receiver,
    WaitTimeout,
    WouldBlock,
)
from flowrl.channels.channel import BYTES_OF_PROBE
from flowrl.core.batch import Array, Batch
from flowrl.core.state import EMPTY_CLOCK, Clock, Count
from tests.channels.site_pairs import SitePair

MB = 1 << 20


def test_tokens_arrive_in_order(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    assert sites.transfer(sender, receiver, list(range(1000))) == list(range(1000))


def test_tokens_of_all_sizes_arrive_in_order(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(8))
    sizes = [0, 1, 1 << 10, 40_000, 200_000, 3 * MB, 0, 17, 40_000] * 6
    values = [np.full(size, i, np.uint8) for i, size in enumerate(sizes)]
    taken = sites.transfer(sender, receiver, values)
    assert [len(v) for v in taken] == sizes
    for i, value in enumerate(taken):
        assert (value == i).all()


@pytest.mark.parametrize(
    "value",
    [
        np.array(3.5),
        np.zeros((0, 4), np.float32),
        np.zeros((3, 0)),
        np.arange(200_000).reshape(200, 1000)[::2, ::3],
        np.arange(200_000, dtype=">i4"),
        np.arange(60_000, dtype=np.float32).reshape(30, 2000).T,
        np.arange(30_000).astype("M8[us]"),
        np.array(["a", "bcd"] * 30_000),
    ],
    ids=["0-d", "no rows", "no columns", "gaps", "big-endian", "transposed", "dates", "text"],
)
def test_an_array_arrives_as_it_was_sent(sites: SitePair, value: np.ndarray) -> None:
    sender, receiver = sites.open_channel()
    for _ in range(3):  # the first opens shared memory, the others use it
        [taken] = sites.transfer(sender, receiver, [value])
        assert (taken.dtype, taken.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(taken, value)
        sites.poll_until(lambda: sender.all_taken)


def test_received_arrays_are_aligned(sites: SitePair) -> None:
    """Matrix products of unaligned arrays use other instructions, and have other bits."""
    sender, receiver = sites.open_channel()
    for _ in range(4):
        for rows in (3, 900, 5_000, 9_000, 300_000):
            token = {n: np.ones((rows, 3), np.float32) for n in "abc"}
            [batch] = sites.transfer(sender, receiver, [Batch(token)])
            assert [column.ctypes.data % 16 for column in batch.columns.values()] == [0, 0, 0]


def test_received_batches_are_read_only(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for rows in (3, 50_000):
        [batch] = sites.transfer(
            sender, receiver, [Batch({"x": np.arange(rows), "y": np.ones(rows)})]
        )
        assert list(batch) == ["x", "y"]
        for column in batch.columns.values():
            assert not column.flags.writeable
            if sites.kind != "inproc":  # which passes the sender's own array
                with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
                    column.flags.writeable = True


def test_a_clock_comes_with_each_token(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    later = Clock({"collector": Count(96, 2, 0), "learner": Count(0, 0, 1)})
    for clock in (EMPTY_CLOCK, later, later, EMPTY_CLOCK):
        sender.send("token", clock)
    sites.poll_until(lambda: len(receiver) == 4)
    counts = [receiver.take()[1].counts for _ in range(4)]
    assert counts == [{}, later.counts, later.counts, {}]


def test_a_full_channel_blocks_its_sender(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(tokens=4))
    for i in range(4):
        sender.send(i)
    assert not sender.is_ready()
    with pytest.raises(WouldBlock, match="channel 'x' is full: wait until it is ready"):
        sender.send(4)
    sites.poll_until(lambda: len(receiver) == 4)
    assert not sender.is_ready(), "tokens that arrived and were not taken count"
    assert receiver.take()[0] == 0
    sites.poll_until(sender.is_ready)
    sender.send(4)
    sites.poll_until(lambda: len(receiver) == 4)
    assert [receiver.take()[0] for _ in range(4)] == [1, 2, 3, 4]


def test_a_channel_is_limited_in_bytes(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(tokens=100, bytes=5 * MB))
    sent = 0
    while sender.is_ready():
        sender.send(np.zeros(2 * MB, np.uint8))
        sent += 1
    assert sent == 2
    sites.poll_until(lambda: len(receiver) == 2)
    receiver.take()
    sites.poll_until(sender.is_ready)


def test_a_small_token_is_sent_where_one_of_the_largest_would_not_fit(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(tokens=100, bytes=5 * MB))
    for _ in range(2):
        sender.send(np.zeros(2 * MB, np.uint8))
    assert not sender.is_ready()
    for _ in range(2):
        with pytest.raises(WouldBlock, match="channel 'x' is full: wait until it is ready"):
            sender.send(np.zeros(2 * MB, np.uint8))
        sender.send(np.ones(3, np.uint8))
    sites.poll_until(lambda: len(receiver) == 4)
    assert [len(receiver.take()[0]) for _ in range(4)] == [2 * MB, 2 * MB, 3, 3]


def test_a_token_larger_than_the_limit_is_sent_alone(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(bytes=MB))
    taken = sites.transfer(sender, receiver, [np.full(2 * MB, i, np.uint8) for i in range(3)])
    assert [int(v[-1]) for v in taken] == [0, 1, 2]


def test_taking_from_an_empty_channel_would_block(sites: SitePair) -> None:
    _, receiver = sites.open_channel()
    with pytest.raises(WouldBlock, match="channel 'x' is empty: wait until it is ready"):
        receiver.take()


@pytest.mark.slow
def test_a_full_channel_does_not_block_other_channels(sites: SitePair) -> None:
    full, _ = sites.open_channel(ChannelLimits(1), "full")
    sender, receiver = sites.open_channel(ChannelLimits(1), "free")
    full.send("stays")
    assert sites.transfer(sender, receiver, list(range(50))) == list(range(50))


def test_each_direction_is_a_channel_of_its_own(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    back = sites.b.open_sender("back", "a"), sites.a.open_receiver("back", "b")
    sender.send("there")
    back[0].send("back")
    sites.poll_until(lambda: receiver.is_ready() and back[1].is_ready())
    assert (receiver.take()[0], back[1].take()[0]) == ("there", "back")


def test_a_closed_channel_delivers_its_tokens_before_it_ends(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for i in range(3):
        sender.send(i)
    sender.close("the run is over")
    sites.poll_until(lambda: receiver.ended)
    assert [receiver.take()[0] for _ in range(3)] == [0, 1, 2]
    assert receiver.is_ready(), "it will not block"
    with pytest.raises(
        ChannelClosed, match="channel 'x' was closed by its sender, site 'a': the run is over"
    ):
        receiver.take()
    sites.poll_until(lambda: sender.all_taken)
    with pytest.raises(ChannelClosed, match="channel 'x' was closed on this site"):
        sender.send(3)
    assert (sender.statistics().tokens, receiver.statistics().tokens) == (3, 3)


def test_a_full_channel_can_be_closed(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(2))
    sender.send(0)
    sender.send(1)
    sender.close()
    sites.poll_until(lambda: receiver.ended)
    assert [receiver.take()[0] for _ in range(2)] == [0, 1]
    with pytest.raises(ChannelClosed, match=r"channel 'x' was closed by its sender, site 'a'$"):
        receiver.take()


def test_a_sender_learns_that_its_receiver_has_closed(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(2))
    sender.send(0)
    sender.send(1)
    assert not sender.is_ready()
    receiver.close("it has enough")
    sites.poll_until(sender.is_ready)
    with pytest.raises(
        ChannelBroken, match="channel 'x' was closed by its receiver, site 'b': it has enough"
    ):
        sender.send(2)
    assert sender.all_taken
    with pytest.raises(ChannelClosed, match="channel 'x' was closed on this site"):
        receiver.take()


def test_a_closed_receiver_notifies_its_sender_again(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiver, "notify_closed", lambda: None)  # the notification is lost
        receiver.close()
    sender.send(0)
    sites.poll_until(lambda: isinstance(sender.send_error, ChannelBroken))


def test_a_wait_ends_at_its_deadline(sites: SitePair) -> None:
    _, receiver = sites.open_channel()
    with pytest.raises(
        WaitTimeout, match=r"channel 'x' with site 'a': nothing arrived within [\d.]+ s"
    ) as late:
        sites.b.wait(receiver, 0.1)
    assert late.value.waited_s >= 0.1
    assert receiver.statistics().waited_s >= 0.1


@pytest.mark.slow
def test_a_wait_for_a_dead_peer_ends_after_its_last_messages(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    dead: list[str] = []
    sites.b.find_failure = lambda peer: f"{peer} was killed by signal 9" if dead else None
    sender.send("last words")
    sites.a.flush()
    dead.append("a")
    sites.b.wait(receiver, 5)
    assert receiver.take()[0] == "last words"
    with pytest.raises(PeerLost, match="site 'a' is lost: a was killed by signal 9") as lost:
        sites.b.wait(receiver, 5)
    assert lost.value.peer == "a"


def test_gathered_frames_are_sent_before_a_wait(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    idle = sites.a.open_receiver("idle", "b")
    for i in range(20):
        sender.send(i)
    with pytest.raises(WaitTimeout):
        sites.a.wait(idle, 0.01)
    sites.b.wait_until(lambda: len(receiver) == 20, [receiver], 5)


def test_a_wait_serves_all_channels(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(name="other")
    waited, _ = sites.b.open_receiver("waited", "a"), sites.a.open_sender("waited", "b")
    sender.send(1)
    sites.a.flush()
    with pytest.raises(WaitTimeout):
        sites.b.wait(waited, 0.1)
    assert receiver.take()[0] == 1


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_channels_begin_anew_with_a_site_that_is_started_again(sites: SitePair, size: int) -> None:
    def arrays(*numbers: int) -> list[Array]:
        return [np.full(size, number, np.uint8) for number in numbers]

    old, receiver = sites.open_channel()
    to_a, at_a = sites.b.open_sender("back", "a"), sites.a.open_receiver("back", "b")
    sites.transfer(old, receiver, arrays(1, 2))
    for array in arrays(3, 4, 5):
        to_a.send(array)
    sites.poll_until(lambda: len(at_a) == 3)
    at_a.take()
    sites.poll_until(lambda: sites.a.flush() or to_a.statistics().queued == 2)
    old_site = sites.start_a_again()
    sites.b.replace_peer("a", sites.addresses["a"], 1)
    assert (to_a.lost, to_a.statistics().tokens, to_a.all_taken) == (2, 3, True)

    old.send("stale")
    old_site.flush()
    sites.poll_until(lambda: sites.b.connections.traffic().refused == {("another epoch", "a"): 1})
    new, again = sites.a.open_sender("x", "b"), sites.a.open_receiver("back", "b")
    for sender, end in ((new, receiver), (to_a, again)):
        sent = arrays(6, 7, 8, 9)
        assert all(map(np.array_equal, sent, sites.transfer(sender, end, sent)))
    assert (receiver.statistics().tokens, to_a.statistics().tokens) == (6, 7)


def test_channels_with_a_peer_that_joins_later_begin_when_it_is_there(sites: SitePair) -> None:
    b = sites.b
    b.connections.disconnect("a")
    b.connections.await_peer("a")
    receiver, to_a = b.open_receiver("x", "a"), b.open_sender("back", "a", ChannelLimits(tokens=2))
    for number in range(2):
        to_a.send(number)
    b.flush()
    assert not to_a.is_ready()  # what nobody takes is bounded
    sites.start_a_again()
    b.replace_peer("a", sites.addresses["a"], 1)
    sender, from_b = sites.a.open_sender("x", "b"), sites.a.open_receiver("back", "b")
    assert sites.transfer(sender, receiver, [1, 2]) == [1, 2]
    assert sites.transfer(to_a, from_b, [3, 4, 5]) == [3, 4, 5]
    b.connections.await_peer("c")
    b.connections.disconnect("c")


def test_a_token_that_a_peer_sent_before_it_was_replaced_is_sent_again(sites: SitePair) -> None:
    _, receiver = sites.open_channel()
    sites.start_a_again()
    sender = sites.a.open_sender("x", "b")
    sender.send("too early")
    sites.a.flush()
    sites.poll_until(lambda: sites.b.connections.traffic().refused == {("another epoch", "a"): 1})
    sites.b.replace_peer("a", sites.addresses["a"], 1)
    sender.send("in time")
    sites.a.flush()
    sites.poll_until(lambda: len(receiver) == 2)
    assert [receiver.take()[0] for _ in range(2)] == ["too early", "in time"]


def test_tokens_of_unknown_channels_are_refused_and_counted(sites: SitePair) -> None:
    sender = sites.a.open_sender("nowhere", "b")
    sender.send(1)
    sites.a.flush()
    sites.poll_until(lambda: sites.b.connections.traffic().refused == {("unknown channel", "a"): 1})


def test_a_duplicate_token_is_taken_once(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for i in range(5):
        sender.send(i)
    sender.on_resend_request(0)
    sites.poll_until(lambda: receiver.statistics().duplicates == 5)
    assert [receiver.take()[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert not receiver.is_ready()
    assert sender.statistics().resent == 5


def test_a_lost_token_is_resent_in_order(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    connection = sender._connection
    lost = connection.pack_token("x", 0, 0, EMPTY_CLOCK, "lost")
    sender._keep(lost)  # as if it was sent and lost
    sender._clock = EMPTY_CLOCK
    sender.send("after it")
    sites.poll_until(lambda: len(receiver) == 2)
    assert [receiver.take()[0] for _ in range(2)] == ["lost", "after it"]


def test_a_waiting_receiver_requests_a_lost_last_token(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    sender._keep(sender._connection.pack_token("x", 0, 0, EMPTY_CLOCK, "lost"))
    receiver.probe()
    sites.poll_until(receiver.is_ready)
    assert receiver.take()[0] == "lost"


def requests_of(receiver: Receiver, probes: int) -> list[int]:
    """After which of these probes the receiver requests its next token again."""
    requested: list[int] = []
    send_frame = receiver._connection.send_frame
    receiver._connection.send_frame = lambda kind, *_: requested.append(kind)  # type: ignore[method-assign]
    found = []
    for probe in range(1, probes + 1):
        receiver.probe()
        if requested:
            found.append(probe)
            requested.clear()
    receiver._connection.send_frame = send_frame  # type: ignore[method-assign]
    return found


def test_a_token_that_may_be_on_its_way_is_requested_less_and_less_often(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    assert requests_of(receiver, 100) == [1, 2, 4, 8, 16, 32, 52, 72, 92]
    sites.transfer(sender, receiver, [np.zeros(3 * BYTES_OF_PROBE, np.uint8)])
    assert requests_of(receiver, 20) == [4, 8, 16]  # it takes longer than three probes


def test_a_token_that_came_twice_lets_later_ones_be_requested_later(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for number in range(3):
        sender.send("late")
        for _ in range(2**number):  # before it has arrived
            receiver.probe()
        sites.poll_until(lambda n=number: receiver.statistics().duplicates > n)  # type: ignore[misc]
        receiver.take()
    assert requests_of(receiver, 60) == [8, 16, 32, 52]


def test_a_lost_token_that_is_resent_does_not_delay_later_requests(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for _ in range(3):
        sender._keep(sender._connection.pack_token("x", 0, sender.sent, EMPTY_CLOCK, "lost"))
        receiver.probe()
        sites.poll_until(receiver.is_ready)
        receiver.take()
    assert requests_of(receiver, 10) == [1, 2, 4, 8]


def test_a_waiting_sender_requests_lost_credit(sites: SitePair) -> None:
    sender, receiver = sites.open_channel(ChannelLimits(1))
    sender.send(0)
    sites.poll_until(receiver.is_ready)
    receiver.repeat_credit = lambda: None  # type: ignore[method-assign]
    receiver.take()
    sites.b.flush()
    receiver._credited = receiver._taken
    del receiver.repeat_credit
    assert not sender.is_ready()
    sender.probe()
    sites.poll_until(sender.is_ready)


def test_statistics_count_the_tokens_of_a_channel(sites: SitePair) -> None:
    sender, receiver = sites.open_channel()
    for _ in range(3):
        sender.send(np.zeros(1000, np.uint8))
    sites.poll_until(lambda: len(receiver) == 3)
    receiver.take()
    gave, took = sender.statistics(), receiver.statistics()
    assert (gave.channel, gave.peer, gave.tokens, gave.queued) == ("x", "b", 3, 3)
    assert (took.channel, took.peer, took.tokens, took.queued) == ("x", "a", 1, 2)
    assert gave.bytes >= 3000
    assert took.queued_bytes >= 2000
