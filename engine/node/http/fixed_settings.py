"""`readonly = 1` of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.node.http.query import HttpQuery


def with_fixed_settings(query: HttpQuery, profile: Mapping[str, str]) -> tuple[HttpQuery, Mapping[str, str]]:
    """The request, and the profile of its session: that of a user who may change no setting, with those that
    came beside `readonly`. A session that lives on could not leave that mode again; there the node sees to it
    that a statement changes no data."""
    if not query.is_fixed or query.session is not None or profile.get("readonly") == "1":
        return query, profile
    return replace(query, settings={}), {**profile, **query.settings, "readonly": "1"}
