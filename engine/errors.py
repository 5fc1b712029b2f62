"""One error tree; it is the retry policy.

    OnclusterError                what happened · ClickHouse code · what to do next
    ├─ Unavailable                nothing happened: try again
    │   ├─ KeeperUnavailable        no session with Keeper can be had
    │   │   └─ KeeperFull             because it takes no writes
    │   ├─ NodeUnavailable          a node refuses connections
    │   └─ Busy                     somebody else is doing this; says who
    ├─ UnknownOutcome             it may have happened: look, attach, never simply repeat
    │   ├─ ConnectionLoss           the connection to Keeper broke with the request under way
    │   ├─ SessionExpired           the session is over; its ephemeral nodes are gone or will go
    │   ├─ OperationTimeout         Keeper did not answer in time
    │   └─ ReplyLost                a node did not answer a statement that it may have executed
    ├─ Refused                    will never work as asked: tell the user
    │   ├─ SqlError                 an exception of ClickHouse, with its code
    │   ├─ ConfigError              configuration that cannot be used
    │   └─ KeeperAnswer             the tree's definite answer: NoNode, NodeExists, BadVersion, NotEmpty,
    │                               NoChildrenForEphemerals, BadArguments, NoAuth, InvalidAcl, AuthFailed
    │                               MultiFailed wraps the answer to the first failing operation
    └─ Corrupt                    stored data contradicts itself: stop, tell a person
        └─ MalformedEntry            text in the queue that does not parse

Facts stand in attributes; nobody needs to parse a message. Codes are ClickHouse's; 0 means that ClickHouse
has none for it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from engine.error_codes import Code as Code

_ENDS = (".", "!", "?", "…", ":", ";", ",")


class OnclusterError(Exception):
    """Base of every error this project raises on purpose.

    `code` is ClickHouse's error code (0 where it has none), `hint` says what to do next.
    """

    default_code: Code = Code.OK

    def __init__(self, message: str, *, code: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = int(self.default_code if code is None else code)
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        # ClickHouse's own messages have no full stop.
        stop = "" if self.message.endswith(_ENDS) else "."
        return f"{self.message}{stop} {self.hint}".rstrip()


# --- nothing happened -------------------------------------------------------------------------------------


class Unavailable(OnclusterError):
    """Nothing happened; the same call may succeed later."""


class KeeperUnavailable(Unavailable):
    """No session with Keeper can be had."""

    default_code = Code.KEEPER_EXCEPTION


class KeeperFull(KeeperUnavailable):
    """Keeper answers and has no room for another session; an operator has to make some."""


class NodeUnavailable(Unavailable):
    """A node refuses connections or cannot be reached; the statement was not sent."""

    default_code = Code.NETWORK_ERROR


class Busy(Unavailable):
    """Somebody else holds what is needed; `holder` names them."""

    def __init__(self, message: str, *, holder: str, code: int | None = None, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.holder = holder


# --- it may have happened ---------------------------------------------------------------------------------


class UnknownOutcome(OnclusterError):
    """The request may or may not have taken effect; look before doing anything again."""


class ConnectionLoss(UnknownOutcome):
    """The connection to Keeper broke while the request was under way (ZCONNECTIONLOSS, -4)."""

    default_code = Code.KEEPER_EXCEPTION


class SessionExpired(UnknownOutcome):
    """The Keeper session is over (ZSESSIONEXPIRED, -112); open a new one."""

    default_code = Code.KEEPER_EXCEPTION


class OperationTimeout(UnknownOutcome):
    """Keeper did not answer in time (ZOPERATIONTIMEOUT, -7)."""

    default_code = Code.KEEPER_EXCEPTION


class ReplyLost(UnknownOutcome):
    """A node was sent a statement and its answer did not arrive."""

    default_code = Code.SOCKET_TIMEOUT


# --- will never work --------------------------------------------------------------------------------------


class Refused(OnclusterError):
    """Will not work however often it is tried."""

    default_code = Code.BAD_ARGUMENTS


class SqlError(Refused):
    """An exception of ClickHouse; `code` is always set. `message` is without `Code: …` and without the name.

    `name` is ClickHouse's for the code, such as UNKNOWN_TABLE; empty where neither the server said it nor
    `Code` knows it. `errno` is the operating system's number, where chDB failed in one of its calls.
    """

    def __init__(self, code: int, message: str, *, hint: str = "", name: str = "", errno: int = 0) -> None:
        super().__init__(message, code=code, hint=hint)
        self.errno = errno
        self.name = name or (Code(code).name if code in Code._value2member_map_ else "")

    def reworded(self, message: str) -> SqlError:
        """The same error in other words."""
        return SqlError(self.code, message, hint=self.hint, name=self.name, errno=self.errno)

    @property
    def display_text(self) -> str:
        """As a ClickHouse server words it: `Code: 60. DB::Exception: …. (UNKNOWN_TABLE)`."""
        text = str(self)
        period = "" if text.endswith(".") else "."
        return f"Code: {self.code}. DB::Exception: {text}{period}" + (f" ({self.name})" if self.name else "")


TOO_FEW_DESCRIPTORS = (
    "Have fewer clients at once, or raise the hard limit of open files of the node's process (ulimit -Hn, "
    "LimitNOFILE of systemd, --ulimit nofile of Docker); the node makes it its own at its next start."
)


def disk_error(error: OSError, what: str, *, hint: str = "") -> SqlError:
    """What the system says of a file, as an exception of ClickHouse: 243 for a full disk, 76 where no file
    can be opened any more, else 1001.

    `what` was not possible, such as "Cannot keep rows".
    """
    code, usual_hint = Code.STD_EXCEPTION, "Look at the disk of the node."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        code, usual_hint = Code.NOT_ENOUGH_SPACE, "Make room on the disk of the node."
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        code, usual_hint = Code.CANNOT_OPEN_FILE, TOO_FEW_DESCRIPTORS
    where = f" ({error.filename})" if error.filename else ""
    return SqlError(
        code,
        f"{what}: {error.strerror or error}{where}",
        hint=hint or usual_hint,
        errno=error.errno or 0,
    )


_WHAT_RUNS_OUT = frozenset(
    {Code.MEMORY_LIMIT_EXCEEDED, Code.CANNOT_ALLOCATE_MEMORY, Code.CANNOT_SCHEDULE_TASK}
)
_ERRNOS_OF_IT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_PASSING = frozenset(
    {
        Code.TIMEOUT_EXCEEDED,
        Code.TOO_SLOW,
        Code.TOO_MANY_SIMULTANEOUS_QUERIES,
        Code.SOCKET_TIMEOUT,
        Code.NETWORK_ERROR,
        Code.ABORTED,
        Code.NOT_ENOUGH_SPACE,
        Code.QUERY_WAS_CANCELLED,
        Code.NETLINK_ERROR,
    }
)


def ran_out(error: BaseException) -> bool:
    """Whether there was no memory, no descriptor or no thread at that moment: nothing is wrong with the data
    or the statement, and another attempt may succeed. It may come behind an effect, too."""
    if isinstance(error, SqlError):
        return error.code in _WHAT_RUNS_OUT or error.errno in _ERRNOS_OF_IT
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _ERRNOS_OF_IT)


def is_passing(error: BaseException) -> bool:
    """Whether an error says nothing of the data that was read: what ran out, a full disk, time limits, the
    network, an end that somebody asked for."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full or ran_out(error) or (isinstance(error, SqlError) and error.code in _PASSING)


