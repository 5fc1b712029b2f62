"""The plainest of HTTP clients for nodes."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def code(self) -> int:
        return int(self.headers.get("X-ClickHouse-Exception-Code", "0"))


class Http:
    """The plainest of HTTP clients for a node at `url`."""

    url: str

    def get(self, path: str, headers: Mapping[str, str] = {}) -> Reply:
        return self._send(urllib.request.Request(self.url + path, headers=dict(headers)))

    def post(
        self,
        body: str | bytes,
        headers: Mapping[str, str] = {},
        **parameters: str,
    ) -> Reply:
        data = body.encode() if isinstance(body, str) else body
        url = f"{self.url}/?{urllib.parse.urlencode(parameters)}"
        return self._send(urllib.request.Request(url, data=data, headers=dict(headers), method="POST"))

    def query(self, sql: str, **parameters: str) -> str:
        """The text of a statement that has to succeed."""
        reply = self.post(sql, **parameters)
        assert reply.status == 200, reply.text
        return reply.text

    def _send(self, request: urllib.request.Request) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=200) as response:
                return Reply(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())


class HttpAt(Http):
    """A client of somebody else's process."""

    def __init__(self, url: str) -> None:
        self.url = url
