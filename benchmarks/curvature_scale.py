"""Time and peak memory of the top eigenvalue as a language model grows.

    python benchmarks/curvature_scale.py [--sizes 10 30 100] [--kind ggn] [--sequences N]
                                         [--length N] [--threads N] [--json FILE]

GPTs with a vocabulary of 50257 tokens, whose output layer shares the embedding's weights: about 10,
30 and 100 million parameters. Each runs in a process of its own. "fb" is the time in forward and
backward passes of the same batch; memory is the peak of the resident set, and its rise above that
after the model was made, in MiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

SHAPES = {10: (4, 160), 30: (6, 384), 100: (12, 672)}  # millions: blocks, width
VOCABULARY = 50257


def measure(size: int, kind: str, sequences: int, length: int, threads: int) -> dict[str, float]:
    """Return what one model took; to be called in a new process."""
    import torch
    from memory import _status
    from networks import SmallGPT

    from normscope.curvature import top_eigenvalue

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    depth, width = SHAPES[size]
    model = SmallGPT(VOCABULARY, length, width, depth, heads=width // 32)
    model.head.weight = model.tokens.weight
    torch.nn.init.normal_(model.tokens.weight, std=0.02)
    tokens, following = (torch.randint(VOCABULARY, (sequences, length)) for _ in range(2))
    loss = torch.nn.functional.cross_entropy
    before = _status("VmRSS")
    start = time.perf_counter()
    top = top_eigenvalue(
        model, loss, (tokens, following), kind, "eval", stop="value", vectors=False
    )
    seconds = time.perf_counter() - start
    peak = _status("VmHWM")
    start = time.perf_counter()
    loss(model(tokens), following).backward()
    one_pass = time.perf_counter() - start
    return {
        "parameters": sum(each.numel() for each in model.parameters()) / 1e6,
        "value": top.value,
        "converged": top.converged,
        "seconds": seconds,
        "products": top.matvecs,
        "passes": seconds / one_pass,
        "peak": peak / 1024,
        "rise": (peak - before) / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--kind", default="ggn")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = (options.kind, options.sequences, options.length, options.threads)
    if options.worker is not None:
        print(json.dumps(measure(options.worker, *given)))
        return
    rows = []
    print(f"{'M par':>6} {'s':>7} {'products':>9} {'fb':>6} {'MiB':>7} {'rise':>7}  value")
    for size in options.sizes:
        run = [sys.executable, __file__, "--worker", str(size), "--kind", options.kind]
        run += ["--sequences", str(options.sequences), "--length", str(options.length)]
        run += ["--threads", str(options.threads)]
        answer = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        row = json.loads(answer.splitlines()[-1])
        rows.append(row)
        print(
            f"{row['parameters']:6.1f} {row['seconds']:7.1f} {row['products']:9.1f} "
            f"{row['passes']:6.1f} {row['peak']:7.0f} {row['rise']:7.0f}  {row['value']:.5g}"
            + ("" if row["converged"] else " (not converged)"),
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
