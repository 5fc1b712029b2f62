"""One server of the ensemble: writes its configuration and becomes ZooKeeper, out of PySpark's jars.

ZOOKEEPER_SERVERS names all servers, with commas; ZOOKEEPER_NUMBER says which of them this one is, from 1.
ZOOKEEPER_HEAP_MB is Java's heap. Data and configuration are in /var/lib/oncluster.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine.keeper.java import find_java
from engine.keeper.server_files import Peer, find_jars, server_arguments, write_files

DIRECTORY = Path("/var/lib/oncluster")
CLIENT_PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2888, 3888
# Sessions may last from two seconds on; the half of it would not do on a busy machine.
TICK_MS = 1000


def main() -> None:
    names = os.environ["ZOOKEEPER_SERVERS"].split(",")
    peers = [Peer(i, QUORUM_PORT, ELECTION_PORT, host=name) for i, name in enumerate(names, start=1)]
    write_files(
        DIRECTORY,
        host="0.0.0.0",
        client_port=CLIENT_PORT,
        tick_ms=TICK_MS,
        number=int(os.environ["ZOOKEEPER_NUMBER"]),
        peers=peers,
    )
    java = str(find_java())
    heap_mb = int(os.environ.get("ZOOKEEPER_HEAP_MB", "256"))
    os.execv(java, [java, *server_arguments(DIRECTORY, find_jars(), heap_mb, is_durable=True)])


if __name__ == "__main__":
    main()
