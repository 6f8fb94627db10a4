"""The top eigenvalue of Fisher, Gauss-Newton and Hessian matrix to 1e-3, beside other libraries.

    python benchmarks/curvature.py [--quick] [--net N] [--kind K] [--patience S]
                                   [--threads N] [--alone] [--memory] [--json FILE]

One process; the contenders of a net take turns and the shortest time of each counts (one that
takes longer than the patience has one turn, and its memory is not measured). Each call
starts from the bare model, so that set-up is counted. The other libraries cannot measure a net
whose batch statistics are those of the batch: they answer for running statistics (eval), and ours
is timed in both modes. Attention runs by torch's math kernel for every library, since the fused
ones have no second derivative. The others come with `pip install -e .[bench]`; missing ones are
left out.

"fb" is the time in forward and backward passes of the same batch in the same mode, timed in the
same run, six in a row: as long as one of our answers, so that a quiet moment favours neither.
"limit" is the time over that of the products needed at one such pass each. "error" is against our
value in float64, to a residual of 1e-4. A tool that misses 1e-3 is no peer to be faster than.
Memory is the rise of the resident set above its start. Freed memory that the allocator kept from
other contenders can hide a need for more; `--memory` measures nothing else, each tool in a process
of its own, after one call on two samples that loads its code. The other tools make a few products
there: more of them need no more memory.

Of ours, "normscope" stops when the value is known (``stop="value", vectors=False``), which is the
question here, and what eigsh is asked too; "normscope, vector" stops when the vector is known and
returns it (the default of `top_eigenvalue`);
"normscope, any module" hides the layers, as a model of unknown modules does, and multiplies by a
retained graph.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from curvature_peers import (
    Answer,
    Contender,
    Question,
    brief_peers,
    missing_peers,
    present_peers,
)
from memory import peak_megabytes
from networks import ResNet18, SmallGPT, SmallViT
from rich.console import Console
from rich.table import Table
from timing import interleaved
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.curvature import top_eigenvalue
from normscope.layers import population_statistics
from normscope.models import build

ACCURACY = 1e-3
IN_A_ROW = 6  # passes of one turn
OURS = "normscope"
ANY_MODULE = f"{OURS}, any module"
KINDS = ("fisher", "ggn", "hessian")
VECTOR = f"{OURS}, vector"
# passes, on the nets that have a goal; both stopping rules are judged by the same
GOALS = {
    **{(tool, "fisher"): 6.0 for tool in (OURS, VECTOR)},
    **{(tool, "hessian"): 12.0 for tool in (OURS, VECTOR)},
    (ANY_MODULE, "fisher"): 12.0,
    (ANY_MODULE, "hessian"): 14.0,
}


@dataclass(frozen=True)
class Net:
    """A net and the batch it is measured on."""

    name: str
    model: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    samples: int
    has_goal: bool = True
    vocabulary: int = 0  # of tokens; 0: the inputs are images


NETS = [
    Net("fc_bn", lambda: build("fully_connected"), (1, 28, 28), 1024),
    Net("fc", lambda: build("fully_connected", norm="none"), (1, 28, 28), 1024),
    Net("conv_bn", lambda: build("conv_net"), (3, 32, 32), 512),
    Net("vgg_bn", lambda: build("vgg", width=0.25), (3, 32, 32), 128, has_goal=False),
    Net("resnet18", ResNet18, (3, 32, 32), 128, has_goal=False),
    Net("resnet18_quarter", lambda: ResNet18(width=16), (3, 32, 32), 128, has_goal=False),
    Net("vit", SmallViT, (3, 32, 32), 128, has_goal=False),
    Net("gpt", SmallGPT, (64,), 32, has_goal=False, vocabulary=256),
]


@dataclass(frozen=True)
class Row:
    """One contender on one net."""

    net: str
    kind: str
    mode: str
    tool: str
    seconds: float
    times_fastest_peer: float | None
    products: float
    passes: float
    times_limit: float
    error: float
    megabytes: float | None
    goal: float | None

    @property
    def met(self) -> bool:
        """Whether it is accurate, and within the goal if it has one."""
        return self.error <= ACCURACY and (self.goal is None or self.passes <= self.goal)


class Opaque(nn.Module):
    """A module that shows nothing of what is in it but its parameters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """What the inner module does, after a look at the values, which no reader can follow."""
        if bool(x.is_floating_point() and x.isnan().any()):
            raise ValueError("the inputs have holes")
        return self.inner(x)


