"""Channels: typed messages between processes, in a private directory that goes with its owner."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from runtime.srt.messages import AbortRequest, Stop, ToScheduler
from runtime.srt.processes import channels
from runtime.srt.processes.channels import Inbox, IpcDirectory, Outbox, address


@pytest.fixture
def directory() -> Iterator[IpcDirectory]:
    one = IpcDirectory()
    yield one
    one.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as one:  # its end waits for all sockets to be closed
        yield one


def _inbox(context: zmq.Context[zmq.Socket[bytes]], directory: IpcDirectory) -> Inbox[ToScheduler]:
    return Inbox(context, address(directory.path, "it"), msgspec.msgpack.Decoder(ToScheduler))


def test_messages_sent_before_the_receiver_exists_arrive_in_order(
    context: zmq.Context[zmq.Socket[bytes]], directory: IpcDirectory
) -> None:
    outbox = Outbox(context, address(directory.path, "it"))
    for index in range(3000):  # more than ZeroMQ's default limit of 1000
        outbox.send(AbortRequest(str(index)))
    outbox.send(Stop())

    inbox = _inbox(context, directory)
    received: list[ToScheduler] = []
    while len(received) < 3001:
        assert inbox.wait(5)
        received += inbox.drain()

    assert received[:-1] == [AbortRequest(str(index)) for index in range(3000)]
    assert received[-1] == Stop()
    outbox.close()
    inbox.close()


def test_drain_without_messages_returns_at_once(
    context: zmq.Context[zmq.Socket[bytes]], directory: IpcDirectory
) -> None:
    inbox = _inbox(context, directory)

    assert inbox.drain() == []
    assert not inbox.wait(0)
    inbox.close()


def test_an_attached_loop_sees_every_message_of_a_burst(
    context: zmq.Context[zmq.Socket[bytes]], directory: IpcDirectory
) -> None:
    outbox = Outbox(context, address(directory.path, "it"))
    inbox = _inbox(context, directory)
    received: list[ToScheduler] = []

    async def run() -> None:
        inbox.attach(asyncio.get_running_loop(), received.append)
        for burst in range(3):
            for index in range(2000):
                outbox.send(AbortRequest(f"{burst}-{index}"))
            async with asyncio.timeout(5):
                while len(received) < 2000 * (burst + 1):
                    await asyncio.sleep(0.001)
        inbox.close()

    asyncio.run(run())
    outbox.close()

    assert len({one.rid for one in received if isinstance(one, AbortRequest)}) == 6000


def test_the_directory_is_private_and_removed_on_close() -> None:
    directory = IpcDirectory()

    assert directory.path.stat().st_mode & 0o777 == 0o700

    directory.close()
    directory.close()
    assert not directory.path.exists()


def test_a_directory_left_by_a_killed_engine_is_removed_and_a_live_one_kept(
    directory: IpcDirectory,
) -> None:
    abandoned = directory.path.with_name(f"{directory.path.name}-abandoned")
    abandoned.mkdir()
    long_ago = time.time() - 3600
    os.utime(abandoned, (long_ago, long_ago))
    os.utime(directory.path, (long_ago, long_ago))

    IpcDirectory().close()

    assert not abandoned.exists()
    assert directory.path.exists()


def test_a_long_temporary_folder_is_not_used_for_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    deep = os.path.join(str(tmp_path), "d" * 120)
    os.mkdir(deep)
    monkeypatch.setattr(channels.tempfile, "tempdir", deep)  # type: ignore[attr-defined]  # the module under test uses it

    directory = IpcDirectory()

    assert len(str(directory.path / "detokenizer")) < 100
    directory.close()