class ConfigError(Refused):
    """Configuration that cannot be used; the message names the place and the alternatives."""

    default_code = Code.NO_ELEMENTS_IN_CONFIG


class KeeperAnswer(Refused):
    """A definite answer of the tree: nothing was changed. `path` is the node, `reason` the text."""

    default_code = Code.KEEPER_EXCEPTION
    keeper_code: int = 0

    def __init__(self, path: str, message: str = "") -> None:
        reason = message or type(self).__doc__ or ""
        super().__init__(f"{reason}, path: {path}")
        self.reason = reason
        self.path = path


class NoNode(KeeperAnswer):
    """No node"""

    keeper_code = -101


class NoAuth(KeeperAnswer):
    """Not authenticated"""

    keeper_code = -102


class BadVersion(KeeperAnswer):
    """Bad version"""

    keeper_code = -103


class NoChildrenForEphemerals(KeeperAnswer):
    """Ephemeral nodes may not have children"""

    keeper_code = -108


class NodeExists(KeeperAnswer):
    """Node exists"""

    keeper_code = -110


class NotEmpty(KeeperAnswer):
    """Node has children"""

    keeper_code = -111


class InvalidAcl(KeeperAnswer):
    """Invalid ACL"""

    keeper_code = -114


class AuthFailed(KeeperAnswer):
    """Authentication failed"""

    keeper_code = -115


class BadArguments(KeeperAnswer):
    """Bad arguments"""

    keeper_code = -8


class MultiFailed(KeeperAnswer):
    """A multi was refused as a whole; nothing was applied.

    `index` is the first failing operation, `error` its answer, `op_codes` the code of every operation: 0
    before the failing one, -2 (run time inconsistency) after it.
    """

    def __init__(self, index: int, error: KeeperAnswer, op_codes: Sequence[int]) -> None:
        super().__init__(error.path, f"Transaction failed ({error.reason}): Op #{index}")
        self.index = index
        self.error = error
        self.op_codes = tuple(op_codes)
        self.keeper_code = error.keeper_code


# --- stop -------------------------------------------------------------------------------------------------


class Corrupt(OnclusterError):
    """Stored data contradicts itself; a person has to look."""


class MalformedEntry(Corrupt):
    """Text in the DDL queue that does not parse; `where` says which entry."""

    default_code = Code.CANNOT_PARSE_TEXT

    def __init__(self, message: str, *, where: str = "", code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.where = where
