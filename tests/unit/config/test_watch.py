"""engine.config.watch.ConfigFile: clusters are re-read while running, and a broken file breaks nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from pathlib import Path

import pytest

from engine.config import files
from engine.config.model import Topology
from engine.config.watch import ConfigFile
from engine.env import SystemEnv
from engine.errors import ConfigError, SqlError
from engine.node.config_reload import WATCH_S, ConfigReload


def _text(*hosts: str, more: str = "") -> str:
    nodes = "".join(f"<node><host>{host}</host></node>" for host in hosts)
    return f"<clickhouse><remote_servers><c>{nodes}</c></remote_servers>{more}</clickhouse>"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.xml"
    path.write_text(_text("a"))
    return path


def _hosts(topology: Topology) -> list[str]:
    return [replica.host for replica in topology.cluster("c").replicas]


def test_a_changed_cluster_is_seen(path: Path) -> None:
    config = ConfigFile(path)
    assert not config.reload()
    path.write_text(_text("a", "b"))
    assert config.reload()
    assert _hosts(config.topology) == ["a", "b"]
    assert config.node.topology is config.topology
    assert not config.reload()


def test_contents_count_and_not_times(path: Path) -> None:
    config = ConfigFile(path)
    before = path.stat()
    path.write_text(_text("z"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert config.reload()
    path.touch()
    assert not config.reload()


def test_files_of_the_merge_directory_count_when_they_come_change_and_go(path: Path) -> None:
    config = ConfigFile(path)
    extra = path.parent / "config.d" / "x.xml"
    extra.parent.mkdir()
    extra.write_text("<clickhouse><macros><m>1</m></macros></clickhouse>")
    assert config.reload()
    assert config.topology.macros == {"m": "1"}
    extra.write_text("<clickhouse><macros><m>2</m></macros></clickhouse>")
    assert config.reload()
    extra.unlink()
    assert config.reload()
    assert config.topology.macros == {}


def test_an_included_file_counts(tmp_path: Path) -> None:
    shared = tmp_path / "shared.xml"
    shared.write_text("<clickhouse><m><a>1</a></m></clickhouse>")
    path = tmp_path / "config.xml"
    path.write_text('<clickhouse><include_from>shared.xml</include_from><macros incl="m"/></clickhouse>')
    config = ConfigFile(path)
    shared.write_text("<clickhouse><m><a>2</a></m></clickhouse>")
    assert config.reload()
    assert config.topology.macros == {"a": "2"}


def test_a_broken_file_keeps_the_old_clusters_and_complains_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConfigFile(path)
    for broken in ("<clickhouse><remote", _text()):
        path.write_text(broken)
        caplog.clear()
        assert not config.reload()
        assert not config.reload()
        assert [r.levelno for r in caplog.records] == [logging.ERROR]
        assert "config.reload_failed" in caplog.text
        assert _hosts(config.topology) == ["a"]
    path.unlink()
    assert not config.reload()
    assert _hosts(config.topology) == ["a"]
    path.write_text(_text("b"))
    assert config.reload()
    assert _hosts(config.topology) == ["b"]


def test_a_file_that_is_broken_at_the_start_is_refused(path: Path) -> None:
    path.write_text("<clickhouse>")
    with pytest.raises(ConfigError, match="not well-formed"):
        ConfigFile(path)


def test_what_needs_a_restart_is_said_once_and_not_applied(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(_text("a", more="<zookeeper><node><host>old</host></node></zookeeper>"))
    config = ConfigFile(path)
    path.write_text(_text("a", more="<zookeeper><node><host>new</host></node></zookeeper>"))
    assert not config.reload()
    assert not config.reload()
    path.write_text(_text("a", "b", more="<zookeeper><node><host>new</host></node></zookeeper>"))
    assert config.reload()
    assert [r.getMessage() for r in caplog.records if "needs_restart" in r.getMessage()] == [
        f"config.needs_restart file={path} changed=zookeeper"
    ]
    assert config.node.zookeeper is not None
    assert config.node.zookeeper.hosts == (("old", 2181),)


class _SteppedEnv:
    """An `Env` whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.steps: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        await self.steps.get()


