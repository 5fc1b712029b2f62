"""The settings that hold for a statement of a client, and what their values say.

Settings hold in this order: the statement's own, the request's, the session's (with the user's profile).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.node.statements.statement import Asked
from engine.setting_values import number_of
from engine.sql.settings_clauses import settings_of_text

UNLIMITED = {"max_result_bytes": "0", "max_result_rows": "0"}
_OF_ANSWERS = {
    **UNLIMITED,
    "additional_result_filter": "",
    "extremes": "0",
    "limit": "0",
    "offset": "0",
    "output_format_tsv_crlf_end_of_line": "0",
}


def usual_answers(asked: Asked) -> dict[str, str]:
    """Settings for a question that the node asks with those of a client's request: the answer has its rows,
    and nothing else. A user with `readonly = 1` changes no setting."""
    told = {**asked.session.settings, **asked.settings}
    others = {name: usual for name, usual in _OF_ANSWERS.items() if told.get(name, usual) != usual}
    return others if asked.session.takes_settings else {}


def settings_of(asked: Asked) -> Mapping[str, str]:
    """What holds for this statement, strings without their quotes."""
    return {**asked.session.settings, **asked.settings, **settings_of_text(asked.sql)}


def number(settings: Mapping[str, str], name: str, default: float) -> float:
    """Raises SqlError 36 for a value that is no number."""
    text = settings.get(name)
    if text is None:
        return default
    try:
        return number_of(text)
    except ValueError:
        raise SqlError(Code.BAD_ARGUMENTS, f"Setting {name} = '{text}' is not a number.") from None


def flag(settings: Mapping[str, str], name: str, default: bool) -> bool:
    return number(settings, name, float(default)) != 0
