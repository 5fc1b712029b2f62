"""Ports on loopback that nobody uses.

They are taken from below the range from which the operating system gives ports to outgoing connections, so
that between our look and the server's bind only another search like this one could take the port; searches
start at random places.
"""

from __future__ import annotations

import socket

import psutil

from engine.env import Env, SystemEnv
from engine.errors import Unavailable

_FIRST, _BEYOND = 20_000, 32_000


def is_free(port: int, *, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `host`:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int, *, env: Env | None = None) -> tuple[int, ...]:
    """`count` different free ports. Raises Unavailable when there are not enough."""
    start = (env or SystemEnv()).rng.randrange(_BEYOND - _FIRST)
    found: list[int] = []
    for step in range(_BEYOND - _FIRST):
        if len(found) == count:
            break
        port = _FIRST + (start + step) % (_BEYOND - _FIRST)
        if is_free(port):
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
