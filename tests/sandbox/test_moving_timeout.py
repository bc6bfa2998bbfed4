from __future__ import annotations

import asyncio

import pytest

from ipy_sandbox.sandbox.moving_timeout import MovingTimeout

pytestmark = pytest.mark.anyio


async def later(seconds: float, value: str) -> str:
    await asyncio.sleep(seconds)
    return value


async def test_waits_that_are_short_enough_pass_however_many() -> None:
    timeout = MovingTimeout()
    for n in range(30):
        assert await timeout.wait(later(0.01, str(n)), 0.2) == str(n)
    timeout.close()


async def test_a_wait_that_is_too_long_ends_and_the_next_works() -> None:
    timeout = MovingTimeout()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await timeout.wait(later(60, "never"), 0.02)
        assert await timeout.wait(later(0, "next"), 60) == "next"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    timeout.close()


async def test_a_limit_may_become_shorter_and_longer() -> None:
    timeout = MovingTimeout()
    await timeout.wait(later(0, "x"), 60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(timeout.wait(later(60, "never"), 0.02), 10)
    await timeout.wait(later(0, "x"), 0.02)
    assert await timeout.wait(later(0.1, "longer"), 60) == "longer"
    timeout.close()


async def test_expire_ends_the_present_wait_only() -> None:
    timeout = MovingTimeout()
    timeout.expire()
    assert await timeout.wait(later(0, "x"), 60) == "x"
    asyncio.get_running_loop().call_later(0.01, timeout.expire)
    asyncio.get_running_loop().call_later(0.01, timeout.expire)
    with pytest.raises(TimeoutError):
        await timeout.wait(later(60, "never"), 60)
    timeout.close()


async def test_a_cancel_from_outside_is_one_even_when_the_time_is_over() -> None:
    timeout = MovingTimeout()
    waiting = asyncio.ensure_future(timeout.wait(later(60, "never"), 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    waiting = asyncio.ensure_future(timeout.wait(later(60, "never"), 60))
    await asyncio.sleep(0)
    timeout.expire()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    timeout.close()


async def test_an_answer_in_the_last_moment_leaves_no_cancel_behind() -> None:
    timeout, answer = MovingTimeout(), asyncio.get_running_loop().create_future()

    async def reader() -> str:
        try:
            return str(await timeout.wait(answer, 60))
        except TimeoutError:
            return "too late"

    reading = asyncio.ensure_future(reader())
    await asyncio.sleep(0)
    answer.set_result("value")
    timeout.expire()
    assert await reading in ("value", "too late")
    assert reading.cancelling() == 0
    timeout.close()
