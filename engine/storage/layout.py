"""The data directory of a node and the configuration chDB is started with.

    <path>/                chDB's own: data, metadata, store, …
    <path>/oncluster/      ours: chdb.xml, users.xml, node.json, intents.sqlite, reserve (see `disk_reserve`)

chDB starts like `clickhouse-local`, which differs from a server in ways that matter here; each is undone:

- its database `default` reads files of the machine by name: `default` is made an Atomic database, as on a
  server, by writing its metadata before the first start, and chDB's own one, of another name, is detached
  after every start (detached and not dropped: whatever it may hold stays);
- its only user may do anything, also read any file: the user gets the rights of a server's default user
  without those on files (`SELECT * FROM file('/etc/passwd')` is refused with ACCESS_DENIED) and on ending the
  process (SYSTEM SHUTDOWN would signal the whole process group) or making it fail (SYSTEM ENABLE FAILPOINT,
  with which ClickHouse itself is tested, may leave it waiting for ever, or without what it has written); its
  function `file` is another one (`shadowed_functions`); and settings that name a file are constants: it would
  be written, or its text would stand in the error that it is no template (`FORMAT Template`), or every
  address of engine URL would be one (`url_base`).
  Templates are given as text (`format_template_row_format`), and schemas are made of the columns (a schema
  given as text, too, would be kept as a file, wherever the process works);
- statements are looked at as SQL before chDB gets them (`guard`), so there is neither another dialect nor the
  function `eval`, which would run a text that nobody has looked at; nor are there settings that make another
  statement of each one, also of the node's own (`select`, `filter`, …), or give it another format;
- it keeps `system` in memory: what somebody made in it would be gone after a restart, and without it a node
  knows nothing of itself. So its user may drop nothing there and make nothing but views, of which a node has
  one there itself, nor make a database of the name of chDB's own;
- log tables and large background pools are off, so that an idle node costs next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from engine.config.profiles import Constraint
from engine.env import Env
from engine.errors import ConfigError

KEPT_BYTES = 4 << 20
"""Of the disk, for definitions: see `disk_reserve`."""

SCRATCH_DATABASE = "_oncluster"
"""Of engine Memory: its tables have no metadata on disk, cost 2 ms to make, and are gone after a restart."""

LOCAL_DATABASE = "_local"
"""chDB's own database over files, detached after start."""

_CONSTANT = (
    *("dialect", "allow_experimental_eval_table_function"),
    *("select", "filter", "order", "sort", "implicit_table_at_top_level"),
    *("format", "input_format", "output_format"),
    *("format_schema", "format_template_row", "format_template_resultset"),
    *("output_format_schema", "input_format_record_errors_file_path", "url_base"),
)
_OVER_FILES = ("File", "FileLog", "SQLite")
"""Engines that nobody may use, however their name has come past the look at a statement's text."""
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_NOT_IN_CONNECTION_STRINGS = re.compile(r"[?&\\]")
"""chDB's path ends there: it works in another directory, or without its configuration. No quoting helps."""

_MERGES = """
  <background_pool_size>2</background_pool_size>
  <background_merges_mutations_concurrency_ratio>16</background_merges_mutations_concurrency_ratio>
  <background_merges_mutations_scheduling_policy>shortest_task_first</background_merges_mutations_scheduling_policy>
"""
"""Two threads with 32 entries, as many as a server of ClickHouse has: a table whose settings name more free
entries of the pool (`number_of_free_entries_in_pool_…`) is refused (36), and definitions come from servers.
The shortest first, else as many merges would be open at once, each with its buffers."""


@dataclass(frozen=True, slots=True)
class ChdbSettings:
    """What chDB is told at start; none of it can be changed while it runs.

    `fsync` forces every inserted part to disk before it is acknowledged (1.2 ms per insert here).
    """

    display_name: str = "localhost"
    tcp_port: int = 9000
    macros: Mapping[str, str] = field(default_factory=dict)
    fsync: bool = True
    graphite: Sequence[str] = ()
    """Sections of rollup rules, as XML."""
    replica_path: str = "/clickhouse/tables/{uuid}/{shard}"
    replica_name: str = "{replica}"
    """What a replicated engine without arguments means, as `system.server_settings` shows it."""
    unreachable_cluster: str = ""
    """The name of a cluster of one host that nobody reaches, for what has to be over one."""
    constraints: Mapping[str, Mapping[str, Constraint]] = field(default_factory=dict)
    """What profiles of users let nobody change, by profile."""


