"""The limits of connections and sockets grow with the hosts of a run and with the peers of a site."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from flowrl.channels.connection_guard import MAX_UNKNOWN, ConnectionLimits
from flowrl.channels.zmq_sockets import ZmqSockets
from flowrl.cluster.control_socket import MIN_CONNECTIONS, _connection_limits
from tests.cluster.many_hosts import joining_s


def test_all_peers_of_a_site_may_connect_at_the_same_time() -> None:
    assert ConnectionLimits(10, 10).unknown == MAX_UNKNOWN
    assert ConnectionLimits(10, 10, peers=1000).unknown == 1000


def test_a_control_port_admits_the_hosts_that_the_run_asks_for() -> None:
    assert _connection_limits(3).connections == MIN_CONNECTIONS
    assert _connection_limits(1000).connections >= 2000
    assert _connection_limits(1000).unknown == 1000


def test_a_thread_can_have_a_socket_for_each_of_more_than_a_thousand_peers() -> None:
    sockets = ZmqSockets()
    made = [sockets.connect(zmq.PUSH, "inproc://nobody") for _ in range(1100)]
    for one in made:
        one.close()
    sockets.close()


def test_more_hosts_than_may_be_unknown_join_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.LEAVE_TIMEOUT_S", 0.1)  # stubs never leave
    joining_s(4 * MAX_UNKNOWN, tmp_path)


@pytest.mark.slow
def test_as_many_hosts_join_as_have_a_site_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.LEAVE_TIMEOUT_S", 0.1)
    joining_s(MIN_CONNECTIONS + 2 * MAX_UNKNOWN, tmp_path, MIN_CONNECTIONS + 2 * MAX_UNKNOWN)
