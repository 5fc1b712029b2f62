"""Which replica of a shard is preferred, and which shards may be left out, as settings say.

An INSERT in the background is sent later, by somebody who knows its settings no more: those of them that
choose a replica are kept with the rows, and are not sent with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.distributed.definition import DistributedDefinition, SkipMode
from engine.distributed.delivery import Policy
from engine.distributed.replica_choice import LoadBalancing
from engine.node.statements.asked_settings import flag, number

_BALANCING, _FIRST_OFFSET = "load_balancing", "load_balancing_first_offset"
_IGNORED_ERRORS, _PREFERS_LOCAL = "distributed_replica_max_ignored_errors", "prefer_localhost_replica"
_SKIPS, _SKIP_MODE = "skip_unavailable_shards", "skip_unavailable_shards_mode"
_SEND, _RECEIVE = "send_timeout", "receive_timeout"
_USUAL_TIMEOUT_S = 300.0
POLICY_SETTINGS = (_BALANCING, _FIRST_OFFSET, _IGNORED_ERRORS, _PREFERS_LOCAL, _SEND, _RECEIVE)


def policy_of(settings: Mapping[str, str]) -> Policy:
    """How the settings of a statement order replicas. Raises SqlError 212, 36."""
    return Policy(
        load_balancing=LoadBalancing.of(settings.get(_BALANCING, LoadBalancing.RANDOM.value)),
        first_offset=int(number(settings, _FIRST_OFFSET, 0)),
        max_ignored_errors=int(number(settings, _IGNORED_ERRORS, 0)),
        prefer_localhost=flag(settings, _PREFERS_LOCAL, True),
    )


def timeouts_of(settings: Mapping[str, str]) -> tuple[float, float]:
    """For how many seconds a replica may take nothing of a block, and not answer. Raises SqlError 36."""
    send_s, receive_s = (number(settings, name, _USUAL_TIMEOUT_S) for name in (_SEND, _RECEIVE))
    return send_s or _USUAL_TIMEOUT_S, receive_s or _USUAL_TIMEOUT_S


def skipping_of(settings: Mapping[str, str], definition: DistributedDefinition | None) -> SkipMode | None:
    """Which shards an answer may leave out, by the settings of the statement or of the table; None for none.

    Raises SqlError 36.
    """
    of_table = definition.settings if definition is not None else {}
    if not (flag(settings, _SKIPS, False) or flag(of_table, _SKIPS, False)):
        return None
    return SkipMode.of(settings.get(_SKIP_MODE, of_table.get(_SKIP_MODE, SkipMode.NO_TABLE.value)))


def policy_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that `policy_of` and `timeouts_of` look at."""
    return {name: settings[name] for name in POLICY_SETTINGS if name in settings}


def without_policy(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that go with the rows."""
    return {name: value for name, value in settings.items() if name not in POLICY_SETTINGS}
