"""A SELECT that stands still for as long as a test wants."""

from __future__ import annotations

import http.server
import threading


class Latch:
    """Rows that a SELECT from `url` waits for, until they are let go."""

    def __init__(self) -> None:
        self.is_asked, self.go = threading.Event(), threading.Event()
        latch = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                latch.is_asked.set()
                latch.go.wait()
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"7\n")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever).start()
        self.rows = f"url('http://127.0.0.1:{self._server.server_port}/', TSV, 's UInt64')"

    def close(self) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
