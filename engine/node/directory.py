"""The node's own files in its data directory: the lock, its identity, and what supervisors read.

<path>/oncluster/lock      held (flock) while a node runs on this directory; names its process
<path>/oncluster/uuid      the server's UUID, made once
<path>/oncluster/reads     a secret, made once: what keys are made of by which other nodes read this one
<path>/node.json           pid and ports of the running node; removed at its end
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from engine.env import Env
from engine.errors import Busy, Code, ConfigError
from engine.storage.layout import private_directory

_SECRET_BYTES = 32
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class NodeDirectory:
    """Use as a context manager: entered, the directory is this process's alone."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._own = private_directory(self.path)
        self._lock_fd = -1

    def __enter__(self) -> Self:
        """Raises Busy, naming the process, when another node runs here; ConfigError for no place for one."""
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"The data directory {self.path} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock_fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock_fd)
            raise Busy(
                f"The data directory {self.path} is in use by process {holder}.",
                holder=holder,
                code=Code.CANNOT_OPEN_FILE,
                hint="Stop that node first, or give this one another <path>.",
            ) from None
        try:
            self._require_links()
        except ConfigError:
            os.close(self._lock_fd)
            raise
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._node_file.unlink(missing_ok=True)
        os.close(self._lock_fd)

    def _require_links(self) -> None:
        """Parts go from one directory to another by hard links: without them every insert into a replicated
        table would fail, and every mutation. A disk that is full may still have a node."""
        link = self._own / "lock.link"
        try:
            link.unlink(missing_ok=True)
            os.link(self._own / "lock", link)
            link.unlink()
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise ConfigError(
                    f"The file system of {self.path} has no hard links: {error.strerror}.",
                    hint="Give the node a <path> on another disk; FAT and most shares of Windows have none.",
                ) from error

    @property
    def intents_file(self) -> Path:
        """The record of begun statements."""
        return self._own / "intents.sqlite"

    def server_uuid(self, env: Env) -> UUID:
        """The same at every start."""
        file = self._own / "uuid"
        try:
            return UUID(file.read_text().strip())
        except (FileNotFoundError, ValueError):
            made = env.new_uuid()
            temporary = file.with_suffix(".tmp")
            temporary.write_text(f"{made}\n")
            temporary.replace(file)
            return made

    def reads_secret(self, env: Env) -> bytes:
        """The same at every start; for nobody else to read. What it made is worth nothing without it."""
        file = self._own / "reads"
        with contextlib.suppress(FileNotFoundError, ValueError):
            secret = bytes.fromhex(file.read_text("ascii"))
            if len(secret) == _SECRET_BYTES:
                return secret
        made = env.new_uuid().bytes + env.new_uuid().bytes
        temporary = file.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600)
        temporary.write_text(made.hex(), "ascii")
        temporary.replace(file)
        return made

    def announce(self, facts: dict[str, object]) -> None:
        """Write node.json; it is there in one piece or not at all."""
        temporary = self._node_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pid": os.getpid(), **facts}) + "\n")
        temporary.replace(self._node_file)

    @property
    def _node_file(self) -> Path:
        return self.path / "node.json"
