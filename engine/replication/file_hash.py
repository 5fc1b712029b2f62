"""The hash of a whole file as ClickHouse keeps it in `checksums.txt` and sends it behind the file.

It is CityHash128 over blocks of 2048 bytes, each block seeded with the hash of what came before. So the hash
that follows a file on the wire is the one in its part's `checksums.txt`, and large files never have to be
hashed here (20 MB/s in Python): only those that stand in no list, which are small.

Source: ClickHouse's HashingWriteBuffer.
"""

from __future__ import annotations

from engine.replication.cityhash import city_hash_128_with_seed

_BLOCK_BYTES = 2048


class FileHash:
    """Feed it the file's bytes in any pieces; `digest` is 16 bytes, the lower word first."""

    def __init__(self) -> None:
        self._words = (0, 0)
        self._rest = b""

    def update(self, piece: bytes) -> None:
        data = self._rest + piece
        whole = len(data) - len(data) % _BLOCK_BYTES
        for at in range(0, whole, _BLOCK_BYTES):
            self._words = city_hash_128_with_seed(data[at : at + _BLOCK_BYTES], *self._words)
        self._rest = data[whole:]

    def digest(self) -> bytes:
        words = city_hash_128_with_seed(self._rest, *self._words) if self._rest else self._words
        return b"".join(word.to_bytes(8, "little") for word in words)


def file_hash(content: bytes) -> bytes:
    """The hash of a file that is there as a whole."""
    hashed = FileHash()
    hashed.update(content)
    return hashed.digest()
