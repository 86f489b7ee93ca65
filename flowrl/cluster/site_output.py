"""What the sites of a host print: whole lines of it are printed there, and sent to the run within a limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

BYTES_PER_S = 1 << 20  # more than this is printed on the host only
LINE_BYTES = 16 << 10  # more than this is forwarded even without a newline
TOO_MUCH = "(more was printed in this second; it is on the host's own terminal)"


class SiteOutputForwarder:
    """Cuts what sites print into lines, and forwards them."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._unfinished_line = ""
        self._sent_bytes = 0  # since `_second_s`
        self._second_s = 0.0

    def forward(self, text: str, ends_line: bool = False) -> None:
        """Forward whole lines; the rest of a line too, if nothing more of it can come, or if it is very long."""
        self._unfinished_line += text
        end = len(self._unfinished_line)
        if not ends_line and end < LINE_BYTES:
            end = self._unfinished_line.rfind("\n") + 1
        lines, self._unfinished_line = self._unfinished_line[:end], self._unfinished_line[end:]
        if lines:
            sys.stderr.write(lines)
            sys.stderr.flush()
            self._send_within_limit(lines)

    def _send_within_limit(self, lines: str) -> None:
        if time.monotonic() - self._second_s >= 1.0:
            self._second_s, self._sent_bytes = time.monotonic(), 0
        before = self._sent_bytes
        self._sent_bytes += len(lines)
        if self._sent_bytes <= BYTES_PER_S:
            self._send(lines)
        elif before <= BYTES_PER_S:
            self._send(TOO_MUCH)
