"""compact(): tensors keep their values and histories while their memory moves together."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime import _storage
from refruntime._device import Device
from refruntime.alloc import CachingAllocator, VirtualUpstream, heap
from refruntime.alloc.upstream import LazyHostPages
from refruntime.errors import (
    ArgumentValueError,
    DeviceError,
    OutOfMemoryError,
    SafePointError,
)
from tests.alloc.conftest import NEVER

MIB = 1 << 20
COUNT = 75_000  # elements of a float32 tensor for which a segment of 2 MiB has six places


@pytest.fixture
def host(monkeypatch):
    """An allocator of its own for the CPU tensors of a test."""
    allocator = CachingAllocator(
        VirtualUpstream(400 * MIB, addresses=LazyHostPages()), compile_after=NEVER
    )
    monkeypatch.setattr(_storage, "_cpu_allocator", allocator)
    yield allocator
    gc.collect()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose allocator serves addresses only."""
    allocator = CachingAllocator(VirtualUpstream(200 * MIB), device="cuda:0")
    monkeypatch.setattr(_storage, "gpu_allocators", [allocator])
    yield allocator
    gc.collect()


def _scattered():
    """Every sixth of many tensors: one in each of four segments, so that three can go."""
    everything = [torch.arange(i, i + COUNT, dtype=torch.float32) for i in range(24)]
    return everything[::6]


def _values(tensors):
    return [tensor.detach().clone().numpy().copy() for tensor in tensors]


def _check(tensors, values):
    for tensor, value in zip(tensors, values, strict=True):
        np.testing.assert_array_equal(tensor.detach().clone().numpy(), value)


def test_tensors_keep_their_values_and_memory_goes_back(host):
    tensors = _scattered()
    values = _values(tensors)
    assert torch.cuda.compact("cpu").gain >= 6 * MIB
    done = torch.cuda.compact("cpu")
    assert done.gain == 0 and not done.moves and done.done
    assert host.reserved_bytes == done.reserved_after == 2 * MIB
    _check(tensors, values)


def test_the_stated_gain_is_the_gain(host):
    tensors = _scattered()
    values = _values(tensors)
    addresses = [tensor.storage.ptr for tensor in tensors]
    stated = torch.cuda.compact("cpu", dry_run=True)
    assert [tensor.storage.ptr for tensor in tensors] == addresses
    assert not stated.done and stated.moves and host.reserved_bytes == stated.reserved_before
    done = torch.cuda.compact("cpu")
    assert done.done and done == stated.as_done()
    assert host.reserved_bytes == done.reserved_after
    assert "moved" in str(done) and "to move" in str(stated)
    _check(tensors, values)


def test_views_follow_and_share_the_memory_afterwards(host):
    tensors = _scattered()
    views = [tensor[10:20] for tensor in tensors]
    transposed = [tensor.view(250, 300).t() for tensor in tensors]
    values = _values(views), _values(transposed)
    assert torch.cuda.compact("cpu").moves
    _check(views, values[0])
    _check(transposed, values[1])
    for tensor, view in zip(tensors, views, strict=True):
        tensor.zero_()
        assert view.sum().item() == 0
        view.fill_(1)
        assert tensor.sum().item() == 10


def test_a_graph_with_saved_tensors_runs_backward_afterwards(host):
    inputs = [(torch.arange(COUNT) * 1e-5 + i).requires_grad_() for i in range(4)]
    kept = []
    for x in inputs:
        noise = [torch.ones(COUNT) for _ in range(6)]
        kept.append((x.exp() * x.sin()).sum())
        del noise
    expected = _values([x.exp() * (x.sin() + x.cos()) for x in inputs])
    assert torch.cuda.compact("cpu").moves
    for loss in kept:
        loss.backward()
    for x, gradient in zip(inputs, expected, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-5, atol=1e-5)


