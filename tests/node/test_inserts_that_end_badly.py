"""INSERTs whose clients go away, send what cannot be read, or are killed: all rows of one are there, or none.

The node goes on whatever they do, also beside others whose rows are good. No INSERT here has more rows than
one block.
"""

from __future__ import annotations

import enum
import http.client
import json
import random
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import pytest

from tests.few import few_first
from tests.node.conftest import RunningNode
from tests.node.replicated_pair import Pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AT_ONCE = 12
ROUNDS = 3
ROWS_OF_A_CHUNK = 10_000
GARBAGE = b"garbage\x00\xff\t\n" * 3
"""No whole number of rows in any of the formats."""


class End(enum.Enum):
    """Of an INSERT."""

    GOOD = enum.auto()
    GARBAGE = enum.auto()
    GONE_IN_A_CHUNK = enum.auto()
    GONE_BETWEEN_ROWS = enum.auto()
    KILLED = enum.auto()


def tab_separated(number: int, keys: range) -> bytes:
    return b"".join(b"%d\t%d\n" % (number, key) for key in keys)


def json_rows(number: int, keys: range) -> bytes:
    return "".join(json.dumps({"number": number, "key": key}) + "\n" for key in keys).encode()


def row_binary(number: int, keys: range) -> bytes:
    return b"".join(struct.pack("<IQ", number, key) for key in keys)


FORMATS: dict[str, Callable[[int, range], bytes]] = {
    "TSV": tab_separated,
    "JSONEachRow": json_rows,
    "RowBinary": row_binary,
}


@dataclass
class Insert:
    """The rows `(number, 0) … (number, rows - 1)`; it ends in the chunk with row `turn`."""

    number: int
    table: str
    rows: int
    format: str
    end: End
    turn: int
    status: int = 0
    """Of the answer; 0 without one."""

    def chunks(self, node: RunningNode) -> Iterator[bytes]:
        for first in range(0, self.rows, ROWS_OF_A_CHUNK):
            keys = range(first, min(first + ROWS_OF_A_CHUNK, self.rows))
            chunk = FORMATS[self.format](self.number, keys)
            if self.turn not in keys or self.end is End.GOOD:
                yield chunk
            elif self.end is End.KILLED:
                node.query(f"KILL QUERY WHERE query_id = 'insert-{self.number}' ASYNC")
                yield chunk
            elif self.end is End.GARBAGE:
                half = len(chunk) // 2
                yield chunk[:half] + GARBAGE + chunk[half:]
            else:
                yield chunk
                raise ConnectionAbortedError

    def run(self, node: RunningNode) -> None:
        address = urlsplit(node.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        query = f"INSERT INTO {self.table} FORMAT {self.format}"
        parameters = urlencode({"query": query, "query_id": f"insert-{self.number}"})
        try:
            connection.putrequest("POST", f"/?{parameters}")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for chunk in self.chunks(node):
                connection.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            connection.send(b"0\r\n\r\n")
            self.status = connection.getresponse().status
        except ConnectionAbortedError:
            if self.end is End.GONE_IN_A_CHUNK:
                connection.send(b"ffff\r\nsome of it")
        except (OSError, http.client.HTTPException):
            pass  # the node has hung up, as it may when it has said what is wrong
        finally:
            connection.close()


@pytest.mark.parametrize("seed", few_first([1, 2], few=1))
def test_all_rows_of_an_insert_are_there_or_none(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    node = pair.n1
    plain = f"plain{seed}"
    node.query(f"CREATE TABLE {plain} (number UInt32, key UInt64) ENGINE = MergeTree ORDER BY key")
    tables = [pair.table("number UInt32, key UInt64", rest="ORDER BY key"), plain]
    inserts = [
        Insert(
            number,
            rng.choice(tables),
            rows := rng.choice([25_000, 75_000, 200_000]),
            rng.choice(list(FORMATS)),
            rng.choice([End.GOOD, *End]),
            rng.randrange(rows),
        )
        for number in range(AT_ONCE * ROUNDS)
    ]
    for first in range(0, len(inserts), AT_ONCE):
        threads = [threading.Thread(target=one.run, args=[node]) for one in inserts[first : first + AT_ONCE]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for one in inserts:
        there = int(node.query(f"SELECT count() FROM {one.table} WHERE number = {one.number}"))
        match one.end:
            case End.GOOD:
                assert (one.status, there) == (200, one.rows), one
            case End.KILLED:  # unless it had not begun by then
                assert there == one.rows or (one.status != 200 and there == 0), one
            case End.GARBAGE:
                assert (one.status == 200, there) == (False, 0), one
            case _:
                assert there == 0, one
