"""The watched run: training, its trace, the replays, and the data of the report.

Invariants
----------
* Watching changes nothing: marks are taken in hooks that return None, and the seed is set before
  the first draw.
* Peaks are those of the allocator's own statistics.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import refruntime as torch
from refruntime import alloc
from refruntime.alloc.trace import TraceEvent, now_us
from refruntime.demo import digits, history
from refruntime.demo.history import Mark
from refruntime.demo.progress import bar
from refruntime.utils.data import DataLoader
from refruntime.viz import report
from refruntime.viz.report import Epoch, ReportData, StrategyResult

STRATEGIES = {"caching": "caching (PyTorch's policy)", "plain": "plain (no cache)"}
BATCH = 64


class Watch:
    """Notes when the phases of training steps begin."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.step = 0

    def note(self, label: str, in_step: bool = True) -> None:
        """Mark the start of a phase."""
        self.marks.append(Mark(now_us(), label, self.step if in_step else 0))

    def attach(self, model: Any, optimizer: Any) -> None:
        """Mark forward, backward and update of each training step, through hooks."""

        def begin(module: Any, args: Any) -> None:
            if module.training:
                self.step += 1
                self.note("forward")
            else:
                self.note("evaluation", in_step=False)

        def end(module: Any, args: Any, output: Any) -> None:
            if module.training:
                self.note("loss and backward")

        model.register_forward_pre_hook(begin)
        model.register_forward_hook(end)
        optimizer.register_step_pre_hook(lambda *_: self.note("optimizer"))


def run(epochs: int) -> tuple[dict[str, Any], str]:
    """Train, print, replay; return the numbers for ``demo.json`` and the page."""
    allocator = alloc.host()
    allocator.record(True)
    begin = time.perf_counter()
    watch = Watch()
    training, alive = _train(epochs, watch)
    seconds = time.perf_counter() - begin
    stats = allocator.stats()
    allocator.record(False)
    print("\n" + allocator.summary())
    del alive
    strategies = _replays(allocator.trace)
    outcome = {
        "accuracy": training["epochs"][-1]["accuracy"],
        "seconds": round(seconds, 3),
        "epochs": epochs,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "strategies": [dict(result) for result in strategies],
    }
    events = [*allocator.trace.initial, *allocator.trace.events]
    return outcome, report.render(_report_data(outcome, training, events, watch.marks, strategies))


def _train(epochs: int, watch: Watch) -> tuple[dict[str, Any], Any]:
    """Train for some epochs, printing a line for each; return losses and epochs, and the model."""
    torch.manual_seed(0)
    train, test = digits.load_digits()
    loader: DataLoader[Any] = DataLoader(train, batch_size=BATCH, shuffle=True)
    model, optimizer, schedule = digits.build(epochs, len(loader))
    watch.attach(model, optimizer)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count:,} parameters, {len(train)} training and {len(test)} test images\n")
    losses: list[float] = []
    rows: list[Epoch] = []
    for epoch in range(1, epochs + 1):
        begin = time.perf_counter()
        progress = bar(len(loader), f"epoch {epoch}/{epochs}")

        def on_step(loss: float, progress: Any = progress) -> None:
            losses.append(loss)
            schedule.step()
            progress.update()

        loss = digits.train_epoch(model, loader, optimizer, on_step)
        progress.close()
        accuracy = digits.evaluate(model, test)
        seconds = time.perf_counter() - begin
        rows.append({"epoch": epoch, "loss": loss, "accuracy": accuracy, "seconds": seconds})
        print(f"epoch {epoch:2}  loss {loss:.4f}  test accuracy {accuracy:7.2%}  {seconds:.2f} s")
    return {"loss": [round(loss, 5) for loss in losses], "epochs": rows}, (model, optimizer)


def _replays(trace: alloc.Trace) -> list[StrategyResult]:
    """Replay the run's trace under each strategy, and print what it would have cost."""
    requests = alloc.requests_of(trace)
    results: list[StrategyResult] = []
    print(f"\nthe run's {len(requests):,} requests, replayed:")
    for name, label in STRATEGIES.items():
        begin = time.perf_counter()
        result = alloc.run_strategy(requests, name)
        seconds = time.perf_counter() - begin
        results.append(
            {
                "name": name,
                "label": label,
                "peak_allocated_bytes": result.peak_allocated_bytes,
                "peak_reserved_bytes": result.peak_reserved_bytes,
                "upstream_calls": result.upstream_calls,
                "seconds": seconds,
            }
        )
        print(
            f"  {label:28} peak reserved {report.bytes_text(result.peak_reserved_bytes):>9}"
            f"   upstream calls {result.upstream_calls:>9,}"
        )
    return results


def _report_data(
    outcome: dict[str, Any], training: dict[str, Any], events: list[TraceEvent],
    marks: list[Mark], strategies: list[StrategyResult],
) -> ReportData:  # fmt: skip
    pairs = list(history.indexed_samples(events))
    samples = [sample for _, sample in pairs]
    index, _ = history.peak(pairs)
    return {
        "title": "A convnet learns to read handwritten digits",
        "lead": "Two convolutions and a linear layer, trained with AdamW on the UCI digits. "
        "Every byte of every tensor came from one caching allocator, which kept this record.",
        "environment": _environment(),
        "figures": _figures(outcome, events),
        "training": training,
        "memory": {
            "run": history.curve(samples, marks),
            "step": history.curve(history.largest_step(samples, marks), marks),
        },
        "segments": history.segments_after(events[: index + 1]),
        "strategies": strategies,
    }


def _environment() -> list[str]:
    return [
        f"refruntime {torch.__version__}",
        f"Python {platform.python_version()}",
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "float32 on the CPU",
    ]


def _figures(outcome: dict[str, Any], events: list[TraceEvent]) -> list[tuple[str, str]]:
    requests = sum(event.action == "alloc" for event in events)
    return [
        ("test accuracy", f"{outcome['accuracy']:.1%}"),
        ("wall time", f"{outcome['seconds']:.1f} s"),
        ("peak allocated", report.bytes_text(outcome["peak_allocated_bytes"])),
        ("peak reserved", report.bytes_text(outcome["peak_reserved_bytes"])),
        ("allocations", f"{requests:,}"),
    ]
