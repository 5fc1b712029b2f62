"""A Docker engine for the tests of docker-compose.yaml: the one that runs, else one of our own.

Our own is `dockerd` of Debian's package docker.io in a directory of its own, ended by its process id. Its
base image is made with debootstrap where no registry can be reached: from the sources that this machine's apt
has, with the settings and certificates that its network needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_BASE = "python:3.11-slim-bookworm"
LOCAL_BASE = "oncluster-test-base:bookworm"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_START_S, _STOP_S = 60.0, 60.0
_PULL_S, _BASE_S = 180.0, 900.0


class NoEngine(Exception):
    """There is none, and none can be started; says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`environment` is what leads `docker` and `docker-compose` to it."""

    environment: Mapping[str, str]

    def docker(
        self, *arguments: str, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        return run(["docker", *arguments], env=self.environment, check=check, timeout_s=timeout_s)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; a failure's message has the end of the output."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        words = " ".join(map(str, command))
        end = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        raise AssertionError(f"{words} ended with exit code {done.returncode}:\n{end}")
    return done


def compose_command() -> list[str]:
    """`docker compose` or `docker-compose`. Raises NoEngine without either."""
    with contextlib.suppress(FileNotFoundError):
        if run(["docker", "compose", "version"], check=False).returncode == 0:
            return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise NoEngine("neither `docker compose` nor `docker-compose` is installed")


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the tests as Ctrl-C does, with what their fixtures remove: containers and an engine of our
    own would outlive this process."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """The engine that DOCKER_HOST or the default socket leads to, else one for as long as the context lasts.

    ONCLUSTER_DOCKER_DIR keeps the directory of our own, so that the next run finds its images. Raises
    NoEngine.
    """
    if shutil.which("docker") is None:
        raise NoEngine("no `docker` is installed (Debian: docker.io)")
    if run(["docker", "info"], check=False).returncode == 0:
        yield Engine({})
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise NoEngine(
            "no Docker engine answers, and starting one takes root and dockerd (Debian: docker.io)"
        )
    kept = os.environ.get("ONCLUSTER_DOCKER_DIR")
    # A path of a socket may have 107 characters: pytest's directories are too deep.
    directory = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="oncluster-docker-"))
    try:
        with _own_engine(directory) as own:
            yield own
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _own_engine(directory: Path) -> Iterator[Engine]:
    directory.mkdir(parents=True, exist_ok=True)
    socket = directory / "docker.sock"
    command = ["dockerd", "--data-root", directory / "data", "--exec-root", directory / "exec"]
    command += ["-H", f"unix://{socket}", "-p", directory / "pid"]
    with (directory / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    own = Engine({"DOCKER_HOST": f"unix://{socket}"})
    try:
        deadline_s = time.monotonic() + _START_S
        while own.docker("info", check=False).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                tail = (directory / "dockerd.log").read_text(errors="replace")[-1500:]
                raise NoEngine(f"dockerd does not start here:\n{tail}")
            time.sleep(0.5)
        yield own
    finally:
        daemon.terminate()
        try:
            daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


# --- the base image -----------------------------------------------------------------------------------------


def base_image(own: Engine) -> str:
    """BASE_IMAGE, else the default if it is there or can be pulled, else one made here. Raises NoEngine."""
    if named := os.environ.get("BASE_IMAGE"):
        return named
    for image in (DEFAULT_BASE, LOCAL_BASE):
        if own.docker("image", "inspect", image, check=False).returncode == 0:
            return image
    with contextlib.suppress(subprocess.TimeoutExpired):
        if own.docker("pull", "--quiet", DEFAULT_BASE, check=False, timeout_s=_PULL_S).returncode == 0:
            return DEFAULT_BASE
    _make_base(own)
    return LOCAL_BASE


def _make_base(own: Engine) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise NoEngine(f"{DEFAULT_BASE} cannot be pulled, and making a base takes root and debootstrap")
    source, mirror = _apt_source()
    directory = Path(tempfile.mkdtemp(prefix="oncluster-base-"))
    root = directory / "root"
    try:
        packages = "ca-certificates,python3,python3-venv,python3-pip"
        run(
            ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, mirror],
            timeout_s=_BASE_S,
        )
        _furnish(root, source)
        changes = [f"--change=ENV SSL_CERT_FILE={_CERTIFICATES} PIP_CERT={_CERTIFICATES}"]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["docker", "import", *changes, "-", LOCAL_BASE],
                stdin=tar.stdout,
                env={**os.environ, **own.environment},
                capture_output=True,
                timeout=_BASE_S,
                check=True,
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _apt_source() -> tuple[Path, str]:
    """The file of this machine's apt that names Debian, and the address in it. Raises NoEngine."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.[sl]*"))]
    for file in files:
        text = file.read_text() if file.is_file() else ""
        found = re.search(r"^URIs:\s*(\S+)|^deb\s+(?:\[[^]]*\]\s+)?(\S+)", text, re.MULTILINE)
        if found and re.search(r"^(Suites:|deb).*\bbookworm\b", text, re.MULTILINE):
            return file, found.group(1) or found.group(2)
    raise NoEngine("a base image is made from Debian 12, which this machine's apt does not know")


def _furnish(root: Path, source: Path) -> None:
    """What this machine needs to reach its package sources, the image needs as well."""
    (root / "etc/apt/sources.list").write_text("")
    target = root / "etc/apt" / source.relative_to("/etc/apt")
    shutil.copyfile(source, target)
    settings = run(["apt-config", "dump", "--no-empty"]).stdout.splitlines()
    wanted = [line for line in settings if re.match(r"Acquire::(Check|Retries|https?::)", line)]
    (root / "etc/apt/apt.conf.d/99oncluster-test").write_text("\n".join(wanted) + "\n")
    shutil.copyfile(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
