"""A mailbox and a web address that keep what they are sent."""

from __future__ import annotations

import contextlib
import email
import email.policy
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any


class _HttpHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sink: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sink.bodies.append(json.loads(body))
        sink.paths.append(self.path)
        self.send_response(sink.status)
        if sink.status in (301, 302):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


class HttpSink(http.server.ThreadingHTTPServer):
    """Takes every POST; answers `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HttpHandler)
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200


class _StallingHandler(socketserver.StreamRequestHandler):
    """Says the first line of an answer byte by byte, and never the end of it, until nobody listens."""

    def handle(self) -> None:
        sink: Any = self.server
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 ")
            while not sink.is_over.wait(0.05):
                self.wfile.write(b"y")


class StallingSink(socketserver.ThreadingTCPServer):
    """Takes no message and never says so, but always says something."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StallingHandler)
        self.is_over = threading.Event()

    def server_close(self) -> None:
        self.is_over.set()
        super().server_close()


class _SmtpHandler(socketserver.StreamRequestHandler):
    """Enough of SMTP to take a mail."""

    def handle(self) -> None:
        sink: Any = self.server
        self._say("220 sink")
        mail: list[str] = []
        in_data = False
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            if in_data:
                if line == ".":
                    in_data = False
                    sink.mails.append("\n".join(mail))
                    self._say("250 taken")
                    mail = []
                else:
                    mail.append(line.removeprefix(".") if line.startswith("..") else line)
            elif line.upper() == "DATA":
                in_data = True
                self._say("354 go on")
            elif line.upper() == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class SmtpSink(socketserver.ThreadingTCPServer):
    """Takes every mail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SmtpHandler)
        self.mails: list[str] = []

    @property
    def parsed(self) -> list[tuple[str, str]]:
        """Subject and body of each mail, decoded."""
        found = []
        for mail in self.mails:
            message: Any = email.message_from_string(mail, policy=email.policy.default)
            body = message.get_body(("html", "plain"))
            found.append((str(message["Subject"]), str(body.get_content())))
        return found


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[Any]:
    """Started, and stopped at the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
