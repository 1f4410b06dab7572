"""Runs every op's samples, forward and backward, and prints a digest of each result.

Used by `test_second_process`: what one process compiled, another must load and run to the same
bits. Prints one JSON object: the digests, and the kernels that this process had to compile.
"""

from __future__ import annotations

import json
import sys
import warnings
import zlib

import refruntime as torch
from refruntime._impl import TensorImpl
from refruntime._native import compile_log
from refruntime._ops.opdef import REGISTRY
from refruntime._ops.samples import front_of, generator_of, realize


def flat(value):
    return (
        [x for part in value for x in flat(part)] if isinstance(value, (list, tuple)) else [value]
    )


def digest(values) -> int:
    code = 0
    for value in values:
        data = value.array().tobytes() if isinstance(value, TensorImpl) else repr(value).encode()
        code = zlib.crc32(data, code)
    return code


def run(op, sample) -> int:
    rng = generator_of(op, sample)
    args = realize(sample.args, rng, requires_grad=sample.grad)
    outputs = flat(front_of(op, sample)(*args, **realize(sample.kwargs, rng)))
    leaves = [x for x in flat(args) if isinstance(x, TensorImpl) and x.requires_grad]
    recorded = [x for x in outputs if isinstance(x, TensorImpl) and x.requires_grad]
    if sample.grad and leaves and recorded:
        torch.autograd.backward(recorded, [torch.ones_like(x) for x in recorded])
        outputs += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return digest(outputs)


def main() -> None:
    warnings.simplefilter("ignore")
    digests = {
        f"{op.name}-{number}": run(op, sample)
        for op in sorted(REGISTRY.values(), key=lambda op: op.name)
        if op.samples is not None
        for number, sample in enumerate(op.samples())
    }
    compiled = [f"{event.name}: {event.signature}" for event in compile_log if not event.cached]
    json.dump({"digests": digests, "compiled": compiled, "loaded": len(compile_log)}, sys.stdout)


if __name__ == "__main__":
    main()
