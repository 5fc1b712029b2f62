"""What chDB raises, as values of the error tree."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import TypeVar

from engine.errors import TOO_FEW_DESCRIPTORS, Code, SqlError
from engine.storage.shadowed_functions import refusal_of

T = TypeVar("T")

_CODE = re.compile(r"(?:std::exception\. )?Code: (\d+)[.,] (?:DB::Exception: )?")
_TAIL = re.compile(r"[\s.]*\((?:([A-Z][A-Z0-9_]+)|version [^()]*(?:\([^()]*\))?)\)\s*\Z")
_TRACE = re.compile(r"\s*\n\n0\. .*\Z", re.DOTALL)
"""Where in its program: chDB has no symbols, so that it says nothing."""
_ERRNO = re.compile(r", errno: (\d+), strerror: ")
_NO_DESCRIPTOR = re.compile(
    r"I/O error: Too many|\S*filesystem_error: .*: Too many open files(?: \[|\Z)", re.DOTALL
)
"""Where chDB leaves files and connections to libraries, which have no number for it."""
_OF_A_MUTATION = re.compile(
    r"Exception happened during execution of mutations? '[^']*' with part '[^']*' reason: '(.*)'\. "
    r"This error maybe retryable",
    re.DOTALL,
)


def sql_error(text: str) -> SqlError:
    """Parse `Code: 60. DB::Exception: … (UNKNOWN_TABLE) (version …)`, which may be wrapped several times.

    Text of any other form is code 1002.
    """
    match = _CODE.search(text)
    if match is None:
        return SqlError(Code.UNKNOWN_EXCEPTION, text.strip() or "chDB failed without a message")
    code = int(match.group(1))
    message = text[match.end() :]
    while (inner := _CODE.match(message)) is not None and int(inner.group(1)) == code:
        message = message[inner.end() :]
    name = period = ""
    while (tail := _TAIL.search(message)) is not None:
        period = "." if "." in tail.group().split("(", 1)[0] else ""
        name = tail.group(1) or name
        message = message[: tail.start()]
    message = _TRACE.sub("", message).strip() + period
    return refusal_of(message) or SqlError(code, message, name=name, errno=_errno(message))


def _errno(message: str) -> int:
    found = _ERRNO.search(message)
    if found is None:
        return errno.EMFILE if _NO_DESCRIPTOR.match(message) else 0
    return int(found.group(1))


def translated(function: Callable[[], T]) -> T:
    """What `function` returns. Raises SqlError for what chDB raises in it."""
    try:
        return function()
    except RuntimeError as error:
        raise sql_error(str(error)) from None
    except UnicodeDecodeError as error:  # of the message, which quotes the statement
        raise sql_error(error.object.decode("utf-8", "backslashreplace")) from None


def told(text: str, of: object) -> str:
    """`text`, which chDB has shown of the definition of `of`: it is empty where chDB has no descriptor to
    read it. Raises SqlError 76 then."""
    if not text:
        raise SqlError(
            Code.CANNOT_OPEN_FILE,
            f"chDB cannot read the definition of {of} now",
            hint=TOO_FEW_DESCRIPTORS,
            errno=errno.EMFILE,
        )
    return text


def mutation_error(error: SqlError) -> SqlError:
    """What failed in a mutation. chDB puts code 341 and names of its own files and parts around it."""
    match = _OF_A_MUTATION.match(str(error))
    return error if match is None else sql_error(match.group(1))
