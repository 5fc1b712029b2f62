"""A cluster that got another name: the ledger knows it by the old one, and everything would be sent again."""

from __future__ import annotations

from engine.config.model import Topology
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import MigrationSet
from engine.migrations.ledger import Ledger
from engine.migrations.states import MigrationRecord


def require_not_renamed(ledger: Ledger, migrations: MigrationSet, topology: Topology) -> None:
    """Raises MigrationRefused when the ledger has nothing of this cluster, and of one that is not configured
    any more it has these very migrations, applied on hosts of this one."""
    cluster = topology.clusters.get(migrations.cluster)
    known = ledger.clusters()
    if cluster is None or cluster.name in known:
        return
    for former in sorted(known - topology.clusters.keys()):
        applied = [record for record in ledger.records(former).values() if record.state.is_in_schema]
        hosts = {row.host for record in applied for row in record.rows}
        if not hosts.isdisjoint(cluster.host_ids) and all(_has(migrations, record) for record in applied):
            versions = ", ".join(str(record.version) for record in applied)
            raise MigrationRefused(
                f"The ledger has nothing of {cluster.name}. Of {former}, which is not configured any more, "
                f"it has the migrations {versions}, applied on the same hosts: they would be sent again.",
                hint=f"If {former} is called {cluster.name} now: `oncluster migrate mark VERSION applied`, "
                "for each of them. If nothing of them is there: repeat with --adopt-ledger.",
            )


def _has(migrations: MigrationSet, record: MigrationRecord) -> bool:
    migration = migrations.get(record.version)
    return migration is not None and migration.title == record.title
