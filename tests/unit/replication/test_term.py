"""Activation, and the end of a session."""

from __future__ import annotations

import asyncio
from copy import deepcopy as copy_of

import pytest

from engine.errors import SqlError
from engine.keeper.base import Keeper
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.view import local_status
from tests.unit.replication.support import SESSION_TIMEOUT_S, WITHOUT_MERGES, Bench, simulated


@simulated
async def test_an_active_replica_shows_its_identity_and_its_address(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    node = await bench.admin.get(one.ctx.me.is_active)
    assert node.data == f"UUID_{one.ctx.server_uuid}".encode()
    assert node.stat.ephemeral_owner == one.ctx.session().session_id
    assert (await bench.admin.get(one.ctx.me.host)).data.startswith(b"host: r1\nport: 9009\n")
    assert (await bench.admin.get(one.ctx.me.root)).data == b""
    one.ctx.host_id = "n1:9000"  # its name in the clusters
    await one.table.stop()
    assert await bench.admin.exists(one.ctx.me.is_active) is None
    assert one.ctx.is_readonly
    await one.table.start()
    assert await one.table.wait_until_active(timeout_s=5)
    assert (await bench.admin.get(one.ctx.me.root)).data == b"n1:9000"


@simulated
async def test_without_a_session_the_replica_is_read_only_at_once_and_comes_back_by_itself(
    bench: Bench,
) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await bench.quiet(one, two)
    bench.server.partition("r1")
    await bench.until(lambda: one.ctx.is_readonly)
    with pytest.raises(SqlError) as refused:
        one.ctx.session()
    assert refused.value.code == 242
    assert one.values == [1]
    await two.insert(2)
    await bench.until(lambda: "; no session with Keeper: No answer" in one.ctx.why_readonly)
    assert local_status(one.ctx).readonly_reason == one.ctx.why_readonly
    bench.server.heal("r1")
    await bench.quiet(one, two)
    assert one.values == [1, 2] and not one.ctx.is_readonly
    assert local_status(one.ctx).readonly_reason == ""
    await one.insert(3)


@simulated
async def test_of_a_table_that_ends_nobody_is_told_that_it_comes_back_by_itself(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    one.ctx.ending.set()
    await one.table.stop()
    with pytest.raises(SqlError, match="detached, dropped or replaced") as refused:
        one.ctx.session()
    assert refused.value.code == 242 and "by itself" not in refused.value.hint


@simulated
async def test_an_expired_session_ends_the_term_before_anything_else_is_done_with_it(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    before = one.ctx.session()
    seen: list[bool] = []
    before.on_expired(lambda: seen.append(one.ctx.is_readonly))
    bench.server.expire_session(before.session_id)
    await bench.until(lambda: bool(seen) and not one.ctx.is_readonly)
    assert seen == [True] and one.ctx.session() is not before


@simulated
async def test_two_nodes_that_claim_one_replica_name_are_never_active_both(bench: Bench) -> None:
    """1. r1 runs on node r1. 2. Another server has the same macros: read-only. 3. The first goes away."""
    (one,) = await bench.cluster(1)
    other = await bench.start("r1", create=False, is_awaited=False, server_uuid=99, node="r9", disk=one.disk)
    await bench.env.sleep(30)
    assert other.ctx.is_readonly and "(REPLICA_IS_ALREADY_ACTIVE)" in other.ctx.readonly_reason
    assert not one.ctx.is_readonly
    await one.stop()
    await bench.until(lambda: not other.ctx.is_readonly)


@simulated
async def test_what_an_earlier_session_of_the_same_server_left_is_taken_over(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.insert(1)
    await bench.crash(one)
    again = await bench.start("r1", one.disk, node="r1b", address="r1", is_awaited=False)
    await bench.until(lambda: not again.ctx.is_readonly, timeout_s=SESSION_TIMEOUT_S / 2)
    assert again.values == [1]


@simulated
async def test_of_a_server_and_one_with_a_copy_of_its_data_directory_one_is_active(bench: Bench) -> None:
    """They have the same identity, too, and would take the replica from each other again and again, each with
    rows that the other does not have."""
    (one,) = await bench.cluster(1)
    await one.insert(1)
    copy = await bench.start("r1", copy_of(one.disk), node="r9", is_awaited=False)
    began = asyncio.ensure_future(one.ctx.term_began.wait())
    await bench.env.sleep(60)
    assert not began.done() and not one.ctx.is_readonly
    assert copy.ctx.is_readonly and "(REPLICA_IS_ALREADY_ACTIVE)" in copy.ctx.readonly_reason
    await bench.crash(one)
    await bench.until(lambda: not copy.ctx.is_readonly)
    began.cancel()


@simulated
async def test_an_is_active_that_no_session_owns_keeps_nobody_out(bench: Bench) -> None:
    """Of a copy of Keeper's tree, in which the replica was another server's."""
    (one,) = await bench.cluster(1)
    await bench.crash(one)
    await bench.env.sleep(SESSION_TIMEOUT_S)
    await bench.admin.create(one.ctx.me.is_active, b"another server")
    again = await bench.start("r1", one.disk, is_awaited=False)
    await bench.until(lambda: not again.ctx.is_readonly, timeout_s=SESSION_TIMEOUT_S)
    assert (await bench.admin.get(one.ctx.me.is_active)).stat.ephemeral_owner


@simulated
async def test_a_replica_whose_is_active_is_removed_by_somebody_activates_anew(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    again = asyncio.ensure_future(one.ctx.term_began.wait())
    await asyncio.sleep(0)
    await bench.admin.remove(one.ctx.me.is_active)
    await again
    assert await bench.admin.exists(one.ctx.me.is_active) is not None


@simulated
async def test_a_replica_that_is_not_in_keeper_is_read_only_and_says_so(bench: Bench) -> None:
    one = await bench.start("r1", create=False, is_awaited=False)
    await bench.env.sleep(5)
    assert one.ctx.is_readonly and "No metadata in Keeper" in one.ctx.readonly_reason
    await bench.create("r1")
    await bench.until(lambda: not one.ctx.is_readonly)


@simulated
async def test_an_error_in_the_program_ends_the_term_and_not_the_replica(bench: Bench) -> None:
    failures = 0

    async def fails_once(_ctx: ReplicaContext) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise KeyError("a bug")
        await asyncio.Event().wait()

    one = await bench.start("r1", loops=(*WITHOUT_MERGES, fails_once), is_awaited=False)
    await bench.until(lambda: bool(one.table.program_errors))
    assert one.ctx.is_readonly and "a bug" in one.ctx.readonly_reason
    await bench.until(lambda: not one.ctx.is_readonly)
    await one.insert(1)
    one.table.program_errors.clear()
    await one.stop()


@simulated
async def test_a_loop_that_was_cancelled_by_what_it_waited_for_ends_the_term_and_not_the_replica(
    bench: Bench,
) -> None:
    failures = 0

    async def waits_for_what_is_given_up(_ctx: ReplicaContext) -> None:
        nonlocal failures
        failures += 1
        given_up = asyncio.get_running_loop().create_future()
        if failures == 1:
            given_up.cancel()
        await given_up

    one = await bench.start("r1", loops=(*WITHOUT_MERGES, waits_for_what_is_given_up), is_awaited=False)
    await bench.until(lambda: failures == 2 and not one.ctx.is_readonly)
    await one.insert(1)
    assert "was cancelled" in repr(one.table.program_errors.pop())
    await one.stop()


@simulated
async def test_an_activation_that_was_cancelled_by_what_it_waited_for_is_tried_again(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    await one.table.stop()
    holder, asked = one.ctx.holder, 0
    get = holder.get

    async def given_up_once() -> Keeper:
        nonlocal asked
        asked += 1
        if asked == 1:
            given_up: asyncio.Future[Keeper] = asyncio.get_running_loop().create_future()
            given_up.cancel()
            return await given_up
        return await get()

    holder.get = given_up_once  # type: ignore[method-assign]
    await one.table.start()
    await bench.until(lambda: not one.ctx.is_readonly)
    assert "cancelled" in repr(one.table.program_errors.pop())
