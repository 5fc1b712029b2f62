"""One error tree; it is the retry policy.

    OnclusterError                what happened · ClickHouse code · what to do next
    ├─ Unavailable                nothing happened: try again
    │   ├─ KeeperUnavailable        no session with Keeper can be had
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

Facts stand in attributes; nobody needs to parse a message. Codes are ClickHouse's;
0 means that ClickHouse has none for it.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence


class Code(enum.IntEnum):
    """ClickHouse's error codes, the ones this project raises or interprets."""

    OK = 0
    UNSUPPORTED_METHOD = 1
    NOT_FOUND_COLUMN_IN_BLOCK = 10
    CANNOT_PARSE_TEXT = 6
    NO_SUCH_COLUMN_IN_TABLE = 16
    CANNOT_PARSE_QUOTED_STRING = 26
    CANNOT_PARSE_INPUT_ASSERTION_FAILED = 27
    BAD_ARGUMENTS = 36
    UNKNOWN_IDENTIFIER = 47
    NOT_IMPLEMENTED = 48
    UNKNOWN_LOAD_BALANCING = 212
    LOGICAL_ERROR = 49
    UNKNOWN_TYPE = 50
    TYPE_MISMATCH = 53
    TABLE_ALREADY_EXISTS = 57
    UNKNOWN_TABLE = 60
    SYNTAX_ERROR = 62
    ARGUMENT_OUT_OF_BOUND = 69
    UNKNOWN_FORMAT = 73
    CANNOT_READ_FROM_FILE_DESCRIPTOR = 74
    UNKNOWN_TYPE_OF_QUERY = 78
    INCORRECT_QUERY = 80
    UNKNOWN_DATABASE = 81
    DATABASE_ALREADY_EXISTS = 82
    UNKNOWN_SETTING = 115
    UNKNOWN_ELEMENT_IN_CONFIG = 137
    NO_ELEMENTS_IN_CONFIG = 139
    TOO_MANY_ROWS = 158
    TIMEOUT_EXCEEDED = 159
    READONLY = 164
    BAD_GET = 170
    CANNOT_ALLOCATE_MEMORY = 173
    ILLEGAL_AGGREGATION = 184
    UNKNOWN_USER = 192
    WRONG_PASSWORD = 193
    REQUIRED_PASSWORD = 194
    DNS_ERROR = 198
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    SOCKET_TIMEOUT = 209
    NETWORK_ERROR = 210
    QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING = 216
    TABLE_IS_DROPPED = 218
    NO_ZOOKEEPER = 225
    MEMORY_LIMIT_EXCEEDED = 241
    TABLE_IS_READ_ONLY = 242
    NOT_ENOUGH_SPACE = 243
    CANNOT_WRITE_TO_FILE_DESCRIPTOR = 75
    UNKNOWN_FORMAT_VERSION = 287
    UNFINISHED = 341
    INCONSISTENT_CLUSTER_DEFINITION = 371
    SESSION_NOT_FOUND = 372
    SESSION_IS_LOCKED = 373
    QUERY_IS_PROHIBITED = 392
    QUERY_WAS_CANCELLED = 394
    INVALID_SESSION_TIMEOUT = 374
    ACCESS_DENIED = 497
    UNKNOWN_ROLE = 511
    AUTHENTICATION_FAILED = 516
    CANNOT_ASSIGN_ALTER = 517
    NOT_A_LEADER = 529
    CLUSTER_DOESNT_EXIST = 701
    CANNOT_FORGET_PARTITION = 716
    DEDUPLICATION_IS_NOT_POSSIBLE = 764
    ABORTED = 236
    CHECKSUM_DOESNT_MATCH = 40
    NO_SUCH_INTERSERVER_IO_ENDPOINT = 221
    INCOMPATIBLE_COLUMNS = 122
    REPLICA_IS_ALREADY_ACTIVE = 224
    TOO_MANY_UNEXPECTED_DATA_PARTS = 231
    NO_SUCH_DATA_PART = 232
    BAD_DATA_PART_NAME = 233
    NO_REPLICA_HAS_PART = 234
    DUPLICATE_DATA_PART = 235
    UNEXPECTED_ZOOKEEPER_ERROR = 244
    CORRUPTED_DATA = 246
    INVALID_PARTITION_VALUE = 248
    TOO_MANY_PARTS = 252
    REPLICA_ALREADY_EXISTS = 253
    NO_ACTIVE_REPLICAS = 254
    TOO_FEW_LIVE_REPLICAS = 285
    UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE = 286
    REPLICA_IS_NOT_IN_QUORUM = 289
    TABLE_WAS_NOT_DROPPED = 305
    UNKNOWN_STATUS_OF_INSERT = 319
    METADATA_MISMATCH = 342
    SUPPORT_IS_DISABLED = 344
    TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT = 359
    PART_IS_TEMPORARILY_LOCKED = 384
    INSERT_WAS_DEDUPLICATED = 389
    ALL_REPLICAS_LOST = 415
    UNKNOWN_QUERY_PARAMETER = 456
    REPLICA_STATUS_CHANGED = 416
    TOO_MANY_BYTES = 307
    TOO_MANY_ROWS_OR_BYTES = 396
    TOO_MANY_PARTITIONS = 565
    TOO_MANY_MUTATIONS = 692
    CANNOT_ASSIGN_OPTIMIZE = 388
    PARTITION_ALREADY_EXISTS = 256
    INCORRECT_NUMBER_OF_COLUMNS = 18
    NUMBER_OF_ARGUMENTS_DOESNT_MATCH = 42
    STORAGE_REQUIRES_PARAMETER = 55
    INCORRECT_FILE_NAME = 79
    ALL_CONNECTION_TRIES_FAILED = 279
    ALL_REPLICAS_ARE_STALE = 369
    DISTRIBUTED_TOO_MANY_PENDING_BYTES = 574
    INVALID_SHARD_ID = 577
    TOO_LARGE_DISTRIBUTED_DEPTH = 581
    DISTRIBUTED_BROKEN_BATCH_INFO = 588
    CANNOT_READ_ALL_DATA = 33
    INCORRECT_DATA = 117
    ILLEGAL_COLUMN = 44
    DEADLOCK_AVOIDED = 473
    UNKNOWN_POLICY = 478
    EMPTY_LIST_OF_COLUMNS_PASSED = 112
    KEEPER_EXCEPTION = 999
    STD_EXCEPTION = 1001
    UNKNOWN_EXCEPTION = 1002


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
        return f"{self.message} {self.hint}".rstrip() if self.hint else self.message


