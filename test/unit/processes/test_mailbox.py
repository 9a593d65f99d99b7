"""Mailbox: everything that was put comes out in order, to one reader that may wait."""

from __future__ import annotations

import asyncio

from runtime.srt.processes.mailbox import Mailbox


def test_items_come_in_order_whether_the_reader_waits_or_not() -> None:
    async def go() -> list[int]:
        mailbox: Mailbox[int] = Mailbox()
        mailbox.put(1)
        mailbox.put(2)
        early = [await mailbox.take(), await mailbox.take()]
        waiting = asyncio.ensure_future(mailbox.take())
        await asyncio.sleep(0)
        mailbox.put(3)
        mailbox.put(4)
        return [*early, await waiting, await mailbox.take()]

    assert asyncio.run(go()) == [1, 2, 3, 4]


def test_an_item_is_not_lost_with_a_reader_that_is_cancelled() -> None:
    async def go() -> int:
        mailbox: Mailbox[int] = Mailbox()
        reader = asyncio.ensure_future(mailbox.take())
        await asyncio.sleep(0)
        reader.cancel()
        mailbox.put(1)
        await asyncio.gather(reader, return_exceptions=True)
        return await mailbox.take()

    assert asyncio.run(go()) == 1


def test_it_is_awaited_only_while_a_reader_waits_and_nothing_is_there() -> None:
    async def go() -> list[bool]:
        mailbox: Mailbox[int] = Mailbox()
        seen = [mailbox.is_awaited]
        reader = asyncio.ensure_future(mailbox.take())
        await asyncio.sleep(0)
        seen.append(mailbox.is_awaited)
        mailbox.put(1)
        seen.append(mailbox.is_awaited)
        await reader
        seen.append(mailbox.is_awaited)
        return seen

    assert asyncio.run(go()) == [False, True, False, False]
