"""What a server knows of itself, told to chDB: then its replicated tables and databases live.

chDB has all of ClickHouse but the server around it. Nobody has said at which address other replicas find this
one, and a few things are begun by a server's main function only, so that its replicated tables stay read-only
and its Replicated databases never begin. Here three functions of the loaded program are written over:

1. The address of this replica (Context::getInterserverIOAddress) is an answer of ours. Called first of all by
   whoever replicates, it also notes the scheme, and credentials of nobody.
2. A pool of threads that the server has not made (StaticThreadPool::get) is the last one that there was.
3. Statements on a Replicated database may be begun (DatabaseCatalog::canPerformReplicatedDDLQueries).

It is a replica for tests and for nothing else. Its parts are served by `replica_in_chdb`.
"""

from __future__ import annotations

import ctypes
import re
import struct

from tests.interop.program_in_memory import Program, short_string, write_over

_ADDRESS = re.compile(
    rb"\x41\x56\x53\x48\x83\xec\x48\x4c\x8b\x36\x49\x0f\xbe\x8e(....)\x48\x85\xc9\x49\x8b\x96....\x48\x89\xc8"
    rb"\x48\x0f\x48\xc2\x48\x85\xc0\x74.\x41\x0f\xb7\x86(....)\x66\x85\xc0",
    re.DOTALL,
)
"""Its groups are where, in what all contexts share, the length of the host's name and the port stand."""
_POOL = re.compile(
    rb"\x41\x56\x53\x48\x83\xec\x48\x48\x8b\x47\x30\x48\x85\xc0\x74\x08\x48\x83\xc4\x48\x5b\x41\x5e\xc3"
)
_MAY_BEGIN = re.compile(rb"\x0f\xb6\x87\x10\x09\x00\x00\xc3\xcc")
_SCHEME, _CREDENTIALS = 0x08, 0x48
"""Behind the port."""
_STRING_BYTES = 24
_KEPT: list[object] = []


def put_around(library: str, *, host: str, port: int) -> None:
    """`library` is chDB's, loaded and without a connection yet. Raises Unknown."""
    program = Program.of(library)
    place, match = program.find_one(_ADDRESS)
    port_at = struct.unpack("<I", match[2])[0]
    write_over(place, _address(host, port, port_at))
    for place, _ in program.find(_POOL):
        write_over(place, _pool_or_last(place))
    place, _ = program.find_one(_MAY_BEGIN)
    write_over(place, b"\xb0\x01\xc3")  # mov al, 1; ret


def _address(host: str, port: int, port_at: int) -> bytes:
    """`rdi`: where the pair of host and port is to be; `rsi`: the context, which begins with what is
    shared."""
    nobody = ctypes.create_string_buffer(512)
    _KEPT.append(nobody)
    code = b"".join(_store(b"\x48\x89\x87", at, piece) for at, piece in _string(host))
    code += b"\x48\x8b\x0e"  # mov rcx, [rsi]
    for at, piece in _string("http"):
        code += _store(b"\x48\x89\x81", port_at + _SCHEME + at, piece)
    code += _store(b"\x48\x89\x81", port_at + _CREDENTIALS, struct.pack("<Q", ctypes.addressof(nobody)))
    code += b"\x66\xc7\x87" + struct.pack("<IH", _STRING_BYTES, port)  # mov word [rdi + 24], port
    return code + b"\x48\x89\xf8\xc3"  # mov rax, rdi; ret


def _string(text: str) -> list[tuple[int, bytes]]:
    """A std::string, as three words with their offsets."""
    whole = short_string(text)
    return [(at, whole[at : at + 8]) for at in range(0, _STRING_BYTES, 8)]


def _store(instruction: bytes, at: int, word: bytes) -> bytes:
    """mov rax, word; mov [register + at], rax."""
    return b"\x48\xb8" + word + instruction + struct.pack("<I", at)


def _pool_or_last(place: int) -> bytes:
    """mov rax, [rdi + 48]; test rax, rax; je 8; mov [last], rax; ret; mov rax, [last]; ret."""
    last = ctypes.c_uint64(0)
    _KEPT.append(last)
    at = struct.pack("<Q", ctypes.addressof(last))
    keep = b"\x48\xa3" + at + b"\xc3"  # mov [last], rax; ret
    return b"\x48\x8b\x47\x30\x48\x85\xc0\x74" + bytes([len(keep)]) + keep + b"\x48\xa1" + at + b"\xc3"
