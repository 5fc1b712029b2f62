"""Everything that can be refused before anything is sent: cluster, ON CLUSTER support, size, approval.
Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from engine.errors import Refused
from engine.migrations.errors import ApprovalRequired, MigrationFilesError, Problem
from engine.migrations.lint_databases import refused_by_databases
from engine.migrations.model import RunRequest
from engine.migrations.selection import Selected
from engine.migrations.statements import ADVICE, Surroundings, needs_approval
from engine.sql import parse_statement, redact
from engine.wording import shortened

_SHOWN_CHARS = 100


def preflight(
    selected: Sequence[Selected],
    request: RunRequest,
    surroundings: Surroundings,
    *,
    replicated: Set[str] = frozenset(),
) -> None:
    """`replicated`: the Replicated databases that hosts of the cluster are known to have.

    Raises MigrationFilesError with every statement that cannot be sent, and ApprovalRequired.
    """
    problems = refused_by_databases(selected, request, surroundings, replicated)
    unapproved: list[str] = []
    for item in selected:
        for statement in item.script.statements:
            if not item.will_send(
                statement, retry_failed=request.leniency.retry_failed, run_id=request.run_id
            ):
                continue
            try:
                surroundings.prepare(statement, request, token="preflight")
            except Refused as error:
                advice = ADVICE.get(parse_statement(statement.sql).kind)
                message = str(error) + (f" Instead, {advice}." if advice else "")
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
