"""ZooKeeper's frames on a TCP connection: each led by its length.

A connection that sends what is no frame is broken off; nobody waits for its rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from kazoo.protocol.serialization import int_struct

log = logging.getLogger(__name__)

_LONGEST_FRAME_BYTES = 256 << 20


class FrameReceiver(Protocol):
    """Whose connection it is."""

    def frame_received(self, wire: Wire, data: bytes, at: int) -> None:
        """A frame begins at `data[at]`. What comes behind its end belongs to others."""
        ...

    def connection_lost(self, wire: Wire) -> None: ...


class Wire(asyncio.Protocol):
    """One connection. `first_frame` is the answer to the greeting; every later frame is the owner's."""

    def __init__(self, owner: FrameReceiver) -> None:
        self._owner = owner
        self._rest = b""
        self.transport: asyncio.Transport | None = None
        self.first_frame: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= 4:
            length = int_struct.unpack_from(data, at)[0]
            if not 0 <= length <= _LONGEST_FRAME_BYTES:
                self.drop(f"a frame of {length} bytes")
                return
            end = at + 4 + length
            if end > size:
                break
            if not self.first_frame.done():
                self.first_frame.set_result(data[at + 4 : end])
            else:
                self._owner.frame_received(self, data, at + 4)
            at = end
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.first_frame.done():
            self.first_frame.set_exception(error or ConnectionResetError("the server closed the connection"))
            self.first_frame.exception()
        self._owner.connection_lost(self)

    def write_frame(self, payload: bytes) -> None:
        assert self.transport is not None
        self.transport.write(int_struct.pack(len(payload)) + payload)

    def drop(self, why: str) -> None:
        log.warning("keeper.connection_dropped why=%s", why)
        if self.transport is not None:
            self.transport.abort()
