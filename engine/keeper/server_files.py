"""What a ZooKeeper process is started with: jars, arguments, configuration files."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = (
    "zookeeper-3*.jar",
    "zookeeper-jute-3*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-handler-4*.jar",
    "netty-common-*.jar",
    "netty-transport-4*.jar",
    "netty-buffer-*.jar",
)
"""The shortest class path with which it serves clients and peers; the whole directory would double its
start."""

_JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    # Without it the server stops serving, and its last words do not say why.
    "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto",
    "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NIOServerCnxnFactory",
)
_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One server of an ensemble: its number and the ports on which servers talk to one another.

    `host` empty: the address of the server that is written.
    """

    number: int
    quorum_port: int
    election_port: int
    host: str = ""


def find_jars() -> list[Path]:
    """The jars that ZooKeeper needs, out of the installed pyspark, which is not imported. Raises
    ConfigError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "The embedded ZooKeeper comes with pyspark, which is not installed.", hint="pip install pyspark"
        )
    directory = Path(next(iter(spec.submodule_search_locations)), "jars")
    jars = []
    for pattern in _JARS:
        found = sorted(directory.glob(pattern))
        if not found:
            raise ConfigError(f"The embedded ZooKeeper needs {pattern}, which is missing in {directory}.")
        jars.extend(found)
    return jars


def server_arguments(directory: Path, jars: Sequence[Path], heap_mb: int, *, is_durable: bool) -> list[str]:
    """The arguments of `java` for a server whose files `write_files` has put into `directory`.

    The environment's `SERVER_JVMFLAGS`, as ZooKeeper's own start script has it, comes last and wins. Raises
    ConfigError for a quote in it that does not end.
    """
    return [
        *_JVM_FLAGS,
        f"-Xmx{heap_mb}m",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
        f"-Dzookeeper.forceSync={'yes' if is_durable else 'no'}",
        *_more_flags(),
        "-cp",
        os.pathsep.join(map(str, jars)),
        _MAIN_CLASS,
        str(directory / "zoo.cfg"),
    ]


def _more_flags() -> list[str]:
    text = os.environ.get("SERVER_JVMFLAGS", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"SERVER_JVMFLAGS cannot be read: {error} in {text!r}") from error


def write_files(
    directory: Path, *, host: str, client_port: int, tick_ms: int, number: int, peers: Sequence[Peer]
) -> None:
    """`zoo.cfg`, the log settings and, in an ensemble, the server's number. Session timeouts are granted from
    two to 400 ticks."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    lines = [
        f"tickTime={tick_ms}",
        f"minSessionTimeout={2 * tick_ms}",
        f"maxSessionTimeout={400 * tick_ms}",
        "initLimit=20",
        "syncLimit=10",
        f"dataDir={_property(data)}",
        f"clientPort={client_port}",
        f"clientPortAddress={host}",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr,mntr,stat,conf,cons,wchs,wchc,wchp,dump,isro",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
        *(
            f"server.{peer.number}={peer.host or host}:{peer.quorum_port}:{peer.election_port}"
            for peer in peers
        ),
    ]
    if peers:
        (data / "myid").write_text(f"{number}\n")
    (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
    (directory / "log4j2.properties").write_text(_LOG_SETTINGS)


def _property(path: Path) -> str:
    """As Java reads a file of properties, which is Latin-1 and has escapes."""
    utf_16 = str(path).replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(utf_16[at : at + 2], "big") for at in range(0, len(utf_16), 2))
    return "".join(chr(unit) if unit < 0x80 else f"\\u{unit:04x}" for unit in units)
