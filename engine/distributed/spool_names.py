"""Names in a spool: directories say for whom files are, numbers in which order they go.

    shard{N}_all_replicas       one replica of the shard, whichever (the tables replicate)
    shard{N}_replica{M}         this one
    user[:password]@host:port[#database][+secure][,…]     the same as old servers wrote it; only read

Names come from a disk that people may have touched: they are parsed, never joined or guessed.
Source: ClickHouse's Cluster::Address::toFullString and DistributedAsyncInsertDirectoryQueue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.distributed.peers import Peer, PeerShard
from engine.errors import Code, SqlError
from engine.names import unescape_for_file_name

BROKEN = "broken"
TEMPORARY = "tmp"
CURRENT_BATCH = "current_batch.txt"
SENT_BATCH = "sent_batch.txt"

_FILE = re.compile(r"(0|[1-9][0-9]*)\.(bin|one)\Z")
"""What `file_name` and `alone_name` make of a number: no file of any other name could be opened by it."""
_COMPACT = re.compile(r"shard([0-9]{1,9})_(?:all_replicas|replica([0-9]{1,9}))\Z")
_OLD = re.compile(
    r"(?P<user>[^:@]*)(?::(?P<password>[^@]*))?@(?P<host>[^:@]+):(?P<port>[0-9]{1,5})"
    r"(?:#(?P<database>[^+]*))?(?P<secure>\+secure)?\Z"
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Whom the files of a directory are for: any one of `peers`."""

    shard_number: int
    peers: tuple[Peer, ...]


def all_replicas(shard: PeerShard) -> str:
    return f"shard{shard.number}_all_replicas"


def one_replica(peer: Peer) -> str:
    return f"shard{peer.shard_number}_replica{peer.replica_number}"


def destination_of(directory: str, shards: Sequence[PeerShard]) -> Destination:
    """Raises SqlError 79 INCORRECT_FILE_NAME where the cluster has no such shard or replica."""
    compact = _COMPACT.match(directory)
    if compact is not None:
        number = int(compact.group(1))
        if not 1 <= number <= len(shards):
            raise _unknown(directory, f"There are {len(shards)} shards.")
        shard = shards[number - 1]
        if compact.group(2) is None:
            return Destination(number, shard.peers)
        replica = int(compact.group(2))
        if not 1 <= replica <= len(shard.peers):
            raise _unknown(directory, f"Shard {number} has {len(shard.peers)} replicas.")
        return Destination(number, (shard.peers[replica - 1],))
    peers = [_old(text, directory, shards) for text in directory.split(",")]
    return Destination(peers[0].shard_number, tuple(peers))


def _old(text: str, directory: str, shards: Sequence[PeerShard]) -> Peer:
    found = _OLD.match(text)
    if found is not None:
        host, port = unescape_for_file_name(found.group("host")), int(found.group("port"))
        database = unescape_for_file_name(found.group("database") or "")
        for shard in shards:
            for peer in shard.peers:
                if (peer.name.host, peer.name.port) == (host, port) and peer.default_database == database:
                    return peer
    raise _unknown(directory, "No replica of the cluster has this address.")


def is_destination(directory: str) -> bool:
    """Whether a directory has the form of a destination's name."""
    return _COMPACT.match(directory) is not None or all(_OLD.match(t) for t in directory.split(","))


def file_name(number: int) -> str:
    return f"{number}.bin"


def alone_name(number: int) -> str:
    """Of a file that may have been sent, by itself and without a record: it must never go with others."""
    return f"{number}.one"


def number_of(name: str) -> int | None:
    """The number of a file's name, also if it goes alone; None for any other name."""
    match = _FILE.match(name)
    return int(match.group(1)) if match else None


def is_alone(name: str) -> bool:
    match = _FILE.match(name)
    return match is not None and match.group(2) == "one"


def _unknown(directory: str, why: str) -> SqlError:
    return SqlError(
        Code.INCORRECT_FILE_NAME,
        f"The spool directory '{directory}' belongs to nobody. {why}",
        hint="Put the shard back into the cluster's configuration, or move the directory away.",
    )
