"""The text of `finished/<host_id>`: an error code and a message.

Success is exactly the two bytes `0` and LF. Source: ClickHouse's ExecutionStatus.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.ddl.text import TextReader, decode_bytes, encode_bytes, escape
from engine.errors import Code, MalformedEntry

UNREADABLE_CODE = -1
UNREADABLE_MESSAGE = "Cannot obtain error message"
BEFORE_EXECUTION = "An error occurred before execution: "
_MAX_MESSAGE_CHARS = 200_000
"""Of up to four bytes each, escaped to two at most: below the 1 MiB of a request."""


@dataclass(frozen=True, slots=True)
class ExecutionStatus:
    """The outcome of one entry on one host. Code 0 is success; -1 stands for text that nobody can read."""

    code: int = 0
    message: str = ""

    @property
    def is_success(self) -> bool:
        return self.code == Code.OK

    def to_bytes(self) -> bytes:
        """The bytes of the znode; a very long message is cut, so that the status always fits a node."""
        return encode_bytes(f"{self.code}\n{escape(self.message[:_MAX_MESSAGE_CHARS])}")

    @classmethod
    def from_bytes(cls, data: bytes) -> ExecutionStatus:
        """Never fails: text that does not parse gives code -1, "Cannot obtain error message".

        Like ClickHouse's reader it ignores what follows a raw TAB or LF in the message.
        """
        reader = TextReader(decode_bytes(data))
        try:
            code = reader.integer()
            reader.expect("\n")
            return cls(code, reader.escaped())
        except MalformedEntry:
            return cls(UNREADABLE_CODE, UNREADABLE_MESSAGE)


SUCCESS = ExecutionStatus()