def test_moving_is_no_write_so_saved_tensors_stay_valid_and_writes_are_still_noticed(host):
    tensors = _scattered()
    x = tensors[-1].requires_grad_()
    y = (x * 1).exp()
    loss = y.sum()
    versions = [tensor._version for tensor in (x, y)]
    torch.cuda.compact("cpu")
    assert [tensor._version for tensor in (x, y)] == versions
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_training_goes_on_as_if_nothing_had_moved(host, kind):
    def train(compacting):
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(200, 600), torch.nn.ReLU(), torch.nn.Linear(600, 3)
        )
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=1e-3, **options)
        moved = 0
        for step in range(4):
            clutter = [torch.ones(COUNT) for _ in range(12)]
            loss = model(torch.ones(8, 200) * step).square().mean()
            loss.backward()
            del clutter
            if compacting:
                moved += len(torch.cuda.compact("cpu").moves)
            optimizer.step()
            optimizer.zero_grad()
        return moved, _values(model.parameters())

    moved, values = train(True)
    plain = train(False)[1]
    assert moved > 0
    for one, other in zip(values, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("export", "reason"),
    [
        (lambda x: x.numpy(), heap.EXPORTED),
        (lambda x: np.from_dlpack(x), heap.EXPORTED),
        (lambda x: x.data_ptr(), heap.EXPORTED),
        (lambda x: x[5:].numpy(), heap.EXPORTED),
        (lambda x: memoryview(x.numpy()), heap.EXPORTED),
        (lambda x: x.array()[3:], heap.EXTERNAL_VIEW),
    ],
)
def test_what_has_left_the_runtime_stays_put(host, export, reason):
    tensors = _scattered()
    addresses = [tensor.storage.ptr for tensor in tensors]
    outside = [export(tensor) for tensor in tensors[:2]]
    done = torch.cuda.compact("cpu")
    assert [tensor.storage.ptr for tensor in tensors[:2]] == addresses[:2]
    assert [tensor.storage.ptr for tensor in tensors[2:]] != addresses[2:]
    assert {(b.address, b.stays) for b in done.stays} == {(a, reason) for a in addresses[:2]}
    assert reason in str(done)
    if isinstance(outside[0], np.ndarray):
        tensors[0].fill_(-3)
        assert (outside[0] == -3).all()
    del outside


def test_an_array_that_is_gone_no_longer_pins(host):
    tensors = _scattered()
    arrays = [tensor.numpy() for tensor in tensors]
    assert not torch.cuda.compact("cpu", dry_run=True).moves
    del arrays
    assert torch.cuda.compact("cpu", dry_run=True).moves


def test_memory_of_others_is_left_alone(host):
    array = np.arange(8.0)
    tensor = torch.from_numpy(array)
    tensors = _scattered()
    raw = host.malloc(MIB)
    done = torch.cuda.compact("cpu")
    assert tensor.storage.ptr == array.ctypes.data
    assert {(b.address, b.stays) for b in done.stays} == {(raw, heap.UNKNOWN)}
    assert tensors
    host.free(raw)


def test_a_request_that_failed_before_succeeds_afterwards(host):
    host.upstream.capacity = 26 * MIB
    tensors = _scattered()
    values = _values(tensors)
    with pytest.raises(OutOfMemoryError):
        torch.empty(22 * MIB, dtype=torch.uint8)
    done = torch.cuda.compact("cpu", request=22 * MIB)
    assert done.fits and done.moves
    assert torch.empty(22 * MIB, dtype=torch.uint8).nbytes == 22 * MIB
    _check(tensors, values)


def test_tensors_that_moved_are_freed_like_others(host):
    tensors = _scattered()
    torch.cuda.compact("cpu")
    seen = weakref.ref(tensors[0].storage)
    del tensors
    assert seen() is None
    assert host.allocated_bytes == 0
    host.empty_cache()
    assert host.reserved_bytes == 0


def test_tags_follow_a_moved_storage(host):
    tensors = _scattered()
    torch.cuda.compact("cpu")
    for tensor in tensors:
        tensor.storage.tag(3)
    assert sum(count > 0 for count in host.category_bytes().values()) == 1


def test_a_hook_in_backward_may_compact(host):
    x = torch.ones(COUNT, requires_grad=True)
    clutter = [torch.ones(COUNT) for _ in range(6)]
    y = x * 2
    y.register_hook(lambda gradient: torch.cuda.compact("cpu") and None)
    z = (y * 3).sum()
    del clutter
    z.backward()
    assert (x.grad == 6).all().item()


def test_a_thread_inside_an_operation_forbids_it(host):
    tensors = _scattered()
    addresses = [tensor.storage.ptr for tensor in tensors]
    inside, done = threading.Event(), threading.Event()

    class Slow(VirtualUpstream):
        def reserve(self, nbytes, stream):
            inside.set()
            assert done.wait(30)
            return super().reserve(nbytes, stream)

    slow = CachingAllocator(Slow(100 * MIB, addresses=LazyHostPages()), compile_after=NEVER)
    _storage._cpu_allocator = slow
    worker = threading.Thread(target=lambda: torch.ones(5), name="busy")
    worker.start()
    try:
        assert inside.wait(30)
        _storage._cpu_allocator = host
        with pytest.raises(SafePointError, match="'busy' is in the middle of an operation"):
            torch.cuda.compact("cpu")
    finally:
        done.set()
        worker.join()
    assert [tensor.storage.ptr for tensor in tensors] == addresses
    assert torch.cuda.compact("cpu").moves


