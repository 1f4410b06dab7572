"""The leaderboard as a page: Markdown tables of the figures in ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

GIB = 1 << 30
BASE = "caching"
Results = Mapping[str, Any]

HEAD = """# Leaderboard of strategies

How allocators would have served recorded training runs, on a virtual device of 80 GiB. Written by
`python bench/alloc/leaderboard.py` from `bench/alloc/results.json`; what the strategies are stands
in [strategies.md](strategies.md).

*Fragmentation* is 1 − peak live / peak reserved, where *live* are the bytes asked for, each block
rounded to 512: the same for all strategies, so that rounding counts as waste too. `caching` is
PyTorch's allocator with its default settings, `caching-expandable` the same with
`expandable_segments:True`, `cuda-malloc-async` PyTorch's other backend over a model of the driver's
pool.
"""

NOTES = """
- `plain` returns every block at once, so it reserves what lives and pays with a driver call for
  each request. It is the bound below, not a competitor.
- `rmm-arena` never grows: it is given the smallest arena that serves the run. Its default, half of
  the device, would be 40 GiB everywhere.
- `rmm-binning` reserves 992 MiB before the first request, and `rmm-pool` and `bfc` double what they
  have when they grow: on small runs that is most of what they hold.
- `bfc`, `buddy`, `tlsf` and `two-ended` know no streams. Where a run uses two (`fsdp_like`) they
  reuse memory across them without waiting, as their originals would on the one stream that they
  were written for.
- An *unserved* request ran out of memory; a run with such a request reserves less than it should.
"""


def page(results: Results) -> str:
    """Return the whole page."""
    return "\n".join([HEAD, _summary(results), NOTES, _by_run(results), _claims(results)]).replace(
        "\n\n\n", "\n\n"
    )


def fragmentation(run: Results, strategy: str) -> float:
    """Return the share of what is reserved at the peak that no block needs."""
    return 1 - run["peak_live"] / run["strategies"][strategy]["peak_reserved"]


def _strategies(results: Results) -> list[str]:
    """Return the strategies that have served all runs, the least fragmented first."""
    common = set.intersection(*(set(run["strategies"]) for run in results["runs"].values()))
    return sorted(common, key=lambda name: (_mean_fragmentation(results, name), name))


def _mean_fragmentation(results: Results, strategy: str) -> float:
    return mean(fragmentation(run, strategy) for run in results["runs"].values())


def _summary(results: Results) -> str:
    runs = results["runs"].values()
    rows = []
    for name in _strategies(results):
        figures = [run["strategies"][name] for run in runs]
        reserved = [
            run["strategies"][name]["peak_reserved"] / run["strategies"][BASE]["peak_reserved"]
            for run in runs
        ]
        worst = max(fragmentation(run, name) for run in runs)
        seconds = results.get("cpu_ratio", {}).get(name)
        rows.append(
            [
                f"`{name}`",
                f"{_mean_fragmentation(results, name):.1%}",
                f"{worst:.1%}",
                f"{mean(reserved):.2f}",
                f"{sum(each['upstream_calls'] for each in figures):,}",
                str(sum(each.get("ooms", 0) for each in figures)),
                "" if seconds is None else f"{seconds:.2g}",
            ]
        )
    return f"## All {len(results['runs'])} runs\n\n" + _table(
        [
            "strategy", "mean fragmentation", "worst", "reserved : caching", "upstream calls",
            "unserved", "CPU : caching",
        ],
        rows,
    ) + (
        "\nThe last column depends on the machine and is not kept fresh: processor time of runs\n"
        "in `bench/traces`, planning left out, against the compiled caching allocator. The other\n"
        "strategies are plain Python, a page each.\n"
    )  # fmt: skip


def _by_run(results: Results) -> str:
    runs = results["runs"]
    rows = [["*live*", *(_gib(run["peak_live"]) for run in runs.values())]]
    for name in _strategies(results):
        row = [f"`{name}`"]
        for run in runs.values():
            figures = run["strategies"][name]
            row.append(_gib(figures["peak_reserved"]) + ("*" if figures.get("ooms") else ""))
        rows.append(row)
    return (
        "## Peak reserved by run, in GiB\n\n"
        + _table(["strategy", *(f"`{name}`" for name in runs)], rows)
        + "\nAn asterisk marks a run with an unserved request.\n"
    )


def _claims(results: Results) -> str:
    return CLAIMS.format(
        table=_claims_table(results["runs"]),
        **{
            name.replace("-", "_"): _reduction(results["runs"], name)
            for name in ("gmlake", "gmlake-top-up", "stalloc", "stalloc-whole-run")
        },
    )


def _claims_table(runs: Mapping[str, Results]) -> str:
    names = [BASE, "gmlake", "gmlake-top-up", "stalloc", "stalloc-whole-run"]
    rows = []
    for run_name, run in runs.items():
        figures = run["strategies"]["stalloc"]
        share = 1 - figures.get("unplanned", 0) / run["mallocs"]
        rows.append(
            [
                f"`{run_name}`",
                *(f"{fragmentation(run, name):.1%}" for name in names),
                f"{share:.0%}",
            ]
        )
    return _table(["run", *(f"`{name}`" for name in names), "mallocs that `stalloc` planned"], rows)


def _reduction(runs: Mapping[str, Results], name: str) -> str:
    """Return by how much a strategy lowers fragmentation: in points, and as a share."""
    before = [fragmentation(run, BASE) for run in runs.values()]
    after = [fragmentation(run, name) for run in runs.values()]
    points = [a - b for a, b in zip(before, after, strict=True)]
    return (
        f"{100 * mean(points):.1f} points on average, {100 * max(points):.1f} at most; "
        f"{1 - mean(after) / mean(before):.0%} of it"
    )


CLAIMS = """## Against the papers' claims

