"""A site in a process of its own: `python -m tests.channels.echo_site KIND OWN_ADDRESS PEER_ADDRESS [KEYS…]`.

It is site b. It sends each value back, multiplied by two. The value `die` kills the process as a crash would.
"""

from __future__ import annotations

import os
import signal
import sys

from flowrl.channels import ChannelClosed, SiteChannels, SiteConnections
from flowrl.channels.keys import Keys
from tests.channels.site_pairs import RUN


def main(kind: str, own_address: str, peer_address: str, *keys: str) -> None:
    """Send values back until the channel ends."""
    public, secret, known = (key.encode() for key in keys) if keys else (b"", b"", b"")
    connections = SiteConnections(
        "b",
        RUN,
        keys=Keys(public, secret, {"a": known}) if keys else None,
        shared_bytes=64 << 20 if kind == "shared" else 0,
    )
    print(connections.listen(own_address), flush=True)
    connections.connect("a", peer_address)
    channels = SiteChannels(connections)
    receiver, sender = channels.open_receiver("to_b", "a"), channels.open_sender("to_a", "a")
    sender.send("ready")
    try:
        while True:
            channels.wait(receiver, 30)
            value = receiver.take()[0]
            if isinstance(value, str) and value == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            channels.wait(sender, 30)
            sender.send(value * 2)
    except ChannelClosed:
        sender.close()
        channels.wait_until(lambda: sender.all_taken, [sender], 30)
        channels.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
