"""A site in a process of its own: `python -m tests.channels.child KIND MY_ADDRESS YOUR_ADDRESS [KEYS…]`.

It is site b. It sends back twice what it is sent: a first word `die` ends it as a crash would.
"""

from __future__ import annotations

import os
import signal
import sys

from flowrl.channels import Closed, Exchange, Mailbox
from flowrl.channels.keys import Keys
from tests.channels.pairs import RUN


def main(kind: str, mine: str, yours: str, *keys: str) -> None:
    """Serve until the lane ends."""
    public, secret, known = (key.encode() for key in keys) if keys else (b"", b"", b"")
    mailbox = Mailbox(
        "b",
        RUN,
        keys=Keys(public, secret, {"a": known}) if keys else None,
        shared_bytes=64 << 20 if kind == "shared" else 0,
    )
    print(mailbox.listen(mine), flush=True)
    mailbox.meet("a", yours)
    exchange = Exchange(mailbox)
    receiver, sender = exchange.receiver("there", "a"), exchange.sender("back", "a")
    sender.send("here")
    try:
        while True:
            exchange.wait(receiver, 30)
            value = receiver.take()[0]
            if isinstance(value, str) and value == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            exchange.wait(sender, 30)
            sender.send(value * 2)
    except Closed:
        sender.close()
        exchange.wait_until(lambda: sender.settled, [sender], 30)
        exchange.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
