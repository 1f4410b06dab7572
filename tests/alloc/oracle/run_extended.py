#!/usr/bin/env python3
"""Replays an extended event list (see README.md here) on PyTorch's own CUDACachingAllocator.

    run_extended.py EVENTS.jsonl[.gz] OUT.json.gz [--conf STR] [--junk N | --check]

Run by the oracle's Python; needs ORACLE_SOURCE, the folder of its scripts, and ORACLE_EXTRA, one
with libfakegraph.so and liballocprobe.so (built from the sources here). The output has the format
of the oracle's ``run_torch_alloc.py``. --junk allocates N objects first, so that the heap lies
otherwise: an output that depends on it is no fact about the allocator.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ["ORACLE_SOURCE"])

import oracle_env
import run_torch_alloc

EXTRA = Path(os.environ["ORACLE_EXTRA"])
Event = dict[str, Any]
Outcome = dict[str, Any]


def ensure_preloaded(config: Event, conf: str) -> None:
    """Restart once under the stand-in driver, with the graph layer before it."""
    build = Path(oracle_env.build_dir())
    libraries = [EXTRA / "libfakegraph.so", build / "libfakecuda.so", build / "libfakenvml.so"]
    oracle_env.ensure_preloaded(
        capacity=run_torch_alloc.parse_bytes(config.get("capacity", "80G")),
        conf=conf,
        va=config.get("va", "bump"),
        manual_events=bool(config.get("manual_events")),
        extra={"LD_PRELOAD": ":".join(map(str, libraries)), **config.get("environment", {})},
    )


class Player:
    """Plays events, one method an operation; keeps what they name."""

    def __init__(self, events: list[Event]) -> None:
        import torch

        self.torch, self.c = torch, torch._C
        self.fake = oracle_env.Fake()
        for name, count in (("fakegraph_node", 1), ("fakegraph_wait", 2)):
            getattr(self.fake.lib, name).argtypes = [ctypes.c_void_p] * count
        self.probe = ctypes.CDLL(str(EXTRA / "liballocprobe.so"))
        torch.cuda.init()
        torch.empty(0, device="cuda")
        self.streams = {0: torch.cuda.default_stream()}
        for number in range(1, max(_streams_of(events)) + 1):
            self.streams[number] = torch.cuda.Stream()
        self.names = {self.fake.stream_id(s.cuda_stream): k for k, s in self.streams.items()}
        self.segments = oracle_env.Segments(False)
        self.tensors: dict[int, Any] = {}
        self.pools: dict[Any, Any] = {}
        self.graphs: dict[Any, tuple[Any, int]] = {}
        self.checkpoints: dict[Any, tuple[Any, dict[int, tuple[int, int]]]] = {}
        self.workers: dict[int, ThreadPoolExecutor] = {}
        self.called: list[int] = []
        self.observed: list[list[Any]] = []
        self.refused: list[list[int]] = []  # filled by another thread, late
        self.observes_refusals = False
        self.messages: list[str] = []
        self.keep: list[Any] = []
        self.last = 0
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=10_000_000
        )
        self.fake.drain()
        self.fake.clear()

    def stats(self) -> list[int]:
        s = self.c._cuda_memoryStats(0)
        names = ("allocated", "reserved", "active", "inactive_split", "requested")
        sizes = [s[f"{name}_bytes"]["all"]["current"] for name in names]
        return [*sizes, s["num_alloc_retries"], s["num_ooms"]]

    def play(self, event: Event) -> Outcome:
        """Carry out one event, on its thread."""
        act = getattr(self, f"do_{event['op']}", None)
        if act is None:
            sys.exit(f"unknown op {event['op']!r}")
        number = event.get("thread", 0)
        if not number:
            return act(event) or {}
        worker = self.workers.setdefault(number, ThreadPoolExecutor(1))
        return worker.submit(act, event).result() or {}

    # --- memory -------------------------------------------------------------------------------
    def do_alloc(self, event: Event) -> Outcome:
        self.do_set_stream({"stream": event.get("stream", 0)})
        rejections = self.c._cuda_memoryStats(0)["num_oom_rejections"]
        try:
            tensor = self.torch.empty(event["size"], dtype=self.torch.uint8, device="cuda")
        except self.torch.OutOfMemoryError as error:
            self.messages.append(str(error))
            rejected = self.c._cuda_memoryStats(0)["num_oom_rejections"] > rejections
            return {"oom": True, **({"rejected": True} if rejected else {})}
        self.tensors[event["id"]] = tensor
        return {"address": tensor.data_ptr()}

    def do_free(self, event: Event) -> Outcome:
        return {} if self.tensors.pop(event["id"], None) is not None else {"skip": True}

    def do_record_stream(self, event: Event) -> Outcome:
        if event["id"] not in self.tensors:
            return {"skip": True}
        self.tensors[event["id"]].record_stream(self.streams[event["stream"]])
        return {}

    def do_empty_cache(self, event: Event) -> None:
        self.torch.cuda.empty_cache()

    def do_set_fraction(self, event: Event) -> None:
        self.torch.cuda.set_per_process_memory_fraction(event["fraction"], 0)

    def do_settings(self, event: Event) -> Outcome:
        try:
            self.c._accelerator_setAllocatorSettings(event["conf"])
        except (ValueError, RuntimeError, IndexError) as error:
            return {"rejected": type(error).__name__}
        return {}

    def do_reset_peak(self, event: Event) -> None:
        self.torch.cuda.reset_peak_memory_stats()

    def do_snapshot(self, event: Event) -> None:
        """Nothing here: `main` takes it."""

    # --- streams and the driver ---------------------------------------------------------------
    def do_set_stream(self, event: Event) -> None:
        if self.torch.cuda.current_stream() != self.streams[event["stream"]]:
            self.torch.cuda.set_stream(self.streams[event["stream"]])

    def do_sync(self, event: Event) -> None:
        self.torch.cuda.synchronize()

    def do_sync_stream(self, event: Event) -> None:
        self.streams[event["stream"]].synchronize()

    def do_complete(self, event: Event) -> None:
        if "stream" not in event:
            self.fake.complete_all()
        elif "n" in event:
            self.fake.complete_n(self.streams[event["stream"]].cuda_stream, event["n"])
        else:
            self.fake.complete_stream(self.streams[event["stream"]].cuda_stream)

    def do_events(self, event: Event) -> None:
        self.fake.events_manual(1 if event["mode"] == "manual" else 0)

    def do_set_capacity(self, event: Event) -> None:
        self.fake.set_capacity(event["bytes"])

    def do_set_foreign(self, event: Event) -> None:
        self.fake.set_foreign(event["bytes"])

    def do_fail_next(self, event: Event) -> None:
        self.fake.fail_next(event["n"])

    # --- pools --------------------------------------------------------------------------------
    def do_pool_new(self, event: Event) -> None:
        flags = {name: event.get(name, False) for name in ("use_on_oom", "no_split")}
        self.pools[event["pool"]] = self.torch.cuda.MemPool(**flags)

    def do_pool_begin(self, event: Event) -> None:
        if event["pool"] not in self.pools:
            self.do_pool_new({"pool": event["pool"]})
        self.c._cuda_beginAllocateCurrentThreadToPool(0, self.pools[event["pool"]].id)

    def do_pool_end(self, event: Event) -> None:
        self.c._cuda_endAllocateToPool(0, self.pools[event["pool"]].id)
        self.c._cuda_releasePool(0, self.pools[event["pool"]].id)

    def do_pool_delete(self, event: Event) -> None:
        self.pools.pop(event["pool"], None)

    # --- graphs -------------------------------------------------------------------------------
    def do_capture_begin(self, event: Event) -> None:
        self.do_set_stream(event)
        graph = self.torch.cuda.CUDAGraph()
        pool = None
        if "pool" in event:
            pool = self.pools[event["pool"]].id
        elif "like" in event:
            pool = self.graphs[event["like"]][0].pool()
        graph.capture_begin(pool=pool)
        self.graphs[event["graph"]] = graph, event["stream"]

    def do_capture_end(self, event: Event) -> None:
        graph, stream = self.graphs[event["graph"]]
        self.do_set_stream({"stream": stream})
        graph.capture_end()

    def do_graph_reset(self, event: Event) -> None:
        self.graphs.pop(event["graph"])[0].reset()

    def do_graph_node(self, event: Event) -> None:
        self.fake.lib.fakegraph_node(self.streams[event["stream"]].cuda_stream)

    def do_graph_wait(self, event: Event) -> None:
        stream, on = self.streams[event["stream"]], self.streams[event["on"]]
        self.fake.lib.fakegraph_wait(stream.cuda_stream, on.cuda_stream)

    # --- checkpoints --------------------------------------------------------------------------
    def pool_id(self, event: Event) -> tuple[int, int]:
        if "graph" in event:
            pool: tuple[int, int] = self.graphs[event["graph"]][0].pool()
            return pool
        return self.pools[event["pool"]].id

    def do_checkpoint(self, event: Event) -> None:
        """Remember the pool, and which of the tensors named are in it."""
        state = self.c._cuda_getCheckpointState(0, self.pool_id(event))
        live = {}
        for number in event["ids"]:
            tensor = self.tensors[number]
            live[number] = tensor.data_ptr(), tensor.numel()
        self.checkpoints[event["name"]] = state, live

    def do_restore(self, event: Event) -> None:
        """Bring the pool back: `stale` die, what was live at the checkpoint lives again."""
        state, live = self.checkpoints[event["name"]]
        stale = [self.tensors.pop(number) for number in event["stale"]]
        again = {number: self.owned(*place) for number, place in live.items()}
        self.c._cuda_setCheckpointPoolState(
            0,
            state,
            [tensor.untyped_storage()._cdata for tensor in stale],
            [storage._cdata for storage in again.values()],
        )
        for number, storage in again.items():
            self.tensors[number] = self.torch.empty(0, dtype=self.torch.uint8, device="cuda").set_(
                storage
            )

    def owned(self, address: int, size: int) -> Any:
        """A storage over memory that it does not own yet."""
        device = self.torch.device("cuda", 0)
        return self.c._construct_storage_from_data_pointer(address, device, size)

    # --- callbacks and observers --------------------------------------------------------------
    def do_callback(self, event: Event) -> None:
        """Set the free-memory callback of a slot: it drops tensors and answers."""
        slot, ids, answer = event["slot"], list(event.get("frees", ())), event["answer"]

        def call() -> bool:
            self.called.append(slot)
            for number in ids:
                self.tensors.pop(number, None)
            return bool(answer)

        function = ctypes.CFUNCTYPE(ctypes.c_bool)(call)
        self.keep.append(function)
        self.probe.probe_add_callback(slot, function)

    def do_observe(self, event: Event) -> None:
        def observe(*values: Any) -> None:
            self.observed.append(list(values))

        self.c._cuda_attach_out_of_memory_observer(observe)

    def do_observe_rejections(self, event: Event) -> None:
        def observe(*values: int) -> None:
            self.refused.append(list(values))

        self.observes_refusals = True
        words = [ctypes.c_int64, *[ctypes.c_uint64] * 3]
        function = ctypes.CFUNCTYPE(None, *words)(observe)
        self.keep.append(function)
        self.probe.probe_observe_rejections(function)


def _streams_of(events: list[Event]) -> set[int]:
    return {event[key] for event in events for key in ("stream", "on") if key in event} | {0}


def check(events: list[Event]) -> None:
    """Play the list only to see that no block outlives its private pool; exit with 3 if one does.

    PyTorch forgets a private pool as soon as it has unmapped as often as it has mapped, even if
    blocks of its expandable segments live. What they do from then on is undefined.
    """
    player = Player(events)
    for number, event in enumerate(events):
        player.play(event)
        for segment in player.torch.cuda.memory._snapshot()["segments"]:
            if max(segment["segment_pool_id"]) > len(events):
                print(f"event {number}: a block has outlived its private pool", file=sys.stderr)
                os._exit(3)


def replay(events: list[Event]) -> dict[str, Any]:
    """Play the list; return the output."""
    player = Player(events)
    results, log, snapshots = [], [], []
    last = player.stats()[0]
    for number, event in enumerate(events):
        outcome = player.play(event)
        log += oracle_env.tidy(player.fake.drain(), player.segments, number, player.names)
        st = player.stats()
        if "address" in outcome:
            address = outcome.pop("address")
            outcome["seg"], outcome["off"] = (
                player.segments.find(address) if address else (None,) * 2
            )
            outcome["block"] = st[0] - last
        for name in ("called", "observed"):
            if getattr(player, name):
                outcome[name] = getattr(player, name)
                setattr(player, name, [])
        if event["op"] == "snapshot":
            snapshots.append([number, _snapshot(player)])
        last = st[0]
        results.append({**outcome, "st": st})
    for worker in player.workers.values():
        worker.shutdown()
    return _output(player, results, log, snapshots)


def _snapshot(player: Player, raw: Any = None) -> list[Any]:
    tidied: list[Any] = run_torch_alloc.tidy_snapshot(
        raw or player.torch.cuda.memory._snapshot(), player.segments, player.names, player.fake
    )
    return tidied


def _output(player: Player, results: list[Any], log: list[Any], snapshots: list[Any]) -> Any:
    raw = player.torch.cuda.memory._snapshot()
    snapshot = _snapshot(player, raw)
    log += oracle_env.tidy(player.fake.drain(), player.segments, -1, player.names)
    trace = []
    for entry in raw["device_traces"][0]:
        place = player.segments.find(entry["addr"]) if entry.get("addr") else (
            None, entry.get("device_free")
        )  # fmt: skip
        stream = player.names.get(player.fake.stream_id(entry["stream"]), "?")
        trace.append([entry["action"], *place, entry["size"], stream])
    ooms = sum("oom" in result for result in results)
    output = {
        "meta": {"torch": player.torch.__version__, "n_events": len(results), "n_oom": ooms,
                 "n_segments": player.segments.count},
        "results": results, "driver_log": log, "trace": trace, "snapshot": snapshot,
        "stats": dict(player.torch.cuda.memory_stats()), "messages": player.messages,
    }  # fmt: skip
    if player.observes_refusals:
        while len(player.refused) < output["stats"]["num_oom_rejections"]:
            time.sleep(0.01)
        output["refused"] = sorted(player.refused)
    if snapshots:
        output["snapshots"] = snapshots
    return output


def main() -> None:
    """Replay one list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events")
    parser.add_argument("out")
    parser.add_argument("--conf")
    parser.add_argument("--junk", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="see `check`")
    arguments = parser.parse_args()
    config, events = run_torch_alloc.read_events(arguments.events)
    conf = arguments.conf if arguments.conf is not None else config.get("conf", "")
    ensure_preloaded(config, conf)
    junk = [object() for _ in range(arguments.junk)]
    junk += [bytearray(40 + (k * 7919) % 400) for k in range(arguments.junk)]
    del junk[::3]
    if arguments.check:
        check(events)
        os._exit(0)
    output = replay(events)
    output["meta"] |= {key: config[key] for key in ("shape", "seed", "capacity") if key in config}
    output["meta"] |= {"conf": conf, "manual_events": bool(config.get("manual_events"))}
    with gzip.GzipFile(arguments.out, "wb", mtime=0) as file:
        file.write(json.dumps(output, separators=(",", ":")).encode())
    print(Path(arguments.events).name, conf, output["meta"], flush=True)
    os._exit(0)  # the order in which things die at exit is of no interest


if __name__ == "__main__":
    main()
