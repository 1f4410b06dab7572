"""GPU memory in figures and its controls: what PyTorch calls ``torch.cuda.memory``.

Invariants
----------
* Every figure is read from the caching allocator of the GPU; the names of the statistics are
  PyTorch's.
* Without a GPU the figures are zero and emptying the cache does nothing, as in PyTorch before a
  GPU is first used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refruntime import _optional, _storage
from refruntime._device import CPU, Device
from refruntime.alloc.pinning import pinned
from refruntime.alloc.settings import AllocatorSettings
from refruntime.alloc.snapshot import dump
from refruntime.alloc.summary import summary_table
from refruntime.cuda.devices import index_of, is_available, require
from refruntime.cuda.mempool import CUDAPluggableAllocator, MemPool, use_mem_pool
from refruntime.errors import ArgumentValueError, OutOfMemoryError

if TYPE_CHECKING:
    from refruntime.alloc.compaction import Compaction

__all__ = [
    "CUDAPluggableAllocator", "MemPool", "OutOfMemoryError", "caching_allocator_alloc",
    "caching_allocator_delete", "change_current_allocator", "compact", "empty_cache",
    "get_allocator_backend", "get_per_process_memory_fraction", "list_gpu_processes",
    "max_memory_allocated", "max_memory_cached", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_cached", "memory_reserved", "memory_snapshot", "memory_stats",
    "memory_stats_as_nested_dict", "memory_summary", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats",
    "set_per_process_memory_fraction", "use_mem_pool",
]  # fmt: skip


def _allocator(op: str, device: Any) -> Any:
    return _storage.gpu_allocators[require(op, device)]


# --- figures ----------------------------------------------------------------------------------


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return all statistics of a GPU's allocator; none without a GPU."""
    index_of("memory_stats", device)
    if not is_available():
        return {}
    stats: dict[str, Any] = _allocator("memory_stats", device).stats()
    return stats


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return what `memory_stats` does, one dictionary a part of the name."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _figure(name: str, device: Any) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that tensors occupy now."""
    return _figure("allocated_bytes.all.current", device)


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that tensors have occupied since the last reset."""
    return _figure("allocated_bytes.all.peak", device)


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the allocator holds, in use or cached."""
    return _figure("reserved_bytes.all.current", device)


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes that the allocator has held since the last reset."""
    return _figure("reserved_bytes.all.peak", device)


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks begin again from what is in use now."""
    if is_available():
        _allocator("reset_peak_memory_stats", device).reset_peak_stats()


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the totals begin again from zero."""
    if is_available():
        _allocator("reset_accumulated_memory_stats", device).reset_accumulated_stats()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the statistics as a text table, PyTorch's character by character."""
    index = require("memory_summary", device)
    return summary_table(memory_stats(index), index, abbreviated=abbreviated)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the bytes that are free on a GPU and the bytes that it has, as the driver says."""
    info: tuple[int, int] = _allocator("mem_get_info", device).upstream.memory_info()
    return info


def list_gpu_processes(device: Any = None) -> str:
    """Return the processes that use a GPU, and their memory, as text."""
    pynvml = _optional.pynvml
    if not pynvml.installed():
        return "pynvml module not found, please install nvidia-ml-py"
    index = require("list_gpu_processes", device)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    lines = [f"GPU:{index}"] + ([] if processes else ["no processes are running"])
    for process in processes:
        mebibytes = process.usedGpuMemory / (1 << 20)
        lines.append(f"process {process.pid:>10d} uses {mebibytes:>12.3f} MB GPU memory")
    return "\n".join(lines)


# --- controls ---------------------------------------------------------------------------------


def empty_cache() -> None:
    """Give all unused memory back to the driver."""
    for allocator in _storage.gpu_allocators:
        allocator.empty_cache()


def compact(
    device: Any = None, *, request: int | None = None, stream: Any = None, dry_run: bool = False
) -> Compaction:
    """Move tensors together, so that memory goes back to the driver or a large request fits.

    PyTorch has nothing like it. Tensors keep their values, views and history; only their addresses
    change. Tensors whose address was given out (`data_ptr`, `numpy`, DLPack), memory in private
    pools, and blocks that another stream uses stay where they are.

    Parameters
    ----------
    device : device, optional
        A GPU, by default the current one, or "cpu".
    request : int, optional
        Bytes for which to make room, with as little copying as possible; by default as much as
        possible is given back.
    stream : Stream or int, optional
        The stream of the request, by default the default one.
    dry_run : bool
        Only say what would be gained.

    Returns
    -------
    Compaction
        The bytes reserved and the largest free piece before and after, the bytes copied, and what
        could not be moved, with the reason; it prints as a short report.

    Raises
    ------
    SafePointError
        If a thread is in the middle of an operation, or a graph is being captured.
    DeviceError
        If there is no such GPU.

    Examples
    --------
    >>> x = torch.ones(1000)
    >>> torch.cuda.compact("cpu", dry_run=True).done
    False
    """
    # Imported here: few programs compact.
    from refruntime import _compaction

    handle = 0 if stream is None else int(getattr(stream, "cuda_stream", stream))
    on_host = device is not None and not isinstance(device, int) and Device(device).type == "cpu"
    allocator = _storage.allocator_of(CPU) if on_host else _allocator("compact", device)
    return _compaction.compact(allocator, request=request, stream=handle, dry_run=dry_run)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let this process reserve at most a share, 0 to 1, of a GPU's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    _allocator("set_per_process_memory_fraction", device).set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the share of a GPU's memory that this process may reserve."""
    return float(_allocator("get_per_process_memory_fraction", device).memory_fraction)


