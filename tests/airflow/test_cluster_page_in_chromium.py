"""The cluster page as a person sees it: in a real Chromium, within Airflow, with 1,000 tasks on 100 hosts.

Screenshots go to $PAGE_SCREENSHOTS, else to pytest's temporary folder; the test prints where.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks._page_stage import BIG_HOSTS, BIG_TASKS, DOWN, HANGING, PASSWORD, PageStage
from engine.testing.chromium import Chromium, find_chromium

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(900),  # half a minute on a machine that has nothing else to do
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

FRAME = "document.querySelector('iframe').contentDocument"
# Of every text that is shown the contrast to what is behind it, as WCAG reckons it; the faintest ones.
CONTRAST = """(() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color, under) => {
    paint.fillStyle = `rgb(${under})`; paint.fillRect(0, 0, 1, 1);
    paint.fillStyle = color; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (color) => {
    const [r, g, b] = color.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => element === null ? [255, 255, 255]
    : rgb(getComputedStyle(element).backgroundColor, behind(element.parentElement));
  const found = new Map();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("svg, .skip, [disabled]") || !element.getClientRects().length) continue;
    const back = behind(element);
    const [a, b] = [light(rgb(getComputedStyle(element).color, back)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${element.localName}.${element.className}`;
    found.set(name, Math.min(ratio, found.get(name) ?? 99));
  }
  return Object.fromEntries([...found].filter(([, ratio]) => ratio < 4.5));
})()"""


async def test_the_page_in_a_browser(tmp_path: Path) -> None:
    shots = Path(os.environ.get("PAGE_SCREENSHOTS") or tmp_path / "screenshots")
    print(f"screenshots: {shots}")
    async with PageStage(tmp_path / "stage") as stage, Chromium.started(tmp_path / "chromium") as tab:
        await somebody_without_a_login_is_asked_for_one_and_comes_back(tab, stage)
        await airflow_has_an_entry_and_its_frame_and_theme(tab, stage, shots)
        await links_lead_out_of_the_frame(tab, stage)
        await a_button_asks_airflow(tab, stage)
        await a_thousand_tasks_on_a_hundred_hosts(tab, stage, shots)
        await both_themes_can_be_read(tab, stage, shots)
        await a_keyboard_is_enough(tab, stage)
        complaints = [line for line in tab.complaints if "404" not in line]  # a DAG that is not here
        assert complaints == []
        await keeper_goes_away(tab, stage, shots)
        foreign = [url for url in tab.requests if not url.startswith((stage.url, "data:", "about:", "blob:"))]
        assert foreign == []


async def somebody_without_a_login_is_asked_for_one_and_comes_back(tab: Chromium, stage: PageStage) -> None:
    await tab.go(f"{stage.url}/oncluster/cluster/shop")
    await tab.until("document.querySelector('input[name=password]')  !== null")
    await tab.type("input[name=username]", "admin")
    await tab.type("input[name=password]", PASSWORD)
    await tab.run("document.querySelector('button[type=submit]').click()")
    await tab.until("document.querySelector('#topology') !== null")
    assert await tab.run("location.pathname") == "/oncluster/cluster/shop"
    # What could not be said at once arrives by itself.
    await tab.until(f"document.querySelector('#stuck').innerText.includes('{DOWN}:9000 has not done')")
    said = await tab.run("document.querySelector('#stuck').innerText")
    assert "neither over HTTP, nor has it a session with Keeper" in said
    assert f"{HANGING}:9000 has not done query-0000000038" in said or "executing" not in said
    assert "failed on node01:9000 and node02:9000" in said


async def airflow_has_an_entry_and_its_frame_and_theme(tab: Chromium, stage: PageStage, shots: Path) -> None:
    link = "[...document.querySelectorAll('a')].find((a) => a.href.endsWith('/plugin/oncluster'))"
    await tab.run("localStorage.setItem('theme', 'light')")  # what Airflow's switch does
    await tab.go(f"{stage.url}/")
    await tab.until(f"{link} !== undefined")
    await tab.run(f"{link}.click()")
    await tab.until(f"{FRAME}.querySelector('a[href$=\"/cluster/shop\"]') !== null")
    await tab.run(f"{FRAME}.querySelector('a[href$=\"/cluster/shop\"]').click()")
    await tab.until(f"{FRAME}.querySelectorAll('#queue .grid tbody tr').length >= 40")
    await tab.until(f"{FRAME}.querySelector('#stuck').innerText.includes('{DOWN}:9000 has not done')")
    for theme in ("light", "dark"):
        await tab.run(
            f"document.documentElement.className = '{theme}'"
        )  # it follows without being loaded anew
        await tab.until(f"{FRAME}.documentElement.dataset.theme === '{theme}'")
        await tab.screenshot(shots / f"in-airflow-{theme}.png")


async def links_lead_out_of_the_frame(tab: Chromium, stage: PageStage) -> None:
    await tab.run(f"{FRAME}.querySelector('a[href$=\"/dags/migrate_shop\"]').click()")
    await tab.until("location.pathname === '/dags/migrate_shop'")


async def a_button_asks_airflow(tab: Chromium, stage: PageStage) -> None:
    """There are no DAGs on this stage: Airflow knows the user, and says so."""
    await tab.go(f"{stage.url}/oncluster/cluster/shop")
    await tab.run("document.querySelector('button[data-dag=cleanup]').click()")
    said = "document.querySelector('button[data-dag=cleanup]').nextElementSibling.innerText"
    await tab.until(f"{said}.includes('Airflow answered 404')")


async def a_thousand_tasks_on_a_hundred_hosts(tab: Chromium, stage: PageStage, shots: Path) -> None:
    await tab.go(f"{stage.url}/oncluster/cluster/big")
    painted_ms = await tab.until(
        "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"
    )
    print(f"first paint of {BIG_TASKS} tasks on {len(BIG_HOSTS)} hosts: {painted_ms:.0f} ms")
    await tab.until("document.querySelectorAll('#queue .grid tbody tr').length === 50")
    assert await tab.run("document.querySelectorAll('#queue thead th.host').length") == len(BIG_HOSTS)
    assert await tab.run("document.querySelectorAll('#queue .grid tbody tr:first-child td').length") == len(
        BIG_HOSTS
    )
    await tab.until(f"document.querySelector('#map')?.dataset.tasks === '{BIG_TASKS}'")
    await tab.run("document.querySelector('#queue').scrollIntoView()")
    await tab.screenshot(shots / "1000-tasks-100-hosts.png")
    await tab.go(f"{stage.url}/oncluster/cluster/big?page=20")
    await tab.until("document.querySelectorAll('#queue .c-f').length > 0")
    assert "Tasks 951–1000 of 1000" in await tab.run("document.querySelector('#queue').innerText")


async def both_themes_can_be_read(tab: Chromium, stage: PageStage, shots: Path) -> None:
    backs = []
    for scheme in ("light", "dark"):
        await tab.prefer(scheme)
        await tab.go(f"{stage.url}/oncluster/cluster/shop")
        await tab.until("document.querySelector('#lag svg') !== null")
        await tab.until(f"document.querySelector('#stuck').innerText.includes('{DOWN}:9000 has not done')")
        backs.append(await tab.run("getComputedStyle(document.documentElement).backgroundColor"))
        assert await tab.run(CONTRAST) == {}, scheme
        assert len(await tab.run(CONTRAST.replace("4.5", "14"))) > 3  # it does measure
        await tab.screenshot(shots / f"alone-{scheme}.png")
        await tab.run("document.querySelector('#lag').scrollIntoView()")
        await tab.screenshot(shots / f"lag-{scheme}.png")
    assert len(set(backs)) == 2
    lines = await tab.run(
        "[...document.querySelectorAll('#lag .series path.line')].map((p) => getComputedStyle(p).stroke)"
    )
    assert len(set(lines)) == len(lines) == 6


async def a_keyboard_is_enough(tab: Chromium, stage: PageStage) -> None:
    await tab.go(f"{stage.url}/oncluster/cluster/big")
    await tab.until("document.querySelectorAll('#queue .grid tbody tr').length === 50")
    await tab.press("Tab")
    assert await tab.run("document.activeElement.className") == "skip"
    for _ in range(100):
        await tab.run("document.querySelector('#grid-box').focus()")
        await tab.press("ArrowRight")
        if await tab.run("document.querySelector('#grid-box').scrollLeft"):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the grid does not scroll by keys")
    unnamed = await tab.run(
        "[...document.querySelectorAll('button, a[href], section, canvas, svg, [role=region]')]"
        ".filter((e) => !(e.innerText || e.getAttribute('aria-label') || '').trim()).map((e) => e.outerHTML)"
    )
    assert unnamed == []


async def keeper_goes_away(tab: Chromium, stage: PageStage, shots: Path) -> None:
    await tab.go(f"{stage.url}/oncluster/cluster/shop")
    await tab.until("document.querySelectorAll('#queue .grid tbody tr').length >= 40")
    await stage.stop_keeper()
    await tab.until("document.querySelector('#queue').innerText.includes('does not answer')")
    said = await tab.run("document.querySelector('#stuck').innerText")
    assert "The queue cannot be read." in said
    assert await tab.run("document.querySelectorAll('#queue .grid tbody tr').length") >= 40  # as it was
    assert "24.8.4.13" in await tab.run("document.querySelector('#topology').innerText")
    await tab.screenshot(shots / "keeper-away.png")
    waited_ms = await tab.run(
        "(async () => { const begun = performance.now(); await (await fetch(location.href)).text();"
        " return performance.now() - begun; })()"
    )
    print(f"answer without Keeper: {waited_ms:.0f} ms")
