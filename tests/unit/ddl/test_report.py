"""What one host writes into an entry, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from engine.ddl.identity import NodeIdentity
from engine.ddl.report import Claim, Report, Reporter
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.errors import Busy, ConnectionLoss, NoNode
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.recipes import create_ancestors, remove_recursive
from engine.keeper.session import RequestKind
from tests.unit.ddl.support import PATHS, PORT, Bench, host, run

ME = NodeIdentity("a", PORT, UUID(int=7))
A = host("a")
SHARD = "a:9000,b:9000"
FAILED = ExecutionStatus(44, "no column")


def reporter(keeper: Keeper) -> Reporter:
    return Reporter(keeper, PATHS, ME)


async def entry_with(bench: Bench, *directories: str) -> tuple[str, Keeper]:
    """An entry with some of its directories, and a session."""
    name = await bench.put(b"whatever it says")
    keeper = await bench.keeper("a")
    for directory in directories:
        await keeper.create(f"{PATHS.entry(name)}/{directory}")
    return name, keeper


async def tree(keeper: Keeper, path: str) -> dict[str, bytes]:
    try:
        found = {path: (await keeper.get(path)).data}
        for name in (await keeper.children(path)).names:
            found |= await tree(keeper, f"{path}/{name}")
    except NoNode:
        return {}
    return found


# --- claims -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directories", [("active", "finished"), ()])
def test_a_claim_shows_who_is_at_it_for_as_long_as_the_session(directories: tuple[str, ...]) -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, *directories)
        for _ in range(2):  # also where the answer to the first was lost
            assert await reporter(keeper).claim(name, A) is Claim.CLAIMED
        claim = await keeper.get(PATHS.active(name, A))
        assert (claim.data, claim.stat.ephemeral_owner) == (ME.stamp, keeper.session_id)
        assert set((await keeper.children(PATHS.entry(name))).names) == {"active", "finished"}
        await reporter(keeper).unclaim(name, A)
        await reporter(keeper).unclaim(name, A)
        assert await keeper.exists(PATHS.active(name, A)) is None

    run(main)


def test_a_claim_of_an_earlier_session_of_this_server_is_replaced() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        earlier = await bench.keeper("a, earlier")
        await earlier.create(PATHS.active(name, A), ME.stamp, mode=CreateMode.EPHEMERAL)
        assert await reporter(keeper).claim(name, A) is Claim.CLAIMED
        assert (await keeper.get(PATHS.active(name, A))).stat.ephemeral_owner == keeper.session_id

    run(main)


def test_a_claim_of_another_server_is_waited_for_and_left_to_it() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        other = await bench.keeper("another server")
        await other.create(PATHS.active(name, A), b"its UUID", mode=CreateMode.EPHEMERAL)
        with pytest.raises(Busy):
            await reporter(keeper).claim(name, A)
        assert (await keeper.get(PATHS.active(name, A))).stat.ephemeral_owner == other.session_id

    run(main)


@pytest.mark.parametrize(
    ("directories", "is_there", "answer"),
    [(("finished",), True, Claim.BEING_REMOVED), ((), False, Claim.GONE)],
)
def test_nothing_is_claimed_of_an_entry_that_goes_or_is_gone(
    directories: tuple[str, ...], is_there: bool, answer: Claim
) -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, *directories)
        if not is_there:
            await remove_recursive(keeper, PATHS.entry(name))
        before = await tree(keeper, PATHS.root)
        assert await reporter(keeper).claim(name, A) is answer
        assert await tree(keeper, PATHS.root) == before

    run(main)


# --- outcomes ---------------------------------------------------------------------------------------------


async def of_the_shard(keeper: Keeper, name: str, status: ExecutionStatus) -> Report:
    """Claimed, under the shard's lock."""
    lock = PATHS.shard(name, SHARD, "lock")
    await create_ancestors(keeper, lock)
    await keeper.create(lock, b"a:9000", mode=CreateMode.EPHEMERAL)
    assert await reporter(keeper).claim(name, A) is Claim.CLAIMED
    return Report(name, A, status, executed_shard=SHARD, executed_by="b:9000", lock_path=lock)


@pytest.mark.parametrize("lost", [None, "request", "reply"])
@pytest.mark.parametrize("status", [SUCCESS, FAILED], ids=["success", "failure"])
def test_an_outcome_comes_with_everything_that_goes_with_it(
    status: ExecutionStatus, lost: str | None
) -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        report = await of_the_shard(keeper, name, status)
        if lost is not None:
            getattr(bench.server, f"lose_next_{lost}")(keeper.session_id, kind=RequestKind.MULTI)
            with pytest.raises(ConnectionLoss):
                await reporter(keeper).report(report)
        assert await reporter(keeper).report(report)
        shard = PATHS.shard(name, SHARD)
        assert await tree(keeper, PATHS.finished(name)) == {
            PATHS.finished(name): b"",
            PATHS.finished(name, A): status.to_bytes(),
        }
        assert await tree(keeper, PATHS.active(name)) == {PATHS.active(name): b""}
        assert await tree(keeper, shard) == {shard: b"", f"{shard}/executed": b"b:9000"}

    run(main)


