"""Health and repair on real nodes and a real ZooKeeper: real faults are found, healed, and proven healed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.client import NodeClient
from engine.config.health_model import HealthSettings, TableLimits
from engine.config.load import load_node_config
from engine.keeper.recipes import remove_recursive
from engine.names import HostId
from engine.operations.act import ActState
from engine.operations.carrying_out import Report, carry_out
from engine.operations.finding import FindingKind, Severity
from engine.operations.health import Depth, HealthReport, check_health
from engine.operations.repair import plan_repair, prove, repair_performer
from engine.operations.site import KeeperNeed, Site, open_site
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import LocalCluster
from engine.testing.proxy import TcpProxy
from tests.warm import warm

pytestmark = pytest.mark.slow

T = TypeVar("T")
HOSTS = ("n1", "n2")
N1, N2 = (HostId(host, 9000) for host in HOSTS)
SETTINGS = HealthSettings(
    limits=replace(TableLimits(), readonly_s=0, mutation_fail_s=0),
    keeper_latency_ms=None,
    disk_free_percent=None,
    disk_critical_percent=None,
)
"""The machine may be slow and its disk full, and the tests do not wait for troubles to grow old."""
CONFIGURED = "".join(
    f"<{name}>{value}</{name}>"
    for name, value in (
        ("readonly_s", "0"),
        ("keeper_latency_ms", "off"),
        ("disk_free_percent", "off"),
        ("disk_critical_percent", "off"),
    )
)
WAIT_S = 90.0


@dataclass
class Place:
    """Two nodes of one shard; n2 reaches ZooKeeper through a proxy."""

    runner: asyncio.Runner
    cluster: LocalCluster
    link: TcpProxy
    directory: Path
    made: list[str] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def site(self) -> AbstractAsyncContextManager[Site]:
        return open_site(
            "all",
            load_node_config(self.cluster.config_file),
            database_url=self.directory / "records.db",
            operator="the test",
            need=KeeperNeed.OPTIONAL,
        )

    async def table(self) -> str:
        """A new replicated table with some parts on both nodes."""
        name = f"t{len(self.made)}"
        self.made.append(name)
        for host in HOSTS:
            await self.command(
                host,
                f"CREATE TABLE {name} (k UInt64, v String, few LowCardinality(UInt8) DEFAULT 1) "
                f"ENGINE = ReplicatedMergeTree('/tables/{name}', '{{replica}}') "
                "PARTITION BY k % 2 ORDER BY k",
                allow_suspicious_low_cardinality_types="1",  # it stands in no definition
            )
        await self.command("n1", f"INSERT INTO {name} (k, v) SELECT number, 'x' FROM numbers(2000)")
        await self.command("n2", f"INSERT INTO {name} (k, v) SELECT number, 'y' FROM numbers(2000)")
        for host in HOSTS:
            await self.command(host, f"SYSTEM SYNC REPLICA {name}")
        return name

    async def command(self, host: str, sql: str, **settings: str) -> str:
        async with NodeClient(self.cluster.node(host).url) as client:
            return await client.command(sql, settings=settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("health")
    file = directory / "given.xml"
    health = f"<oncluster><health>{CONFIGURED}</health></oncluster></clickhouse>"
    file.write_text(clusters_xml({"all": [list(HOSTS)]}).replace("</clickhouse>", health))
    with asyncio.Runner() as runner:
        cluster = LocalCluster(
            directory / "run", cluster_file=file, hosts=HOSTS, session_timeout_ms=4000, launch=warm
        )
        link = TcpProxy("127.0.0.1", cluster.ports.zookeeper)
        runner.run(link.start())
        own = cluster.files.node_directory("n2") / "config.d" / "40-proxy.xml"
        own.write_text(
            '<clickhouse><zookeeper replace="replace"><node><host>127.0.0.1</host>'
            f"<port>{link.port}</port></node><session_timeout_ms>4000</session_timeout_ms>"
            "</zookeeper></clickhouse>"
        )
        runner.run(cluster.start())
        try:
            yield Place(runner, cluster, link, directory)
        finally:
            runner.run(cluster.stop())
            runner.run(link.stop())


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """What `look` finds at last."""
    async with asyncio.timeout(WAIT_S):
        while (found := await look()) is None:
            await asyncio.sleep(0.1)
    return found


async def found(site: Site, kind: FindingKind, *, depth: Depth = Depth.TELLS) -> HealthReport:
    """A check that has found it."""

    async def look() -> HealthReport | None:
        report = await check_health(site, SETTINGS, depth=depth)
        return report if any(finding.kind is kind for finding in report.findings) else None

    return await eventually(look)


async def healthy(site: Site) -> None:
    """A check finds nothing that is worse than info."""
    left: list[str] = []

    async def look() -> bool | None:
        report = await check_health(site, SETTINGS)
        left[:] = [finding.what for finding in report.findings if finding.severity > Severity.INFO]
        return None if left else True

    try:
        await eventually(look)
    except TimeoutError:
        raise AssertionError(f"still wrong: {left}") from None


async def repaired(site: Site, report: HealthReport, table: str, *, may_be_done: bool = False) -> Report:
    """The report's findings repaired, each proven; the replicas are equal after that. With
    `may_be_done` the node does the same by itself, and may be first."""
    plan = await plan_repair(site, report)
    done = await carry_out(
        site,
        plan,
        repair_performer(site, wait_s=WAIT_S),
        run_id=str(site.env.new_uuid()),
        approved_by="the test",
    )
    assert [act.kind for act, _ in done.results] == [act.kind for act in plan.acts]
    fine = {ActState.DONE, ActState.NOT_NEEDED} if may_be_done else {ActState.DONE}
    assert {result.state for _, result in done.results} <= fine, done.results
    proof = await prove(site, [f"/tables/{table}"], wait_s=WAIT_S)
    assert proof.is_equal, proof.words
    assert len(proof.tables[0].replicas) == 2
    await healthy(site)
    return done


@pytest.mark.extended
def test_metadata_that_keeper_lost_is_restored(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            await remove_recursive(site.keeper, f"/tables/{table}/replicas/n2")
            report = await found(site, FindingKind.KEEPER_METADATA_LOST)
            [finding] = [f for f in report.findings if f.kind is FindingKind.KEEPER_METADATA_LOST]
            assert (finding.host, finding.subject) == ("n2:9000", f"default.{table}")
            done = await repaired(site, report, table)
            assert [act.kind for act, _ in done.results] == ["restore-replica"]
            assert await place.command("n2", f"SELECT count() FROM {table}") == "4000\n"

    place.run(story())


@pytest.mark.extended
def test_a_table_that_keeper_lost_as_a_whole_is_restored_replica_after_replica(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            await remove_recursive(site.keeper, f"/tables/{table}")

            async def both() -> HealthReport | None:
                report = await check_health(site, SETTINGS)
                lost = [f for f in report.findings if f.kind is FindingKind.KEEPER_METADATA_LOST]
                return report if len(lost) == 2 else None

            done = await repaired(site, await eventually(both), table)
            assert [act.kind for act, _ in done.results] == ["restore-replica"] * 2
            assert await place.command("n1", f"SELECT count() FROM {table}") == "4000\n"

    place.run(story())


def test_a_damaged_part_is_found_by_reading_and_fetched_again(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            await place.command("n1", f"OPTIMIZE TABLE {table} FINAL")  # nothing is merged after that
            await place.command("n2", f"SYSTEM SYNC REPLICA {table}")
            path = await place.command(
                "n2",
                f"SELECT path FROM system.parts WHERE table = '{table}' AND active ORDER BY name LIMIT 1",
            )
            data = next(Path(path.strip()).glob("*data*.bin"), None) or Path(path.strip()) / "v.bin"
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 0xFF
            data.write_bytes(content)
            report = await found(site, FindingKind.BROKEN_PARTS, depth=Depth.READS_DATA)
            done = await repaired(site, report, table, may_be_done=True)
            assert [act.kind for act, _ in done.results] == ["refetch-parts"]
            assert await place.command("n2", f"SELECT count(), uniq(v) FROM {table}") == "4000\t2\n"

    place.run(story())


@pytest.mark.extended
def test_a_mutation_that_fails_is_killed(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            await place.command(
                "n1",
                f"ALTER TABLE {table} UPDATE v = toString(throwIf(k = 7)) WHERE 1 SETTINGS "
                "mutations_sync = 0",
            )
            report = await found(site, FindingKind.STUCK_MUTATION)
            done = await repaired(site, report, table)
            assert [act.kind for act, _ in done.results] == ["kill-mutation"]
            assert await place.command("n1", f"SELECT count() FROM {table}") == "4000\n"

    place.run(story())


@pytest.mark.extended
def test_a_host_without_session_is_found_and_comes_back_by_itself_or_restarted(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            place.link.refuse()
            place.link.cut()
            report = await found(site, FindingKind.SESSION_LOST)
            [finding] = [f for f in report.findings if f.kind is FindingKind.SESSION_LOST]
            assert (finding.host, finding.severity) == ("n2:9000", Severity.CRITICAL)
            assert await place.command("n2", f"SELECT count() FROM {table}") == "4000\n"
            plan = await plan_repair(site, report)
            assert "restart-replicas" in [act.kind for act in plan.acts]
            place.link.release()
            done = await carry_out(
                site, plan, repair_performer(site, wait_s=WAIT_S), run_id="session", approved_by="the test"
            )
            assert all(result.state.is_good for _, result in done.results), done.results
            proof = await prove(site, [f"/tables/{table}"], wait_s=WAIT_S)
            assert proof.is_equal, proof.words
            await healthy(site)

    place.run(story())


def test_a_replica_whose_parts_keeper_does_not_know_is_made_to_follow_the_others(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            parts = f"/tables/{table}/replicas/n2/parts"
            for part in (await site.keeper.children(parts)).names:
                await remove_recursive(site.keeper, f"{parts}/{part}")
            # It waits for the replica to become active, which it will not without us.
            restart = asyncio.create_task(place.command("n2", f"SYSTEM RESTART REPLICA {table}"))
            report = await found(site, FindingKind.READ_ONLY)
            done = await repaired(site, report, table)
            await restart
            assert [act.kind for act, _ in done.results] == ["force-restore-data"]
            assert await place.command("n2", f"SELECT count() FROM {table}") == "4000\n"

    place.run(story())


def test_a_table_that_its_host_has_detached_is_to_be_attached_and_not_cloned_anew(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            await place.command("n2", f"DETACH TABLE {table}")
            report = await found(site, FindingKind.TOO_FEW_REPLICAS)
            assert [f.kind for f in report.findings if f.severity > Severity.INFO] == [
                FindingKind.TOO_FEW_REPLICAS
            ]
            assert "(detached on n2:9000)" in report.findings[0].what
            assert (await plan_repair(site, report)).acts == ()
            await place.command("n2", f"ATTACH TABLE {table}")
            await healthy(site)

    place.run(story())


@pytest.mark.extended
def test_a_host_that_is_down_and_then_has_lost_its_disk_is_cloned_anew(place: Place) -> None:
    async def story() -> None:
        async with place.site() as site:
            table = await place.table()
            for other in place.made:
                if other != table:
                    for host in HOSTS:
                        await place.command(host, f"DROP TABLE {other} SYNC")
            node = place.cluster.node("n2")
            await node.kill9()
            report = await found(site, FindingKind.HOST_DOWN)
            assert [f.host for f in report.findings if f.kind is FindingKind.HOST_DOWN] == ["n2:9000"]
            shutil.rmtree(place.cluster.files.node_directory("n2") / "data")
            await node.start()

            async def lost() -> HealthReport | None:
                report = await check_health(site, SETTINGS)
                kinds = [f.kind for f in report.findings if f.severity is Severity.CRITICAL]
                return report if kinds == [FindingKind.LOST_REPLICA] else None

            done = await repaired(site, await eventually(lost), table)
            assert [act.kind for act, _ in done.results] == ["reclone-replica"]
            assert await place.command("n2", f"SELECT count() FROM {table}") == "4000\n"

    place.run(story())


def test_the_command_line_says_what_is_wrong_and_repairs_when_told_to(place: Place) -> None:
    table = place.run(place.table())

    async def lose() -> None:
        async with place.site() as site:
            await remove_recursive(site.keeper, f"/tables/{table}/replicas/n1")
            await found(site, FindingKind.KEEPER_METADATA_LOST)

    place.run(lose())
    common = ["--config", str(place.cluster.config_file), "--records-url", str(place.directory / "cli.db")]

    def call(*arguments: str) -> tuple[int, str]:
        """In a thread: the proxy of n2 lives on our loop."""
        work = asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *common])
        result = place.run(work)
        return result.exit_code, result.stdout

    code, text = call("health", "check", "--json")
    assert code == 20, text
    assert "keeper-metadata-lost" in [finding["kind"] for finding in json.loads(text)["findings"]]
    code, text = call("health", "repair")
    assert code == 0 and "RESTORE REPLICA" in text, text
    assert call("health", "check")[0] == 20
    code, text = call("health", "repair", "--yes", "--wait", str(WAIT_S))
    assert code == 0 and "equal" in text, text
    code, text = call("health", "check", "--schemas")
    assert code in (0, 10) and "not compared" not in text, text
    code, text = call("health", "trend", "read_only_tables")
    assert code == 0 and "n1:9000" in text, text
    assert "keeper-metadata-lost" in call("health", "findings", "--resolved")[1]
