"""Pipes between chDB's threads and the event loop, in either direction."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading

PIPE_BYTES = 1 << 20


class ChdbEnd:
    """The end that chDB opens by its name. Closed exactly once, by whoever is last to need it.

    A file descriptor's number is used again after close: a job that starts late must not write to it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._is_taken = False

    @property
    def is_taken(self) -> bool:
        return self._is_taken

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def take(self) -> bool:
        """The caller will have chDB use it, and then `close`. False: too late, it is closed."""
        with self._lock:
            if self._fd < 0:
                return False
            self._is_taken = True
            return True

    def write(self, data: bytes) -> None:
        """Blocks while the pipe is full. Raises BrokenPipeError when nobody reads any more."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def drop(self) -> None:
        """Close unless somebody has taken it."""
        with self._lock:
            if self._is_taken:
                return
        self.close()


class ReadEnd:
    """The end that the event loop reads from, chunk by chunk, when it wants to."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._waiting: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The next bytes, up to 1 MiB; empty at the end, or after `close`."""
        loop = asyncio.get_running_loop()
        while self._fd >= 0:
            try:
                return os.read(self._fd, PIPE_BYTES)
            except BlockingIOError:
                pass
            self._waiting = waiting = loop.create_future()
            loop.add_reader(self._fd, _wake, waiting)
            try:
                await waiting
            finally:
                self._waiting = None
                if self._fd >= 0:
                    loop.remove_reader(self._fd)
        return b""

    def close(self) -> None:
        """Whoever writes gets a broken pipe. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._waiting is not None:
            asyncio.get_running_loop().remove_reader(fd)
            _wake(self._waiting)
        os.close(fd)


class FeedEnd:
    """The end that the event loop writes to."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    async def write(self, data: bytes) -> bool:
        """Wait until the pipe has taken it all. False: nobody reads any more."""
        loop = asyncio.get_running_loop()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
                continue
            except BlockingIOError:
                pass
            except BrokenPipeError:
                return False
            waiting = loop.create_future()
            loop.add_writer(self._fd, _wake, waiting)
            try:
                await waiting
            finally:
                loop.remove_writer(self._fd)
        return True

    def close(self) -> None:
        """Whoever reads finds the end. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def open_pipe() -> tuple[ReadEnd, ChdbEnd]:
    """A pipe that chDB writes to, of up to 1 MiB."""
    reader, writer = _pipe()
    return ReadEnd(reader), ChdbEnd(writer)


def open_feed() -> tuple[ChdbEnd, FeedEnd]:
    """A pipe that chDB reads, of up to 1 MiB."""
    reader, writer = _pipe()
    return ChdbEnd(reader), FeedEnd(writer)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):  # the system's limit: a smaller pipe is a slower one
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reader, writer
