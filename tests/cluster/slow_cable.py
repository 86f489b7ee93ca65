"""A cable between two network namespaces that is slow: it delays every frame, and stalls some of them for longer.

    python -m tests.cluster.slow_cable NAMESPACE/DEVICE NAMESPACE/DEVICE DELAY_S STALLED_SHARE STALL_S

It is a process that makes a TAP device at each end, and passes frames from one to the other. A frame that is stalled
is overtaken by later ones, as a segment is that was lost and sent again. Which ones are stalled is drawn with a fixed
seed. It prints a line when both devices are there, and needs root.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from tests.cluster.network import NAMESPACES, enter_namespace

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME_BYTES = 1 << 16
MAX_READS = 64  # of one device in a row


def open_tap(end: str) -> int:
    """Make a TAP device in a network namespace, and return its descriptor. This process stays in the namespace."""
    space, device = end.split("/")
    enter_namespace(NAMESPACES / space)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def pass_frames(one: int, other: int, delay_s: float, stalled_share: float, stall_s: float) -> None:
    """Pass frames between two devices until one of them is gone."""
    draw = random.Random(0).random
    to = {one: other, other: one}
    # When it arrives, its number, where, the frame.
    on_the_way: list[tuple[float, int, int, bytes]] = []
    count = 0
    poller = select.poll()
    for fd in to:
        poller.register(fd, select.POLLIN)
    while True:
        wait_s = on_the_way[0][0] - time.monotonic() if on_the_way else 1.0
        for fd, _ in poller.poll(max(wait_s, 0.0) * 1000):
            for _ in range(MAX_READS):
                try:
                    frame = os.read(fd, MAX_FRAME_BYTES)
                except BlockingIOError:
                    break
                stalls = draw() < stalled_share
                due_s = time.monotonic() + delay_s + (stall_s if stalls else 0.0)
                count += 1
                heapq.heappush(on_the_way, (due_s, count, to[fd], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            *_, fd, frame = heapq.heappop(on_the_way)
            write_frame(fd, frame)


def write_frame(fd: int, frame: bytes) -> None:
    """Write a frame. A device that is down, or has no room, loses it."""
    try:
        os.write(fd, frame)
    except OSError:
        return


def main() -> None:
    one, other, *numbers = sys.argv[1:]
    ends = open_tap(one), open_tap(other)
    print("ready", flush=True)
    pass_frames(*ends, *map(float, numbers))


if __name__ == "__main__":
    main()
