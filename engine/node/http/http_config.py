"""What the HTTP server of a node is told."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.model import User


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """An https port of 0 means no TLS, and `max_concurrent_queries` of 0 no limit. `reads_secret` is what
    keys are made of by which other nodes read this one."""

    listen_host: str
    http_port: int
    https_port: int
    tls: ssl.SSLContext | None
    display_name: str
    timezone: str
    users: Mapping[str, User]
    profiles: Mapping[str, Mapping[str, str]]
    reads_secret: bytes = field(repr=False)
    max_concurrent_queries: int = 0
