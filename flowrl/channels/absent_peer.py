"""The connection to a site that has not joined the run yet: whatever is sent to it is dropped.

Channels with such a site begin anew when it joins (`SiteChannels.replace_peer`).
"""

from __future__ import annotations

from typing import Any

from flowrl.channels.inproc import ReferenceFrame, size_bytes
from flowrl.channels.transport import Connection
from flowrl.channels.wire_format import AS_IT_IS, WireFormat
from flowrl.core.state import Clock


class AbsentPeer(Connection[ReferenceFrame]):
    """Sends nothing. The site will be on another machine, so its channels have a wire format from the beginning."""

    spans_machines = True

    def pack_token(
        self,
        channel: str,
        epoch: int,
        number: int,
        clock: Clock | None,
        value: Any,
        wire: WireFormat = AS_IT_IS,
    ) -> ReferenceFrame:
        return ReferenceFrame([], size_bytes(value))

    def pack_frame(self, *frame: Any) -> ReferenceFrame:
        return ReferenceFrame([], 0)

    def send(self, packed: ReferenceFrame) -> None:
        """Drop the frame: its channel begins anew when the site joins."""
