"""The worker of the DDL queue, made inside chDB as a server's main function makes it.

chDB has ClickHouse's whole queue, its initiator and its worker, but nobody has made a worker: a statement ON
CLUSTER ends with "DDL background thread is not initialized". Who asks for the worker (Context::getDDLWorker)
is given one here, made at the first question, by the program's own constructor and `startup`. It works until
the process is killed.
"""

from __future__ import annotations

import ctypes
import re
import struct

from tests.interop.program_in_memory import Program, short_string, write_over

_ASKED_FOR = re.compile(
    rb"\x55\x41\x57\x41\x56\x53\x48\x81\xec\x88\x00\x00\x00\x48\x89\xfb\x4c\x8b\x37\x49\x8b\xbe\xc0\x0d\x00\x00"
    rb"\x48\x85\xff\x74\x57\xe8",
)
_MADE = re.compile(
    rb"\x55\x41\x57\x41\x56\x41\x55\x41\x54\x53\x48\x81\xec\xa8\x01\x00\x00\x48\x89\xcd\x49\x89\xd7\x41\x89\xf6"
    rb"\x48\x89\xfb\x4c\x89\x84\x24\x68\x01\x00\x00\x4c\x89\x8c\x24\x70\x01\x00\x00",
)
"""DDLWorker(pool's size, queue's path, path of replicas, context, configuration, prefix of its settings, name
of the Keeper, name of the log, two metrics), with `this` before."""
_STARTED = re.compile(
    rb"\x41\x57\x41\x56\x53\x48\x83\xec\x20\x48\x89\xfb\x31\xc0\x86\x87\xc1\x01\x00\x00",
)
_GLOBAL_CONTEXT = 0x960
"""Within a context: what all others are copies of."""
_BYTES = 0x1000
"""More than a worker takes."""
_CLEANS_AFTER_S, _KEEPS = 0x1E8, 0x200
"""Within a worker, which has no configuration: `cleanup_delay_period`, `max_tasks_in_queue`."""
_KEPT: list[object] = []


def put_around(library: str, *, queue: str, replicas: str, keeps: int | None = None) -> None:
    """`library` is chDB's, loaded and without a connection yet; paths in Keeper. With `keeps` the worker
    cleans the queue once a second, of all but so many entries. Raises Unknown."""
    program = Program.of(library)
    asked_for, made, started = (program.find_one(each)[0] for each in (_ASKED_FOR, _MADE, _STARTED))
    word = ctypes.c_void_p
    make = ctypes.CFUNCTYPE(None, word, ctypes.c_int, *[word] * 9)(made)
    start = ctypes.CFUNCTYPE(None, word)(started)
    workers: list[int] = []

    def worker_of(context: int) -> int:
        if not workers:
            worker = _kept(bytes(_BYTES))
            whole = ctypes.c_uint64.from_address(context + _GLOBAL_CONTEXT).value
            paths = (_string(path) for path in (queue, replicas))
            names = (_string(name) for name in ("distributed_ddl", "default", "DDLWorker"))
            make(worker, 1, *paths, whole, None, None, *names, None, None)
            if keeps is not None:
                ctypes.c_uint64.from_address(worker + _CLEANS_AFTER_S).value = 1
                ctypes.c_uint64.from_address(worker + _KEEPS).value = keeps
            start(worker)
            workers.append(worker)
        return workers[0]

    answer = ctypes.CFUNCTYPE(word, word)(worker_of)
    _KEPT.append(answer)
    address = ctypes.cast(answer, word).value
    write_over(asked_for, b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xe0")  # mov rax, address; jmp rax


def _string(text: str) -> int:
    """The address of a std::string, long or short."""
    raw = text.encode()
    if len(raw) < 23:
        return _kept(short_string(text))
    return _kept(struct.pack("<QQQ", _kept(raw + b"\0"), len(raw), len(raw) + 1 | 1 << 63))


def _kept(content: bytes) -> int:
    buffer = ctypes.create_string_buffer(content, len(content))
    _KEPT.append(buffer)
    return ctypes.addressof(buffer)
