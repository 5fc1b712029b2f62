"""What a request may fail with, as an exception in ClickHouse's form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from aiohttp import web

from engine.errors import Code, OnclusterError, SqlError, disk_error

log = logging.getLogger(__name__)


@contextlib.contextmanager
def as_exceptions(query_id: str) -> Iterator[None]:
    """What is raised in the block is an OnclusterError, or says that the client is gone."""
    try:
        yield
    except (OnclusterError, ConnectionError, TimeoutError):
        raise
    except OSError as error:
        log.warning("http.disk query_id=%s", query_id, exc_info=True)
        raise disk_error(error, "Cannot work on a file of the node") from error
    except Exception as error:
        log.exception("http.defect query_id=%s", query_id)
        raise as_defect(error) from error


def as_defect(error: Exception) -> SqlError:
    """For what must not happen: the client is told in the form that it knows."""
    return SqlError(
        Code.STD_EXCEPTION,
        f"{type(error).__name__}: {error}",
        hint="This is a defect of the node; its log says where.",
    )


def note_if_gone(query_id: str, answered: asyncio.Task[web.StreamResponse]) -> None:
    """Nobody waits for the answer of a client that is gone; asyncio would log that with its whole trace."""
    if not answered.cancelled() and isinstance(error := answered.exception(), OSError):
        log.info("http.client_gone query_id=%s error=%s", query_id, error)