def rules_profile(at: int, profile: str) -> str:
    """chDB's profile with the constraints of a profile, which stand at this place of
    `ChdbSettings.constraints`."""
    return f"constraints_of_{profile if _ELEMENT.match(profile) else at}"


def private_directory(path: Path) -> Path:
    """Where the node keeps what is not chDB's."""
    return path / "oncluster"


def prepare(path: Path, settings: ChdbSettings, env: Env) -> str:
    """Make the directory ready and return the connection string of the first connection.

    Raises ConfigError for a path that chDB would not take as it is.
    """
    if (found := _NOT_IN_CONNECTION_STRINGS.search(str(path))) is not None:
        raise ConfigError(
            f"chDB cannot have its data in {path}: '{found[0]}' means something else to it.",
            hint="Choose a directory without '?', '&' and backslashes in its path.",
        )
    _forget_passwords(path)
    own = private_directory(path)
    own.mkdir(parents=True, exist_ok=True)
    metadata = path / "metadata"
    metadata.mkdir(exist_ok=True)
    link = metadata / "default"
    _make_default_database(metadata / "default.sql", link, settings, env)
    if link.is_symlink():
        # chDB would put its own database at the place that this link names, and fail because it is taken. The
        # link is made anew when `default` is loaded.
        link.unlink()
    (own / "users.xml").write_text(_users(settings), "utf-8")
    (own / "chdb.xml").write_text(_server(own, settings), "utf-8")
    return f"{path}?config-file={own / 'chdb.xml'}"


def _forget_passwords(path: Path) -> None:
    """Named collections with those of other nodes, which nodes of before have left."""
    for file in (path / "named_collections").glob("oncluster_peer_*.sql"):
        with contextlib.suppress(OSError):
            file.unlink()


def _make_default_database(file: Path, link: Path, settings: ChdbSettings, env: Env) -> None:
    """All tables of `default` are found by this file: it is there whole, also after a loss of power, before
    there is a table. Nodes that did not see to that may have left an empty one, with which chDB does not
    start; the link that chDB has made of it says what was in it."""
    if file.exists() and file.stat().st_size:
        return
    if file.exists() and not link.is_symlink() and (file.parent.parent / "store").is_dir():
        return  # which database there was cannot be told
    uuid = link.readlink().name if link.is_symlink() else str(env.new_uuid())
    temporary = private_directory(file.parent.parent) / file.name
    with temporary.open("w") as out:
        out.write(f"ATTACH DATABASE _ UUID '{uuid}'\nENGINE = Atomic\n")
        out.flush()
        if settings.fsync:
            os.fsync(out.fileno())
    temporary.replace(file)
    for directory in (file.parent, file.parent.parent) if settings.fsync else ():
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _server(own: Path, settings: ChdbSettings) -> str:
    macros = "".join(
        f"    <{name}>{escape(value)}</{name}>\n"
        for name, value in settings.macros.items()
        if _ELEMENT.match(name)
    )
    graphite = "".join(f"  {section}\n" for section in settings.graphite)
    clusters = _unreachable(settings.unreachable_cluster) if settings.unreachable_cluster else ""
    fsync = int(settings.fsync)
    return f"""\
<clickhouse>
  <logger><level>fatal</level></logger>
  <display_name>{escape(settings.display_name)}</display_name>
  <tcp_port>{settings.tcp_port}</tcp_port>
  <default_database>{LOCAL_DATABASE}</default_database>
  <users_config>{escape(str(own / "users.xml"))}</users_config>
  <access_control_improvements>
    <table_engines_require_grant>true</table_engines_require_grant>
  </access_control_improvements>
  <macros>
{macros}  </macros>
  <default_replica_path>{escape(settings.replica_path)}</default_replica_path>
  <default_replica_name>{escape(settings.replica_name)}</default_replica_name>
  <merge_tree>
    <fsync_after_insert>{fsync}</fsync_after_insert>
    <fsync_part_directory>{fsync}</fsync_part_directory>
  </merge_tree>
  <storage_configuration><disks><default>
    <keep_free_space_bytes>{KEPT_BYTES}</keep_free_space_bytes>
  </default></disks></storage_configuration>
  {_MERGES.strip()}
  <background_move_pool_size>1</background_move_pool_size>
  <background_fetches_pool_size>1</background_fetches_pool_size>
  <background_common_pool_size>2</background_common_pool_size>
  <background_schedule_pool_size>4</background_schedule_pool_size>
  <background_buffer_flush_schedule_pool_size>1</background_buffer_flush_schedule_pool_size>
  <background_message_broker_schedule_pool_size>1</background_message_broker_schedule_pool_size>
  <background_distributed_schedule_pool_size>1</background_distributed_schedule_pool_size>
  <tables_loader_foreground_pool_size>2</tables_loader_foreground_pool_size>
  <tables_loader_background_pool_size>1</tables_loader_background_pool_size>
  <mark_cache_size>134217728</mark_cache_size>
{graphite}{clusters}</clickhouse>
"""


