"""Records what PyTorch's cudaMallocAsync backend asks of the driver (``tests/alloc/data/async``).

Runs beside `oracle_env.py` of the oracle (put its folder on PYTHONPATH), with the oracle's Python:

    python record_async.py OUT.json.gz

Each scenario runs in a process of its own. Events are JSON objects with an ``op``: ``alloc`` (id,
size, stream), ``free`` (id), ``record_stream`` (id, stream), ``fraction`` (value), ``foreign``
(size), ``fail`` (n), ``empty_cache``, ``reset_peak``, ``capture_begin`` (stream), ``capture_end``.

A result holds ``log``, the driver's calls: malloc_async span size | malloc_async null size |
free_async span stream | record stream | wait stream | stream_sync stream | device_sync |
mem_get_info free total; ``st``: the bytes allocated, reserved, and their peaks; ``seg`` of an
alloc; ``error``, the text, of what failed. The stand-in for the driver keeps no pool: each
malloc_async takes whole units of 2 MiB. "J" is the stream on which the backend frees what several
streams have used.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import warnings

from scenario_words import bytes_of, events_of

CAPACITY = 1 << 30

WORDS = {
    r"a(\d+)=([^@]+)(?:@(\d+))?": lambda name, size, stream: {
        "op": "alloc", "id": int(name), "size": bytes_of(size), "stream": int(stream or 0),
    },
    r"f(\d+)": lambda name: {"op": "free", "id": int(name)},
    r"r(\d+)@(\d+)": lambda n, s: {"op": "record_stream", "id": int(n), "stream": int(s)},
    r"fraction=(.+)": lambda value: {"op": "fraction", "value": float(value)},
    r"foreign=(.+)": lambda size: {"op": "foreign", "size": bytes_of(size)},
    r"fail=(\d+)": lambda n: {"op": "fail", "n": int(n)},
    r"(empty_cache|reset_peak|capture_end)": lambda op: {"op": op},
    r"capture_begin@(\d+)": lambda s: {"op": "capture_begin", "stream": int(s)},
}  # fmt: skip


def churn(seed, count=300):
    """Makes up a scenario."""
    rng = random.Random(seed)
    events, live = [], []
    for serial in range(count):
        kind = rng.random()
        if kind < 0.5 or not live:
            live.append(serial)
            events.append(f"a{serial}={rng.randrange(1, 80 << 20)}@{rng.randrange(3)}")
        elif kind < 0.8:
            events.append(f"f{live.pop(rng.randrange(len(live)))}")
        elif kind < 0.95:
            events.append(f"r{rng.choice(live)}@{rng.randrange(4)}")
        elif kind < 0.97:
            events.append("empty_cache")
        else:
            events.append(f"fraction={rng.choice([0.2, 0.5, 0.9, 1])}")
    return " ".join(events)


SCENARIOS = {
    "plain": "a1=1000 a2=30M f1 f2 a3=0 f3",
    "own_stream": "a1=1000@2 r1@2 f1",
    "one_side_stream": "a1=1000 r1@1 f1 a2=1000 f2",
    "three_streams": "a1=1000@1 r1@2 r1@3 r1@0 r1@2 f1",
    "oom": "a1=600M a2=600M f1 a3=600M a4=2M",
    "oom_retry": "fail=1 a1=1M fail=2 a2=1M a3=1M",
    "foreign": "a1=500M foreign=600M a2=100 f1 a3=300M",
    "fraction": "fraction=0.25 a1=200M a2=100M a3=56M a4=1 f1 a5=200M fraction=1 a6=400M",
    "fraction_first": "fraction=0 a1=1 fraction=0.5 a2=1",
    "fraction_below_use": "a1=600M fraction=0.5 a2=1 f1 a3=1",
    "peaks": "a1=100M f1 reset_peak a2=10M empty_cache f2 reset_peak",
    "capture": (
        "a1=700 capture_begin@3 a2=800@3 f1 f2 a3=900@3 a4=901@4 f4 capture_end a5=100 f3 f5"
    ),
    "capture_joined": (
        "a1=10 capture_begin@3 a2=800@3 r2@4 f2 a3=900@3 r3@4 capture_end f1 a4=1 f3 f4"
    ),
    "capture_twice": "a1=1 a2=2 capture_begin@1 f1 f2 capture_end capture_begin@1 a3=1@1 f3 "
    "capture_end a4=1",
    "churn": churn(1),
    "churn_again": churn(2),
}


class Recorder:
    def __init__(self):
        import oracle_env
        import torch

        self.torch, self.env, self.fake = torch, oracle_env, oracle_env.Fake()
        torch.cuda.init()
        self.streams = {0: torch.cuda.default_stream()}
        self.streams |= {n: torch.cuda.Stream() for n in range(1, 6)}
        self.names = {self.fake.stream_id(s.cuda_stream): n for n, s in self.streams.items()}
        self.live, self.graphs = {}, []
        self.spans = self.env.Segments()
        self.fake.drain()

    def figures(self):
        s = self.torch.cuda.memory_stats()
        names = ("allocated_bytes", "reserved_bytes")
        return [s[f"{name}.all.{figure}"] for figure in ("current", "peak") for name in names]

    def step(self, event):
        result = {}
        try:
            getattr(self, "do_" + event["op"])(event)
        except self.torch.OutOfMemoryError as error:
            result["error"] = str(error)
        result["log"] = self.log()
        if event["op"] == "alloc" and event["id"] in self.live:
            address = self.live[event["id"]].data_ptr()
            result["seg"] = self.spans.find(address)[0] if address else None
        return {**result, "st": self.figures()}

    def name(self, number):
        return self.names.get(number, "J")

    def log(self):
        found = []
        for op, answer, a, b, c in self.fake.drain():
            if op == "malloc_async":
                found.append([op, None if answer else self.spans.add(a, b), b, self.name(c)])
            elif op == "free_async":
                found.append([op, self.spans.find(a)[0], self.name(c)])
            elif op == "event_record":
                found.append(["record", self.name(b)])
            elif op == "stream_wait":
                found.append(["wait", self.name(a)])
            elif op == "stream_sync":
                found.append([op, self.name(a)])
            elif op == "mem_get_info":
                found.append([op, a, b])
            elif op == "device_sync":
                found.append([op])
        return found

    def do_alloc(self, event):
        with self.torch.cuda.stream(self.streams[event["stream"]]):
            self.live[event["id"]] = self.torch.empty(
                event["size"], dtype=self.torch.uint8, device="cuda"
            )

    def do_free(self, event):
        self.live.pop(event["id"], None)

    def do_record_stream(self, event):
        if event["id"] in self.live:
            self.live[event["id"]].record_stream(self.streams[event["stream"]])

    def do_fraction(self, event):
        self.torch.cuda.set_per_process_memory_fraction(event["value"])

    def do_foreign(self, event):
        self.fake.set_foreign(event["size"])

    def do_fail(self, event):
        self.fake.fail_next(event["n"])

    def do_empty_cache(self, event):
        self.torch.cuda.empty_cache()

    def do_reset_peak(self, event):
        self.torch.cuda.reset_peak_memory_stats()

    def do_capture_begin(self, event):
        self.torch.cuda.synchronize()
        self.log()
        self.graphs.append(self.torch.cuda.CUDAGraph())
        self.capture_stream = self.torch.cuda.stream(self.streams[event["stream"]])
        self.capture_stream.__enter__()
        self.graphs[-1].capture_begin()

    def do_capture_end(self, event):
        self.graphs[-1].capture_end()
        self.capture_stream.__exit__(None, None, None)


def refusals(torch):
    """Returns the texts of the errors for what the backend cannot do."""
    found = {}
    for name, call in {
        "snapshot": torch.cuda.memory._snapshot,
        "record_history": torch.cuda.memory._record_memory_history,
        "pool": torch.cuda.MemPool,
    }.items():
        try:
            call()
        except RuntimeError as error:
            found[name] = str(error)
    return found


def run(name):
    import oracle_env

    oracle_env.ensure_preloaded(
        capacity=CAPACITY, conf="backend:cudaMallocAsync", manual_events=True
    )
    warnings.simplefilter("ignore")
    recorder = Recorder()
    events = events_of(SCENARIOS[name], WORDS)
    results = [recorder.step(event) for event in events]
    found = {
        "events": events, "results": results, "refusals": refusals(recorder.torch),
        "keys": sorted(recorder.torch.cuda.memory_stats()),
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