def ours(question: Question, mode: str, stop: str = "value", opaque: bool = False) -> Answer:
    data = (question.inputs, question.targets)
    model = Opaque(question.model) if opaque else question.model
    found = top_eigenvalue(
        *(model, question.loss, data, question.kind, mode),
        tol=ACCURACY,
        stop=stop,
        vectors=stop == "residual",
    )
    return found.value, found.matvecs


def ours_in(mode: str) -> dict[str, Contender]:
    return {
        f"{OURS}/{mode}": functools.partial(ours, mode=mode),
        f"{VECTOR}/{mode}": functools.partial(ours, mode=mode, stop="residual"),
        f"{ANY_MODULE}/{mode}": functools.partial(ours, mode=mode, opaque=True),
    }


def true_value(question: Question, mode: str) -> float:
    model = copy.deepcopy(question.model).double()
    given = (question.inputs, question.targets)
    data = tuple(each.double() if each.is_floating_point() else each for each in given)
    return top_eigenvalue(model, question.loss, data, question.kind, mode, tol=1e-4).value


def passes_in_a_row(question: Question, mode: str) -> Callable[[], object]:
    model = copy.deepcopy(question.model).train(mode == "train")

    def run() -> None:
        for _ in range(IN_A_ROW):
            model.zero_grad(set_to_none=True)
            question.loss(model(question.inputs), question.targets).backward()

    return run


def batch_of(net: Net, samples: int, kind: str) -> tuple[Tensor, Tensor]:
    if not net.vocabulary:
        return torch.randn(samples, *net.input_shape), torch.randint(10, (samples,))
    tokens, following = (torch.randint(net.vocabulary, (samples, *net.input_shape)) for _ in "ab")
    if kind == "fisher":  # squared errors take labels of vectors only; the targets do not matter
        return tokens, torch.zeros(samples, net.vocabulary, *net.input_shape)
    return tokens, following


def questions(net: Net, samples: int, kind: str) -> Question:
    torch.manual_seed(0)
    inputs, targets = batch_of(net, samples, kind)
    model = net.model()
    if any(True for _ in model.buffers()):
        population_statistics(model, (inputs, targets))  # else eval would not normalize at all
    return Question(model.eval(), inputs, targets, kind)


def contenders(
    question: Question, values: dict[str, float], quick: bool, alone: bool
) -> dict[str, Contender]:
    """By tool and mode, such as "normscope/train"."""
    found = {name: way for mode in values for name, way in ours_in(mode).items()}
    peers = {} if alone else present_peers(question, values["eval"], quick)
    return found | {f"{name}/eval": contender for name, contender in peers.items()}