def _unreachable(cluster: str) -> str:
    """Nobody listens at port 1: a connection is refused at once, and no name is looked up."""
    replica = "<replica><host>127.0.0.1</host><port>1</port></replica>"
    return f"  <remote_servers><{cluster}><shard>{replica}</shard></{cluster}></remote_servers>\n"


def _users(settings: ChdbSettings) -> str:
    """`url()` asks once: what reads other nodes chooses replicas before, and a second request for the rest of
    an answer that broke off would wait long for nothing, because answers to queries have no ranges. For the
    same reason it reads on one thread. A shard may take as long for its first row as ClickHouse waits for
    one (`receive_timeout`)."""
    grants = [
        "GRANT ALL ON *.*",
        "REVOKE SYSTEM SHUTDOWN, SYSTEM FAILPOINT ON *.*",
        "REVOKE CREATE DATABASE, CREATE TABLE, CREATE DICTIONARY, DROP ON system.*",
        f"REVOKE CREATE DATABASE ON {LOCAL_DATABASE}.*",
        "REVOKE FILE, SQLITE ON *.*",
        *(f"REVOKE TABLE ENGINE ON {engine}" for engine in _OVER_FILES),
    ]
    constraints = "".join(f"<{name}><const/></{name}>" for name in _CONSTANT)
    queries = "".join(f"<query>{grant}</query>" for grant in grants)
    names = [rules_profile(at, profile) for at, profile in enumerate(settings.constraints)]
    rules = "".join(
        f"  <{name}>{_constraints(each)}</{name}>\n"
        for name, each in zip(names, settings.constraints.values(), strict=True)
    )
    return f"""\
<clickhouse>
  <profiles><default>
    <http_max_tries>1</http_max_tries>
    <http_make_head_request>0</http_make_head_request>
    <http_receive_timeout>300</http_receive_timeout>
    <max_download_threads>1</max_download_threads>
    <constraints>{constraints}</constraints>
  </default>
{rules}  </profiles>
  <quotas><default/></quotas>
  <users>
    <default>
      <no_password/>
      <networks><ip>::/0</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
      <grants>{queries}</grants>
    </default>
  </users>
</clickhouse>
"""


def _constraints(rules: Mapping[str, Constraint]) -> str:
    return f"<constraints>{''.join(_constraint(*rule) for rule in rules.items())}</constraints>"


def _constraint(name: str, rule: Constraint) -> str:
    disallowed = (("disallowed", value) for value in rule.disallowed)
    limits = (("min", rule.minimum), ("max", rule.maximum), *disallowed)
    said = "".join(f"<{limit}>{escape(value)}</{limit}>" for limit, value in limits if value is not None)
    return f"<{name}>{said}{'<const/>' if rule.is_constant else ''}</{name}>"
