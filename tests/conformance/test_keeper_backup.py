"""A backup of a real ZooKeeper: the session is lost in the middle, the dump is killed and continued, and the
restored tree goes on counting where the first one was."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from engine.cli.main import cli
from engine.config.model import Cluster, DistributedDdl, NodeConfig, Replica, Shard, Topology
from engine.env import SystemEnv
from engine.errors import SessionExpired
from engine.keeper import zookeeper
from engine.keeper.base import Acl, Create, CreateMode
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.keeper.tree import digest_identity
from engine.operations.act import ActState
from engine.operations.carrying_out import carry_out
from engine.operations.keeper_backup import (
    LiveTree,
    PatientKeeper,
    Phase,
    compare,
    dump_tree,
    open_backup,
    patient_keeper,
    plan_restore,
    restore_performer,
    restore_tree,
)
from engine.operations.records import Records
from engine.operations.site import Site

pytestmark = [pytest.mark.slow]

LOG = "/source/log/log-"
SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL
BOB = Acl(31, *digest_identity(b"bob:secret"))


async def plant(keeper):
    await keeper.create("/source", b"\xff\x00")
    await keeper.create("/source/log")
    for _ in range(3):
        await keeper.multi([Create(LOG, b"entry", SEQUENTIAL)] * 400)
    for number in range(1100):
        await keeper.remove(f"{LOG}{number:010d}")
    await keeper.set("/source", b"\xff\x00 again")
    await keeper.create("/source/alive", mode=CreateMode.EPHEMERAL)
    await keeper.create("/source/bobs", b"1", acl=[BOB, Acl(1, "world", "anyone")])
    await keeper.create("/source/big", bytes(range(256)) * 4000)
    for start in range(0, 3000, 500):
        await keeper.multi([Create(f"/source/n{number}", b"v" * 100) for number in range(start, start + 500)])


def steal_session(server, session):
    """End a session from outside, as a server does that has not heard of its client for too long."""
    thief = KazooClient(f"127.0.0.1:{server.client_port}", client_id=session._connection.client_id)
    thief.start(timeout=60)
    thief.stop()
    thief.close()


async def plant_a_little(config, root):
    keeper = await zookeeper.connect(config, SystemEnv())
    try:
        await keeper.create(root)
        await keeper.create(f"{root}/log", b"\xff")
        for _ in range(3):
            await keeper.create(f"{root}/log/n-", mode=SEQUENTIAL)
        await keeper.remove(f"{root}/log/n-0000000002")
    finally:
        await keeper.close()


def test_the_commands_dump_restore_compare_and_copy(tmp_path, zookeeper_server):
    port = zookeeper_server.client_port
    config = tmp_path / "config.xml"
    config.write_text(
        f"<clickhouse><path>{tmp_path}</path><zookeeper><node><host>127.0.0.1</host><port>{port}</port></node>"
        "</zookeeper></clickhouse>"
    )
    root = f"/backup-{SystemEnv().new_uuid()}"
    asyncio.run(plant_a_little(zookeeper_server.config, root))

    def run(*arguments, code=0):
        result = CliRunner().invoke(cli, ["keeper", *map(str, arguments), "--config", str(config), "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if not code else result.output

    file = tmp_path / "b"
    assert run("dump", file, "--root", root)["nodes"] == 4
    assert "there already" in run("dump", file, "--root", root, code=5)
    there = f"zk://127.0.0.1:{port}{root}-restored"
    done = run("restore", file, "--to", there)
    assert done["comparison"]["is_equal"] and done["restored"]["created"] == 4
    assert run("restore", file, "--to", there)["restored"]["created"] == 0
    assert "something else" in run("restore", file, "--to", f"zk://127.0.0.1:{port}/", code=5)
    assert run("diff", f"keeper:{root}", there)["is_equal"]
    copied = run("copy", f"keeper@{config}:{root}-copied", "--root", root)
    assert copied["comparison"]["is_equal"]
    run("rm", f"{root}-copied/log/n-0000000001", "--yes")
    assert "missing" in run("diff", file, f"keeper:{root}-copied", code=1)


async def test_a_restore_is_carried_out_once_and_proven(tmp_path, zookeeper_server):
    env = SystemEnv()
    config = zookeeper_server.config
    root = f"/backup-{env.new_uuid()}"
    await plant_a_little(config, root)
    async with patient_keeper(config, env) as source:
        await dump_tree(source, tmp_path / "b", root=root, source_name="zk", env=env)
    keeper = await zookeeper.connect(config, env)
    site = Site(
        "c",
        NodeConfig(
            path="unused",
            topology=Topology(clusters={"c": Cluster("c", (Shard(1, (Replica("n1", 9000),)),))}),
            queues=(DistributedDdl(path=f"{root}-queue/ddl"),),
            zookeeper=config,
        ),
        Records(tmp_path / "records.db", env=env),
        env,
        "ada",
        keeper_or_none=keeper,
    )
    plan = plan_restore(site, tmp_path / "b", root=f"{root}-restored")
    for run_id, state in (("one", ActState.DONE), ("two", ActState.NOT_NEEDED)):
        report = await carry_out(site, plan, restore_performer(site), run_id=run_id, approved_by="ada")
        [(_, result)] = report.results
        assert result.state is state, result
    await keeper.set(f"{root}-restored/log", b"changed by somebody")
    report = await carry_out(site, plan, restore_performer(site), run_id="three", approved_by="ada")
    [(_, result)] = report.results
    assert result.state is ActState.FAILED and "something else" in result.detail
    await keeper.close()


@pytest.mark.extended
async def test_a_backup_survives_a_lost_session_and_a_kill_and_counts_on(tmp_path):
    env = SystemEnv()
    async with EmbeddedZooKeeper(tmp_path / "zk", is_durable=False, ends_with_parent=True) as server:
        keeper = await zookeeper.connect(server.config, env)
        await plant(keeper)
        sessions = []

        async def open_session():
            session = await zookeeper.connect(server.config, env, connect_timeout_s=60)
            sessions.append(session)
            return session

        class Killed(BaseException):
            pass

        stealing = []

        def lose_the_session_then_die(phase, done, _total):
            if phase is Phase.LISTING and not stealing:
                stealing.append(asyncio.ensure_future(asyncio.to_thread(steal_session, server, sessions[0])))
            if phase is Phase.READING and done >= 2000:
                raise Killed

        path = tmp_path / "b"
        async with PatientKeeper(open_session, env, patience_s=120) as source:
            with pytest.raises(Killed):
                await dump_tree(
                    source,
                    path,
                    root="/source",
                    source_name="zk",
                    env=env,
                    progress=lose_the_session_then_die,
                )
            await asyncio.gather(*stealing)
            with pytest.raises(SessionExpired):
                for _ in range(600):
                    await sessions[0].exists("/")
                    await asyncio.sleep(0.1)
            assert not path.exists()
            await keeper.create(LOG, b"made meanwhile", mode=SEQUENTIAL)
            facts = await dump_tree(source, path, root="/source", source_name="zk", env=env)
            assert len(sessions) > 1
        assert facts.is_of_one_instant and facts.ephemeral == 1
        assert facts.hidden_acls == 1  # bob's digest is shown to bob
        backup = open_backup(path)
        async with patient_keeper(server.config, env) as reader:
            result = await compare(backup, LiveTree(reader, "/source"))
        assert {difference.path for difference in result.differences} <= {"/bobs"}

        # As bob, everything is told and can be made again.
        async def open_as_bob():
            session = await zookeeper.connect(server.config, env, connect_timeout_s=60)
            await session.add_auth("digest", b"bob:secret")
            return session

        async with PatientKeeper(open_as_bob, env, patience_s=120) as bob:
            await dump_tree(bob, tmp_path / "bobs", root="/source", source_name="zk", env=env)
            backup = open_backup(tmp_path / "bobs")
            assert not backup.facts.hidden_acls
            restored = await restore_tree(backup, bob, root="/restored/here")
            result = await compare(backup, LiveTree(bob, "/restored/here"))
            assert result.is_equal, result.differences[:5]
            assert restored.left_out == 1 and restored.acls_set == 1
        assert await keeper.create(LOG, mode=SEQUENTIAL) == f"{LOG}0000001201"
        assert (
            await keeper.create("/restored/here/log/log-", mode=SEQUENTIAL)
            == "/restored/here/log/log-0000001201"
        )
        assert (await keeper.get("/restored/here")).stat.version == 1
        await keeper.close()
