"""chDB's program in memory: find functions of it by their first bytes, and write others over them.

The bytes are those of one version on one kind of processor. `Unknown` is raised where they are not: then the
functions have to be looked for again, by the texts of their errors.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

_PAGE = 4096
_READ_WRITE_EXECUTE = 7


class Unknown(Exception):
    """Another program than the one whose functions are known."""


@dataclass(frozen=True, slots=True)
class Program:
    """Where its code is."""

    start: int
    size: int

    @classmethod
    def of(cls, library: str) -> Program:
        name = str(Path(library).resolve())
        spans: list[tuple[int, int]] = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights, *_, of = line.split()
            if of == name and "x" in rights:
                start, end = (int(each, 16) for each in span.split("-"))
                spans.append((start, end))
        if not spans:
            raise Unknown(f"{name} is not loaded")
        start = min(spans)[0]
        return cls(start, max(spans)[1] - start)

    def find(self, pattern: re.Pattern[bytes]) -> list[tuple[int, re.Match[bytes]]]:
        """One or more addresses."""
        code = (ctypes.c_char * self.size).from_address(self.start)
        found = [(self.start + match.start(), match) for match in pattern.finditer(code)]
        if not found:
            raise Unknown(f"nothing in the program begins with {pattern.pattern!r}")
        return found

    def find_one(self, pattern: re.Pattern[bytes]) -> tuple[int, re.Match[bytes]]:
        found = self.find(pattern)
        if len(found) > 1:
            raise Unknown(f"{len(found)} functions begin with {pattern.pattern!r}")
        return found[0]


def write_over(place: int, code: bytes) -> None:
    page = place - place % _PAGE
    size = place + len(code) - page
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), _READ_WRITE_EXECUTE):
        raise Unknown("the program's code cannot be written over here")
    ctypes.memmove(place, code, len(code))


def short_string(text: str) -> bytes:
    """A std::string of at most 22 bytes; the last of its 24 is its length."""
    raw = text.encode()
    assert len(raw) < 23
    return raw.ljust(23, b"\0") + bytes([len(raw)])
