"""HTTP content encodings, both ways, chunk by chunk: gzip, deflate, zstd, lz4 (frames), xz."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

import lz4.frame
import zstandard

from engine.errors import Code, SqlError

_PREFERENCE = ("zstd", "lz4", "gzip", "deflate", "xz")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_IN_BYTES = 1024
"""Taken at once: four bytes of zstd may stand for 128 KiB, so this much for 32 MiB."""
_OUT_BYTES = 1 << 20
_XZ_MEMORY_BYTES = 256 << 20
"""What a body says that it needs to be unpacked; `xz -9` says 65 MiB."""


_CANNOT_UNPACK = (zlib.error, zstandard.ZstdError, lzma.LZMAError, RuntimeError)


class Encoder(Protocol):
    """A compressor of a stream."""

    def encode(self, data: bytes) -> bytes: ...

    def flush(self) -> bytes:
        """End the stream."""
        ...


class _Packer(Protocol):
    """As the standard library has them."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Packed:
    def __init__(self, packer: _Packer) -> None:
        self._packer = packer

    def encode(self, data: bytes) -> bytes:
        return self._packer.compress(data)

    def flush(self) -> bytes:
        return self._packer.flush()


class _Lz4:
    def __init__(self) -> None:
        self._packer = lz4.frame.LZ4FrameCompressor()
        self._begun = False

    def encode(self, data: bytes) -> bytes:
        head = b"" if self._begun else self._packer.begin()
        self._begun = True
        return bytes(head + self._packer.compress(data))

    def flush(self) -> bytes:
        head = b"" if self._begun else self._packer.begin()
        return bytes(head + self._packer.flush())


def choose_encoding(accept: str) -> str | None:
    """The best encoding of an Accept-Encoding header that is known here; None for no encoding."""
    offered = set()
    for item in accept.split(","):
        name, _, rest = item.partition(";")
        if rest.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            offered.add(name.strip().lower())
    return next((name for name in _PREFERENCE if name in offered), None)


def encoder(name: str) -> Encoder:
    """For one of the names that `choose_encoding` returns."""
    match name:
        case "gzip":
            return _Packed(zlib.compressobj(3, zlib.DEFLATED, _GZIP_WINDOW))
        case "deflate":
            return _Packed(zlib.compressobj(3, zlib.DEFLATED, zlib.MAX_WBITS))
        case "zstd":
            return _Packed(zstandard.ZstdCompressor(level=1).compressobj())
        case "xz":
            return _Packed(lzma.LZMACompressor(preset=1))
        case _:
            return _Lz4()


async def decoded(name: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A request body without its Content-Encoding. Raises SqlError 48 for one that is not known, 354 for
    data that is not what the header says."""
    match name.strip().lower():
        case "" | "identity":
            async for chunk in chunks:
                yield chunk
            return
        case "gzip" | "x-gzip":
            unpack = _Decoder(lambda: zlib.decompressobj(_GZIP_WINDOW))
        case "deflate":
            unpack = _Decoder(lambda: zlib.decompressobj(zlib.MAX_WBITS))
        case "zstd":
            unpack = _Decoder(lambda: zstandard.ZstdDecompressor().decompressobj())
        case "lz4":
            unpack = _Decoder(lz4.frame.LZ4FrameDecompressor)
        case "xz":
            unpack = _Decoder(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES))
        case other:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Unknown compression method {other}. Only {', '.join(sorted(_PREFERENCE))} are supported",
            )
    async for chunk in chunks:
        try:
            for data in unpack.decode(chunk):
                yield data
        except _CANNOT_UNPACK as error:
            raise SqlError(Code.ZLIB_INFLATE_FAILED, f"Cannot decompress the request body: {error}") from None
    if not unpack.is_whole:
        raise SqlError(Code.ZLIB_INFLATE_FAILED, "inflate failed: the compressed request body ends too early")


class _Decompressor(Protocol):
    """One stream, as the libraries have it; `unused_data` is what came behind its end."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Decoder:
    """Concatenated streams are one, as everywhere."""

    def __init__(self, make: Callable[[], _Decompressor]) -> None:
        self._make = make
        self._unpacker = make()
        self._seen = False

    @property
    def is_whole(self) -> bool:
        return bool(self._unpacker.eof) or not self._seen

    def decode(self, data: bytes) -> Iterator[bytes]:
        """In pieces of about `_OUT_BYTES`; a few bytes that unpack to terabytes are never held as such."""
        out: list[bytes] = []
        size = 0
        for at in range(0, len(data), _IN_BYTES):
            rest = data[at : at + _IN_BYTES]
            while rest:
                if self._unpacker.eof:
                    self._unpacker = self._make()
                self._seen = True
                out.append(self._unpacker.decompress(rest))
                size += len(out[-1])
                rest = self._unpacker.unused_data or b""
            if size >= _OUT_BYTES:
                yield b"".join(out)
                out, size = [], 0
        if size:
            yield b"".join(out)