def measure(net: Net, kind: str, quick: bool, patience: float, alone: bool) -> list[Row]:
    question = questions(net, net.samples // 8 if quick else net.samples, kind)
    has_statistics = any(True for _ in question.model.buffers())
    modes = ("train", "eval") if has_statistics else ("eval",)
    values = {mode: true_value(question, mode) for mode in modes}
    tried = contenders(question, values, quick, alone)
    answers: dict[str, Answer] = {}

    def asked(name: str) -> Callable[[], object]:
        def ask() -> None:
            try:
                answers[name] = tried[name](question)
            except Exception as error:  # a library that cannot measure the model
                if name not in answers:
                    print(f"{name} fails: {type(error).__name__}: {str(error)[:90]}")
                answers[name] = float("nan"), float("nan")

        return ask

    calls = {name: asked(name) for name in tried}
    passes = {mode: passes_in_a_row(question, mode) for mode in modes}
    rounds = 1 if quick else 3
    times = interleaved({**passes, **calls}, seconds=0, least_rounds=rounds, patience=patience)
    one_pass = {mode: times[mode] / IN_A_ROW for mode in modes}
    brief = {name: call for name, call in calls.items() if times[name] <= patience}
    peaks = {name: peak_megabytes(call) for name, call in brief.items()}
    errors = {
        name: abs(value / values[name.rpartition("/")[2]] - 1)
        for name, (value, _) in answers.items()
    }
    fastest = fastest_peer(times, errors)
    rows = []
    for name in tried:
        tool, _, mode = name.rpartition("/")
        products = answers[name][1]
        rows.append(
            Row(
                net=net.name,
                kind=kind,
                mode=mode if has_statistics else "-",
                tool=tool,
                seconds=times[name],
                times_fastest_peer=None if fastest is None else fastest / times[name],
                products=products,
                passes=times[name] / one_pass[mode],
                times_limit=times[name] / (products * one_pass[mode]),
                error=errors[name],
                megabytes=peaks.get(name),
                goal=GOALS.get((tool, kind)) if net.has_goal and not quick else None,
            )
        )
    return rows


def fastest_peer(times: dict[str, float], errors: dict[str, float]) -> float | None:
    """The shortest time of another library that reached the accuracy."""
    reached = [
        times[name]
        for name, error in errors.items()
        if error <= ACCURACY and not name.startswith(OURS)
    ]
    return min(reached, default=None)


def measure_memory(net: Net, kind: str, threads: int) -> None:
    """Print the peak memory of each tool, in evaluation mode, in a process of its own."""
    for tool in [OURS, *brief_peers(kind)]:
        command = [sys.executable, __file__, "--memory-of", tool, "--net", net.name]
        command += ["--kind", kind, "--threads", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
        print(f"{net.name:16} {kind:8} {tool:20} {lines[-1] if lines else 'no answer'}", flush=True)


def print_memory_of(tool: str, net: Net, kind: str) -> None:
    question = questions(net, net.samples, kind)
    contender = ({OURS: functools.partial(ours, mode="eval")} | brief_peers(kind))[tool]
    few = Question(question.model, question.inputs[:2], question.targets[:2], kind)
    contender(few)  # imports what the tool needs
    peak = peak_megabytes(lambda: contender(question))
    print("unknown" if peak is None else f"{peak:.0f} MB")


def show(rows: list[Row]) -> None:
    table = Table(title="largest eigenvalue to 1e-3 (x peer: times faster than the fastest peer)")
    left = ("net", "kind", "mode", "tool")
    for column in (*left, "s", "x peer", "products", "fb", "limit", "error", "MB", ""):
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        judged = "" if row.goal is None else ("met" if row.met else "MISSED")
        table.add_row(
            *(row.net, row.kind, row.mode, row.tool, f"{row.seconds:.3f}"),
            "-" if row.times_fastest_peer is None else f"{row.times_fastest_peer:.2f}",
            f"{row.products:.1f}",
            f"{row.passes:.1f}",
            f"{row.times_limit:.2f}",
            f"{row.error:.0e}" + ("" if row.error <= ACCURACY else " misses"),
            "-" if row.megabytes is None else f"{row.megabytes:.0f}",
            judged,
        )
    Console(width=132).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the samples, one round, tuned peers"
    )
    parser.add_argument("--net", choices=[net.name for net in NETS], help="only this net")
    parser.add_argument("--kind", choices=KINDS, help="only this kind")
    parser.add_argument(
        "--patience", type=float, default=float("inf"), metavar="S", help="one turn if it takes S s"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of torch; default its own")
    parser.add_argument("--alone", action="store_true", help="without the other libraries")
    parser.add_argument("--memory", action="store_true", help="peak memory only, by processes")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    threads = torch.get_num_threads()
    nets = [net for net in NETS if options.net in (None, net.name)]
    kinds = [kind for kind in KINDS if options.kind in (None, kind)]
    if options.memory_of is not None:
        with sdpa_kernel(SDPBackend.MATH):
            print_memory_of(options.memory_of, nets[0], kinds[0])
        return
    print(f"torch {torch.__version__}, {threads} threads, {platform.machine()}")
    for package in missing_peers():
        print(f"{package} is not installed and left out: pip install -e .[bench]")
    if options.memory:
        for net in nets:
            for kind in kinds:
                measure_memory(net, kind, threads)
        return
    rows: list[Row] = []
    for net in nets:
        for kind in kinds:
            with sdpa_kernel(SDPBackend.MATH):
                rows += measure(net, kind, options.quick, options.patience, options.alone)
    show(rows)
    if judged := [row for row in rows if row.goal is not None]:
        met = sum(row.met for row in judged)
        print(
            f"goals (Fisher in 6 passes, in 12 for any module; Hessian in 12, in 14): "
            f"{met} of {len(judged)} met"
        )
    if options.json:
        environment = {"torch": torch.__version__, "threads": threads, "quick": options.quick}
        rows_as_dicts = [asdict(row) for row in rows]
        options.json.write_text(json.dumps({**environment, "rows": rows_as_dicts}, indent=2) + "\n")


if __name__ == "__main__":
    main()
