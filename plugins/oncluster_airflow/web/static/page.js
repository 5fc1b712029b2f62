// Keeps the page fresh, leads into Airflow, starts DAGs. Data arrive as text and are put in as text.
"use strict";
(() => {
  const REFRESH_MS = 5000;
  const FIRST_REFRESH_MS = 1500; // what is shown first may be some seconds old
  const HIDDEN_MS = 60000;
  const body = document.body;

  // --- into Airflow ---------------------------------------------------------------------------------------
  // Airflow's frame may not navigate the window it is in, and Airflow within Airflow helps nobody. A link of the
  // surrounding document may.
  const framed = () => document.documentElement.dataset.framed !== undefined;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (!link || !framed() || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const outer = window.parent.document.createElement("a");
    outer.href = link.href;
    window.parent.document.body.append(outer);
    outer.click();
    outer.remove();
  });

  // --- starting DAGs --------------------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-dag]");
    if (!button) return;
    const said = document.getElementById(button.getAttribute("aria-describedby"));
    button.disabled = true;
    said.textContent = "Starting …";
    try {
      const answer = await fetch(`${body.dataset.airflow}api/v2/dags/${encodeURIComponent(button.dataset.dag)}/dagRuns`, {
        method: "POST",
        credentials: "same-origin",
        headers: { "Content-Type": "application/json", Accept: "application/json" },
        body: JSON.stringify({ logical_date: null, conf: JSON.parse(button.dataset.conf) }),
      });
      const found = await answer.json().catch(() => ({}));
      if (!answer.ok) {
        const detail = typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail || "");
        throw new Error(`Airflow answered ${answer.status}. ${detail}`);
      }
      const link = document.createElement("a");
      link.href = `${body.dataset.airflow}dags/${encodeURIComponent(button.dataset.dag)}/runs/${encodeURIComponent(found.dag_run_id)}`;
      link.dataset.airflow = "";
      link.textContent = `Started: ${found.dag_run_id}`;
      said.replaceChildren(link);
    } catch (error) {
      said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });

  // --- keeping fresh --------------------------------------------------------------------------------------
  // Sections are replaced one by one, and only those that differ: what somebody reads, scrolls or has focus in stays.
  const applied = new Map();
  const replace = (fresh) => {
    for (const next of fresh.querySelectorAll("[data-fresh]")) {
      const now = document.getElementById(next.id);
      const text = next.innerHTML;
      if (!now || (applied.get(next.id) ?? now.innerHTML) === text) continue;
      if (now.contains(document.activeElement) && document.activeElement !== now) continue;
      const open = [...now.querySelectorAll("details[open][id]")].map((item) => item.id);
      const scrolled = [...now.querySelectorAll(".scroll[id]")].map((box) => [box.id, box.scrollLeft, box.scrollTop]);
      applied.set(next.id, text);
      now.replaceChildren(...next.childNodes);
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      for (const [id, left, top] of scrolled) document.getElementById(id)?.scrollTo(left, top);
    }
  };
  const refresh = async () => {
    const url = new URL(window.location.href);
    url.searchParams.set("refresh", "true");
    try {
      const answer = await fetch(url, { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (answer.redirected || answer.status === 401) {
        window.location.reload(); // logged out meanwhile
        return;
      }
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
      paintMap();
      body.dataset.refreshed = String(Number(body.dataset.refreshed || 0) + 1);
    } catch (error) {
      document.getElementById("when").textContent = `Not refreshed: ${error.message}`;
    }
  };
  const loop = async () => {
    await refresh();
    setTimeout(loop, document.hidden ? HIDDEN_MS : REFRESH_MS);
  };

  // --- the map --------------------------------------------------------------------------------------------
  // A dot for each task and host: the whole queue at a glance. The grid below says the same in words.
  let shown = "";
  const paintMap = async () => {
    const canvas = document.getElementById("map");
    if (!canvas || !document.getElementById("map-box")?.open) return;
    const answer = await fetch(canvas.dataset.url, { credentials: "same-origin" });
    if (!answer.ok) return;
    const text = await answer.text();
    const colors = [..."dfrwaux."].map((letter) => getComputedStyle(body).getPropertyValue(`--${letter}`));
    if (text + colors === shown) return;
    shown = text + colors;
    const { hosts, tasks } = JSON.parse(text);
    const probe = document.createElement("span");
    body.append(probe);
    const color = Object.fromEntries([..."dfrwau"].map((letter) => {
      probe.style.color = `var(--${letter})`;
      return [letter, getComputedStyle(probe).color];
    }));
    probe.remove();
    canvas.width = Math.max(1, tasks.length);
    canvas.height = Math.max(1, hosts.length);
    const paint = canvas.getContext("2d");
    tasks.forEach(([, cells], column) => {
      let begin = 0;
      for (let row = 1; row <= cells.length; row += 1) {
        if (row < cells.length && cells[row] === cells[begin]) continue;
        const style = color[cells[begin]];
        if (style) {
          paint.fillStyle = style;
          paint.fillRect(column, begin, 1, row - begin);
        }
        begin = row;
      }
    });
    canvas.dataset.tasks = String(tasks.length);
    canvas.style.height = `${Math.min(200, Math.max(48, hosts.length * 2))}px`;
  };
  document.addEventListener("toggle", (event) => { if (event.target.id === "map-box") paintMap(); }, true);
  document.addEventListener("click", (event) => {
    if (event.target.id !== "map") return;
    const canvas = event.target;
    const task = Math.floor((event.offsetX / canvas.clientWidth) * canvas.width);
    const url = new URL(window.location.href);
    url.searchParams.set("show", "all");
    url.searchParams.set("page", String(Math.floor(task / Number(canvas.dataset.page)) + 1));
    url.hash = "queue";
    window.location.assign(url);
  });

  paintMap();
  if (body.dataset.live !== undefined) {
    setTimeout(loop, body.dataset.live === "pending" ? 50 : FIRST_REFRESH_MS);
  }
})();
