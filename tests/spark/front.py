"""A server's HTTP interface behind another port, whose client loses what a test picks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from spark_apps.clickhouse_cluster.http import Server


class Front:
    """Passes requests on, except those that `loses` picks: their clients get no reply. `lost` are these."""

    def __init__(self, behind: Server, loses: Callable[[bytes], bool]) -> None:
        self._behind = behind
        self._loses = loses
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.lost: list[bytes] = []
        self.server = Server("127.0.0.1", self._listening.getsockname()[1])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._accept)
        thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # which is how `accept` is told to end
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            thread.join()

    def deliver_late(self) -> bytes:
        """The replies to all that was lost, and comes only now."""
        return b"".join(self._ask(request) for request in self.lost)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,)).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if not (request := _whole(client)):
                return
            if self._loses(request):
                self.lost.append(request)
            else:
                client.sendall(self._ask(request))

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection((self._behind.host, self._behind.port)) as behind:
            behind.sendall(request)
            return b"".join(iter(lambda: behind.recv(1 << 16), b""))


def _whole(client: socket.socket) -> bytes:
    seen = b""
    while b"\r\n\r\n" not in seen:
        if not (piece := client.recv(1 << 16)):
            return b""
        seen += piece
    head, _, body = seen.partition(b"\r\n\r\n")
    sizes = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < sum(sizes):
        body += client.recv(1 << 16)
    return head + b"\r\n\r\n" + body
