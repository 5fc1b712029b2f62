"""Who this node is, and which names in the queue mean it.

Source: ClickHouse's isLocalAddress and HostID.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import HostId


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What one node says of itself.

    `host_name` is the name it is known by; an entry's host of that name and one of the ports is this node,
    without asking DNS. `server_uuid` tells its ephemeral nodes from those of other servers, and stays the
    same across restarts.
    """

    host_name: str
    tcp_port: int
    server_uuid: UUID
    tcp_port_secure: int = 0
    interserver_http_host: str = ""

    @property
    def host_id(self) -> HostId:
        """The id under which an entry that nobody can read gets its error."""
        return HostId(self.host_name, self.tcp_port)

    @property
    def ports(self) -> frozenset[int]:
        return frozenset({self.tcp_port, self.tcp_port_secure} - {0})

    @property
    def stamp(self) -> bytes:
        """The data of its ephemeral nodes."""
        return str(self.server_uuid).encode()


class Resolver(Protocol):
    """Names to addresses."""

    async def resolve(self, host: str) -> frozenset[str]:
        """All addresses of a name or of an address itself. Raises SqlError 198 DNS_ERROR."""
        ...

    def local_addresses(self) -> frozenset[str]:
        """Addresses of this machine's interfaces."""
        ...


class SystemResolver:
    """The operating system's resolver; an answer is kept for `keep_s` seconds, a failure is not. So are the
    addresses of this machine, which may get one more while the node runs."""

    def __init__(self, *, keep_s: float = 15.0) -> None:
        self._keep_s = keep_s
        self._known: dict[str, tuple[float, frozenset[str]]] = {}
        self._local: tuple[float, frozenset[str]] = (0.0, frozenset())

    async def resolve(self, host: str) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        known = self._known.get(host)
        if known and loop.time() < known[0]:
            return known[1]
        try:
            found = await loop.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SqlError(Code.DNS_ERROR, f"Not found address of host: {host} ({error})") from error
        addresses = frozenset(str(info[4][0]) for info in found)
        self._known[host] = (loop.time() + self._keep_s, addresses)
        return addresses

    def local_addresses(self) -> frozenset[str]:
        now_s = asyncio.get_running_loop().time()
        until_s, local = self._local
        if not local or now_s >= until_s:
            local = _addresses_of_this_machine()
            self._local = now_s + self._keep_s, local
        return local


def _addresses_of_this_machine() -> frozenset[str]:
    import psutil

    return frozenset(
        address.address.split("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    )


@dataclass(slots=True)
class FixedResolver:
    """A table instead of DNS, for tests and for clusters on one machine. Addresses resolve to themselves."""

    table: Mapping[str, str]
    local: frozenset[str] = frozenset({"127.0.0.1", "::1"})

    async def resolve(self, host: str) -> frozenset[str]:
        if host in self.table:
            return frozenset({self.table[host]})
        try:
            return frozenset({str(ipaddress.ip_address(host.strip("[]")))})
        except ValueError:
            raise SqlError(Code.DNS_ERROR, f"Not found address of host: {host}") from None

    def local_addresses(self) -> frozenset[str]:
        return self.local


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_local_address(address: str, local: frozenset[str]) -> bool:
    """Whether an address is this machine's.

    In 127/8 only addresses whose last three octets are each 0 or 1 count: 127.0.0.2 is often somebody
    else's test.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if parsed.is_loopback:
        return parsed.version == 6 or all(octet <= 1 for octet in parsed.packed[1:])
    return address in local


async def is_own_host(resolver: Resolver, name: str) -> bool:
    """Whether a host's name is this machine's. One that nobody knows is not."""
    try:
        addresses = await resolver.resolve(name)
    except SqlError:
        return False
    local = resolver.local_addresses()
    return any(is_local_address(address, local) for address in addresses)