def get_allocator_backend() -> str:
    """Return the name of the allocator: "native" for the caching one."""
    return AllocatorSettings().backend


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Return the address of `size` bytes of a GPU's memory, to be used on a stream."""
    handle = 0 if stream is None else int(getattr(stream, "cuda_stream", stream))
    return int(_allocator("caching_allocator_alloc", device).malloc(size, handle))


def caching_allocator_delete(mem_ptr: int) -> None:
    """Give back what `caching_allocator_alloc` returned, on whichever GPU it is."""
    for allocator in _storage.gpu_allocators:
        if allocator.owns(mem_ptr):
            allocator.free(mem_ptr)
            return
    if mem_ptr:
        raise ArgumentValueError(
            "caching_allocator_delete", expected="the address of a block in use", got=hex(mem_ptr)
        )


def change_current_allocator(allocator: CUDAPluggableAllocator) -> None:
    """Serve all GPU memory from a library's functions; only before a GPU is used."""
    if is_available():
        raise RuntimeError("Can't swap an already initialized allocator")
    raise ArgumentValueError(
        "change_current_allocator",
        expected="a GPU that is not in use yet",
        got="a process without a GPU",
        remedy="give the allocator to a MemPool once there is a GPU",
    )


def _set_allocator_settings(text: str) -> None:
    """Change settings of every GPU's allocator, as ``PYTORCH_ALLOC_CONF`` gives them."""
    for allocator in _storage.gpu_allocators:
        allocator.set_settings(text)


# --- snapshots --------------------------------------------------------------------------------


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Return every segment and block of all GPUs' allocators, or of one private pool."""
    segments: list[dict[str, Any]] = _snapshot()["segments"]
    if mempool_id is None:
        return segments
    return [each for each in segments if tuple(each["segment_pool_id"]) == tuple(mempool_id)]


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return segments, histories and settings of all GPUs' allocators, in PyTorch's schema."""
    whole: dict[str, Any] = {
        "segments": [],
        "device_traces": [],
        "allocator_settings": AllocatorSettings().as_snapshot(),
        "external_annotations": [],
        "host_segments": pinned().segments() if is_available() else [],
        "host_traces": [],
    }
    for index, allocator in enumerate(_storage.gpu_allocators):
        part = allocator.snapshot()
        whole["segments"] += [{**segment, "device": index} for segment in part["segments"]]
        whole["device_traces"] += [_kept(trace) for trace in part["device_traces"]]
        whole["allocator_settings"] = part["allocator_settings"]
    return whole


def _kept(trace: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of a history that were not asked to be skipped."""
    return [entry for entry in trace if entry["action"] not in _skipped]


def _dump_snapshot(
    filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write `_snapshot` to a file that PyTorch's memory viewer opens."""
    dump(_snapshot(), filename)


_skipped: frozenset[str] = frozenset()


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Iterable[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Record the history of every GPU's allocator, or stop.

    Parameters
    ----------
    enabled : {None, "state", "all"}
        Stop; keep only who asked for what is in use; keep all that happens.
    context : {None, "state", "alloc", "all"}
        Whether to keep the Python stacks of those who asked.
    stacks : {"python", "all"}
        Accepted; there are no stacks but Python's.
    max_entries : int
        How many entries are kept, the latest.
    skip_actions : iterable of str, optional
        Actions to leave out of snapshots.

    Raises
    ------
    ArgumentValueError
        If `enabled`, `context` or `stacks` is none of these.
    """
    global _skipped
    if enabled and not is_available():
        warnings.warn(
            "no GPU is in use, so nothing is recorded; the history of CPU tensors is "
            "refruntime.alloc.host().record(stacks=True)",
            stacklevel=2,
        )
    if enabled is True or enabled is False:
        enabled = "all" if enabled else None
    _check_choice("enabled", enabled, (None, "state", "all"))
    _check_choice("context", context, (None, "state", "alloc", "all"))
    _check_choice("stacks", stacks, ("python", "all"))
    _skipped = frozenset(skip_actions or ())
    limit = 1 if enabled == "state" else min(max_entries, 1 << 40)
    for allocator in _storage.gpu_allocators:
        allocator.record(
            enabled is not None,
            stacks=context is not None,
            max_entries=None if limit == 1 << 40 else limit,
        )


def _check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise ArgumentValueError(
            f"_record_memory_history({name}=)", expected=f"one of {choices}", got=repr(value)
        )
