"""What a reviewer would say about a folder of migrations, before anything is asked of the cluster.

Rules and their severities are `RULES`; ids are stable. An `error` is a folder that cannot be applied, a
`warning` one that will be regretted. A rule is silenced where it does not apply by a comment with a reason:

    -- oncluster: allow=rewrites-data reason="the table has ten rows"           in the whole file
    -- oncluster-next: allow=destructive reason="copied in 0004"                for the next statement

Pure but for the real parser, which comes in as a function because chDB runs in a process of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import SqlError
from engine.migrations.errors import Problem
from engine.migrations.files import (
    GAP_RULE,
    Direction,
    Migration,
    MigrationSet,
    Script,
    ScriptStatement,
    gaps,
)
from engine.migrations.lint_databases import check_database, replicated_databases
from engine.migrations.lint_paths import ReplicaPaths
from engine.migrations.lint_statements import check_statement
from engine.migrations.options import Options
from engine.migrations.statements import Surroundings
from engine.names import TableName
from engine.sql import Statement, StatementKind, parse_statement, redact_prose

Validator = Callable[[str], Awaitable[object]]
"""The real parser: raises SqlError for text that is no SQL."""


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


RULES: dict[str, tuple[Severity, str]] = {
    "file-name": (Severity.ERROR, "the name is not {version}_{title}.up.sql or .down.sql"),
    "duplicate-version": (Severity.ERROR, "two files of one version and direction"),
    GAP_RULE: (Severity.ERROR, "a counter jumps; a file may be missing"),
    "empty-folder": (Severity.ERROR, "no migration there"),
    "missing-up": (Severity.WARNING, "a down file without its up file"),
    "unreadable": (Severity.ERROR, "the file cannot be read"),
    "encoding": (Severity.ERROR, "the file is not UTF-8 text"),
    "syntax": (Severity.ERROR, "text that cannot be SQL"),
    "both-directions": (Severity.ERROR, "a file of goose or dbmate that was not divided"),
    "placeholder": (Severity.ERROR, "text that another tool fills in"),
    "options": (Severity.ERROR, "a comment with options that cannot be read"),
    "empty-migration": (Severity.ERROR, "an up file without statements"),
    "unknown-cluster": (Severity.ERROR, "no such cluster in the configuration"),
    "no-hosts": (Severity.ERROR, "the cluster has no hosts"),
    "other-cluster": (Severity.ERROR, "ON CLUSTER names another cluster than the folder's"),
    "data-statement": (Severity.ERROR, "SELECT and INSERT do not go through ON CLUSTER"),
    "too-long": (Severity.ERROR, "hosts read a part of the statement only"),
    "not-on-cluster": (Severity.ERROR, "ClickHouse has no ON CLUSTER for this statement"),
    "replicated-database": (Severity.ERROR, "a Replicated database refuses statements ON CLUSTER"),
    "replicated-path": (Severity.ERROR, "a replication path that shards, replicas or tables would share"),
    "engine-arguments": (Severity.ERROR, "an engine with arguments that no host takes"),
    "destructive": (Severity.WARNING, "data or definitions are lost"),
    "not-rehearsed": (Severity.WARNING, "chDB refuses what older servers take; for rehearsals alone"),
    "not-repeatable": (Severity.WARNING, "IF EXISTS or IF NOT EXISTS is missing"),
    "rewrites-data": (Severity.WARNING, "stored data is written anew"),
    "not-replicated": (Severity.WARNING, "replicas of a shard would hold different rows"),
    "filled-by-each-host": (Severity.WARNING, "every host runs the SELECT, and its rows come once from each"),
    "distributed-cluster": (Severity.WARNING, "a Distributed table over a cluster that is not configured"),
    "mixed-clusters": (Severity.WARNING, "the statements of a file run on several clusters"),
    "missing-down": (Severity.WARNING, "no down file"),
    "empty-down": (Severity.WARNING, "a down file without statements"),
    "down-incomplete": (Severity.WARNING, "what the up file makes is not removed by the down file"),
    "title-differs": (Severity.WARNING, "the files of a version have different titles"),
    "secret": (Severity.WARNING, "a password or key in the text"),
    "unknown-rule": (Severity.WARNING, "a rule is silenced that there is not"),
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One remark. `silenced_by` is the reason given in the file, empty if it stands."""

    path: str
    line: int
    rule: str
    message: str
    code: int = 0
    silenced_by: str = ""

    @property
    def severity(self) -> Severity:
        return RULES[self.rule][0]

    @property
    def stands(self) -> bool:
        return not self.silenced_by

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.severity}: {self.message} [{self.rule}]"

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "line": self.line,
            "rule": self.rule,
            "severity": self.severity.value,
            "message": self.message,
            "code": self.code,
            "silenced_by": self.silenced_by,
        }


