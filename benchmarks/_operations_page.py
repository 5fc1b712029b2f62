"""How soon the cluster page is to be seen: in a browser, on Airflow's API server, with a long queue."""

from __future__ import annotations

from benchmarks._page_stage import BIG_HOSTS, BIG_TASKS, PASSWORD, PageStage
from benchmarks.operations import Stand, measure
from engine.testing.chromium import Chromium, find_chromium

_PAINTED = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"
_ANSWERED = "performance.getEntriesByType('navigation')[0].responseEnd"
_ROWS = "document.querySelectorAll('#queue .grid tbody tr').length"


@measure("page", "the cluster page in a browser, 1,000 tasks on 100 hosts")
async def page(stand: Stand) -> None:
    if find_chromium() is None:
        stand.report.note("page: not measured, there is no Chromium here (Debian: apt-get install chromium)")
        return
    tasks = stand.scaled(BIG_TASKS)
    what = f"cluster page, {tasks:,} tasks on {len(BIG_HOSTS)} hosts"
    async with (
        PageStage(stand.directory / "stage", env=stand.env, big_tasks=tasks) as stage,
        Chromium.started(stand.directory / "chromium") as tab,
    ):
        await tab.go(f"{stage.url}/oncluster/")
        await tab.until("document.querySelector('input[name=password]') !== null")
        await tab.type("input[name=username]", "admin")
        await tab.type("input[name=password]", PASSWORD)
        await tab.run("document.querySelector('button[type=submit]').click()")
        await tab.until("document.querySelector('a[href$=\"/cluster/big\"]') !== null")
        for visit in ("first visit", "when it is known"):
            await tab.go(f"{stage.url}/oncluster/cluster/big")
            painted_ms = await tab.until(_PAINTED)
            stand.add(f"{what}: first paint, {visit}", painted_ms / 1000, aim_s=1)
            stand.add(f"{what}: the server's answer, {visit}", await tab.run(_ANSWERED) / 1000)
            await tab.until(f"{_ROWS} > 0 && {_PAINTED}")
            await tab.until(
                "!document.querySelector('#queue').innerText.includes('still being read')", timeout_s=300
            )
