"""Everything that can be refused before anything is sent: cluster, ON CLUSTER support, size, approval.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Refused
from engine.migrations.errors import ApprovalRequired, MigrationFilesError, Problem
from engine.migrations.files import ScriptStatement
from engine.migrations.model import RunRequest
from engine.migrations.selection import Selected
from engine.migrations.statements import ADVICE, Surroundings, full_text, needs_approval
from engine.sql import parse_statement, redact
from engine.wording import shortened

_SHOWN_CHARS = 100


def preflight(selected: Sequence[Selected], request: RunRequest, surroundings: Surroundings) -> None:
    """Raises MigrationFilesError with every statement that cannot be sent, and ApprovalRequired."""
    problems: list[Problem] = []
    unapproved: list[str] = []
    for item in selected:
        for statement in item.script.statements:
            if not _will_be_sent(item, statement, request):
                continue
            try:
                surroundings.prepare(statement, request, token="preflight")
            except Refused as error:
                advice = ADVICE.get(parse_statement(statement.sql).kind)
                message = full_text(error) + (f" Instead, {advice}." if advice else "")
                problems.append(
                    Problem(str(item.script.path), statement.line, "not-sendable", message, error.code)
                )
                continue
            if not request.approved_by and needs_approval(statement):
                shown = shortened(redact(statement.sql), most=_SHOWN_CHARS)
                unapproved.append(f"{item.script.path.name}:{statement.line}: {shown}")
    if problems:
        folder = str(selected[0].script.path.parent)
        raise MigrationFilesError(folder, problems)
    if unapproved:
        raise ApprovalRequired(unapproved)


def _will_be_sent(item: Selected, statement: ScriptStatement, request: RunRequest) -> bool:
    if item.record.direction is not item.script.direction or not item.record.state.is_open:
        return True
    rows = item.record.rows_of(statement.index)
    if not rows:
        return True
    return request.leniency.retry_failed and any(row.state.is_failure for row in rows)
