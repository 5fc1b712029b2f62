"""The picture's parts: the queue's reader, pages of the grid, lines of the chart, the whole look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.cluster import _show_queue
from engine.cli.main import cli
from engine.config.model import NodeConfig, Topology
from engine.ddl.abandonment import AbandonedHosts, Abandonment
from engine.ddl.entry import DDLLogEntry
from engine.ddl.status import ExecutionStatus
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder, create_ancestors
from engine.names import HostId, QueuePaths
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.overview import Cell, PartState, QueueReader, Show, look, make_page
from engine.operations.overview.as_json import as_json, overview_json
from engine.operations.overview.gather import queue_reader
from engine.operations.overview.lag import lag_series
from engine.operations.overview.model import QueueView, TaskForm
from engine.operations.overview.queue_grid import counts_by_host
from engine.operations.records import Records, Sample
from engine.operations.site import Site
from engine.ports import free_ports
from engine.testing.simulation import SimulationEnv, run_simulation
from oncluster_airflow.web.watch import Watch
from tests.unit.ddl.support import QUEUE, cluster, host
from tests.unit.operations.overview_support import A, B, C, picture, queue, task

PATHS = QueuePaths()
HOSTS = tuple(map(host, "abc"))


async def put(
    keeper: Keeper,
    number: int,
    *,
    query: str = "CREATE TABLE t ON CLUSTER c (x Int8) ENGINE = Memory",
    hosts: Sequence[HostId] = HOSTS,
    done: str = "",
    failed: str = "",
    active: str = "",
    dirs: str = "active finished",
) -> str:
    """One entry, for a, b and c if nothing else is said, as servers write it."""
    await create_ancestors(keeper, f"{PATHS.root}/x")
    if await keeper.exists(PATHS.root) is None:
        await keeper.create(PATHS.root)
    name = f"query-{number:010d}"
    await keeper.create(PATHS.entry(name), DDLLogEntry(5, query, tuple(hosts), str(hosts[0])).to_bytes())
    for directory in dirs.split():
        await keeper.create(f"{PATHS.entry(name)}/{directory}")
    for letter in done:
        await keeper.create(PATHS.finished(name, host(letter)), b"0\n")
    for letter in failed:
        status = ExecutionStatus(57, "password = 'swordfish' exists")
        await keeper.create(PATHS.finished(name, host(letter)), status.to_bytes())
    for letter in active:
        await keeper.create(PATHS.active(name, host(letter)), mode=CreateMode.EPHEMERAL)
    return name


def seen(view: QueueView) -> dict[str, str]:
    return {item.name: item.cells for item in view.tasks}


def test_the_reader_sees_every_state() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        first = await put(keeper, 1, done="a", failed="b", active="c")
        second = await put(keeper, 2, done="a")
        path = PATHS.replica(host("c"))
        await create_ancestors(keeper, path)
        await keeper.create(path)
        await keeper.create(f"{path}/active")
        await keeper.remove(f"{path}/active")  # it was there, and went
        view = await QueueReader(env, PATHS, HOSTS, cluster="c").look(keeper, patience_s=5)
        assert view.hosts == (A, B, C)
        assert seen(view) == {second: "dwa", first: "dfr"}
        assert [item.name for item in view.open_tasks] == [second, first]
        assert view.unread == 0

    run_simulation(1, main)


def test_secrets_are_not_shown() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        sql = "CREATE USER u ON CLUSTER c IDENTIFIED BY 'swordfish'"
        await put(keeper, 1, query=sql, failed="b")
        (item,) = (await QueueReader(env, PATHS, HOSTS, cluster="c").look(keeper, patience_s=5)).tasks
        assert item.cluster == "c"
        assert item.initiator == A
        assert item.failures[B].code == 57
        assert "swordfish" not in item.query + item.failures[B].error

    run_simulation(1, main)


def test_what_is_settled_is_not_read_again() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        for number in range(1, 6):
            await put(keeper, number, done="abc")
        asked: list[str] = []
        counting = _Counting(keeper, asked)
        reader = QueueReader(env, PATHS, HOSTS, cluster="c")
        before = await reader.look(counting, patience_s=5)
        asked.clear()
        name = await put(keeper, 6, done="a")
        after = await reader.look(counting, patience_s=5)
        assert seen(after) == {name: "dww", **seen(before)}
        assert [path for path in asked if path.startswith(PATHS.root)] == [
            PATHS.root,
            PATHS.entry(name),
            PATHS.finished(name),
            PATHS.active(name),
            PATHS.finished(name, host("a")),
        ]
        assert asked.count(PATHS.abandoned(name)) == 1

    run_simulation(1, main)


def test_a_look_that_is_short_of_time_goes_on_at_the_next_one() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env, latency_s=(0.05, 0.05)).connect()
        for number in range(1, 251):
            await put(keeper, number, done="abc")
        reader = QueueReader(env, PATHS, HOSTS, cluster="c")
        view = await reader.look(keeper, patience_s=0, begin=0, count=50)
        assert len(view.tasks) == 50  # the window, and nothing else
        assert view.tasks[0].cells == "uuu"
        assert view.unread == 250
        looks = 0
        while view.unread:
            view = await reader.look(keeper, patience_s=0.3)
            looks += 1
        assert set(seen(view).values()) == {"ddd"}
        assert len(view.tasks) == 250
        assert looks > 1

    run_simulation(1, main)


def test_entries_that_go_are_forgotten_and_a_new_queue_begins_anew() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        name = await put(keeper, 1, done="abc")
        reader = QueueReader(env, PATHS, HOSTS, cluster="c")
        await reader.look(keeper, patience_s=5)
        for path in (
            *(PATHS.finished(name, item) for item in HOSTS),
            PATHS.finished(name),
            PATHS.active(name),
            PATHS.entry(name),
        ):
            await keeper.remove(path)
        assert (await reader.look(keeper, patience_s=5)).tasks == ()
        await keeper.remove(PATHS.root)
        assert (await reader.look(keeper, patience_s=5)).tasks == ()
        await put(keeper, 1, failed="abc")
        assert seen(await reader.look(keeper, patience_s=5)) == {name: "fff"}

    run_simulation(1, main)


def test_odd_entries() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await put(keeper, 1, dirs="")
        await put(keeper, 2, dirs="finished", done="a")
        await keeper.create(PATHS.entry("query-0000000003"), b"\xff nonsense")
        view = await QueueReader(env, PATHS, HOSTS, cluster="c").look(keeper, patience_s=5)
        assert [(item.form, item.cells) for item in view.tasks] == [
            (TaskForm.UNREADABLE, "..."),
            (TaskForm.BEING_REMOVED, "d.."),
            (TaskForm.WITHOUT_DIRECTORIES, "www"),
        ]

    run_simulation(1, main)


def test_a_host_that_a_person_gave_up_is_shown_as_such() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        name = await put(keeper, 1, done="a")
        node = await keeper.get(PATHS.entry(name))
        said = AbandonedHosts(node.stat.czxid, {host("c"): Abandonment("ada", "it burnt", 7)})
        await create_ancestors(keeper, PATHS.abandoned(name))
        await keeper.create(PATHS.abandoned(name), said.to_bytes())
        (item,) = (await QueueReader(env, PATHS, HOSTS, cluster="c").look(keeper, patience_s=5)).tasks
        assert item.cells == "dwx"
        assert item.failures[C].error == "Abandoned by ada: it burnt"

    run_simulation(1, main)


def test_hosts_that_only_old_entries_know_get_a_column() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await put(keeper, 1, done="abc")
        view = await QueueReader(env, PATHS, HOSTS[:1], cluster="c").look(keeper, patience_s=5)
        assert view.hosts == (A, B, C)
        assert view.tasks[0].cells == "ddd"

    run_simulation(1, main)


# --- a queue that several clusters share ------------------------------------------------------------------


FOREIGN = "CREATE TABLE payroll ON CLUSTER secret_cluster (x Int8) ENGINE = Memory"
THEIRS = (host("a"), host("their_host"))


def test_entries_for_other_clusters_are_not_shown() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        theirs = await put(keeper, 1, query=FOREIGN, hosts=THEIRS, failed="a")
        ours = await put(keeper, 2, done="a")
        also_ours = await put(keeper, 3, query="DROP TABLE t ON CLUSTER '{mine}'", done="abc")
        also_theirs = await put(keeper, 4, query="DROP TABLE payroll ON CLUSTER `{their}`", hosts=THEIRS)
        reader = QueueReader(env, PATHS, HOSTS, cluster="c", macros={"mine": "c", "their": "secret_cluster"})
        view = await reader.look(keeper, patience_s=5)
        assert seen(view) == {also_ours: "ddd", ours: "dww"}
        assert view.hosts == (A, B, C)
        assert view.unread == 0
        assert view.foreign_first == {A: also_theirs}  # theirs is done there, though it failed
        shown = json.dumps(as_json(view))
        assert not [word for word in ("payroll", "secret_cluster", "their_host", theirs) if word in shown]
        other = QueueReader(env, PATHS, THEIRS, cluster="secret_cluster", macros={"their": "secret_cluster"})
        their_view = await other.look(keeper, patience_s=5)
        assert [(item.name, item.query) for item in their_view.tasks][-1] == (theirs, FOREIGN)
        assert their_view.tasks[-1].failures[A].code == 57

    run_simulation(1, main)


def test_an_entry_of_which_the_cluster_cannot_be_told_has_no_text() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await put(keeper, 1, query="DROP TABLE payroll", hosts=THEIRS, failed="a")
        await put(keeper, 2, query="DROP TABLE payroll ON CLUSTER '{unknown}'", hosts=THEIRS, failed="a")
        await put(keeper, 3, query="PAY payroll ON CLUSTER c", hosts=THEIRS, failed="a")
        await put(keeper, 4, query="DROP TABLE payroll 'ON CLUSTER c", hosts=THEIRS, failed="a")
        view = await QueueReader(env, PATHS, HOSTS, cluster="c").look(keeper, patience_s=5)
        assert [(item.form, item.query, item.failures) for item in view.tasks] == 4 * [
            (TaskForm.UNREADABLE, "(an entry that cannot be read)", {})
        ]
        shown = json.dumps(as_json(view))
        assert "payroll" not in shown
        assert "their_host" not in shown

    run_simulation(1, main)


def test_what_is_done_for_another_cluster_is_not_read_again() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        for number in range(1, 6):
            await put(keeper, number, query=FOREIGN, hosts=HOSTS, done="ab", failed="c")
        asked: list[str] = []
        reader = QueueReader(env, PATHS, HOSTS, cluster="c")
        await reader.look(_Counting(keeper, asked), patience_s=5)
        assert not [path for path in asked if path.startswith(PATHS.finished("query-0000000001") + "/")]
        asked.clear()
        name = await put(keeper, 6, done="a")
        view = await reader.look(_Counting(keeper, asked), patience_s=5, count=1)
        assert seen(view) == {name: "dww"}
        assert [path for path in asked if "/query-" in path and name not in path] == []

    run_simulation(1, main)


def test_the_page_of_one_cluster_has_no_task_of_another(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        server = MemoryKeeperServer(env)
        keeper = await server.connect()
        theirs = await put(keeper, 1, query=FOREIGN, hosts=THEIRS, failed="a")
        ours = await put(keeper, 2, done="abc")
        clusters = {
            "c": cluster("a b", "c"),
            "secret_cluster": cluster("a their_host", name="secret_cluster"),
        }
        config = NodeConfig("/x", topology=Topology(clusters), queues=(QUEUE,))
        site = Site("c", config, Records(tmp_path / "r.db", env=env), env, "test", keeper_or_none=keeper)
        watch = Watch(site, queue_reader(site), tmp_path / "none.xml", 0, env)
        watch._holder = SessionHolder(server.connect, env)
        found = await watch.task(ours, wait_s=30)
        assert found is not None
        assert found.cluster == "c"
        assert await watch.task(theirs, wait_s=30) is None
        page = await watch.page(show=Show.ALL, number=1, wait_s=30, recent_s=0)
        assert page is not None
        assert [item.name for item in page.tasks] == [ours]
        everything = json.dumps(overview_json(await watch.overview(wait_s=30, recent_s=0)))
        assert "payroll" not in everything
        assert "their_host" not in everything
        await watch.close()

    run_simulation(1, main)


class _Counting:
    """A session that writes down what is read through it."""

    def __init__(self, keeper: Keeper, asked: list[str]) -> None:
        self._keeper = keeper
        self._asked = asked

    def __getattr__(self, name: str) -> object:
        method = getattr(self._keeper, name)

        def noted(paths: object) -> object:
            self._asked.extend([paths] if isinstance(paths, str) else list(paths))  # type: ignore[call-overload]
            return method(paths)

        return noted


# --- pages and lines --------------------------------------------------------------------------------------


def test_pages_of_the_grid() -> None:
    tasks = [task(n, "fdd" if n % 10 == 0 else "ddd") for n in range(120, 0, -1)]
    view = queue(*tasks).value
    assert view is not None
    page = make_page(view, number=3)
    assert (page.pages, page.number, page.first, page.last, page.total) == (3, 3, 101, 120, 120)
    assert [item.name for item in page.tasks][:2] == ["query-0000000020", "query-0000000019"]
    assert make_page(view, number=99).number == 3
    assert make_page(view, number=-1).number == 1
    failed = make_page(view, show=Show.FAILED)
    assert (failed.matching, failed.failed, failed.open, failed.pages) == (12, 12, 0, 1)
    empty = make_page(view, show=Show.OPEN)
    assert (empty.first, empty.last, empty.pages, empty.tasks) == (0, 0, 1, ())


def test_counts_by_host() -> None:
    view = queue(task(2, "df."), task(1, "dd.")).value
    assert view is not None
    assert counts_by_host(view) == {A: {Cell.DONE: 2}, B: {Cell.DONE: 1, Cell.FAILED: 1}, C: {}}


def test_lines_of_lag_are_the_worst_hosts_and_the_worst_of_each_interval() -> None:
    samples = [
        Sample("absolute_delay_s", value, host_name, table, at_ms)
        for host_name, table, at_ms, value in (
            ("a", "t", 1000, 3.0),
            ("a", "u", 1000, 5.0),
            ("a", "t", 9000, 0.0),
            ("b", "t", 1000, 90.0),
            ("c", "t", 1000, 1.0),
            ("a", "t", 99_000, 1e6),  # later than what is shown
        )
    ]
    lines = lag_series(samples, since_ms=0, until_ms=10_000, most=2, points=10)
    assert [(line.host, line.points) for line in lines] == [
        ("b", ((1000, 90.0),)),
        ("a", ((1000, 5.0), (9000, 0.0))),
    ]


# --- the whole look ---------------------------------------------------------------------------------------


def test_a_look_at_a_cluster_of_which_nothing_answers_says_so_in_each_place(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        records = Records(tmp_path / "records.db", env=env)
        finding = Finding(FindingKind.LAGGING, Severity.WARNING, "c", "It lags.", "Wait.", A, "d.t")
        records.see_findings("c", "health", [finding])
        config = NodeConfig("/x", topology=Topology({"c": cluster("a b", "c")}), queues=(QUEUE,))
        site = Site("c", config, records, env, "test", ledger_url=str(tmp_path / "ledger.db"))
        overview = await look(site)
        assert overview.queue.state is PartState.FAILED
        assert "no session with Keeper" in overview.queue.error
        assert overview.hosts.state is PartState.FAILED
        assert overview.records.value is not None
        assert [record.finding for record in overview.records.value.findings] == [finding]
        assert json.loads(json.dumps(overview_json(overview)))["records"]["value"]["findings"][0]["host"] == A

    run_simulation(1, main)


def test_a_look_reads_keeper(tmp_path: Path) -> None:
    async def main(env: SimulationEnv) -> None:
        keeper = await MemoryKeeperServer(env).connect()
        await put(keeper, 1, done="abc")
        config = NodeConfig("/x", topology=Topology({"c": cluster("a b", "c")}), queues=(QUEUE,))
        site = Site("c", config, Records(tmp_path / "r.db", env=env), env, "test", keeper_or_none=keeper)
        overview = await look(site)
        assert overview.queue.value is not None
        assert seen(overview.queue.value) == {"query-0000000001": "ddd"}
        assert [shard.hosts for shard in overview.shards] == [(A, B), (C,)]

    run_simulation(1, main)


def test_the_command_shows_a_cluster_that_is_down(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "cluster.xml").write_text(
        f"""<clickhouse><remote_servers><shop><shard><replica>
        <host>127.0.0.1</host><port>9000</port><http_port>{port}</http_port>
        </replica></shard></shop></remote_servers>
        <zookeeper><node><host>127.0.0.1</host><port>{port}</port></node></zookeeper>
        <distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl></clickhouse>"""
    )
    arguments = ["cluster", "show", "--config", str(tmp_path / "cluster.xml"), "--patience", "1"]
    arguments += ["--records-url", str(tmp_path / "records.db")]
    environment = {"ONCLUSTER_HOME": str(tmp_path), "ONCLUSTER_LEDGER_URL": str(tmp_path / "ledger.db")}
    shown = CliRunner().invoke(cli, arguments, env=environment)
    assert shown.exit_code == 0, shown.output
    assert "127.0.0.1:9000 does not answer." in shown.output
    assert "The queue cannot be read." in shown.output
    as_json = CliRunner().invoke(cli, [*arguments, "--json"], env=environment)
    assert json.loads(as_json.stdout)["hosts"]["value"]["hosts"]["127.0.0.1:9000"]["answer"] == "down"


def test_the_command_shows_the_beginning_of_a_long_statement(capsys: pytest.CaptureFixture[str]) -> None:
    query = f"CREATE TABLE t (a UInt8 COMMENT '{'x' * 200_000}')"
    _show_queue(picture(queue(task(1, "fdd", query=query))))
    shown = capsys.readouterr().out
    assert "CREATE TABLE t (a UInt8 COMMENT 'xxx" in shown and len(shown) < 2000
