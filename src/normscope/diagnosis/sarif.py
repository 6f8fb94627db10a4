"""A diagnosis in SARIF, the format in which code hosts take the results of checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from normscope import __version__
from normscope.diagnosis.registry import CHECKS

if TYPE_CHECKING:
    from normscope.diagnosis.results import Diagnosis, Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_log(diagnosis: Diagnosis, file: str | None = None) -> dict[str, Any]:
    """Return the log: a rule for each check that was made, a result for each finding.

    Args:
        diagnosis: the findings.
        file: that defines the model; code hosts show a result only beside a file.
    """
    rules = [
        {"id": name, "shortDescription": {"text": CHECKS.summary(name)}}
        for name in diagnosis.checks
    ]
    driver = {"name": "normscope doctor", "version": __version__, "rules": rules}
    results = [_result(each, diagnosis.checks.index(each.name), file) for each in diagnosis]
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, rule: int, file: str | None) -> dict[str, Any]:
    place: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": each or "model", "kind": "module"} for each in finding.modules
        ]
    }
    if file is not None:
        place["physicalLocation"] = {"artifactLocation": {"uri": file}}
    return {
        "ruleId": finding.name,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{finding.what} {finding.evidence}\nFix:\n{finding.fix}"},
        "locations": [place],
        "properties": {
            "value": _json_number(finding.value),
            "fixedValue": _json_number(finding.fixed_value),
            "effect": finding.effect,
        },
    }


def _json_number(value: float | None) -> float | None:
    """Return a number that JSON has; None for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None
