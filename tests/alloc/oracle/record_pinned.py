"""Records what PyTorch's own pinned host allocator does, for ``tests/alloc/data/pinned``.

Runs beside `oracle_env.py` of the oracle (put its folder on PYTHONPATH), with the oracle's Python:

    python record_pinned.py OUT.json.gz

Each scenario runs in a process of its own. Events are JSON objects with an ``op``: ``alloc`` (id,
size), ``free`` (id), ``use`` (id, stream: a copy that leaves an event to be recorded), ``complete``
(stream, n), ``empty_cache``, ``reset_peak``, ``reset_accumulated``, ``capture_begin`` (graph,
stream), ``capture_end``, ``graph_delete`` (graph).

A result holds ``at`` (number of the upstream's span and offset in it) for an alloc; ``st``:
requests and bytes in use, blocks and bytes taken; ``log``: host_alloc size | host_free span |
event_record number stream | event_query number answer. Spans are numbered in the order in which
they were got, events in the order in which they were recorded. ``segments`` and ``trace`` are those
of the final snapshot: [span, offset, entry] and [action, size].
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys

from scenario_words import bytes_of, events_of

WORDS = {
    r"a(\d+)=(.+)": lambda name, size: {"op": "alloc", "id": int(name), "size": bytes_of(size)},
    r"f(\d+)": lambda name: {"op": "free", "id": int(name)},
    r"u(\d+)@(\d+)": lambda name, stream: {"op": "use", "id": int(name), "stream": int(stream)},
    r"c": lambda: {"op": "complete"},
    r"c(\d+)": lambda stream: {"op": "complete", "stream": int(stream)},
    r"c(\d+)x(\d+)": lambda stream, n: {"op": "complete", "stream": int(stream), "n": int(n)},
    r"(empty_cache|reset_peak|reset_accumulated|capture_end)": lambda op: {"op": op},
    r"capture_begin@(\d+)": lambda s: {"op": "capture_begin", "graph": "g", "stream": int(s)},
    r"graph_delete": lambda: {"op": "graph_delete", "graph": "g"},
}


def churn(seed, sizes, count=400, streams=4):
    """Makes up a scenario."""
    rng = random.Random(seed)
    events, live, serial = [], [], 0
    for _ in range(count):
        kind = rng.random()
        if kind < 0.45 or not live:
            serial += 1
            live.append(serial)
            size = rng.choice(sizes)
            events.append(f"a{serial}={size - rng.randrange(min(3, size))}")
        elif kind < 0.80:
            events.append(f"f{live.pop(rng.randrange(len(live)))}")
        elif kind < 0.92:
            events.append(f"u{rng.choice(live)}@{rng.randrange(1, streams)}")
        elif kind < 0.98:
            stream, pieces = rng.randrange(1, streams), rng.choice([None, 1, 2])
            events.append(f"c{stream}" + ("" if pieces is None else f"x{pieces}"))
        else:
            events.append("empty_cache" if kind < 0.99 else "c")
    return " ".join(events)


POWERS = [1 << n for n in range(3, 22)]
ODD = [3, 5, 700, 1000, 4097, 5000, 70_000, 100_000, 3 << 20, (3 << 20) + 5, (3 << 20) - 9]
ROUND, CACHED = "pinned_max_round_threshold_mb:", "pinned_max_cached_size_mb:"
RESERVE, REGISTER = "pinned_reserve_segment_size_mb:", "pinned_use_cuda_host_register:True"

SCENARIOS = {
    "rounding": (
        "",
        "a0=1 a1=2 a2=3 a3=4 a4=5 a5=511 a6=512 a7=513 a8=1M-1 a9=1M a10=1M+1 a11=3M a99=0 f99",
    ),
    "reuse_last_freed": ("", "a1=1K a2=1K a3=1K f1 f3 f2 a4=900 a5=513 a6=1K a7=1K"),
    "never_splits": ("", "a1=8M f1 a2=4M a3=5M"),
    "no_streams": ("", "a1=1K f1 a2=1K u2@0 f2 a3=1K c a4=1K"),
    "two_streams": ("", "a1=1K u1@1 u1@2 f1 a2=1K c1 a3=1K c2 a4=1K"),
    "hidden_behind_oldest": ("", "a1=1K a2=1K u1@1 u2@2 f1 f2 c2 a3=1K c1 a4=1K a5=1K"),
    "used_again": ("", "a1=1K u1@1 f1 c a2=1K f2 a3=1K u3@1 u3@1 u3@1 f3 a4=1K"),
    "partial": (
        "",
        "a1=1K a2=1K a3=1K u1@1 u2@1 u3@1 f1 f2 f3 c1x4 a4=1K c1x1 a5=1K c1 a6=1K",
    ),
    "empty_cache": (
        "",
        "a1=4K a2=1K a3=1K a4=16 a5=1K u5@1 f1 f3 f2 f4 f5 empty_cache c empty_cache a6=1K",
    ),
    "resets": (
        "",
        "a1=1K a2=2K f1 reset_peak a3=1K a4=4K f4 reset_accumulated a5=4K empty_cache f2 "
        "empty_cache",
    ),
    "round_threshold": (
        ROUND + "1",
        "a1=1M a2=1M+1 a3=1M+5000 f2 f3 a4=1M+4000 a5=1M+5001 f4 f5 a6=1M+1 a7=2M f1 f6 f7 "
        "a8=1M+6000",
    ),
    "cached_size": (
        CACHED + "1",
        "a1=1M a2=1M+1 a3=3M f1 f2 f3 a4=1M a5=1M+1 u5@1 f5 c a6=8",
    ),
    "both_limits": (
        f"{CACHED}2,{ROUND}1",
        "a1=1M+3 f1 a2=1M+2 a3=2M+1 f3 f2 a4=2M a5=1M",
    ),
    "reserve": (
        RESERVE + "1",
        "a1=10 a2=4097 a3=512K a4=512K a5=4K f1 f5 a6=11 a7=4K f7 empty_cache a8=4K f3 "
        "empty_cache a9=256K a10=400K",
    ),
    "register": (
        REGISTER + ",pinned_num_register_threads:4",
        "a1=10 a2=5M f2 a3=7M f1 f3 empty_cache a4=100K",
    ),
    "capture": (
        "",
        "a1=1K f1 capture_begin@3 a2=1K a3=1K f3 a4=1K u4@3 f4 a5=1K capture_end a6=1K a7=1K f2 "
        "f5 a8=1K empty_cache graph_delete empty_cache",
    ),
    "churn_powers": ("", churn(1, POWERS)),
    "churn_odd": ("", churn(2, ODD)),
    "churn_unrounded": (ROUND + "1", churn(3, ODD)),
    "churn_limits": (f"{CACHED}1,{ROUND}1", churn(4, ODD)),
    "churn_reserve": (RESERVE + "2", churn(5, ODD)),
    "churn_register": (REGISTER, churn(6, ODD)),
    "churn_one_stream": ("", churn(7, POWERS, streams=2)),
}


class Recorder:
    def __init__(self):
        import oracle_env
        import torch

        self.torch, self.env, self.fake = torch, oracle_env, oracle_env.Fake()
        torch.cuda.init()
        self.device = torch.empty(64, dtype=torch.uint8, device="cuda")
        self.streams = {0: torch.cuda.default_stream()}
        self.streams |= {n: torch.cuda.Stream() for n in range(1, 8)}
        self.names = {self.fake.stream_id(s.cuda_stream): n for n, s in self.streams.items()}
        self.live, self.graphs, self.capture = {}, {}, None
        self.spans, self.span_count = {}, 0  # address -> (number, size)
        self.registered = {}  # address -> number
        self.events, self.event_count = {}, 0
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", record_pinned_host_memory=True
        )
        self.fake.drain()

    def stats(self):
        s = self.torch.cuda.host_memory_stats()
        return {key: s[key] for key in s if "time" not in key}

    def figures(self):
        s = self.stats()
        return [
            s[f"{name}.current"]
            for name in ("active_requests", "active_bytes", "allocations", "allocated_bytes")
        ]

    def step(self, event):
        taken = self.stats()["num_host_alloc"]
        getattr(self, "do_" + event["op"])(event)
        result = {"log": self.log()}
        if event["op"] == "alloc":
            grew = self.stats()["num_host_alloc"] > taken
            result["at"] = self.place(self.live[event["id"]].data_ptr(), event["size"], grew)
        return {**result, "st": self.figures()}

    def log(self):
        found = []
        for op, answer, a, b, _ in self.fake.drain():
            if op == "host_alloc":
                self.add_span(a, b)
                found.append([op, b])
            elif op == "host_free":
                found.append([op, self.spans.pop(a)[0]])
            elif op == "event_record":
                self.events[a] = self.event_count
                found.append([op, self.event_count, self.names[b]])
                self.event_count += 1
            elif op == "event_query":
                found.append([op, self.events[a], answer == 0])
        return found

    def add_span(self, address, size):
        self.spans[address] = (self.span_count, size)
        self.span_count += 1

    def place(self, address, size, grew):
        for start, (number, length) in self.spans.items():
            if start <= address < start + length:
                return [number, address - start]
        if not address:
            return None
        # Ordinary pages that were registered: the stand-in keeps no log of them.
        if grew or address not in self.registered:
            self.registered[address] = self.span_count
            self.span_count += 1
        return [self.registered[address], 0]

    def do_alloc(self, event):
        self.live[event["id"]] = self.torch.empty(
            event["size"], dtype=self.torch.uint8, pin_memory=True
        )

    def do_free(self, event):
        del self.live[event["id"]]

    def do_use(self, event):
        with self.torch.cuda.stream(self.streams[event["stream"]]):
            self.device[:1].copy_(self.live[event["id"]][:1], non_blocking=True)

    def do_complete(self, event):
        if "stream" not in event:
            self.fake.complete_all()
        elif "n" in event:
            self.fake.complete_n(self.streams[event["stream"]].cuda_stream, event["n"])
        else:
            self.fake.complete_stream(self.streams[event["stream"]].cuda_stream)

    def do_empty_cache(self, event):
        self.torch._C._host_emptyCache()

    def do_reset_peak(self, event):
        self.torch.cuda.reset_peak_host_memory_stats()

    def do_reset_accumulated(self, event):
        self.torch.cuda.reset_accumulated_host_memory_stats()

    def do_capture_begin(self, event):
        graph = self.graphs[event["graph"]] = self.torch.cuda.CUDAGraph()
        self.capture = self.torch.cuda.graph(graph, stream=self.streams[event["stream"]])
        self.capture.__enter__()

    def do_capture_end(self, event):
        self.capture.__exit__(None, None, None)
        self.capture = None

    def do_graph_delete(self, event):
        del self.graphs[event["graph"]]


def segments_of(recorder, snapshot):
    found = []
    for segment in snapshot["host_segments"]:
        number, offset = recorder.place(segment.pop("address"), 1, False)
        for block in segment["blocks"]:
            block.pop("address")
        found.append([number, offset, segment])
    return sorted(found, key=lambda entry: entry[:2])


def run(name):
    import oracle_env

    conf, text = SCENARIOS[name]
    events = events_of(text, WORDS)
    oracle_env.ensure_preloaded(capacity=1 << 34, conf=conf, manual_events=True)
    recorder = Recorder()
    results = [recorder.step(event) for event in events]
    snapshot = recorder.torch.cuda.memory._snapshot()
    found = {
        "conf": conf, "events": events, "results": results, "stats": recorder.stats(),
        "segments": segments_of(recorder, snapshot),
        "trace": [[entry["action"], entry["size"]] for entry in snapshot["host_traces"]],
    }  # fmt: skip
    print("RESULT" + json.dumps(found))


def main():
    if sys.argv[1] == "--one":
        run(sys.argv[2])
        return
    found = {}
    for name in SCENARIOS:
        env = {key: value for key, value in os.environ.items() if key != "ORACLE_INSIDE"}
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], env=env, capture_output=True, text=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        if not lines:
            sys.exit(f"{name}: {done.stderr[-3000:]}")
        found[name] = json.loads(lines[0][6:])
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
        file.write(json.dumps(found, separators=(",", ":")).encode())
    print(len(found), "scenarios,", sum(len(one["events"]) for one in found.values()), "events")


if __name__ == "__main__":
    main()
