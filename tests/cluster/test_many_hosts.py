"""The limits of connections and sockets grow with the hosts of a run and with the peers of a site."""

from __future__ import annotations

import zmq

from flowrl.channels.connection_guard import MAX_UNKNOWN, ConnectionLimits
from flowrl.channels.zmq_sockets import ZmqSockets
from flowrl.cluster.control_socket import MIN_CONNECTIONS, _connection_limits


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
