"""A site in a process of its own: `python -m tests.channels.child KIND MY_ADDRESS YOUR_ADDRESS [KEYS…]`.

It is site b. It sends back twice what it is sent: a first word `die` ends it as a crash would.
"""

from __future__ import annotations

import os
import signal
import sys

from flowrl.channels import ChannelClosed, SiteChannels, SiteConnections
from flowrl.channels.keys import Keys
from tests.channels.pairs import RUN


def main(kind: str, mine: str, yours: str, *keys: str) -> None:
    """Serve until the lane ends."""
    public, secret, known = (key.encode() for key in keys) if keys else (b"", b"", b"")
    connections = SiteConnections(
        "b",
        RUN,
        keys=Keys(public, secret, {"a": known}) if keys else None,
        shared_bytes=64 << 20 if kind == "shared" else 0,
    )
    print(connections.listen(mine), flush=True)
    connections.connect("a", yours)
    channels = SiteChannels(connections)
    receiver, sender = channels.open_receiver("there", "a"), channels.open_sender("back", "a")
    sender.send("here")
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
