"""One docker-compose project of docker-compose.yaml on some engine: commands, addresses, SQL.

Ports are those that happen to be free; image names and the project's name are the tests' own.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.compose.docker_engine import Engine, compose_command, run

ROOT = Path(__file__).resolve().parents[2]
HOSTS = tuple(f"node{number:02d}" for number in range(1, 7))
PROFILES = ("engine", "clickhouse", "etcd", "demo")
_BUILD_S, _UP_S, _COMMAND_S = 1800.0, 900.0, 300.0


class ComposeStack:
    """`up`, `run`, `kill`, `down`; what Docker and the services say."""

    def __init__(self, engine: Engine, base_image: str, *, profiles: str, **settings: str) -> None:
        self.engine = engine
        self.project = f"oncluster-test-{uuid.uuid4().hex[:8]}"
        ports = {name: "0" for name in env_file() if name.startswith("PORT_")}
        self.environment = {
            **engine.environment,
            **ports,
            "BASE_IMAGE": base_image,
            "IMAGE_PREFIX": "oncluster-test",
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_PROFILES": profiles,
            # Every image here can be built by the oldest builder.
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
            **settings,
        }
        self._compose = compose_command()

    # --- commands -------------------------------------------------------------------------------------------

    def compose(
        self, *arguments: str, check: bool = True, timeout_s: float = _COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        return run(
            [*self._compose, *arguments], env=self.environment, cwd=ROOT, check=check, timeout_s=timeout_s
        )

    def up(self, *services: str) -> None:
        """Create and start; see `wait_healthy`."""
        self.compose("up", "-d", *services, timeout_s=_BUILD_S)

    def build(self, *services: str) -> None:
        self.compose("build", *services, timeout_s=_BUILD_S)

    def wait_healthy(self) -> str:
        """What `make compose-up` waits with; returns what it said."""
        done = run(
            [sys.executable, "compose/wait.py", "--timeout", str(_UP_S), *self._compose],
            env=self.environment,
            cwd=ROOT,
            timeout_s=_UP_S + 60,
        )
        return done.stderr

    def down(self) -> None:
        """Remove containers, network and volumes."""
        flags = [f"--profile={profile}" for profile in PROFILES]
        self.compose(*flags, "down", "--volumes", "--remove-orphans", timeout_s=_UP_S)

    # --- what Docker says -----------------------------------------------------------------------------------

    def containers(self) -> dict[str, dict[str, Any]]:
        """`docker inspect`, by service."""
        label = f"label=com.docker.compose.project={self.project}"
        numbers = self.engine.docker("ps", "--all", "--quiet", "--filter", label).stdout.split()
        found = json.loads(self.engine.docker("inspect", *numbers).stdout) if numbers else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def volumes(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        return self.engine.docker("volume", "ls", "--quiet", "--filter", label).stdout.split()

    def address(self, service: str, port: int) -> tuple[str, int]:
        """Where a service's port is published."""
        bindings = self.containers()[service]["NetworkSettings"]["Ports"][f"{port}/tcp"]
        return bindings[0]["HostIp"], int(bindings[0]["HostPort"])

    # --- what services say ----------------------------------------------------------------------------------

    def get_json(self, service: str, port: int, path: str) -> Any:
        host, published = self.address(service, port)
        with urllib.request.urlopen(f"http://{host}:{published}{path}", timeout=30) as answer:
            return json.load(answer)

    def zookeeper_mode(self, service: str) -> str:
        """`leader`, `follower`, or empty when it does not serve."""
        try:
            with socket.create_connection(self.address(service, 2181), timeout=10) as connection:
                connection.sendall(b"srvr")
                text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return text.partition("Mode: ")[2].partition("\n")[0]

    def nodes(self, prefix: str = "node") -> dict[str, Node]:
        """By host name, whichever service has it; those that do not run are left out."""
        found = {}
        for service, container in self.containers().items():
            if service.startswith(prefix) and container["State"]["Running"]:
                binding = container["NetworkSettings"]["Ports"]["8123/tcp"][0]
                found[f"node{service[-2:]}"] = Node(f"http://{binding['HostIp']}:{binding['HostPort']}/")
        return dict(sorted(found.items()))


class Node:
    """SQL over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, sql: str, settings: Mapping[str, str] | None = None) -> str:
        """The answer as TSV without its last line end. Raises NodeSaidNo, OSError."""
        url = f"{self.url}?{urllib.parse.urlencode(settings or {})}"
        try:
            with urllib.request.urlopen(url, data=sql.encode(), timeout=60) as answer:
                return str(answer.read().decode()).rstrip("\n")
        except urllib.error.HTTPError as error:
            raise NodeSaidNo(error.read().decode("utf-8", "replace")[:1000]) from error
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error


class NodeSaidNo(Exception):
    """A server's error answer."""


def eventually(
    what: str, condition: Callable[[], object], *, timeout_s: float = 240.0, pause_s: float = 0.5
) -> None:
    """Wait until the condition is true; servers that are away or say no meanwhile are asked again.

    Fails with the last answer or error.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            last = condition()
            if last is True:
                return
        except (OSError, NodeSaidNo) as error:
            last = error
        assert time.monotonic() < deadline_s, f"not {what} after {timeout_s:.0f} s: {last}"
        time.sleep(pause_s)


def env_file() -> dict[str, str]:
    """The settings of `.env`."""
    lines = (ROOT / ".env").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
