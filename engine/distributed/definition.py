"""What a Distributed table is: a cluster, a table on each of its shards, and how rows find their shard.

The text is that of an engine clause, `Distributed(cluster, database, table[, key[, policy]]) [SETTINGS …]`,
as users write it, as `system.tables.engine_full` shows it, and as ClickHouse's servers do.

Source: ClickHouse's registerStorageDistributed and DistributedSettings.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.setting_values import number_of
from engine.sql import TokenKind, literal_value
from engine.sql.cursor import Cursor

ENGINE = "Distributed"


class Kind(enum.Enum):
    """Of a setting's value."""

    FLAG = "0 or 1"
    NUMBER = "a whole number"
    SKIP_MODE = (
        "'unavailable' or 'unavailable_or_table_missing' or 'unavailable_or_exception_before_processing'"
    )


class SkipMode(enum.Enum):
    """Which shards an answer leaves out with `skip_unavailable_shards`."""

    UNREACHABLE = "unavailable"
    NO_TABLE = "unavailable_or_table_missing"
    ANY_ERROR = "unavailable_or_exception_before_processing"
    """Also those of which every replica answers with an error, while nothing of the answer is out."""

    @classmethod
    def of(cls, text: str) -> SkipMode:
        """By the setting's value. Raises SqlError 36."""
        try:
            return cls(text)
        except ValueError:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Unexpected value of SkipUnavailableShardsMode: '{text}'. Must be {Kind.SKIP_MODE.value}",
            ) from None


SETTINGS: Mapping[str, Kind] = {
    "fsync_after_insert": Kind.FLAG,
    "fsync_directories": Kind.FLAG,
    "skip_unavailable_shards": Kind.FLAG,
    "bytes_to_throw_insert": Kind.NUMBER,
    "bytes_to_delay_insert": Kind.NUMBER,
    "max_delay_to_insert": Kind.NUMBER,
    "background_insert_batch": Kind.NUMBER,
    "background_insert_split_batch_on_failure": Kind.NUMBER,
    "background_insert_sleep_time_ms": Kind.NUMBER,
    "background_insert_max_sleep_time_ms": Kind.NUMBER,
    "flush_on_detach": Kind.FLAG,
    "skip_unavailable_shards_mode": Kind.SKIP_MODE,
}
_OLD_NAMES = {
    "monitor_batch_inserts": "background_insert_batch",
    "monitor_split_batch_on_failure": "background_insert_split_batch_on_failure",
    "monitor_sleep_time_ms": "background_insert_sleep_time_ms",
    "monitor_max_sleep_time_ms": "background_insert_max_sleep_time_ms",
}