def test_threads_of_kernels_that_wait_for_work_are_no_obstacle(host):
    x = torch.ones(1_000_000)
    (x * x).sum().item()
    assert torch.cuda.compact("cpu").done


def test_a_failed_copy_leaves_all_tensors_whole(host, monkeypatch):
    tensors = _scattered()
    values = _values(tensors)
    copy, calls = host.upstream.copy, []

    def fail(*args):
        calls.append(args)
        if len(calls) == 2:
            raise MemoryError("broken")
        copy(*args)

    monkeypatch.setattr(host.upstream, "copy", fail)
    with pytest.raises(MemoryError, match="broken"):
        torch.cuda.compact("cpu")
    monkeypatch.setattr(host.upstream, "copy", copy)
    assert gc.isenabled()
    _check(tensors, values)
    assert torch.cuda.compact("cpu").moves
    _check(tensors, values)


def test_the_process_allocator_of_the_cpu_is_compacted_by_the_neutral_name():
    tensors = _scattered()
    values = _values(tensors)
    done = torch.accelerator.compact()
    assert done.done and torch.accelerator.compact(dry_run=True).cached == 0
    _check(tensors, values)


@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_a_gpu_of_addresses_is_compacted(gpu, text):
    gpu.set_settings(text)
    device = Device("cuda", 0)
    storages = [_storage.allocate(5 * MIB, device) for _ in range(30)][::4]
    assert torch.cuda.memory_reserved() >= 100 * MIB
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(140 * MIB)
    done = torch.cuda.compact(request=140 * MIB)
    assert done.fits and done.moves and done.done
    assert torch.cuda.memory_reserved() == done.reserved_after
    assert gpu.malloc(140 * MIB)
    assert all(gpu.owns(storage.ptr) for storage in storages)
    assert len({storage.ptr for storage in storages}) == len(storages)


def test_each_gpu_is_compacted_by_itself(gpu, monkeypatch):
    other = CachingAllocator(VirtualUpstream(200 * MIB), device="cuda:1")
    monkeypatch.setattr(_storage, "gpu_allocators", [gpu, other])
    storages = [
        [_storage.allocate(5 * MIB, Device("cuda", i)) for _ in range(8)][::4] for i in range(2)
    ]
    addresses = [storage.ptr for storage in storages[0]]
    done = torch.accelerator.compact("cuda:1")
    assert done.gain == 20 * MIB and other.reserved_bytes == 20 * MIB
    assert [storage.ptr for storage in storages[0]] == addresses and gpu.reserved_bytes == 40 * MIB
    assert torch.cuda.compact(0).gain == 20 * MIB


def test_devices_and_requests_without_sense_are_refused(gpu):
    with pytest.raises(DeviceError):
        torch.cuda.compact("cuda:5")
    with pytest.raises(DeviceError):
        torch.cuda.compact("meta")
    with pytest.raises(ArgumentValueError):
        torch.cuda.compact(request=0)


def test_without_a_gpu_it_says_so():
    with pytest.raises(DeviceError, match="NVIDIA"):
        torch.cuda.compact()


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 400_000), min_size=2, max_size=30),
    data=st.data(),
    text=st.sampled_from(["", "expandable_segments:True"]),
)
def test_random_programs_keep_their_values(sizes, data, text):
    allocator = CachingAllocator(
        VirtualUpstream(1 << 30, addresses=LazyHostPages()), compile_after=NEVER, settings=text
    )
    before, _storage._cpu_allocator = _storage._cpu_allocator, allocator
    try:
        tensors = [torch.arange(size) for size in sizes]
        kept = data.draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))
        pinned = data.draw(st.sets(st.sampled_from(sorted(kept)), max_size=2))
        arrays = {i: tensors[i].numpy() for i in pinned}
        tensors = [t if i in kept else None for i, t in enumerate(tensors)]
        addresses = {i: tensors[i].storage.ptr for i in pinned}
        done = torch.cuda.compact("cpu")
        assert done.reserved_after == allocator.reserved_bytes
        for i in kept:
            expected = np.arange(sizes[i])
            np.testing.assert_array_equal(tensors[i].clone().numpy(), expected)
        for i, array in arrays.items():
            assert tensors[i].storage.ptr == addresses[i] == array.ctypes.data
    finally:
        _storage._cpu_allocator = before
