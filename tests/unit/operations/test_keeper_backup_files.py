"""Backups as files: the commands that need no Keeper, a folder of backups, a restore as a plan."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from engine.cli import keeper_backup as command
from engine.cli.main import cli
from engine.errors import ConfigError, Corrupt, Refused
from engine.operations.act import Danger
from engine.operations.keeper_backup import (
    PatientKeeper,
    backup_name,
    backups_in,
    dump_tree,
    label_of,
    plan_restore,
    prune_backups,
    unfinished_in,
)
from tests.unit.operations.support import simulated, site


def make(path, nodes):
    """A backup of a tree that has these values."""

    async def main(env, server):
        keeper = await server.connect()
        for name, value in nodes.items():
            await keeper.create(name, value)
        async with PatientKeeper(server.factory(), env) as source:
            return await dump_tree(source, path, source_name="test", env=env)

    return simulated(main)


def run(*arguments):
    return CliRunner().invoke(cli, ["keeper", *map(str, arguments)])


def test_verify_says_what_is_in_a_file_and_where_it_is_damaged(tmp_path):
    make(tmp_path / "b", {"/a": b"1", "/a/b": b"\xff"})
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    good = run("verify", tmp_path / "b", "--json")
    assert good.exit_code == 0 and json.loads(good.stdout)["nodes"] == 3
    assert "nodes" in run("verify", tmp_path / "b").stdout
    data = bytearray((tmp_path / "b").read_bytes())
    data[-40] ^= 1
    (tmp_path / "bad").write_bytes(data)
    bad = run("verify", tmp_path / "bad")
    assert bad.exit_code == 70 and "at byte" in bad.output
    assert run("verify", tmp_path / "none").exit_code == 5


def test_two_files_are_compared(tmp_path):
    make(tmp_path / "one", {"/a": b"1", "/b": b"2"})
    make(tmp_path / "two", {"/a": b"1", "/c": b"2"})
    shutil.copy(tmp_path / "one", tmp_path / "same")
    assert run("diff", tmp_path / "one", tmp_path / "same").exit_code == 0
    found = run("diff", tmp_path / "one", tmp_path / "two", "--json")
    assert found.exit_code == 1
    differences = json.loads(found.stdout)["differences"]
    assert {(each["path"], each["aspect"]) for each in differences} == {("/b", "missing"), ("/c", "extra")}
    assert "2 differences" in run("diff", tmp_path / "one", tmp_path / "two").output


def test_places_are_read(tmp_path):
    place = command._keeper_place("zk://zk1,[::1]:2182/a/b/", None)
    assert place is not None and place.root == "/a/b"
    assert place.section.hosts == (("zk1", 2181), ("::1", 2182))
    assert command._keeper_place("zk://zk1:2181", None).root == "/"
    assert command._keeper_place("tree.keeper.zst", None) is None
    for wrong in ("zk:///a", "zk://zk1:x/a", "zk://zk1/a//b", "keeper@none.xml:/a"):
        with pytest.raises(ConfigError):
            command._keeper_place(wrong, None)
    refused = run("restore", make_path(tmp_path), "--to", "elsewhere.zst")
    assert refused.exit_code == 5 and "no live tree" in refused.output


def make_path(tmp_path):
    make(tmp_path / "b", {"/a": b"1"})
    return tmp_path / "b"


def test_each_root_has_a_label_of_its_own_that_fits_into_a_file_name() -> None:
    """Backups of `/prod_a` and `/prod/a` had one, and the newest of both were kept instead of each."""
    roots = ["/", "/prod/a", "/prod_a", "/prod-a", "/prod/a/", "/données", "/" + "a" * 300, "/" + "a" * 301]
    labels = [label_of(root) for root in roots]
    assert labels[:2] == ["keeper", "keeper-prod-a"]
    assert len(set(labels)) == len(roots)
    assert max(len(backup_name(label, 0.0)) for label in labels) < 200


def test_the_newest_backups_are_kept_and_nothing_goes_while_one_of_them_is_damaged(tmp_path):
    make(tmp_path / "made", {"/a": b"1"})
    names = [backup_name("zk-one", 1_700_000_000 + 60 * number) for number in range(4)]
    for name in names:
        shutil.copy(tmp_path / "made", tmp_path / name)
    shutil.copy(tmp_path / "made", tmp_path / backup_name("other", 1_600_000_000))
    (tmp_path / (backup_name("zk-one", 1_800_000_000) + ".part")).write_bytes(b"")
    assert [path.name for path in backups_in(tmp_path, "zk-one")] == names
    assert unfinished_in(tmp_path, "zk-one").name == backup_name("zk-one", 1_800_000_000)
    assert unfinished_in(tmp_path, "other") is None
    newest = tmp_path / names[3]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    with pytest.raises(Corrupt):
        prune_backups(tmp_path, keep=2, label="zk-one")
    assert len(backups_in(tmp_path, "zk-one")) == 4
    newest.write_bytes(whole)
    gone = prune_backups(tmp_path, keep=2, label="zk-one")
    assert [path.name for path in gone] == names[:2]
    assert len(backups_in(tmp_path)) == 3
    with pytest.raises(Refused):
        prune_backups(tmp_path, keep=0)


def test_a_restore_is_a_plan_that_needs_approval_and_never_stands_on_its_own_lock(tmp_path):
    facts = make(tmp_path / "b", {"/a": b"1"})

    async def main(env, server):
        here = site(tmp_path, env, await server.connect())
        plan = plan_restore(here, tmp_path / "b", root="/restored")
        [act] = plan.acts
        assert plan.needs_approval and act.danger is Danger.REPAIRS
        assert act.payload["digest"] == facts.digest and "2 nodes" in act.what
        for root in ("/", "/clickhouse", "/clickhouse/task_queue"):
            with pytest.raises(ConfigError, match="have their lock"):
                plan_restore(here, tmp_path / "b", root=root)

    simulated(main)
