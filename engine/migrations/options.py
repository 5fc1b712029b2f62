"""Options that a migration file carries in its comments.

    -- oncluster: timeout=15m output_mode=none_only_active          for the whole file; before any statement
    -- oncluster-next: timeout=0 setting.mutations_sync=0           for the next statement only
    -- oncluster-next: allow=destructive reason="copied in 0004"    silences lint rules; a reason is required

A directive is a line comment (`--` or `#`) of its own. After the colon stand `key=value` pairs, separated by
blanks; a value with blanks stands in double quotes, where `\\"` and `\\\\` are the two escapes. What
only looks like a directive is an error, so that a typing mistake does not go unnoticed.

    timeout         how long to wait for the hosts: seconds, or with s, m, h; 0 does not wait, negative waits
                    for ever (distributed_ddl_task_timeout)
    output_mode     what a timeout and an inactive host mean (distributed_ddl_output_mode)
    cluster         run on this cluster instead of the folder's
    database        database of names that have none
    entry_version   format of the queue entry (distributed_ddl_entry_format_version); 1 for 18.16
    setting.NAME    a setting that is shipped with the statement
    approval        `required`: asks for approval although nothing is destroyed
    allow           lint rules that do not apply here, comma-separated; needs reason="…"
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.ddl.output import OutputMode
from engine.errors import Code, SqlError

_DIRECTIVE = re.compile(
    r"(?:--|#)[ \t]*oncluster(?P<scope>[a-z-]*)(?P<colon>[ \t]*:)?(?P<rest>.*)", re.DOTALL
)
_PAIR = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_.-]*)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?=\s|$)')
_ASSIGNMENT = re.compile(r"\s+\w+=")
_DURATION = re.compile(r"(-?\d{1,9})(s|m|h)?\Z")
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNIT_S = {None: 1, "s": 1, "m": 60, "h": 3600}
_KEYS = (
    "timeout",
    "output_mode",
    "cluster",
    "database",
    "entry_version",
    "setting.NAME",
    "approval",
    "allow",
    "reason",
)
ENTRY_VERSIONS = (1, 2, 4, 5, 6, 7, 8)


class Scope(enum.Enum):
    FILE = ""
    NEXT = "-next"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Lint rules silenced, and why."""

    rules: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Options:
    """What a file or a statement asks for; None and empty mean: not said."""

    timeout_s: int | None = None
    output_mode: OutputMode | None = None
    cluster: str = ""
    database: str = ""
    entry_version: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    approval_required: bool = False
    allowances: tuple[Allowance, ...] = field(default=())

    def over(self, base: Options) -> Options:
        """These options where they say something, `base`'s otherwise. Settings and allowances add up."""
        return Options(
            timeout_s=base.timeout_s if self.timeout_s is None else self.timeout_s,
            output_mode=self.output_mode or base.output_mode,
            cluster=self.cluster or base.cluster,
            database=self.database or base.database,
            entry_version=base.entry_version if self.entry_version is None else self.entry_version,
            settings=tuple(sorted({**dict(base.settings), **dict(self.settings)}.items())),
            approval_required=self.approval_required or base.approval_required,
            allowances=base.allowances + self.allowances,
        )

    def allows(self, rule: str) -> str | None:
        """The reason why `rule` does not apply, or None."""
        return next((item.reason for item in self.allowances if rule in item.rules), None)

    @property
    def meaning(self) -> str:
        """What of the options changes a statement's effect; part of its checksum."""
        settings = ",".join(f"{name}={value}" for name, value in self.settings)
        return f"cluster={self.cluster};database={self.database};settings={settings}"


@dataclass(frozen=True, slots=True)
class Directive:
    scope: Scope
    options: Options


def parse_comment(comment: str) -> Directive | None:
    """The directive in one line comment (with its `--`), or None for an ordinary comment.

    Raises SqlError 36 that names what is wrong and what there is instead.
    """
    match = _DIRECTIVE.match(comment.strip())
    if match is None or (not match["colon"] and not match["scope"] and not _ASSIGNMENT.match(match["rest"])):
        return None
    scopes = {scope.value: scope for scope in Scope}
    if match["scope"] not in scopes or not match["colon"]:
        raise _bad("begin a line of options with `-- oncluster:` or `-- oncluster-next:`")
    return Directive(scopes[match["scope"]], _options(_pairs(match["rest"])))


def merged(options: Iterable[Options]) -> Options:
    """Several directives of one scope as one; the later one wins."""
    result = Options()
    for item in options:
        result = item.over(result)
    return result


def _bad(message: str) -> SqlError:
    return SqlError(Code.BAD_ARGUMENTS, f"Options: {message}.")


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise _bad(
                f"cannot read {text[at:].strip()!r}; write key=value, and values with blanks in double quotes"
            )
        value = match[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        pairs.append((match[1], value))
        at = match.end()
        while at < len(text) and text[at].isspace():
            at += 1
    if not pairs:
        raise _bad("nothing after the colon")
    return pairs


def _options(pairs: list[tuple[str, str]]) -> Options:
    options = Options()
    rules: tuple[str, ...] = ()
    reason = ""
    seen: set[str] = set()
    for key, value in pairs:
        if key in seen:
            raise _bad(f"{key} is given twice")
        seen.add(key)
        if not value:
            raise _bad(f"{key} has no value")
        match key:
            case "timeout":
                options = replace(options, timeout_s=parse_duration_s(value))
            case "output_mode":
                options = replace(options, output_mode=OutputMode.parse(value))
            case "cluster":
                options = replace(options, cluster=value)
            case "database":
                options = replace(options, database=value)
            case "entry_version":
                options = replace(options, entry_version=_entry_version(value))
            case "approval":
                if value != "required":
                    raise _bad(f"approval={value!r}; the only value is `required`")
                options = replace(options, approval_required=True)
            case "allow":
                rules = tuple(rule for rule in value.split(",") if rule)
            case "reason":
                reason = value
            case _ if key.startswith("setting."):
                name = key.removeprefix("setting.")
                if not _SETTING_NAME.match(name):
                    raise _bad(f"{name!r} is no name of a setting")
                options = replace(options, settings=(*options.settings, (name, value)))
            case _:
                raise _bad(f"unknown option {key!r}; there are {', '.join(_KEYS)}")
    if bool(rules) != bool(reason):
        raise _bad('allow and reason belong together: allow=RULE reason="why"')
    if rules:
        options = replace(options, allowances=(Allowance(rules, reason),))
    return options


def parse_duration_s(value: str) -> int:
    """`300`, `300s`, `5m`, `1h`; 0 and negative are allowed. Raises SqlError 36."""
    match = _DURATION.match(value)
    if match is None:
        raise _bad(f"timeout={value!r}; write seconds, or a number with s, m or h")
    return int(match[1]) * _UNIT_S[match[2]]


def _entry_version(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) not in ENTRY_VERSIONS:
        raise _bad(f"entry_version={value!r}; there are {', '.join(map(str, ENTRY_VERSIONS))}")
    return int(value)
