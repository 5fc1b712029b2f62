"""Repair: acts look first, refuse what is not safe, resume after an interruption, and prove what they did."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Busy, Code, ReplyLost, SqlError
from engine.keeper.recipes import remove_recursive
from engine.operations.act import Act, ActState, Plan
from engine.operations.carrying_out import carry_out
from engine.operations.repair import Repair, prove, repair_performer
from engine.operations.repair.activity import is_kept_active
from tests.unit.operations.health_support import PATH, FakeNode, register
from tests.unit.operations.support import CLUSTER, HOSTS, simulated, site

N1, N2 = HOSTS[:2]
COUNT = r"count\(\) FROM system\.tables"
DETACHED = r"count\(\) FROM system\.detached_tables"
ROWS = r"sum\(rows\)"


class Story:
    """A healthy table on n1 and n2 with equal parts, and a run of repairs."""

    def __init__(self, tmp_path, env, server):
        self.folder, self.env, self.server = tmp_path, env, server
        self.nodes = {host: FakeNode(host.host) for host in HOSTS}
        self.n1, self.n2 = self.nodes[N1], self.nodes[N2]

    async def start(self):
        self.keeper = await self.server.connect()
        for node in (self.n1, self.n2):
            node.replica()
            node.part("all_0_0_0", "aa")
            await register(self.keeper, node.name)
        self.site = site(self.folder, self.env, self.keeper, clients=self.nodes)
        return self

    def act(self, repair: Repair, host: str = "n2", **payload) -> Act:
        facts = {"database": "d", "table": "t", "path": PATH, "replica": host, **payload}
        if repair is Repair.RESTART_REPLICAS:
            facts = {}
        return Act(repair.value, "d.t", "Repair it.", "It is ill.", f"{host}:9000", facts, repair.danger)

    async def run(self, *acts: Act, run_id: str = "r", wait_s: float = 10):
        plan = Plan("repair", CLUSTER, acts)
        performer = repair_performer(self.site, wait_s=wait_s)
        report = await carry_out(self.site, plan, performer, run_id=run_id, approved_by="ada")
        return [result for _, result in report.results]

    async def set_active(self, name: str, is_active: bool) -> None:
        node = f"{PATH}/replicas/{name}/is_active"
        if is_active:
            await self.keeper.create(node)
        else:
            await self.keeper.remove(node)


def told(tmp_path, story):
    """Runs `story(Story)` in virtual time."""

    async def main(env, server):
        return await story(await Story(tmp_path, env, server).start())

    return simulated(main)


def ill(story: Story) -> None:
    story.n2.replica(is_readonly=1, readonly_duration=60)


def heals_by(story: Story, pattern: str):
    """n2 is well again after such a statement."""

    def on_command(sql):
        assert pattern in sql
        story.n2.replica(is_readonly=0)

        async def become_active():
            if await story.keeper.exists(f"{PATH}/replicas/n2/is_active") is None:
                await story.set_active("n2", True)

        return become_active()

    story.n2.on_command = on_command


# --- look, do, wait, prove ----------------------------------------------------------------------------------


def test_a_read_only_replica_is_restarted_and_its_parts_are_proven(tmp_path):
    async def story(s):
        ill(s)
        heals_by(s, "SYSTEM RESTART REPLICA `d`.`t`")
        await s.set_active("n2", False)
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.DONE
        assert "equal checksums of 1 parts on n1 on n1:9000, n2 on n2:9000" in result.detail

    told(tmp_path, story)


def test_a_replica_that_is_well_again_is_left_alone(tmp_path):
    async def story(s):
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.NOT_NEEDED
        assert s.n2.commands == []

    told(tmp_path, story)


def test_a_repair_that_shows_no_effect_has_failed(tmp_path):
    async def story(s):
        ill(s)
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.FAILED
        assert "After 10 s: it is read-only" in result.detail
        assert len(s.n2.commands) == 1

    told(tmp_path, story)


def test_a_repair_is_waited_for_until_it_shows_its_effect_and_no_longer(tmp_path):
    async def story(s):
        ill(s)
        await s.set_active("n2", False)
        healing = []

        async def heal_later():
            await s.env.sleep(30)
            s.n2.replica(is_readonly=0)
            await s.set_active("n2", True)

        s.n2.on_command = lambda sql: healing.append(asyncio.ensure_future(heal_later()))
        began_s = s.env.monotonic_s()
        [result] = await s.run(s.act(Repair.RESTART_REPLICA), wait_s=600)
        assert result.state is ActState.DONE
        assert 30 <= s.env.monotonic_s() - began_s < 35
        await asyncio.gather(*healing)

    told(tmp_path, story)


def test_a_repair_without_proof_has_failed_and_says_what_differs(tmp_path):
    async def story(s):
        ill(s)
        heals_by(s, "RESTART")
        s.n2.tables["parts"][0]["hash_of_all_files"] = "bb"
        s.n1.part("all_1_1_0", "cc")
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.FAILED
        assert "part all_0_0_0 has different checksums" in result.detail
        assert "part all_1_1_0 is not on n2" in result.detail

    told(tmp_path, story)


def test_parts_that_become_equal_while_they_are_waited_for_are_a_proof(tmp_path):
    async def story(s):
        s.n1.part("all_1_1_0", "cc")

        async def fetch():
            await s.env.sleep(5)
            s.n2.part("all_1_1_0", "cc")

        fetching = asyncio.ensure_future(fetch())
        proof = await prove(s.site, [PATH], wait_s=60)
        await fetching
        assert proof.is_equal
        assert [row["parts"] for row in proof.to_json()[0]["replicas"]] == [2, 2]

    told(tmp_path, story)


def test_servers_that_tell_no_checksums_are_compared_by_what_they_wrote_into_keeper(tmp_path):
    async def story(s):
        s.n1.answers.append(("hash_of_all_files", SqlError(Code.UNKNOWN_IDENTIFIER, "Unknown identifier")))
        for name, data in (("n1", b""), ("n2", b"")):
            part = f"{PATH}/replicas/{name}/parts/all_0_0_0"
            await s.keeper.create(part, data)
            await s.keeper.create(f"{part}/checksums", b"sums")
        assert (await prove(s.site, [PATH], wait_s=0)).is_equal
        await s.keeper.set(f"{PATH}/replicas/n2/parts/all_0_0_0/checksums", b"others")
        proof = await prove(s.site, [PATH], wait_s=0)
        assert not proof.is_equal and "different checksums" in proof.words

    told(tmp_path, story)


def test_the_answer_to_a_statement_does_not_matter_what_is_seen_does(tmp_path):
    async def story(s):
        ill(s)

        def on_command(sql):
            s.n2.replica(is_readonly=0)
            return ReplyLost("no answer in time")

        s.n2.on_command = on_command
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.DONE

    told(tmp_path, story)


def test_a_statement_that_the_server_refuses_is_a_failure_with_its_reason(tmp_path):
    async def story(s):
        ill(s)
        s.n2.on_command = lambda sql: SqlError(Code.SYNTAX_ERROR, "no such command")
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.FAILED and "no such command" in result.detail

    told(tmp_path, story)


# --- bounds -------------------------------------------------------------------------------------------------


def test_the_second_replica_of_a_table_is_refused_while_the_first_is_not_well(tmp_path):
    """1. n1's repair does not help. 2. n2's, which would be allowed, is refused."""

    async def story(s):
        entry = {"database": "d", "table": "t", "last_exception": "Code: 234. x"}
        for node in (s.n1, s.n2):
            node.tables["replication_queue"] = [entry]
        s.n1.on_command = lambda sql: s.n1.replica(is_readonly=1) and None
        first, second = await s.run(s.act(Repair.RETRY_QUEUE, "n1"), s.act(Repair.RETRY_QUEUE, "n2"))
        assert first.state is ActState.FAILED
        assert second.state is ActState.REFUSED
        assert "another replica of its shard is not healthy: n1 (it is read-only)" in second.detail
        assert s.n2.commands == []

    told(tmp_path, story)


def test_parts_are_not_fetched_again_when_no_other_replica_can_be_read(tmp_path):
    async def story(s):
        for node in (s.n1, s.n2):
            node.answers.append((r"SELECT \*", SqlError(40, "Checksum doesn't match")))
        [result] = await s.run(s.act(Repair.REFETCH_PARTS))
        assert result.state is ActState.REFUSED and "no other replica could be read whole" in result.detail
        assert s.n2.commands == []

    told(tmp_path, story)


def test_of_a_table_that_keeper_lost_the_emptier_replica_is_not_the_first(tmp_path):
    async def story(s):
        for node, rows in ((s.n1, 9), (s.n2, 5)):
            node.replica(is_readonly=1)
            node.answers.append((ROWS, [(rows,)]))
        await remove_recursive(s.keeper, PATH)
        [result] = await s.run(s.act(Repair.RESTORE_REPLICA, "n2"))
        assert result.state is ActState.REFUSED and "replica n1 has more rows (9)" in result.detail
        s.n1.version_ = ReplyLost("gone")
        [result] = await s.run(s.act(Repair.RESTORE_REPLICA, "n2"), run_id="again")
        assert result.state is ActState.REFUSED and "n1:9000, which may have more rows" in result.detail

    told(tmp_path, story)


@pytest.mark.parametrize("of_its_shard", [None, PATH, "/tables/other"])
def test_a_silent_host_of_another_shard_may_have_more_rows_unless_its_shard_has_another_path(
    tmp_path, of_its_shard
):
    """n4 is silent; n3, of the same shard, has no such table, has it under this path, or under another."""

    async def story(s):
        for node in (s.n1, s.n2):
            node.replica(is_readonly=1)
            node.answers.append((ROWS, [(9,)]))
        s.nodes[HOSTS[3]].version_ = ReplyLost("gone")
        if of_its_shard is not None:
            s.nodes[HOSTS[2]].replica(zookeeper_path=of_its_shard)
            s.nodes[HOSTS[2]].answers.append((ROWS, [(1,)]))
        s.nodes[HOSTS[2]].answers.append(
            (r"SELECT zookeeper_path FROM", [(of_its_shard,)] if of_its_shard is not None else [])
        )
        await remove_recursive(s.keeper, PATH)
        [result] = await s.run(s.act(Repair.RESTORE_REPLICA, "n2"))
        if of_its_shard == "/tables/other":
            assert s.n2.commands == ["SYSTEM RESTORE REPLICA `d`.`t`"]
        else:
            assert result.state is ActState.REFUSED and "n4:9000, which may have more rows" in result.detail
            assert s.n2.commands == []

    told(tmp_path, story)


def test_a_replica_whose_table_is_detached_keeps_its_place_in_keeper(tmp_path):
    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, [(1,)])]
        await s.set_active("n2", False)
        [result] = await s.run(s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t …"))
        assert result.state is ActState.REFUSED and "d.t is detached on n2:9000" in result.detail
        assert s.n2.commands == []
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is not None

    told(tmp_path, story)


def test_a_replica_is_not_dropped_where_the_host_has_another_table_of_that_name(tmp_path):
    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers.append((COUNT, [(1,)]))
        await s.set_active("n2", False)
        [result] = await s.run(s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t …"))
        assert result.state is ActState.REFUSED and "another table called d.t" in result.detail
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is not None

    told(tmp_path, story)


@pytest.mark.parametrize("what", ["silent", "may not say its replicas", "may not say what is detached"])
def test_a_replica_is_not_dropped_while_its_host_does_not_say_that_it_lacks_the_table(tmp_path, what):
    """It has the table, and is not connected to Keeper just now."""

    async def story(s):
        await s.set_active("n2", False)
        denied = SqlError(497, "Not enough privileges")
        if what == "silent":
            s.n2.version_ = ReplyLost("gone")
        elif what == "may not say its replicas":
            s.n2.answers.append((r"FROM system\.replicas", denied))
        else:
            s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, denied if what.endswith("detached") else [(0,)])]
        [result] = await s.run(s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t …"))
        assert result.state in (ActState.REFUSED, ActState.FAILED)
        assert s.n2.commands == []
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is not None

    told(tmp_path, story)


def test_a_server_that_knows_no_detached_tables_has_its_lost_replica_cloned(tmp_path):
    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, SqlError(60, "no system.detached_tables"))]
        await s.set_active("n2", False)

        async def create():
            s.n2.tables["replicas"] = [
                {"database": "d", "table": "t", "zookeeper_path": PATH, "replica_name": "n2"}
            ]
            await register(s.keeper, "n2")

        s.n2.on_command = lambda sql: create() if "AGAIN" in sql else None
        [result] = await s.run(s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t AGAIN"))
        assert result.state is ActState.DONE
        assert s.n2.commands == ["CREATE DATABASE IF NOT EXISTS `d`", "CREATE TABLE d.t AGAIN"]

    told(tmp_path, story)


def test_a_replica_that_has_become_active_is_not_dropped(tmp_path):
    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, [(0,)])]
        [result] = await s.run(s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t …"))
        assert result.state is ActState.REFUSED and "active in Keeper" in result.detail

    told(tmp_path, story)


# --- interruptions ------------------------------------------------------------------------------------------


def test_a_repair_that_was_interrupted_half_way_goes_on_where_it_was(tmp_path):
    """1. The replica is dropped from Keeper. 2. The process dies in the CREATE. 3. The run is resumed."""

    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, [(0,)])]
        await s.set_active("n2", False)
        act = s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t AGAIN")
        dying = asyncio.Event()

        async def die():
            dying.set()
            await asyncio.sleep(10_000)

        s.n2.on_command = lambda sql: die() if "AGAIN" in sql else None
        run = asyncio.ensure_future(s.run(act))
        await dying.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is None
        assert s.site.records.acts_of("r")[act.act_id].state is ActState.STARTED

        async def create():
            s.n2.tables["replicas"] = [
                {"database": "d", "table": "t", "zookeeper_path": PATH, "replica_name": "n2"}
            ]
            await register(s.keeper, "n2")

        s.n2.on_command = lambda sql: create() if "AGAIN" in sql else None
        [result] = await s.run(act)
        assert result.state is ActState.DONE
        before = list(s.n2.commands)
        assert [again.state for again in await s.run(act)] == [ActState.DONE]
        assert s.n2.commands == before

    told(tmp_path, story)


def test_a_replica_whose_table_cannot_be_created_stays_half_done_until_it_can(tmp_path):
    """1. It is dropped from Keeper and the CREATE fails. 2. n1 is ill: it waits. 3. It goes on."""

    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, [(0,)])]
        await s.set_active("n2", False)
        act = s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t AGAIN")
        s.n2.on_command = lambda sql: SqlError(243, "No space left") if "AGAIN" in sql else None
        [result] = await s.run(act, run_id="mending")
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is None
        assert result.state is ActState.STARTED
        assert "replica n2 was dropped from Keeper and n2:9000 does not have d.t yet" in result.detail
        assert "No space left" in result.detail and "resume the run mending" in result.detail

        s.n1.replica(is_readonly=1)
        [result] = await s.run(act, run_id="mending")
        assert result.state is ActState.STARTED and "n1 (it is read-only)" in result.detail
        s.n1.replica(is_readonly=0)

        async def create():
            s.n2.tables["replicas"] = [
                {"database": "d", "table": "t", "zookeeper_path": PATH, "replica_name": "n2"}
            ]
            await register(s.keeper, "n2")

        s.n2.on_command = lambda sql: create() if "AGAIN" in sql else None
        [result] = await s.run(act, run_id="mending")
        assert result.state is ActState.DONE

    told(tmp_path, story)


def test_a_create_that_got_lost_leaves_the_replica_half_done_when_the_wait_is_over(tmp_path):
    """No health check would miss the replica any more: only the act that is still open says so."""

    async def story(s):
        s.n2.tables["replicas"] = []
        s.n2.answers += [(COUNT, [(0,)]), (DETACHED, [(0,)])]
        await s.set_active("n2", False)
        s.n2.on_command = lambda sql: ReplyLost("gone") if "AGAIN" in sql else None
        act = s.act(Repair.RECLONE_REPLICA, create="CREATE TABLE d.t AGAIN")
        [result] = await s.run(act)
        assert await s.keeper.exists(f"{PATH}/replicas/n2") is None
        assert result.state is ActState.STARTED and "does not have d.t yet" in result.detail

    told(tmp_path, story)


def test_a_second_operator_is_refused_with_the_name_of_the_first(tmp_path):
    async def story(s):
        ill(s)
        began = asyncio.Event()

        async def hang():
            began.set()
            await asyncio.sleep(10_000)

        s.n2.on_command = lambda sql: hang()
        first = asyncio.ensure_future(s.run(s.act(Repair.RESTART_REPLICA)))
        await began.wait()
        other = site(tmp_path, s.env, await s.server.connect(), clients=s.nodes, operator="bob@there")
        plan = Plan("repair", CLUSTER, (s.act(Repair.RESTART_REPLICA),))
        with pytest.raises(Busy, match="ada@here"):
            await carry_out(other, plan, repair_performer(other), run_id="other", approved_by="bob")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    told(tmp_path, story)


def test_when_keeper_goes_away_after_the_statement_the_outcome_stays_open(tmp_path):
    async def story(s):
        ill(s)

        def on_command(sql):
            s.site.keeper_or_none = None

        s.n2.on_command = on_command
        keeper = s.keeper
        performer = repair_performer(s.site, wait_s=10)
        plan = Plan("repair", CLUSTER, (s.act(Repair.RESTART_REPLICA),))
        report = await carry_out(s.site, plan, performer, run_id="r", approved_by="ada")
        assert report.count(ActState.STARTED) == 1
        s.site.keeper_or_none = keeper
        s.n2.replica(is_readonly=0)
        [result] = await s.run(s.act(Repair.RESTART_REPLICA))
        assert result.state is ActState.NOT_NEEDED

    told(tmp_path, story)


# --- single repairs -----------------------------------------------------------------------------------------


def test_the_flag_is_taken_back_when_it_does_not_help(tmp_path):
    async def story(s):
        ill(s)
        s.n2.part("all_9_9_0", "of nobody else")
        await s.set_active("n2", False)
        flag = f"{PATH}/replicas/n2/flags/force_restore_data"
        seen = []

        async def look():
            seen.append(await s.keeper.exists(flag) is not None)

        s.n2.on_command = lambda sql: look()
        [result] = await s.run(s.act(Repair.FORCE_RESTORE_DATA))
        assert result.state is ActState.FAILED
        assert seen == [True]
        assert await s.keeper.exists(flag) is None
        assert (await s.keeper.get(f"{PATH}/replicas/n2/is_lost")).data == b"0", "it clones nobody by that"

    told(tmp_path, story)


def test_a_replica_that_is_well_again_and_has_a_part_that_others_fetch_is_not_made_to_clone(tmp_path):
    async def story(s):
        s.n2.part("all_1_1_0", "new")
        fetching = asyncio.create_task(fetched_later(s))
        [result] = await s.run(s.act(Repair.FORCE_RESTORE_DATA))
        await fetching
        assert (result.state, s.n2.commands) == (ActState.NOT_NEEDED, [])

    async def fetched_later(s):
        await s.env.sleep(1)
        s.n1.part("all_1_1_0", "new")

    told(tmp_path, story)


def test_of_a_table_that_keeper_lost_a_host_that_may_not_say_its_replicas_may_have_more_rows(tmp_path):
    async def story(s):
        s.n2.replica(is_readonly=1)
        s.n1.answers.append((r"FROM system\.replicas", SqlError(497, "Not enough privileges")))
        s.n2.answers.append((ROWS, [(5,)]))
        await remove_recursive(s.keeper, PATH)
        [result] = await s.run(s.act(Repair.RESTORE_REPLICA, "n2"))
        assert result.state is ActState.REFUSED and "n1:9000, which may have more rows" in result.detail

    told(tmp_path, story)


def test_a_replica_that_lacks_parts_after_the_flag_clones_another_one(tmp_path):
    async def story(s):
        """1. The flag sets all parts aside. 2. They are not those of n1, so it clones n1."""
        ill(s)
        await s.set_active("n2", False)
        root = f"{PATH}/replicas/n2"
        parts = s.n2.tables["parts"]

        async def restart():
            if (await s.keeper.get(f"{root}/is_lost")).data == b"1":
                s.n2.tables["parts"] = parts
                await s.keeper.set(f"{root}/is_lost", b"0")
                return
            assert await s.keeper.exists(f"{root}/flags/force_restore_data") is not None
            await s.keeper.remove(f"{root}/flags/force_restore_data")
            s.n2.tables["parts"] = []
            s.n2.replica(is_readonly=0)
            await s.set_active("n2", True)

        s.n2.on_command = lambda sql: restart()
        [result] = await s.run(s.act(Repair.FORCE_RESTORE_DATA))
        assert result.state is ActState.DONE, result.detail
        assert s.n2.commands == ["SYSTEM RESTART REPLICA `d`.`t`"] * 2
        [again] = await s.run(s.act(Repair.FORCE_RESTORE_DATA), run_id="again")
        assert again.state is ActState.NOT_NEEDED

    told(tmp_path, story)


def test_a_server_that_tries_in_vain_is_not_taken_for_another_one_that_holds_the_replica(tmp_path):
    async def story(s):
        assert await is_kept_active(s.keeper, s.env, PATH, "n2")

        async def try_again():
            while True:
                await s.set_active("n2", False)
                await s.set_active("n2", True)
                await s.env.sleep(1)

        trying = asyncio.ensure_future(try_again())
        assert not await is_kept_active(s.keeper, s.env, PATH, "n2")
        trying.cancel()
        await asyncio.wait([trying])

    told(tmp_path, story)


def test_a_mutation_that_has_recovered_is_not_killed(tmp_path):
    async def story(s):
        mutation = {"database": "d", "table": "t", "mutation_id": "0000000001", "latest_fail_reason": ""}
        another = {**mutation, "mutation_id": "0000000002", "latest_fail_reason": "boom"}
        elsewhere = {**mutation, "table": "u", "latest_fail_reason": "boom"}
        s.n2.tables["replicas"].append({**s.n2.replica(), "table": "u", "zookeeper_path": "/tables/u"})
        s.n2.tables["mutations"] = [mutation, another, elsewhere]
        [result] = await s.run(s.act(Repair.KILL_MUTATION, mutation_id="0000000001"))
        assert result.state is ActState.NOT_NEEDED and s.n2.commands == []
        mutation["latest_fail_reason"] = "boom"
        s.n2.on_command = lambda sql: s.n2.tables.update(mutations=[])
        [result] = await s.run(s.act(Repair.KILL_MUTATION, mutation_id="0000000001"), run_id="again")
        assert result.state is ActState.DONE
        assert s.n2.commands == [
            "KILL MUTATION WHERE database = 'd' AND table = 't' AND mutation_id = '0000000001'"
        ]

    told(tmp_path, story)


@pytest.mark.parametrize("still", [{"is_readonly": 1}, {"is_session_expired": 1}])
def test_a_host_whose_tables_do_not_come_back_has_not_been_repaired(tmp_path, still):
    async def story(s):
        s.n2.replica(is_readonly=1, is_session_expired=1)
        s.n2.on_command = lambda sql: (
            s.n2.replica(**{"is_readonly": 0, "is_session_expired": 0, **still}) and None
        )
        [result] = await s.run(s.act(Repair.RESTART_REPLICAS), wait_s=20)
        assert result.state is ActState.FAILED
        assert result.detail == "After 20 s these tables are still read-only: d.t."
        assert s.n2.commands == ["SYSTEM RESTART REPLICAS"]

    told(tmp_path, story)


def test_a_host_whose_tables_come_back_a_while_after_the_restart_has_been_repaired(tmp_path):
    """The answer gets lost, too: what is looked at decides."""

    async def story(s):
        s.n2.replica(is_readonly=1, is_session_expired=1)
        later = []

        async def come_back():
            await s.env.sleep(8)
            s.n2.replica(is_readonly=0, is_session_expired=0)

        async def restart():
            later.append(asyncio.ensure_future(come_back()))
            raise ReplyLost("gone")

        s.n2.on_command = lambda sql: restart()
        [result] = await s.run(s.act(Repair.RESTART_REPLICAS), wait_s=600)
        assert result.state is ActState.DONE
        await asyncio.gather(*later)
        [result] = await s.run(s.act(Repair.RESTART_REPLICAS), run_id="again")
        assert result.state is ActState.NOT_NEEDED
        assert s.n2.commands == ["SYSTEM RESTART REPLICAS"]

    told(tmp_path, story)


def test_all_replicas_of_a_host_are_restarted_when_its_session_is_lost(tmp_path):
    async def story(s):
        s.n2.replica(is_readonly=1, is_session_expired=1)
        s.n2.on_command = lambda sql: s.n2.replica(is_readonly=0, is_session_expired=0) and None
        [result] = await s.run(s.act(Repair.RESTART_REPLICAS))
        assert result.state is ActState.DONE and "1 tables have equal checksums" in result.detail
        assert s.n2.commands == ["SYSTEM RESTART REPLICAS"]

    told(tmp_path, story)
