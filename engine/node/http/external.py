"""multipart/form-data: the query and its parameters as form fields, and external tables as files.

A file part named `t` is the temporary table `t`; `t_structure` (or `t_types`) and `t_format` say what it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from aiohttp import BodyPartReader, web

from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.node.http.formats import checked_format
from engine.node.statements.session_commands import split_at_commas
from engine.node.statements.temporary_tables import create_temporary
from engine.sql import tokenize
from engine.storage import ChdbSession, Scope

_CHUNK_BYTES = 1 << 18
MAX_FIELD_BYTES = 1 << 20
MAX_TABLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """Rows that came with the query."""

    name: str
    structure: str
    format: str
    data: bytes

    async def create(self, session: ChdbSession, settings: Mapping[str, str]) -> None:
        """Make it a temporary table of the session; its rows are read as `settings` say. Raises SqlError."""
        await session.query(create_temporary(self.name, self.structure))

        async def rows() -> AsyncIterator[bytes]:
            yield self.data

        insert = f"INSERT INTO {quote_identifier(self.name)}"
        await session.insert(insert, format=self.format, rows=rows(), scope=Scope(settings=settings))


@dataclass(frozen=True, slots=True)
class Form:
    """What a form said."""

    fields: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, bytes], ...]

    def tables(self, url_parameters: dict[str, str]) -> tuple[ExternalTable, ...]:
        """The external tables. Raises SqlError 36 for one without a structure, 73 for a format's name that is
        none."""
        known = {**url_parameters, **dict(self.fields)}
        return tuple(
            ExternalTable(
                name,
                _structure(name, known),
                checked_format(known.get(f"{name}_format", "TabSeparated")),
                data,
            )
            for name, data in self.files
        )


async def read_form(request: web.Request) -> Form:
    """Read it all. Raises SqlError 241 when a part is larger than the node keeps in memory, 36 for what is no
    form."""
    try:
        return await _read_parts(request)
    except ValueError as error:
        raise SqlError(Code.BAD_ARGUMENTS, f"The form cannot be read: {error}") from error


async def _read_parts(request: web.Request) -> Form:
    fields: list[tuple[str, str]] = []
    files: list[tuple[str, bytes]] = []
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.name is None:
            continue
        limit = MAX_FIELD_BYTES if part.filename is None else MAX_TABLE_BYTES
        data = bytearray()
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            data += chunk
            if len(data) > limit:
                raise SqlError(
                    Code.MEMORY_LIMIT_EXCEEDED, f"Form part {part.name} is larger than {limit} bytes"
                )
        if part.filename is None:
            fields.append((part.name, data.decode("utf-8", "surrogateescape")))
        else:
            files.append((part.name, bytes(data)))
    return Form(tuple(fields), tuple(files))


def _structure(name: str, known: dict[str, str]) -> str:
    structure = known.get(f"{name}_structure")
    if structure:
        return structure
    types = known.get(f"{name}_types")
    if not types:
        raise SqlError(Code.BAD_ARGUMENTS, f"External table {name} has neither structure nor types")
    tokens = [token for token in tokenize(types) if token.is_significant]
    texts = [types[clause[0].start : clause[-1].end] for clause in split_at_commas(tokens) if clause]
    return ", ".join(f"_{number} {text}" for number, text in enumerate(texts, start=1))
