"""A headless Chromium that a test drives over its DevTools protocol: one browser, one tab.

    async with Chromium.started(directory) as tab:
        await tab.go("http://127.0.0.1:8080/")
        await tab.until("document.title == 'x'")

Nothing but the browser itself is needed (Debian has it as `chromium`). `tab.requests` has every address that
was asked for, `tab.complaints` what a person would see in red in the browser's console.

Source: the DevTools protocol's description.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from engine.errors import OperationTimeout, Unavailable

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, where there is none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The browser's program; None where it is not installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, directory: Path, *, width: int = 1400, height: int = 1000, timeout_s: float = 60.0
    ) -> AsyncIterator[Self]:
        """Start a browser with its profile in `directory`; it is gone at the end."""
        program = find_chromium()
        if program is None:
            raise Unavailable("There is no Chromium.", hint="apt-get install chromium")
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "chromium.log").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                program,
                *_FLAGS,
                f"--user-data-dir={directory / 'profile'}",
                f"--window-size={width},{height}",
                "about:blank",
                stdout=output,
                stderr=output,
            )
        try:
            async with aiohttp.ClientSession() as session:
                url = await _tab_of(session, directory / "profile" / "DevToolsActivePort", timeout_s)
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = cls(socket)
                    listening = asyncio.create_task(tab._listen())
                    try:
                        for domain in ("Page", "Runtime", "Network", "Log"):
                            await tab.call(f"{domain}.enable")
                        yield tab
                        await tab.call("Browser.close")
                    finally:
                        listening.cancel()
                        await asyncio.gather(listening, return_exceptions=True)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 10)
            if process.returncode is None:
                process.kill()
                await process.wait()

    # --- what a person does -------------------------------------------------------------------------------

    async def go(self, url: str) -> None:
        """Open an address, and return when its document is there. Raises Unavailable.

        A browser breaks off what it loads when the machine gets or loses a network, as with every container
        that somebody starts beside a test: it is asked again then.
        """
        for _ in range(5):
            answer = await self.call("Page.navigate", url=url)
            if not answer.get("errorText"):
                break
            await asyncio.sleep(0.5)
        else:
            raise Unavailable(f"{url} cannot be opened: {answer['errorText']}")
        await self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    async def type(self, selector: str, text: str) -> None:
        """Into a field."""
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """A key, such as `Tab`."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key]
            )

    async def prefer(self, scheme: str) -> None:
        """`light` or `dark`, as the system's setting."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    # --- what a person sees -------------------------------------------------------------------------------

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited. Raises AssertionError when it throws."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    async def until(self, script: str, *, timeout_s: float = 60.0) -> Any:
        """The value of the expression as soon as it is true. Raises OperationTimeout.

        While a page is being replaced an expression may throw; that counts as not true.
        """
        seen: Any = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        seen = await self.run(script)
                    except (AssertionError, Unavailable) as error:
                        seen = error
                    else:
                        if seen:
                            return seen
                    await asyncio.sleep(0.05)
        where = await self.run("location.href + ' ' + document.body.innerText.slice(0, 2000)")
        raise OperationTimeout(f"Not within {timeout_s:g} s: {script} (last: {seen}). The page: {where}")

    async def screenshot(self, path: Path) -> Path:
        """What is to be seen, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    # --- the protocol -------------------------------------------------------------------------------------

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises Unavailable with the browser's words."""
        self._number += 1
        future = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(message)
        answer = await asyncio.wait_for(future, 60)
        if "error" in answer:
            raise Unavailable(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    async def _listen(self) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            data = json.loads(message.data)
            if "id" in data:
                future = self._answers.pop(data["id"], None)
                if future is not None and not future.done():
                    future.set_result(data)
            else:
                self._note(data["method"], data["params"])

    def _note(self, event: str, facts: Mapping[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            case "Log.entryAdded" if _NETWORK_CHANGED in facts["entry"]["text"]:
                pass  # not of the page's making, see `go`
            case "Log.entryAdded" if facts["entry"]["level"] == "error":
                self.complaints.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.complaints.append(str(facts["exceptionDetails"]))
            case _:
                pass


async def _tab_of(session: aiohttp.ClientSession, port_file: Path, timeout_s: float) -> str:
    """The address of the first tab, when the browser has one."""
    async with asyncio.timeout(timeout_s):
        while True:
            with contextlib.suppress(OSError, ValueError, IndexError, StopIteration, aiohttp.ClientError):
                port = int(port_file.read_text().splitlines()[0])
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = await answer.json()
                return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
            await asyncio.sleep(0.05)