@dataclass(frozen=True, slots=True)
class LintReport:
    """All findings in order of place."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.stands and f.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.stands and f.severity is Severity.WARNING)

    @property
    def silenced(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if not f.stands)

    def to_json(self) -> dict[str, Any]:
        return {
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "silenced": len(self.silenced),
            "findings": [finding.to_json() for finding in self.findings],
        }


async def lint(
    migrations: MigrationSet,
    problems: Sequence[Problem],
    surroundings: Surroundings,
    *,
    validator: Validator | None = None,
) -> LintReport:
    """`problems` are those of `read_folder`. Without a validator text is judged by the tokenizer only."""
    findings = [Finding(p.path, p.line, p.rule, p.message, p.code) for p in problems]
    findings += _folder(migrations, surroundings)
    replicated = replicated_databases(
        statement
        for migration in migrations.migrations
        for script in (migration.up, migration.down)
        if script is not None
        for statement in script.statements
    )
    paths = ReplicaPaths()
    for migration in migrations.migrations:
        findings += _migration(migration)
        for script in (migration.up, migration.down):
            if script is None:
                continue
            findings += _script(script, surroundings)
            for statement in script.statements:
                found = [] if validator is None else await _parsed(script, statement, validator)
                is_sql = not found
                notes = [*check_statement(script, statement, surroundings, is_sql=is_sql)]
                notes += check_database(statement, replicated)
                if script.direction is Direction.UP:
                    notes += paths.follow(statement)
                found += [_of(script, statement, note) for note in notes]
                findings += [_silenced(finding, statement.options) for finding in found]
    return LintReport(tuple(sorted(set(findings))))


async def _parsed(script: Script, statement: ScriptStatement, validator: Validator) -> list[Finding]:
    try:
        await validator(statement.sql)
    except SqlError as error:
        message = redact_prose(error.message)  # it quotes what it could not read
        return [Finding(str(script.path), statement.line, "syntax", message, error.code)]
    return []


def _of(script: Script, statement: ScriptStatement, note: tuple[str, str, int]) -> Finding:
    rule, message, code = note
    return Finding(str(script.path), statement.line, rule, message, code)


def _silenced(finding: Finding, options: Options) -> Finding:
    reason = options.allows(finding.rule)
    return finding if reason is None else replace(finding, silenced_by=reason)


def _folder(migrations: MigrationSet, surroundings: Surroundings) -> list[Finding]:
    findings = []
    folder = str(migrations.folder)
    clusters = surroundings.topology.clusters
    cluster = clusters.get(migrations.cluster)
    if cluster is None:
        known = ", ".join(sorted(clusters)) or "none"
        findings.append(
            Finding(
                folder, 0, "unknown-cluster", f"no cluster '{migrations.cluster}'; there are: {known}", 701
            )
        )
    elif not cluster.host_ids:
        findings.append(Finding(folder, 0, "no-hosts", f"cluster '{migrations.cluster}' has no hosts", 49))
    for before, after in gaps(migrations.versions):
        migration = migrations.get(after)
        script = migration and migration.first_file
        if script:
            finding = Finding(
                str(script.path),
                0,
                GAP_RULE,
                f"version {after} follows {before}; is a file missing? If it is meant, say so in this file: "
                f'-- oncluster: allow={GAP_RULE} reason="…"',
            )
            findings.append(_silenced(finding, script.options))
    return findings


def _migration(migration: Migration) -> list[Finding]:
    up, down = migration.up, migration.down
    if up is None:
        return []
    if not up.is_there:
        if down is None:
            return []
        message = "there is no up file: going up changes nothing, and this is run on the way down"
        return [_silenced(Finding(str(down.path), 0, "missing-up", message), down.options)]
    findings = []
    path = str(up.path)
    if not up.statements and not up.no_ops:
        message = (
            "there is no statement in this file. If that is meant, say so in it: "
            '-- oncluster: allow=empty-migration reason="…"'
        )
        findings.append(Finding(path, 0, "empty-migration", message))
    if down is None:
        findings.append(Finding(path, 0, "missing-down", "there is no down file: this cannot be rolled back"))
    else:
        findings += _down(up, down)
    return [_silenced(finding, up.options) for finding in findings]


def _down(up: Script, down: Script) -> list[Finding]:
    findings = []
    if not down.statements and up.statements:
        findings.append(Finding(str(down.path), 0, "empty-down", "rolling back would change nothing"))
    elif left := _left_behind(up, down):
        names = ", ".join(left)
        findings.append(Finding(str(down.path), 0, "down-incomplete", f"is not removed: {names}"))
    stems = [script.path.name.rpartition(f".{script.direction}.sql")[0] for script in (up, down)]
    if stems[0].lstrip("0") != stems[1].lstrip("0"):
        findings.append(Finding(str(down.path), 0, "title-differs", f"the up file is called {up.path.name}"))
    return [_silenced(finding, down.options) for finding in findings]


_CREATES = {
    StatementKind.CREATE_TABLE,
    StatementKind.CREATE_VIEW,
    StatementKind.CREATE_MATERIALIZED_VIEW,
    StatementKind.CREATE_DICTIONARY,
}
_DROPS = {StatementKind.DROP_TABLE, StatementKind.DROP_VIEW, StatementKind.DROP_DICTIONARY}


def _left_behind(up: Script, down: Script) -> list[str]:
    """Tables and databases that the up file makes and the down file does not remove."""
    made, gone = _objects(up), _objects(down)
    dropped_databases = {name for is_made, name in gone if not is_made and isinstance(name, str)}
    dropped = {name for is_made, name in gone if not is_made}
    renamed_away = _renamed(up)
    return [
        str(name)
        for is_made, name in made
        if is_made
        and name not in dropped
        and (False, name) not in made
        and name not in renamed_away
        and not (isinstance(name, TableName) and name.database in dropped_databases)
    ]


def _objects(script: Script) -> list[tuple[bool, TableName | str]]:
    """(made or dropped, what) of each statement of the script."""
    result: list[tuple[bool, TableName | str]] = []
    for statement in script.statements:
        parsed = parse_statement(statement.sql)
        database = statement.options.database
        if parsed.kind in _CREATES | _DROPS:
            is_made = parsed.kind in _CREATES
            result += [(is_made, _qualified(table, database)) for table in parsed.tables]
        elif parsed.kind is StatementKind.CREATE_DATABASE and parsed.database:
            result.append((True, parsed.database))
        elif parsed.kind is StatementKind.DROP_DATABASE and parsed.database:
            result.append((False, parsed.database))
    return result


def _renamed(script: Script) -> set[TableName]:
    return {
        _qualified(table, statement.options.database)
        for statement in script.statements
        for parsed in [parse_statement(statement.sql)]
        if parsed.kind is StatementKind.RENAME_TABLE
        for table in parsed.tables
    }


def _qualified(table: TableName, database: str) -> TableName:
    return table if table.database else TableName(database, table.table)


def _script(script: Script, surroundings: Surroundings) -> list[Finding]:
    findings = []
    clusters: dict[str, ScriptStatement] = {}
    for statement in script.statements:
        parsed: Statement = parse_statement(statement.sql)
        try:
            clusters.setdefault(surroundings.cluster_of(statement, parsed), statement)
        except SqlError:
            continue  # `other-cluster` says so
    if len(clusters) > 1:
        last = list(clusters.values())[-1]
        message = f"the statements of this file run on {', '.join(sorted(clusters))}"
        findings.append(Finding(str(script.path), last.line, "mixed-clusters", message))
    for rule in sorted({r for item in script.options.allowances for r in item.rules} - RULES.keys()):
        findings.append(Finding(str(script.path), 0, "unknown-rule", f"there is no rule '{rule}'"))
    return [_silenced(finding, script.options) for finding in findings]