def test_an_outcome_that_is_there_is_never_changed() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        report = await of_the_shard(keeper, name, SUCCESS)
        await keeper.create(PATHS.finished(name, A), FAILED.to_bytes())
        assert await reporter(keeper).report(report)
        assert (await keeper.get(PATHS.finished(name, A))).data == FAILED.to_bytes()
        assert await keeper.exists(PATHS.active(name, A)) is None, "nobody is at it any more"
        assert await keeper.exists(PATHS.shard(name, SHARD, "lock")) is None

    run(main)


def test_what_another_session_holds_is_not_given_back_with_an_outcome_that_is_there() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        report = await of_the_shard(await bench.keeper("another"), name, SUCCESS)
        await keeper.create(PATHS.finished(name, A), SUCCESS.to_bytes())
        assert await reporter(keeper).report(report)
        assert await keeper.exists(PATHS.shard(name, SHARD, "lock")) is not None
        assert await keeper.exists(PATHS.active(name, A)) is not None

    run(main)


def test_an_outcome_is_written_although_claim_and_lock_went_with_their_session() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        earlier = await bench.keeper("a, earlier")
        report = await of_the_shard(earlier, name, FAILED)
        await earlier.close()
        assert await reporter(keeper).report(report)
        assert (await keeper.get(PATHS.finished(name, A))).data == FAILED.to_bytes()
        assert (await keeper.get(PATHS.shard(name, SHARD, "executed"))).data == b"b:9000"

    run(main)


def test_another_executor_s_mark_of_the_shard_stays() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        report = await of_the_shard(keeper, name, SUCCESS)
        await keeper.create(PATHS.shard(name, SHARD, "executed"), b"c:9000")
        assert await reporter(keeper).report(report)
        assert (await keeper.get(PATHS.shard(name, SHARD, "executed"))).data == b"c:9000"
        assert (await keeper.get(PATHS.finished(name, A))).data == SUCCESS.to_bytes()

    run(main)


def test_of_an_entry_that_is_gone_nothing_is_made_again() -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, "active", "finished")
        report = await of_the_shard(keeper, name, SUCCESS)
        await remove_recursive(keeper, PATHS.entry(name))
        before = await tree(keeper, PATHS.root)
        assert not await reporter(keeper).report(report)
        assert not await reporter(keeper).report_without_claim(Report(name, A, FAILED))
        assert await tree(keeper, PATHS.root) == before

    run(main)


@pytest.mark.parametrize("directories", [(), ("active", "finished")])
def test_an_entry_that_never_got_to_run_has_its_outcome_and_whole_directories(
    directories: tuple[str, ...],
) -> None:
    async def main(bench: Bench) -> None:
        name, keeper = await entry_with(bench, *directories)
        assert await reporter(keeper).report_without_claim(Report(name, A, FAILED))
        assert (await keeper.get(PATHS.finished(name, A))).data == FAILED.to_bytes()
        assert set((await keeper.children(PATHS.entry(name))).names) == {"active", "finished"}

    run(main)


def test_outcomes_and_claims_go_together_or_not_at_all() -> None:
    async def main(bench: Bench) -> None:
        first, keeper = await entry_with(bench, "active", "finished")
        second, _ = await entry_with(bench, "active", "finished")
        report = replace(await of_the_shard(keeper, first, FAILED), executed_by=None)
        assert await reporter(keeper).report_and_claim([report], [(second, A)])
        assert (await keeper.get(PATHS.finished(first, A))).data == FAILED.to_bytes()
        assert (await keeper.get(PATHS.shard(first, SHARD, "executed"))).data == b"a:9000"
        assert (await keeper.get(PATHS.active(second, A))).stat.ephemeral_owner == keeper.session_id
        third, _ = await entry_with(bench, "active", "finished")
        before = await tree(keeper, PATHS.root)
        again = Report(second, A, SUCCESS)
        assert not await reporter(keeper).report_and_claim([again], [(third, A), (first + "0", A)])
        assert await tree(keeper, PATHS.root) == before
        await reporter(keeper).unclaim_all([(second, A), (third, A)])
        assert await keeper.exists(PATHS.active(second, A)) is None

    run(main)