# --- nothing happened -------------------------------------------------------------------------------------


class Unavailable(OnclusterError):
    """Nothing happened; the same call may succeed later."""


class KeeperUnavailable(Unavailable):
    """No session with Keeper can be had."""

    default_code = Code.KEEPER_EXCEPTION


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
    `Code` knows it.
    """

    def __init__(self, code: int, message: str, *, hint: str = "", name: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.name = name or (Code(code).name if code in Code._value2member_map_ else "")

    @property
    def display_text(self) -> str:
        """As a ClickHouse server words it: `Code: 60. DB::Exception: … (UNKNOWN_TABLE)`."""
        return f"Code: {self.code}. DB::Exception: {self}" + (f" ({self.name})" if self.name else "")


def disk_error(error: OSError, what: str, *, hint: str = "") -> SqlError:
    """What the system says of a file, as an exception of ClickHouse: 243 for a full disk, else 1001.

    `what` was not possible, such as "Cannot keep rows".
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    where = f" ({error.filename})" if error.filename else ""
    return SqlError(
        Code.NOT_ENOUGH_SPACE if is_full else Code.STD_EXCEPTION,
        f"{what}: {error.strerror or error}{where}",
        hint=hint or ("Make room on the disk of the node." if is_full else "Look at the disk of the node."),
    )


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
    before the
    failing one, -2 (run time inconsistency) after it.
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
