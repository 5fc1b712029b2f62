"""Numbers of variable length: seven bits a byte, the lowest first (ClickHouse's VarUInt)."""

from __future__ import annotations

from engine.errors import MalformedEntry

_MAX_BYTES = 10


def write_varint(number: int) -> bytes:
    """1 to 10 bytes. Raises ValueError for a number outside 64 bits."""
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is no unsigned number of 64 bits")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class BinaryReader:
    """Reads bytes from left to right; `where` names them in errors. Every failure is a MalformedEntry."""

    def __init__(self, data: bytes, *, where: str = "") -> None:
        self._data = data
        self._at = 0
        self._where = where

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes."""
        if size > len(self._data) - self._at:
            raise self.error(f"{size} bytes are needed and {len(self._data) - self._at} are left")
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def expect(self, literal: bytes) -> None:
        if not self._data.startswith(literal, self._at):
            raise self.error(f"expected {literal!r}, not {self._data[self._at : self._at + 40]!r}")
        self._at += len(literal)

    def varint(self) -> int:
        number = 0
        for index in range(_MAX_BYTES):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                break
        else:
            raise self.error("a number does not end")
        if number >= 1 << 64:
            raise self.error("a number exceeds 64 bits")
        return number

    def end(self) -> None:
        if not self.at_end:
            raise self.error(f"{len(self._data) - self._at} bytes too many")

    def error(self, message: str) -> MalformedEntry:
        """The error for the present position."""
        text = f"Byte {self._at}: {message}" + (f" (in {self._where})" if self._where else "")
        return MalformedEntry(text, where=self._where)