@dataclass(frozen=True, slots=True)
class DistributedDefinition:
    """`cluster` may hold macros. An empty `database` is the default one of each replica's address.

    `sharding_key` is an expression as text, empty for none. `settings` are the table's own, by their present
    names, values as they were written, without quotes.
    """

    cluster: str
    database: str
    table: str
    sharding_key: str = ""
    policy: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        throw, delay = (self.number(f"bytes_to_{what}_insert", 0) for what in ("throw", "delay"))
        if throw and delay and throw < delay:
            raise SqlError(
                Code.ARGUMENT_OUT_OF_BOUND,
                "bytes_to_throw_insert cannot be less or equal to bytes_to_delay_insert (since it is handled "
                "first)",
            )

    def number(self, name: str, default: int) -> int:
        """A setting of the table."""
        text = self.settings.get(name)
        return default if text is None else int(text)

    @property
    def engine_full(self) -> str:
        """The clause as everybody is shown it."""
        arguments = [quote_string(self.cluster), quote_string(self.database), quote_string(self.table)]
        if self.sharding_key or self.policy:
            arguments.append(self.sharding_key or "rand()")
        if self.policy:
            arguments.append(quote_string(self.policy))
        text = f"{ENGINE}({', '.join(arguments)})"
        if self.settings:
            text += " SETTINGS " + ", ".join(
                f"{name} = {value if value.isdigit() else quote_string(value)}"
                for name, value in self.settings.items()
            )
        return text

    @classmethod
    def parse(cls, clause: str, *, current_database: str = "") -> DistributedDefinition:
        """From an engine clause; what stands behind it (COMMENT, AS) is not looked at.

        Raises SqlError 42 for a wrong number of arguments, 36 for arguments that are none, 115 for a setting
        that Distributed tables do not have, 69 for limits that contradict each other.
        """
        c = Cursor(clause)
        if c.identifier() != ENGINE:
            raise SqlError(Code.BAD_ARGUMENTS, f"Not the engine clause of a Distributed table: {clause}")
        arguments = engine_arguments(c)
        if not 3 <= len(arguments) <= 5:
            raise SqlError(
                Code.NUMBER_OF_ARGUMENTS_DOESNT_MATCH,
                "Storage Distributed requires from 3 to 5 parameters - name of configuration section with "
                "list of remote servers, name of remote database, name of remote table, sharding key "
                "expression (optional), policy to store data in (optional).",
            )
        key = arguments[3] if len(arguments) > 3 else ""
        policy = argument_name(arguments[4], "the policy", "") if len(arguments) > 4 else ""
        settings: dict[str, str] = {}
        if c.accept("SETTINGS"):
            settings = _settings(c)
        return cls(
            argument_name(arguments[0], "the cluster", current_database),
            argument_name(arguments[1], "the database", current_database),
            argument_name(arguments[2], "the table", current_database),
            key,
            policy,
            settings,
        )


def engine_arguments(c: Cursor) -> list[str]:
    """The texts between the commas of the bracket at the cursor, which is stepped over."""
    begin = c.at
    if not c.skip_brackets():
        return []
    end = c.at - 1
    found: list[str] = []
    c.at = start = begin + 1
    while c.at < end:
        if c.word == ",":
            found.append(c.sql[c.tokens[start].start : c.tokens[c.at - 1].end])
            start = c.at = c.at + 1
        elif not c.skip_brackets():
            c.at += 1
    if end > start:
        found.append(c.sql[c.tokens[start].start : c.tokens[end - 1].end])
    c.at = end + 1
    return found


def argument_name(text: str, what: str, current_database: str) -> str:
    """A literal, an identifier, or currentDatabase(). Raises SqlError 36 for anything else."""
    c = Cursor(text)
    tokens = c.tokens
    if len(tokens) == 1 and tokens[0].kind in (TokenKind.STRING, TokenKind.HEREDOC):
        return literal_value(tokens[0])
    if [word.lower() for word in c.words] == ["currentdatabase", "(", ")"]:
        return current_database
    if len(tokens) == 1 and tokens[0].is_name:
        return literal_value(tokens[0])
    raise SqlError(
        Code.BAD_ARGUMENTS,
        f"Argument '{text}' of engine {ENGINE} must be a name or a string literal: {what}.",
    )


def _whole(name: str, text: str) -> str:
    try:
        number = number_of(text)
    except ValueError:
        number = -1
    if number < 0 or number != int(number):
        expected = SETTINGS[_OLD_NAMES.get(name, name)].value
        raise SqlError(Code.BAD_ARGUMENTS, f"Setting {name} = {text}: expected {expected}.")
    return str(int(number))


def _settings(c: Cursor) -> dict[str, str]:
    found: dict[str, str] = {}
    while (setting := c.setting_name()) is not None:
        given, has_value = setting
        name = _OLD_NAMES.get(given, given)
        if name not in SETTINGS:
            raise SqlError(
                Code.UNKNOWN_SETTING,
                f"Unknown setting '{given}' for storage {ENGINE}",
                hint=f"There are: {', '.join(sorted(SETTINGS))}.",
            )
        text = "1"
        if has_value:
            text = literal_value(c.token) if c.token.kind is TokenKind.STRING else c.token.text
            c.at += 1
        found[name] = SkipMode.of(text).value if SETTINGS[name] is Kind.SKIP_MODE else _whole(given, text)
        if not c.accept(","):
            break
    return found
