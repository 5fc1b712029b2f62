"""The cluster page without a browser: who may see it, what it says, and that it shows text as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Code, SqlError
from engine.migrations.states import MigrationState
from engine.operations.act import ActState
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.overview import ClusterOverview, GridPage, Part, PartState, Show, make_page
from engine.operations.overview.model import MigrationView, RecordsView, RunView, SpoolRow, Task
from engine.operations.records import FindingRecord, RecordsUnavailable, Sample
from tests.unit.operations.overview_support import NOW_MS, A, B, C, down, failure, picture, queue, task, up

# Airflow's own choice of a key for a server that lives as long as a test.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:The HMAC key is")]

HOSTILE = "<script>alert(1)</script>\"'>{{7*7}}"


class FakeReader:
    """One cluster, `shop`, seen as the test says."""

    def __init__(self) -> None:
        self.seen = picture()

    async def clusters(self) -> tuple[str, ...]:
        return ("shop", "other")

    async def overview(self, cluster: str, *, wait_s: float, recent_s: float = 0) -> ClusterOverview:
        if cluster not in await self.clusters():
            raise SqlError(Code.CLUSTER_DOESNT_EXIST, f"Requested cluster '{cluster}' not found", hint="x")
        return replace(self.seen, cluster=cluster)

    async def page(
        self, cluster: str, *, show: Show, number: int, wait_s: float, recent_s: float = 0
    ) -> GridPage | None:
        view = (await self.overview(cluster, wait_s=wait_s)).queue.value
        return make_page(view, show=show, number=number) if view else None

    async def task(self, cluster: str, name: str, *, wait_s: float) -> Task | None:
        view = self.seen.queue.value
        return next((item for item in view.tasks if item.name == name), None) if view else None


class Web:
    """A browser without a screen, logged in as whoever the test wants."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def log_in(self, role: str | None, name: str = "ada") -> None:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
        self.client.cookies.set("_token", token)

    def get(self, path: str, *, accept: str = "text/html") -> Any:
        return self.client.get(f"/oncluster{path}", headers={"accept": accept})

    def page(self, path: str = "/cluster/shop") -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return str(answer.text)


@pytest.fixture(scope="module")
def application(airflow_db: Path) -> tuple[Any, FakeReader]:
    """The page mounted as Airflow mounts it."""
    from airflow.api_fastapi.app import create_auth_manager
    from fastapi import FastAPI

    from oncluster_airflow.web.app import PREFIX, make_app

    create_auth_manager()
    reader = FakeReader()
    root = FastAPI()
    root.mount(PREFIX, make_app(reader))
    return root, reader


@pytest.fixture
def reader(application: tuple[Any, FakeReader]) -> FakeReader:
    application[1].seen = picture()
    return application[1]


@pytest.fixture
def web(application: tuple[Any, FakeReader], reader: FakeReader) -> Iterator[Web]:
    from starlette.testclient import TestClient

    with TestClient(application[0], follow_redirects=False) as client:
        yield Web(client)


@pytest.fixture
def viewer(web: Web) -> Web:
    web.log_in("viewer")
    return web


PATHS = [
    "/",
    "/cluster/shop",
    "/cluster/shop/task/query-0000000001",
    "/cluster/shop/data",
    "/cluster/shop/grid",
    "/cluster/shop/map",
    "/static/x/page.css",
    "/static/x/page.js",
]


def test_these_are_all_routes(application: tuple[Any, FakeReader]) -> None:
    (mount,) = [route for route in application[0].routes if route.path == "/oncluster"]
    templates = {re.sub(r"\{[^}]*\}", "*", route.path) for route in mount.app.routes}
    known = {re.sub(r"(?<=/cluster/)shop|query-\d+|(?<=static/)x|page\.\w+", "*", path) for path in PATHS}
    assert templates == known
    assert all(route.methods == {"GET"} for route in mount.app.routes)  # it has no way to act


