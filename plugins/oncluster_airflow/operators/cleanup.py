"""The tasks of the cleanup DAG, and of the one that gives hosts up. What may go, and on which proof, is the
engine's business (`engine.operations.cleanup`)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from engine.errors import ConfigError
from engine.names import HostId
from engine.operations.act import Plan
from engine.operations.carrying_out import Performer
from engine.operations.cleanup import (
    BrokenFilesFate,
    CleanupKind,
    CleanupSettings,
    GoneHost,
    abandon_performer,
    cleanup_performer,
    plan_abandon,
    plan_cleanup,
    record_plan,
)
from engine.operations.site import Site
from oncluster_airflow.operation_plan import Mode, mode_of
from oncluster_airflow.operation_site import is_scheduled
from oncluster_airflow.operators.operation import ActOperator, PlanOperationOperator
from oncluster_airflow.settings import OperationSettings

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


def kinds_of(context: Context) -> tuple[CleanupKind, ...]:
    """What the form asks to clean; none means everything. Raises ConfigError."""
    params: Any = context["params"]
    try:
        return tuple(CleanupKind(str(word)) for word in params.get("kinds") or ())
    except ValueError as error:
        words = ", ".join(kind.value for kind in CleanupKind)
        raise ConfigError(f"{error}: no kind of rubbish.", hint=f"There are {words}.") from None


def settings_of(context: Context) -> CleanupSettings:
    """Ages and hosts of the form. Raises ConfigError."""
    params: Any = context["params"]
    keep = params.get("ddl_keep_entries")
    defaults = CleanupSettings()
    return CleanupSettings(
        gone_after_s=float(params.get("gone_after_hours", defaults.gone_after_s / _HOUR_S)) * _HOUR_S,
        detached_after_s=float(params.get("detached_after_days", defaults.detached_after_s / _DAY_S))
        * _DAY_S,
        gone=tuple(_gone(str(line)) for line in params.get("gone") or ()),
        ddl_keep_entries=None if keep is None else int(keep),
        broken_files=BrokenFilesFate(str(params.get("broken_files", defaults.broken_files.value))),
    )


class PlanCleanupOperator(PlanOperationOperator):
    """Looks what could go."""

    def mode(self, context: Context) -> Mode:
        if is_scheduled(dict(context)):
            return mode_of(OperationSettings.from_environment().cleanup_mode)
        return super().mode(context)

    async def make_plan(self, site: Site, context: Context) -> Plan:
        return await plan_cleanup(site, settings_of(context), kinds_of(context))

    def record(self, site: Site, plan: Plan, context: Context) -> None:
        record_plan(site, plan, kinds_of(context))


class ActCleanupOperator(ActOperator):
    """Takes away what the plan names, where the proof still holds."""

    def performer(self, site: Site, context: Context) -> Performer:
        return cleanup_performer(site)


class PlanAbandonOperator(PlanOperationOperator):
    """Looks which tasks wait for a host that a person gives up."""

    async def make_plan(self, site: Site, context: Context) -> Plan:
        params: Any = context["params"]
        return await plan_abandon(
            site,
            host_of(site, str(params.get("host") or "")),
            reason=str(params.get("reason") or ""),
            entries=[str(name) for name in params.get("entries") or ()],
        )


class ActAbandonOperator(ActOperator):
    """Writes beside the queue that the host will not do them, who said so, and why."""

    def performer(self, site: Site, context: Context) -> Performer:
        return abandon_performer(site)


def host_of(site: Site, text: str) -> HostId:
    """A host of the cluster by its name, or `host:port` of one that is in the configuration no more. Raises
    ConfigError."""
    for host in site.hosts:
        if text in (host.readable, host.host, str(host)):
            return host
    name, colon, port = text.rpartition(":")
    if colon and name and port.isdigit():
        return HostId(name, int(port))
    raise ConfigError(
        f"{text!r} is no host of {site.cluster}.",
        hint=f"It has {', '.join(host.readable for host in site.hosts)}; write others as host:port.",
    )


def _gone(line: str) -> GoneHost:
    name, _, reason = line.partition("=")
    if not name.strip() or not reason.strip():
        raise ConfigError(
            f"{line!r} does not say why.", hint="Write `host = reason`, such as `node05 = sold`."
        )
    return GoneHost(name.strip(), reason.strip())