Both papers give the fragmentation ratio as here, on runs of their own.

{table}
**GMLake** claims 15 points less fragmentation on average, up to 33 (abstract of arXiv 2401.08156:
8 LLMs fine-tuned with LoRA, recomputation, offload, ZeRO on A100). Here, over all runs:

- `gmlake-top-up`, the algorithm of the paper with every large request stitched: {gmlake_top_up}.
- `gmlake`, the published code's defaults: {gmlake}.

The code's defaults stitch requests from 512 MiB on and never top up. `mlp`, `resnet18` and
`fsdp_like` have no such requests, and stay as they are; the tutorial lowers the limit to 256
MiB for a model of 1.3 B parameters for this reason. Where `caching` wastes little there is
little to win: the paper's runs are of a kind that fragments (up to 30 %, says its README). What
stitching leaves is rounding to 2 MiB, and what one stream frees and the other cannot use
(`fsdp_like`).

**STAlloc** claims to remove 79.2 % of the fragmentation on average, up to 100 % (85.1 % in the
second version of arXiv 2507.16274: Megatron, dense and mixture of experts, with virtual pipelines
and recomputation). Here:

- `stalloc-whole-run`, every malloc of the run planned: {stalloc_whole_run}.
- `stalloc`, only the beginning and one round planned, as a profile of three iterations gives them:
  {stalloc}.

STAlloc is made for runs whose requests can be foretold from their first iterations. Of these
eleven, three repeat one iteration exactly (`gpt2_bf16`, `gpt2_fp32`, `mlp`), and there
`stalloc` leaves 0.3 % at most. The others do not repeat: with a new sequence length every step
no size comes again (`gpt2_varlen`, `gpt2_accum`, `gpt2_ckpt`, `gpt13_near`, `gpt13_tight`,
`llama_infer`), and all requests go to the caching allocator behind the plan; `fsdp_like` does
not take the same sizes in every step; `resnet18` ends with an evaluation that the profile has
not seen. STAlloc's answer to dynamic layers, the reuse of gaps in the plan, needs the names of
modules, which an event list does not have. Such a run can be planned when it is known as a
whole: from a recording with the same order of data.
"""


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is left-aligned and whose others are right-aligned."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
