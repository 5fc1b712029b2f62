"""An operation's plan on its way through a DAG run: in XCom, in the log, as a question, as a report."""

from __future__ import annotations

import base64
import enum
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.operations.act import Act, ActState, Danger, Plan
from engine.operations.carrying_out import Report
from engine.sql import redact_prose
from engine.wording import count
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.markdown import inline
from oncluster_airflow.outcomes import table

# A question is read by a person; a log is searched.
_ACTS_IN_QUESTION = 50
_ACTS_IN_XCOM = 100
_ACTS_IN_LOG = 1000


class Mode(enum.StrEnum):
    """What a run is to do with its plan."""

    NONE = "none"
    """There is to be no plan: only a look."""

    PLAN = "plan"
    """Show it."""

    SAFE = "safe"
    """Do at once what needs nobody's approval, show the rest."""

    ACT = "act"
    """Ask, then do it."""


def mode_of(word: object) -> Mode:
    """Raises TaskRefused."""
    try:
        return Mode(str(word))
    except ValueError:
        words = ", ".join(mode.value for mode in Mode)
        raise TaskRefused(f"{word!r} is no mode. There are {words}.") from None


def to_xcom(plan: Plan) -> dict[str, Any]:
    """Readable in its head; the acts are packed, since a plan may have thousands and XCom is a row in
    Airflow's database. Its words are redacted, too; what an act needs to be carried out is as it was."""
    packed = zlib.compress(json.dumps(_redacted(plan).to_json(), ensure_ascii=False).encode(), 6)
    return {
        "operation": plan.operation,
        "cluster": plan.cluster,
        "checksum": plan.checksum,
        "acts": len(plan.acts),
        "by_kind": counted(act.kind for act in plan.acts),
        "by_danger": counted(act.danger.value for act in plan.acts),
        "first_acts": [redact_prose(f"{act.host} {act.what}".strip()) for act in plan.acts[:_ACTS_IN_XCOM]],
        "notes": [redact_prose(note) for note in plan.notes[:_ACTS_IN_XCOM]],
        "packed": base64.b85encode(packed).decode(),
    }


def _redacted(plan: Plan) -> Plan:
    """The same acts, and so the same checksum."""
    return replace(
        plan,
        acts=tuple(replace(a, what=redact_prose(a.what), why=redact_prose(a.why)) for a in plan.acts),
        findings=tuple(
            replace(
                finding,
                what=redact_prose(finding.what),
                advice=redact_prose(finding.advice),
                evidence={
                    name: redact_prose(value) if isinstance(value, str) else value
                    for name, value in finding.evidence.items()
                },
            )
            for finding in plan.findings
        ),
        notes=tuple(map(redact_prose, plan.notes)),
    )


def from_xcom(value: Mapping[str, Any]) -> Plan:
    """Raises TaskRefused when it is not what `to_xcom` wrote, and when its acts are not what they were."""
    try:
        plan = Plan.from_json(json.loads(zlib.decompress(base64.b85decode(value["packed"]))))
        if plan.checksum != value["checksum"]:
            raise ValueError("its checksum is another one")
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise TaskRefused(f"The plan in XCom cannot be used: {error}. Run the DAG again.") from error
    return plan


def only_safe(plan: Plan) -> Plan:
    """The acts that need no approval; a note counts the others."""
    safe = tuple(act for act in plan.acts if act.danger is Danger.SAFE)
    left = len(plan.acts) - len(safe)
    if not left:
        return plan
    note = f"Left out, because they need approval: {left}. Start a run with mode `act` for them."
    return replace(plan, acts=safe, notes=(*plan.notes, note))


def number_of(acts: Sequence[Act]) -> str:
    return count(len(acts), "act")


