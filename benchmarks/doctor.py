"""How many planted faults `normscope.doctor` finds, and what it finds in healthy networks.

    python benchmarks/doctor.py [--torch-audit FOLDER] [--deep]

Plants every fault of ``tests/zoo/faults.py`` in its network. A fault counts as found if the finding
of its name is at the right module. Healthy networks, each with AdamW in groups, must have no
finding above a note. With --torch-audit (a folder with that package, as ``pip install --no-deps
--target`` makes it) torch-audit audits the same cases for one step; a fault counts as found there
by any finding of a rule for it, at whatever module. Its hints about hardware (TA2xx) do not count.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import normscope as ns

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.zoo.entry import call, target_of
from tests.zoo.faults import FAULTS, HEALTHY, Case, with_healthy_optimizer

RULES = {  # of torch-audit, for each of our findings
    "few_samples": {"TA304"},
    "constant_inputs": {"TA302"},
    "dead_channels": {"TA103", "TA105", "TA405"},
    "collapsed_outputs": {"TA105", "TA302"},
    "non_finite": {"TA100"},
    "exploding_gradients": {"TA102"},
    "bias_before_norm": {"TA400"},
    "decayed_norm": {"TA402"},
    "shared_statistics": {"TA501"},
}


def examine(case: Case, deep: bool = False) -> ns.diagnosis.Diagnosis:
    """Return the diagnosis of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ns.doctor(case.model, case.loss, case.data, case.optimizer, deep=deep or case.deep)


def audit(case: Case) -> set[tuple[str, str]]:
    """Return rule and severity of everything that torch-audit reports in one training step."""
    from torch_audit import Auditor

    case = copy.deepcopy(case)
    factory = case.optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1e-3))
    trainable = [p for p in case.model.parameters() if p.requires_grad]
    optimizer = factory(trainable) if callable(factory) else factory
    auditor = Auditor(case.model, optimizer=optimizer, every_n_steps=1, reporters=[])
    batch = case.data[0]
    with auditor:
        auditor.audit_static()
        auditor.audit_init()
        *inputs, _ = batch if isinstance(batch, tuple) else (None,)
        output = auditor.forward(*inputs) if inputs else call(case.model, batch)
        loss = functional.cross_entropy if case.loss == "cross_entropy" else case.loss
        value = output.loss if loss == "model" else _loss(loss, output, target_of(batch))
        auditor.backward(value)
        auditor.optimizer_step()
    found = auditor.finish(report=False).findings
    return {(each.rule_id, each.severity.name) for each in found}


def _loss(loss: Any, output: Any, target: Any) -> torch.Tensor:
    return (
        ns.problem.LOSSES[loss](output, target) if isinstance(loss, str) else loss(output, target)
    )


def attempt(function: Callable[[], Any]) -> Any:
    """Return a result, or the class of the error: another tool may not take every model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function()
    except Exception as error:  # the point is to count it
        return type(error).__name__


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-audit", type=Path)
    parser.add_argument("--deep", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.torch_audit is not None:
        sys.path.append(str(options.torch_audit))
    print_faults(options.torch_audit is not None)
    print_healthy(options.torch_audit is not None, options.deep)


def print_faults(with_audit: bool) -> None:
    """Print a row for each planted fault, and the sum."""
    found = Counter[str]()
    print("| fault | network | module | found | severity | before | after | passes | torch-audit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for fault in FAULTS:
        diagnosis = examine(fault.build())
        hits = [each for each in diagnosis[fault.finding] if each.module in fault.modules]
        at = hits[0] if hits else None
        audited = attempt(lambda fault=fault: audit(fault.build())) if with_audit else set()
        rules = RULES.get(fault.finding, set())
        other = "-"
        if isinstance(audited, str):
            other = audited
        elif with_audit:
            other = "yes" if {rule for rule, _ in audited} & rules else "no"
        found["normscope"] += bool(hits)
        found["unseen"] += bool(hits) and fault.unseen
        found["torch-audit"] += other == "yes"
        found["most passes"] = max(
            found["most passes"], 0 if fault.build().deep else diagnosis.passes
        )
        cells = ("no", "", "", "") if at is None else ("yes", at.severity, *_numbers(at))
        where = (at.module if at else fault.modules[0]) or "model"
        star = " *" if fault.unseen else ""
        print(f"| {fault.finding} | {fault.base}{star} | {where} | {' | '.join(cells)} "
              f"| {diagnosis.passes} | {other} |")  # fmt: skip
    unseen = sum(fault.unseen for fault in FAULTS)
    print(f"\n{found['normscope']} of {len(FAULTS)} planted faults found at the right module; of "
          f"{unseen} in networks that were never seen (*) {found['unseen']}; torch-audit "
          f"{found['torch-audit']}.")  # fmt: skip
    print(f"At most {found['most passes']} passes without deep.\n")


def _numbers(finding: ns.diagnosis.Finding) -> tuple[str, str]:
    after = finding.fixed_value
    return f"{finding.value:.2g}", "-" if after is None else f"{after:.2g}"


def print_healthy(with_audit: bool, deep: bool) -> None:
    """Print a row for each healthy network, and the sum."""
    wrong, audited_wrong, failed, most = 0, 0, 0, 0
    print("| healthy network | above a note | notes | passes | seconds | torch-audit |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in HEALTHY.items():
        case = with_healthy_optimizer(make())
        start = time.perf_counter()
        diagnosis = examine(case, deep)
        seconds = time.perf_counter() - start
        above = [each.name for each in diagnosis if each.severity != "note"]
        notes = sorted({each.name for each in diagnosis if each.severity == "note"})
        audited = (
            attempt(lambda make=make: audit(with_healthy_optimizer(make())))
            if with_audit
            else set()
        )
        loud = audited if isinstance(audited, str) else _loud(audited)
        wrong, most = wrong + bool(above), max(most, diagnosis.passes)
        failed += isinstance(audited, str)
        audited_wrong += not isinstance(audited, str) and bool(loud)
        skipped = f" (not checked: {', '.join(diagnosis.skipped)})" if diagnosis.skipped else ""
        print(f"| {name} | {', '.join(above) or '-'} | {', '.join(notes) or '-'}{skipped} "
              f"| {diagnosis.passes} | {seconds:.1f} | {loud or '-'} |")  # fmt: skip
    print(f"\n{len(HEALTHY)} healthy networks: {wrong} with a finding above a note, at most {most} "
          f"passes.")  # fmt: skip
    print(f"torch-audit: {audited_wrong} with a warning or error, {failed} failed.")


def _loud(audited: set[tuple[str, str]]) -> str:
    serious = {rule for rule, severity in audited if severity in ("WARN", "ERROR", "FATAL")}
    return ", ".join(sorted(rule for rule in serious if not rule.startswith("TA2")))


if __name__ == "__main__":
    main()
