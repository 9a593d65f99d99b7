"""Arrays on their way to a device and back keep their values, however late the device is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.recording_device import RecordingDevice
from support.steps import batch_of_rows

from runtime.srt.execution.device import Stream
from runtime.srt.execution.device_slot_table import DeviceSlotTable
from runtime.srt.execution.packed_arrays import PackedLayout
from runtime.srt.execution.result_ring import ResultRing, ResultsToCome
from runtime.srt.execution.staging import ForwardUploads, StagingRing


def _streams(device: RecordingDevice) -> tuple[Stream, Stream]:
    return device.new_stream("copy"), device.new_stream("forward")


def test_arrays_of_all_types_share_one_buffer() -> None:
    arrays = {
        "a": np.arange(3, dtype=np.int64),
        "b": np.arange(5, dtype=np.int32).reshape(1, 5),
        "empty": np.empty(0, dtype=np.int64),
        "c": np.array([0.5, -1.5], dtype=np.float32),
    }
    layout = PackedLayout(arrays)
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)

    layout.fill(buffer.numpy())

    for name, tensor in layout.views(buffer).items():
        assert tensor.data_ptr() % 16 == 0 or not tensor.numel()
        assert np.array_equal(tensor.numpy(), arrays[name])


def test_an_upload_is_there_for_who_waits_for_it() -> None:
    device = RecordingDevice()
    copy, forward = _streams(device)
    ring = StagingRing(device, copy)

    for step in range(6):
        staged = ring.upload({"x": np.full(4, step, dtype=np.int64)})
        forward.wait_for(staged.uploaded)
        assert staged.tensors["x"].tolist() == [step] * 4
        staged.release(forward.record())

    assert device.host_waits == []


def test_an_upload_that_nobody_waited_for_is_found() -> None:
    device = RecordingDevice()
    copy, _ = _streams(device)
    staged = StagingRing(device, copy).upload({"x": np.full(4, 7, dtype=np.int64)})

    assert staged.tensors["x"].tolist() != [7] * 4


def test_a_buffer_that_was_not_released_is_not_overwritten() -> None:
    device = RecordingDevice()
    copy, forward = _streams(device)
    ring = StagingRing(device, copy)
    for _ in range(2):
        forward.wait_for(ring.upload({"x": np.zeros(1, dtype=np.int64)}).uploaded)

    with pytest.raises(AssertionError, match="not released"):
        ring.upload({"x": np.zeros(1, dtype=np.int64)})


def test_a_release_before_the_last_read_is_found() -> None:
    device = RecordingDevice()
    copy, forward = _streams(device)
    ring = StagingRing(device, copy)
    too_early = forward.record()

    with pytest.raises(AssertionError, match="copy overwrites what forward may still read"):
        for _ in range(4):
            staged = ring.upload({"x": np.zeros(1, dtype=np.int64)})
            forward.wait_for(staged.uploaded)
            staged.release(too_early)


def test_larger_arrays_grow_the_buffers() -> None:
    device = RecordingDevice()
    copy, forward = _streams(device)
    ring = StagingRing(device, copy)

    for size in (10, 100_000, 10, 100_000):
        staged = ring.upload({"x": np.arange(size, dtype=np.int64)})
        forward.wait_for(staged.uploaded)
        assert staged.tensors["x"][-1] == size - 1
        staged.release(forward.record())


def test_uploads_of_the_forward_pass_last_until_the_next_one() -> None:
    device = RecordingDevice()
    copy, forward = _streams(device)
    upload = ForwardUploads(device, copy, forward)

    for step in range(5):
        tensors = upload({"x": np.full(3, step, dtype=np.int32)})
        assert tensors["x"].tolist() == [step] * 3
    assert device.host_waits == []


def test_results_are_read_after_the_next_ones_are_on_their_way() -> None:
    device = RecordingDevice()
    stream = device.new_stream("forward")
    ring = ResultRing(device, stream)

    def download(value: int) -> ResultsToCome:
        with device.running_on(stream):
            return ring.download({"x": torch.full((2,), value), "y": torch.tensor([value * 0.5])})

    pending = download(0)
    for step in range(1, 5):
        following = download(step)
        found = pending.read()
        assert found["x"].tolist() == [step - 1] * 2
        assert found["y"].tolist() == [(step - 1) * 0.5]
        pending = following


def test_results_that_nobody_has_read_are_not_overwritten() -> None:
    device = RecordingDevice()
    stream = device.new_stream("forward")
    ring = ResultRing(device, stream)

    with device.running_on(stream), pytest.raises(AssertionError, match="overwritten unread"):
        for _ in range(3):
            ring.download({"x": torch.zeros(1)})


def test_the_devices_slot_table_follows_every_change() -> None:
    rng = np.random.default_rng(0)
    host = np.zeros((6, 40), dtype=np.int32)
    table = DeviceSlotTable(6, 40, torch.device("cpu"))
    for _ in range(60):
        rows = rng.choice(np.arange(1, 6), size=rng.integers(1, 5), replace=False)
        lens = rng.integers(1, 41, size=len(rows))
        for row, kv_len in zip(rows, lens, strict=True):
            begin = rng.integers(0, kv_len)
            host[row, begin:kv_len] = rng.integers(1, 1000, kv_len - begin)
        batch = batch_of_rows([(1, int(kv_len)) for kv_len in lens], rows.tolist(), 40)
        batch.slot_table[: len(host)] = host[: len(batch.slot_table)]
        changes = table.changes(batch)
        table.apply({name: torch.from_numpy(one) for name, one in changes.items()})

        for row, kv_len in zip(rows, lens, strict=True):
            assert table.slots[row, :kv_len].tolist() == host[row, :kv_len].tolist()
        assert not any(len(one) for one in table.changes(batch).values())


def test_a_decode_step_sends_one_slot_per_row() -> None:
    table = DeviceSlotTable(9, 40, torch.device("cpu"))
    table.changes(batch_of_rows([(1, 20)] * 3, columns=40))

    longer = batch_of_rows([(1, 20)] * 3, columns=40)
    longer.slot_table[1:4, 20] = [90, 91, 92]
    longer.kv_lens[:] = 21

    assert table.changes(longer)["changed_slots"].tolist() == [90, 91, 92]
