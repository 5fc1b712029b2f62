"""An end to connections on which a thread of chDB's waits for another node.

chDB has no way to be told. Its sockets are this process's: shut down, they end whoever reads from them with
an error. They are known by the address at their other end, and by being sockets that block, which none of the
event loop's does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


async def shut_down_connections(host: str, port: int) -> int:
    """How many there were. None where the system does not list open files, or the name has no address."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return 0
    addresses = {str(address[0]) for *_, address in found}
    return await asyncio.to_thread(_shut_down, addresses, port)


def _shut_down(addresses: set[str], port: int) -> int:
    count = 0
    for entry in _OPEN_FILES.iterdir() if _OPEN_FILES.is_dir() else ():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                count += _shut_down_if_it_leads_to(int(entry.name), addresses, port)
    return count


def _shut_down_if_it_leads_to(number: int, addresses: set[str], port: int) -> bool:
    """Raises OSError for what is no connected socket (any more)."""
    own = os.dup(number)  # the other number may mean another file at any time
    try:
        connection = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or not os.get_blocking(own):
            return False
        to = connection.getpeername()
        if to[1] != port or to[0].removeprefix("::ffff:") not in addresses:
            return False
        connection.shutdown(socket.SHUT_RDWR)
        return True