def test_a_cluster_s_secret_is_said_to_do_nothing_once_for_each(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def secret_of(*clusters: str) -> str:
        made = (f"<{name}><secret>s3cret</secret><node><host>h</host></node></{name}>" for name in clusters)
        return f"<clickhouse><remote_servers>{''.join(made)}</remote_servers></clickhouse>"

    def said() -> list[str]:
        return [re.findall(r"cluster=(\S+)", text)[0] for text in caplog.messages if "secret_ignored" in text]

    path.write_text(secret_of("one", "two"))
    config = ConfigFile(path)
    assert said() == ["one", "two"]
    path.write_text(secret_of("two", "three"))
    assert config.reload()
    assert said() == ["one", "two", "three"]
    path.write_text(secret_of("two"))
    assert config.reload()
    assert said() == ["one", "two", "three"]
    assert "s3cret" not in caplog.text


async def test_watching_tells_each_change_once(path: Path) -> None:
    config = ConfigFile(path)
    env = _SteppedEnv()
    seen: asyncio.Queue[list[str]] = asyncio.Queue()
    reload = ConfigReload(
        config,
        env=env,  # type: ignore[arg-type]
        on_change=lambda: seen.put_nowait(_hosts(config.topology)),
    )
    reload.start()
    env.steps.put_nowait(None)
    path.write_text(_text("b"))
    env.steps.put_nowait(None)
    assert await seen.get() == ["b"]
    path.write_text(_text("c"))
    env.steps.put_nowait(None)
    assert await seen.get() == ["c"]
    await reload.stop()
    assert seen.empty()
    assert set(env.slept) == {WATCH_S}


async def test_a_directory_that_cannot_be_read_for_a_moment_does_not_end_the_watching(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a tool swaps directories below the node, or takes away its permissions for a while."""
    (path.parent / "conf.d").mkdir()
    config, env = ConfigFile(path), _SteppedEnv()
    seen: asyncio.Queue[list[str]] = asyncio.Queue()
    reload = ConfigReload(config, env=env, on_change=lambda: seen.put_nowait(_hosts(config.topology)))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", _denied)
        with pytest.raises(ConfigError, match=r"conf\.d: cannot be read: Permission denied"):
            config.reload_or_raise()
        reload.start()
        env.steps.put_nowait(None)
        while "config.reload_failed" not in caplog.text:
            await asyncio.sleep(0)
    path.write_text(_text("b"))
    env.steps.put_nowait(None)
    assert await seen.get() == ["b"]
    await reload.stop()


def _denied(path: Path) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


async def test_an_error_in_the_program_does_not_end_the_watching(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, env = ConfigFile(path), _SteppedEnv()
    seen: asyncio.Queue[list[str]] = asyncio.Queue()
    reload = ConfigReload(config, env=env, on_change=lambda: seen.put_nowait(_hosts(config.topology)))  # type: ignore[arg-type]
    path.write_text(_text("b"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "parse_file", lambda file, text: 1 // 0)
        reload.start()
        env.steps.put_nowait(None)
        async with asyncio.timeout(10):
            while "config.watch_failed" not in caplog.text:
                await asyncio.sleep(0)
    env.steps.put_nowait(None)
    async with asyncio.timeout(10):
        assert await seen.get() == ["b"]
    await reload.stop()


async def test_a_reload_that_was_asked_for_tells_the_change_at_once_and_says_what_it_cannot_read(
    path: Path,
) -> None:
    config = ConfigFile(path)
    seen: list[list[str]] = []
    reload = ConfigReload(config, env=SystemEnv(), on_change=lambda: seen.append(_hosts(config.topology)))
    path.write_text(_text("b"))
    reload.run()
    reload.run()
    assert seen == [["b"]]
    path.write_text("<clickhouse>")
    with pytest.raises(SqlError, match=re.escape(str(path))):
        reload.run()
    assert _hosts(config.topology) == ["b"]
    path.write_text(_text("c"))
    reload.run()
    assert seen == [["b"], ["c"]]


def test_files_that_are_as_they_were_are_not_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConfigFile(path)
    (path.parent / "config.d").mkdir()
    parsed: list[Path] = []
    parse = files.parse_file
    monkeypatch.setattr(files, "parse_file", lambda file, text: parsed.append(file) or parse(file, text))
    assert not config.reload()
    assert parsed == []
    (path.parent / "config.d" / "more.xml").write_text(_text("b"))
    assert config.reload()
    assert [file.name for file in parsed] == ["config.xml", "more.xml"]


def test_limits_of_users_that_a_node_does_not_keep_are_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(
        "<clickhouse><users><ann><password/><quota>few</quota></ann><bob><password/><quota>none</quota></bob></users>"
        "<quotas><few><interval><duration>60</duration><queries>5</queries>"
        "<queries_per_normalized_hash>3</queries_per_normalized_hash></interval></few>"
        "<default><interval><duration>60</duration><queries>0</queries></interval></default></quotas></clickhouse>"
    )
    ConfigFile(path)
    said = [text for text in caplog.messages if "limit_ignored" in text]
    assert [re.findall(r"user=(\S+) limit='(.*?)'", text)[0] for text in said] == [
        ("ann", "quota few: queries_per_normalized_hash"),
        ("bob", "quota none, which does not exist"),
    ]


def test_settings_of_all_tables_that_a_node_does_not_heed_are_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sections = "<merge_tree><parts_to_throw_insert>5</parts_to_throw_insert></merge_tree>"
    path.write_text(f"<clickhouse>{sections}<replicated_merge_tree/></clickhouse>")
    ConfigFile(path)
    said = [text for text in caplog.messages if "section_ignored" in text]
    assert [re.findall(r"section=(\S+)", text)[0] for text in said] == ["merge_tree"]
