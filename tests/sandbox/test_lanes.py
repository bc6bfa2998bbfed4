from __future__ import annotations

import asyncio
import threading

import pytest

from ipy_sandbox.sandbox.lanes import Lane, Running

pytestmark = pytest.mark.anyio


async def test_turns_come_in_order_and_one_at_a_time() -> None:
    lane, order, inside = Lane(), list[int](), 0

    async def run(n: int) -> None:
        nonlocal inside
        async with lane.turn():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            order.append(n)
            inside -= 1

    await asyncio.gather(*(run(n) for n in range(20)))
    assert order == list(range(20))


async def test_who_leaves_the_queue_is_skipped_and_a_turn_just_given_is_handed_on() -> None:
    lane, got = Lane(), list[str]()

    async def run(name: str) -> None:
        async with lane.turn():
            got.append(name)

    async with lane.turn():
        waiting, handed, last = (asyncio.ensure_future(run(name)) for name in ("waiting", "handed", "last"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    # `handed` has its turn now, but has not woken up yet.
    handed.cancel()
    await asyncio.wait_for(last, 10)
    assert got == ["last"]
    async with lane.turn():
        pass


async def test_loops_share_a_lane_and_any_thread_stops_the_current_run() -> None:
    lane, entered = Lane(), threading.Event()

    async def elsewhere() -> str:
        async with lane.turn() as running:
            entered.set()
            await running.stopped.wait()
            return "stopped"

    other = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
    await asyncio.to_thread(entered.wait)
    mine = asyncio.ensure_future(lane.turn().__aenter__())
    await asyncio.sleep(0)
    assert not mine.done()
    lane.stop()
    assert await other == "stopped"
    assert isinstance(await asyncio.wait_for(mine, 10), Running)


async def test_a_stop_that_came_early_is_not_lost() -> None:
    running, called = Running(), list[str]()
    running.stop()
    await running.stopped.wait()
    with running.on_stop(lambda: called.append("early")):
        assert called == ["early"]
    running.stop()
    await asyncio.sleep(0)
    assert called == ["early"]


def test_stopping_nothing_does_nothing() -> None:
    Lane().stop()
