"""Ports on loopback that nobody uses.

They are taken from below the range from which the operating system gives ports to outgoing connections, so
that between our look and the server's bind only another search like this one could take the port. So a search
leaves a mark at each port it found, which others see until this process ends or has found a hundred more:
servers that bind with SO_REUSEPORT, as ClickHouse does, would both run on one port, each with a part of the
other's connections. A mark is a Unix socket with an abstract name (Linux); elsewhere only the random start
keeps two searches apart.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections import deque

import psutil

from engine.env import Env, SystemEnv
from engine.errors import Busy, Unavailable

_FIRST, _BEYOND = 20_000, 32_000
_MARKS = 100
_marks: deque[socket.socket] = deque(maxlen=_MARKS)
"""Open sockets; one that is pushed out is closed, as nothing else refers to it."""


def is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `host`:`port` now.

    Raises Unavailable when none could though it is nobody's: it may be for root only, or `host` not there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise Unavailable(f"Nothing can listen on {host}:{port}: {error.strerror}.") from error
    return True


def require_free(port: int, who: str) -> None:
    """Raises Busy with the holder's name when something listens on the port that `who` wants."""
    if not is_free(port):
        holder = holder_of(port)
        raise Busy(
            f"Port {port}, wanted by {who}, is taken by {holder}.",
            holder=holder,
            hint="Stop that program or choose another port.",
        )


def free_ports(count: int, *, env: Env | None = None) -> tuple[int, ...]:
    """`count` different free ports. Raises Unavailable when there are not enough."""
    start = (env or SystemEnv()).rng.randrange(_BEYOND - _FIRST)
    found: list[int] = []
    for step in range(_BEYOND - _FIRST):
        if len(found) == count:
            break
        port = _FIRST + (start + step) % (_BEYOND - _FIRST)
        if is_free(port) and _mark(port):
            found.append(port)
    if len(found) < count:
        raise Unavailable(f"Only {len(found)} of {count} ports between {_FIRST} and {_BEYOND} are free.")
    return tuple(found)


def holder_of(port: int) -> str:
    """Who listens on the port, as far as the operating system tells us: `java (process 4711)`."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,)
            if listens and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return "another program"


def _mark(port: int) -> bool:
    """Leave our mark at the port. False when a search of a living process has left one."""
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0oncluster-port-{port}")
    except OSError:
        mark.close()
        return False
    _marks.append(mark)
    return True