def counted(words: Any) -> dict[str, int]:
    """How often each occurs, in the order of their first."""
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def plan_text(plan: Plan) -> str:
    """For the log."""
    parts = [f"{plan.operation} of {plan.cluster}, plan {plan.checksum}: {number_of(plan.acts)}"]
    if plan.acts:
        shown = plan.acts[:_ACTS_IN_LOG]
        rows = [
            (n, act.kind, act.danger.value, act.host, act.what, act.why) for n, act in enumerate(shown, 1)
        ]
        parts.append(table(("", "kind", "danger", "host", "what", "why"), rows))
        if len(plan.acts) > len(shown):
            parts.append(f"and {len(plan.acts) - len(shown)} more")
    parts += [f"{finding.severity.word}: {finding.what} {finding.advice}" for finding in plan.findings[:100]]
    parts += [f"note: {note}" for note in plan.notes]
    return redact_prose("\n\n".join(parts))


def question_of(plan: Plan) -> dict[str, str]:
    """Subject and Markdown body of the question whether to carry it out, the most dangerous acts first."""
    order = [Danger.DESTROYS, Danger.REPAIRS, Danger.SAFE]
    acts = sorted(plan.acts, key=lambda act: order.index(act.danger))
    kinds = ", ".join(f"{count} × {kind}" for kind, count in counted(act.kind for act in acts).items())
    body = [
        f"**{number_of(acts)}** on `{plan.cluster}`: {kinds}.",
        "\n".join(_question_line(act) for act in acts[:_ACTS_IN_QUESTION]),
    ]
    if len(acts) > _ACTS_IN_QUESTION:
        body.append(f"And {len(acts) - _ACTS_IN_QUESTION} more: see the log of the task `plan`.")
    body += [f"Note: {inline(redact_prose(note))}" for note in plan.notes[:20]]
    body.append(
        f"Nothing has been done yet. Only this plan is approved (`{plan.checksum}`); each act is looked at "
        "again before it is done. Rejecting ends the run."
    )
    return {
        "subject": f"{plan.cluster}: approve {plan.operation}, {number_of(acts)}",
        "body": "\n\n".join(body),
        "checksum": plan.checksum,
    }


def report_text(report: Report) -> str:
    """What became of each act, for the log; those that did not go well stand first."""
    ordered = sorted(report.results, key=lambda pair: pair[1].state.is_good)
    rows = [
        (result.state.value, act.kind, act.host, act.what, result.detail)
        for act, result in ordered[:_ACTS_IN_LOG]
    ]
    head = ", ".join(f"{n} {s}" for s, n in counted(r.state.value for _, r in report.results).items())
    text = f"{report.plan.operation} of {report.plan.cluster}, run {report.run_id}: {head or 'nothing to do'}"
    shown = f"{text}\n{table(('state', 'kind', 'host', 'what', 'detail'), rows)}" if rows else text
    return redact_prose(shown)


def report_to_xcom(report: Report) -> dict[str, Any]:
    """Counts, and the acts that did not go well."""
    return {
        "run_id": report.run_id,
        "operation": report.plan.operation,
        "cluster": report.plan.cluster,
        "checksum": report.plan.checksum,
        "states": counted(result.state.value for _, result in report.results),
        "not_good": [
            {
                "act_id": act.act_id,
                "host": act.host,
                "what": redact_prose(act.what),
                "state": result.state.value,
                "detail": redact_prose(result.detail),
            }
            for act, result in report.results
            if not result.state.is_good
        ][:_ACTS_IN_XCOM],
    }


def first_lines(report: Report, states: Sequence[ActState], *, shown: int = 5) -> str:
    """The acts in these states, for an error's text."""
    found = [(act, result) for act, result in report.results if result.state in states]
    lines = [
        f"{act.host + ': ' if act.host else ''}{act.what}: {result.state.value} {result.detail}".strip()
        for act, result in found[:shown]
    ]
    if len(found) > shown:
        lines.append(f"and {len(found) - shown} more")
    return "\n".join(lines)


def _question_line(act: Act) -> str:
    where = f" on {inline(act.host)}" if act.host else ""
    what, why = inline(redact_prose(act.what)), inline(redact_prose(act.why))
    return f"- **{act.danger.value}**{where}: {what} _{why}_"