@pytest.mark.parametrize("path", PATHS)
def test_nobody_sees_anything_without_a_login(web: Web, path: str) -> None:
    assert web.get(path, accept="application/json").status_code == 401
    answer = web.get(path)
    assert answer.status_code == 307
    assert answer.headers["location"].startswith("/api/v2/auth/login?next=")


@pytest.mark.parametrize("path", PATHS)
def test_a_login_without_permission_is_refused(web: Web, path: str) -> None:
    web.log_in(None)
    assert web.get(path).status_code == 403


@pytest.mark.parametrize("path", PATHS)
def test_a_forged_login_is_refused(web: Web, path: str) -> None:
    web.client.cookies.set("_token", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiJ9.")
    assert web.get(path).status_code in (401, 403)


def test_whoever_may_not_see_a_cluster_s_dag_does_not_see_the_cluster(
    viewer: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def only_other(*, method: str, user: object, details: Any = None, **_: object) -> bool:
        return details.id == "migrate_other" and method == "GET"

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", only_other)
    assert viewer.get("/cluster/shop").status_code == 403
    assert viewer.get("/cluster/shop/data").status_code == 403
    assert viewer.get("/cluster/shop/map").status_code == 403
    assert viewer.get("/cluster/other").status_code == 200
    index = viewer.get("/")  # the only one that is left
    assert (index.status_code, index.headers["location"]) == (307, "/oncluster/cluster/other")
    assert "shop" not in viewer.page("/cluster/other").replace("/shop", "")


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_says_what_the_browser_may_load(viewer: Web, reader: FakeReader, path: str) -> None:
    reader.seen = picture(queue(task(1, "ddd")))
    answer = viewer.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    if "static" not in path:
        assert answer.headers["cache-control"] == "no-store"


def test_unknown_things(viewer: Web) -> None:
    assert viewer.get("/cluster/nowhere").status_code == 404
    assert "There is no such cluster" in viewer.get("/cluster/nowhere").text
    assert viewer.get("/cluster/nowhere/data", accept="application/json").json()["advice"] == ""
    assert viewer.get("/cluster/shop/task/query-0000000009").status_code == 404
    assert viewer.get("/static/x/../app.py").status_code == 404
    assert viewer.get("/static/x/app.py").status_code == 404
    assert viewer.get("/cluster/shop?page=0").status_code == 422


def test_a_database_that_is_away_is_said(viewer: Web, reader: FakeReader, monkeypatch: Any) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RecordsUnavailable("The records at x cannot be used: <locked>")

    monkeypatch.setattr(reader, "overview", broken)
    answer = viewer.get("/cluster/shop")
    assert answer.status_code == 503
    assert "cannot be used: &lt;locked&gt;" in answer.text
    assert viewer.get("/cluster/shop/data", accept="application/json").status_code == 503


# --- what it says -----------------------------------------------------------------------------------------


def full_picture() -> ClusterOverview:
    finding = Finding(FindingKind.LAGGING, Severity.WARNING, "shop", "It lags.", "Wait a little.", A, "d.t")
    return picture(
        queue(
            task(3, "dw.", age_s=1000, query="ALTER TABLE d.t ADD COLUMN x Int8"),
            task(2, "ddd"),
            task(1, "dfd", failures={B: failure("Table d.t exists")}),
        ),
        up(A, spool=(SpoolRow("d.dist", 3, 2048, 1, 4, False, "broken header"),)),
        down(C),
        records=RecordsView(
            migrations=(
                MigrationView(
                    1, "make t", MigrationState.FAILED, "up", 1, {"done": 5, "failed": 1}, "", NOW_MS, ("no",)
                ),
            ),
            findings=(FindingRecord(finding, "health", NOW_MS - 90_000, NOW_MS),),
            resolved=(FindingRecord(finding, "health", NOW_MS, NOW_MS, NOW_MS),),
            runs=(
                RunView("cleanup/manual__1/shop", "cleanup", NOW_MS, "ada", "bob", 2, {ActState.DONE: 2}),
                RunView("cli-7", "repair", NOW_MS, "ada", "", 1, {}),
            ),
            lag=tuple(
                Sample("absolute_delay_s", float(n % 7), host, "", NOW_MS - n * 60_000)
                for n in range(100)
                for host in (A, B)
            ),
        ),
    )


def test_the_page_says_everything(viewer: Web, reader: FakeReader) -> None:
    reader.seen = full_picture()
    text = viewer.page()
    for words in (
        *(A, B, C, "Shard 2", "does not answer", "cannot be reached"),
        *("b:9000 has not done query-0000000003", "has not begun"),
        *("ALTER TABLE d.t ADD COLUMN x Int8", "Table d.t exists", "Failed (1)", "Open (1)"),
        *("d.dist", "2.0 KiB", "broken header", "make t", "5 done, 1 failed"),
        *("It lags.", "Wait a little.", "lagging.md", "1 resolved in the last 24 hours"),
        *('href="/dags/cleanup/runs/manual__1"', "2 done", "cli-7"),
        *("<svg", "Replication lag of 2 hosts", 'class="color-1"'),
        *('data-dag="replica_health"', "Plan a cleanup", 'href="/dags/migrate_shop"'),
    ):
        assert words in text, words


def test_who_may_not_start_a_dag_cannot_press_its_button(web: Web) -> None:
    web.log_in("viewer")
    assert web.page().count("disabled title") == 3
    web.log_in("user")
    assert web.page().count("disabled title") == 0


def test_a_button_s_settings_are_json(viewer: Web) -> None:
    settings = re.findall(r'data-conf="([^"]*)"', viewer.page())
    confs = [json.loads(text.replace("&#34;", '"')) for text in settings]
    assert {"cluster": "shop", "mode": "plan"} in confs
    assert all("act" not in conf.values() for conf in confs)


def test_the_dags_take_what_the_buttons_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncluster_airflow.operation_dags import operation_dags
    from oncluster_airflow.web.actions import actions

    (tmp_path / "cluster.xml").write_text(
        "<clickhouse><remote_servers><shop><shard><replica><host>a</host><port>9000</port></replica></shard>"
        "</shop></remote_servers></clickhouse>"
    )
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(tmp_path / "cluster.xml"))
    dags = {dag.dag_id: dag for dag in operation_dags()}
    for action in actions("shop")[:-1]:  # the last one is the migrations'
        params = dags[action.dag_id].params
        for name, value in (action.conf or {}).items():
            assert name in params, (action.dag_id, name)
            params[name] = value  # raises what the form would say


def test_what_comes_from_the_cluster_is_text(viewer: Web, reader: FakeReader) -> None:
    finding = Finding(FindingKind.LAGGING, Severity.CRITICAL, "shop", HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    reader.seen = picture(
        queue(task(1, "ffw", query=HOSTILE, failures={A: failure(HOSTILE)}, initiator=HOSTILE)),
        up(A, spool=(SpoolRow(HOSTILE, 1, 1, 0, 0, False, HOSTILE),), notes=(HOSTILE,)),
        replace(down(B), error=HOSTILE),
        records=RecordsView(
            migrations=(
                MigrationView(
                    1, HOSTILE, MigrationState.FAILED, "up", 1, {HOSTILE: 1}, HOSTILE, NOW_MS, (HOSTILE,)
                ),
            ),
            findings=(FindingRecord(finding, "health", NOW_MS, NOW_MS),),
            runs=(RunView(f"{HOSTILE}/{HOSTILE}", HOSTILE, NOW_MS, HOSTILE, HOSTILE, 1, {}),),
            lag=(Sample("absolute_delay_s", 1.0, HOSTILE, HOSTILE, NOW_MS - 1000),),
            notes=(HOSTILE,),
        ),
    )
    for path in ("/cluster/shop", "/cluster/shop/task/query-0000000001"):
        text = viewer.page(path)
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
        assert "49" not in re.findall(r"alert\(1\).{0,40}", text)  # the template's language is not read again
        assert re.search(r"<[^>]*\son\w+=", text) is None
        assert "javascript:" not in text
        assert re.search(r"""(src|href)="?https?://""", text) is None  # nothing from elsewhere
        assert "style=" not in text


def test_nothing_is_known_yet(viewer: Web, reader: FakeReader) -> None:
    reader.seen = ClusterOverview("shop", NOW_MS, reader.seen.shards)
    text = viewer.page()
    assert "being asked" in text
    assert 'data-live="pending"' in text
    assert A in text  # the configuration is known
    assert "Nothing is stuck" not in text
    assert viewer.get("/cluster/shop/map").json() == {"hosts": [], "tasks": []}
    assert viewer.get("/cluster/shop/grid").json() is None


def test_keeper_is_down_and_what_was_seen_before_is_still_there(viewer: Web, reader: FakeReader) -> None:
    before = queue(task(1, "ddd"))
    reader.seen = picture(
        Part(PartState.FAILED, before.value, NOW_MS - 60_000, "Keeper does not answer.", "Look at it.")
    )
    text = viewer.page()
    assert "Keeper does not answer." in text
    assert "What follows is of" in text
    assert "query-0000000001" in text
    assert "The queue cannot be read." in text


def test_pages_of_the_queue(viewer: Web, reader: FakeReader) -> None:
    reader.seen = picture(queue(*(task(n, "fdd" if n == 7 else "ddd") for n in range(120, 0, -1))))
    first = viewer.page()
    assert "Tasks 1–50 of 120, page 1 of 3" in first
    assert 'rel="prev"' not in first
    last = viewer.page("/cluster/shop?page=3")
    assert "Tasks 101–120 of 120, page 3 of 3" in last
    assert 'rel="next"' not in last
    assert "Tasks 1–1 of 1, page 1 of 1" in viewer.page("/cluster/shop?show=failed")
    assert "No task to show." in viewer.page("/cluster/shop?show=open")
    cells = dict(viewer.get("/cluster/shop/map").json()["tasks"])
    assert cells["query-0000000007"] == "fdd"
    assert viewer.get("/cluster/shop/grid?page=3").json()["number"] == 3
    assert viewer.get("/cluster/shop/data").json()["shards"][0] == {"number": 1, "hosts": [A, B]}


def test_every_state_has_a_sign_and_a_word_not_only_a_colour(viewer: Web, reader: FakeReader) -> None:
    reader.seen = picture(queue(task(2, "dfr"), task(1, "wau")))
    text = viewer.page()
    for sign, word in (
        ("✓", "done"),
        ("✗", "failed"),
        ("▶", "executing"),
        ("…", "waiting"),
        ("○", "off line"),
    ):
        assert re.search(rf'<td class="c-." title="[^"]*{word}[^"]*">{sign}</td>', text), word
    assert '<th scope="row"' in text
    assert '<th scope="col" class="host"' in text
    assert "<caption" in text


def test_a_thousand_tasks_on_a_hundred_hosts_are_one_page_of_modest_size(reader: FakeReader) -> None:
    from oncluster_airflow.web import render

    hosts = tuple(f"node{n:03d}.example.com:9000" for n in range(100))
    cells = "d" * 99 + "w"
    tasks = tuple(Task(f"query-{n:010d}", NOW_MS, cells, query="x" * 200) for n in range(1000, 0, -1))
    view = queue().value
    assert view is not None
    wide = replace(view, hosts=hosts, tasks=tasks, presence={})
    seen = replace(picture(), queue=Part(PartState.READY, wide, NOW_MS))
    site = render.Site("/oncluster/", "/")
    text = render.render_cluster(site, seen, make_page(wide), clusters=(), actions=(), lag_span="24h")
    assert text.count('title="done">✓</td>') == 50 * 99
    assert len(text) < 600_000
