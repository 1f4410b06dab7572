"""Devices, streams and events as values."""

import copy
import pickle
import threading
import time

import pytest

from refruntime import _device
from refruntime._device import CPU, Device, Event, Stream, current_stream


@pytest.mark.parametrize(
    ("args", "text", "shown"),
    [
        (("cpu",), "cpu", "device(type='cpu')"),
        (("cuda",), "cuda", "device(type='cuda')"),
        (("cuda:0",), "cuda:0", "device(type='cuda', index=0)"),
        (("cuda", 3), "cuda:3", "device(type='cuda', index=3)"),
        ((2,), "cuda:2", "device(type='cuda', index=2)"),
        (("cpu:0",), "cpu:0", "device(type='cpu', index=0)"),
        ((CPU,), "cpu", "device(type='cpu')"),
    ],
)
def test_device_parses_and_prints(args, text, shown):
    device = Device(*args)
    assert str(device) == text
    assert repr(device) == shown
    assert Device(text) is device


def test_equal_devices_are_one_hashable_object():
    assert Device("cuda:1") is Device("cuda", 1)
    assert Device("cuda") != Device("cuda:0")
    assert {Device("cpu"): 1}[CPU] == 1
    assert pickle.loads(pickle.dumps(Device("cuda:1"))) is Device("cuda:1")
    assert copy.deepcopy(CPU) is CPU
    assert Device(type="cpu") is CPU


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "cuda:0:1", "CPU"]
)
def test_text_that_names_no_device_is_a_runtime_error(text):
    with pytest.raises(RuntimeError, match="device: "):
        Device(text)


def test_index_given_twice_or_negative_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="must not include an index"):
        Device("cuda:0", 1)
    with pytest.raises(RuntimeError, match="negative"):
        Device("cuda", -1)
    with pytest.raises(RuntimeError, match="negative"):
        Device(-1)


@pytest.mark.parametrize("value", [1.5, None, True, ["cpu"]])
def test_value_of_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="device: "):
        Device(value)


def test_device_is_immutable():
    with pytest.raises(AttributeError, match="immutable"):
        CPU.index = 1


def test_default_device_is_set_for_a_block_and_for_the_thread():
    assert _device.get_default_device() is CPU
    with Device("cuda:1"):
        assert _device.get_default_device() is Device("cuda:1")
        with Device("meta"):
            assert _device.get_default_device() is Device("meta")
        assert _device.get_default_device() is Device("cuda:1")
    _device.set_default_device("cuda")
    try:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(_device.get_default_device()))
        thread.start()
        thread.join()
        assert _device.get_default_device() is Device("cuda")
        assert seen == [CPU]
    finally:
        _device.set_default_device(None)
    assert _device.get_default_device() is CPU


def test_stream_of_the_cpu_is_always_done():
    stream = Stream()
    stream.synchronize()
    stream.wait_stream(Stream("cpu", stream_id=4))
    assert stream.query()
    assert stream == Stream("cpu")
    assert stream != Stream("cpu", stream_id=4)
    assert len({stream, Stream("cpu"), Stream("cuda:0")}) == 2


def test_current_stream_follows_the_with_block():
    other = Stream("cuda:0", stream_id=7)
    with other:
        assert current_stream("cuda:0") is other
        assert current_stream() == Stream("cpu")
        with Stream("cuda:0", stream_id=8):
            assert current_stream("cuda:0").stream_id == 8
        assert current_stream("cuda:0") is other
    assert current_stream("cuda:0").stream_id == 0


def test_same_stream_entered_twice_restores_the_outer_one():
    stream = Stream("cuda:0", stream_id=7)
    with stream:
        with stream:
            pass
        assert current_stream("cuda:0") is stream
    assert current_stream("cuda:0").stream_id == 0


def test_events_measure_elapsed_milliseconds():
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    time.sleep(0.01)
    Stream().record_event(end)
    assert 9 < start.elapsed_time(end) < 1000
    assert end.query()


@pytest.mark.parametrize("timing", [True, False])
def test_elapsed_time_needs_two_recorded_timing_events(timing):
    first, second = Event(enable_timing=timing), Event(enable_timing=True)
    second.record()
    if not timing:
        first.record()
    with pytest.raises(RuntimeError, match="elapsed_time"):
        first.elapsed_time(second)
