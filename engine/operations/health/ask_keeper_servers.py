"""Asks each Keeper server how it is, by four-letter words over plain TCP.

`mntr` says most and has to be permitted (`4lw.commands.whitelist`); `srvr` is permitted where nobody forbade
it. A server that is reached over TLS is not asked, and etcd knows no such words: that is said.

Source: ZooKeeper's administrator's guide, "The Four Letter Words"; ClickHouse Keeper answers the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from engine.config.model import Etcd, KeeperSection
from engine.keeper.embedded import four_letter_word
from engine.operations.health.facts import Gap, KeeperServerFacts, NotSaid

AskWord = Callable[[str, int, str], Awaitable[str]]
"""(host, port, word) → the answer, empty without one."""
_SRVR = re.compile(r"^([A-Za-z][A-Za-z /]+): (.*)$", re.MULTILINE)
_NAMES = {
    "zk_avg_latency": "latency_avg_ms",
    "zk_max_latency": "latency_max_ms",
    "zk_outstanding_requests": "outstanding",
    "zk_znode_count": "znodes",
    "zk_watch_count": "watches",
    "zk_ephemerals_count": "ephemerals",
    "zk_approximate_data_size": "data_size_bytes",
    "zk_num_alive_connections": "connections",
    "zk_open_file_descriptor_count": "open_files",
    "zk_max_file_descriptor_count": "max_open_files",
}
"""Names of `mntr`, and ours."""


async def ask_four_letters(host: str, port: int, word: str) -> str:
    return await four_letter_word(port, word, host=host)


async def ask_keeper_servers(
    config: KeeperSection | None, *, ask: AskWord = ask_four_letters
) -> tuple[tuple[KeeperServerFacts, ...], tuple[NotSaid, ...]]:
    """All servers of the configuration at once. Raises nothing."""
    if config is None:
        return (), ()
    if isinstance(config, Etcd):
        return (), (NotSaid("Keeper's own figures", "etcd knows no four-letter words", Gap.ABSENT),)
    if config.secure:
        return (), (NotSaid("Keeper's own figures", "four-letter words have no TLS", Gap.ABSENT),)
    servers = tuple(await asyncio.gather(*(_ask_one(host, port, ask) for host, port in config.hosts)))
    mute = [server.address for server in servers if server.is_answering and "znodes" not in server.figures]
    if not mute:
        return servers, ()
    return servers, (
        NotSaid(
            f"figures of the Keeper server {', '.join(mute)}",
            "it answers neither mntr nor srvr; permit them with 4lw.commands.whitelist=mntr,srvr",
            Gap.ABSENT,
        ),
    )


async def _ask_one(host: str, port: int, ask: AskWord) -> KeeperServerFacts:
    address = f"{host}:{port}"
    mntr, srvr = await asyncio.gather(ask(host, port, "mntr"), ask(host, port, "srvr"))
    if not mntr and not srvr:
        return KeeperServerFacts(address, is_answering=False)
    mode, figures = parse_srvr(srvr)
    mntr_mode, more = parse_mntr(mntr)
    return KeeperServerFacts(address, is_answering=True, mode=mntr_mode or mode, figures=figures | more)


def parse_mntr(text: str) -> tuple[str, dict[str, float]]:
    """The mode and the figures in the answer to `mntr`; what is no figure is passed over."""
    mode = ""
    figures: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition("\t")
        if name == "zk_server_state":
            mode = value.strip()
        elif name in _NAMES and (number := _number(value)) is not None:
            figures[_NAMES[name]] = number
    return mode, figures


def parse_srvr(text: str) -> tuple[str, dict[str, float]]:
    """As `parse_mntr`, of the answer to `srvr`."""
    fields = dict(_SRVR.findall(text))
    figures: dict[str, float] = {}
    for name, ours in (
        ("Node count", "znodes"),
        ("Outstanding", "outstanding"),
        ("Connections", "connections"),
    ):
        if (number := _number(fields.get(name, ""))) is not None:
            figures[ours] = number
    latencies = fields.get("Latency min/avg/max", "").split("/")
    if len(latencies) == 3:
        for ours, text_ in zip(("latency_avg_ms", "latency_max_ms"), latencies[1:], strict=True):
            if (number := _number(text_)) is not None:
                figures[ours] = number
    return fields.get("Mode", "").strip(), figures


def _number(text: str) -> float | None:
    try:
        return float(text.strip())
    except ValueError:
        return None
