"""The house's rules of design: who may import whom, what loads when, what a reference is."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import normscope
from normscope.papers import PAPERS

PACKAGE = Path(normscope.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Each part may import from those named after it (and from itself). Two columns over one base:
# the torch column may read from the torch-free one, never the other way.
BASE = {
    "errors",
    "files",
    "import_path",
    "interrupts",
    "papers",
    "progress",
    "progress_bar",
    "ranges",
    "registry",
    "text",
    "validation",
    "warn",
}
TORCH_FREE = {
    "results": set(),
    "plots": {"results"},
    "report": {"results", "plots"},
    "watch": {"results", "plots"},
}
FIRST_FLOOR = {"problem", "layers"}
SECOND_FLOOR = FIRST_FLOOR | {"models", "data", "curvature", "meanfield", "decoupled"}
THIRD_FLOOR = SECOND_FLOOR | {"training"}
FOURTH_FLOOR = THIRD_FLOOR | {"probes", "theorems", "learning_rate"}
WITH_TORCH = {
    "problem": set(),
    "layers": {"problem"},
    "models": FIRST_FLOOR,
    "data": FIRST_FLOOR,
    "curvature": FIRST_FLOOR,
    "meanfield": FIRST_FLOOR,
    "decoupled": FIRST_FLOOR,
    "training": SECOND_FLOOR,
    "probes": THIRD_FLOOR | {"learning_rate"},  # its update rules
    "theorems": THIRD_FLOOR,
    "learning_rate": THIRD_FLOOR,
    "diagnosis": THIRD_FLOOR | {"learning_rate"},
    "sweeps": FOURTH_FLOOR,
    "landscape": FOURTH_FLOOR | {"sweeps"},
    "experiments": FOURTH_FLOOR | {"sweeps"},
}
EVERYTHING = BASE | set(TORCH_FREE) | set(WITH_TORCH)
ALLOWED = (
    {part: set() for part in BASE}
    | {part: BASE | below for part, below in TORCH_FREE.items()}
    | {part: BASE | set(TORCH_FREE) | below for part, below in WITH_TORCH.items()}
    | {top: EVERYTHING | {"cli", "integrations"} for top in ("cli", "integrations", "__main__")}
    | {"__init__": EVERYTHING | {"integrations"}}
)
ALLOWED["files"] = {"interrupts"}
ALLOWED["progress"] = {"errors"}
ALLOWED["progress_bar"] = {"progress", "text"}
ALLOWED["papers"] = {"registry", "errors"}
ALLOWED["registry"] = {"errors", "interrupts"}
ALLOWED["ranges"] = {"errors"}
ALLOWED["validation"] = {"errors"}
ALLOWED["warn"] = {"errors", "interrupts"}
ALLOWED["import_path"] = {"registry", "errors"}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(file: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module)
            if node.module == "normscope":
                found |= {f"normscope.{alias.name}" for alias in node.names}
    return found


def imported_parts(file: Path) -> set[str]:
    names = (name.split(".") for name in imported_modules(file))
    return {path[1] for path in names if path[0] == "normscope" and len(path) > 1}


def relative_name(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


@pytest.mark.parametrize("file", FILES, ids=relative_name)
def test_imports_go_one_way(file):
    part = part_of(file)
    forbidden = imported_parts(file) - ALLOWED[part] - {part, "__version__"}
    assert not forbidden, f"{part} may not import {sorted(forbidden)}"


def test_walk_sees_the_package():
    parts = {part_of(file) for file in FILES}
    assert {"layers", "models", "data", "training", "cli", "errors"} <= parts
    assert "layers" in imported_parts(PACKAGE / "models" / "catalogue.py")


@pytest.mark.parametrize("file", [f for f in FILES if part_of(f) in TORCH_FREE], ids=relative_name)
def test_torch_free_column_does_not_import_torch(file):
    assert not {name for name in imported_modules(file) if name.split(".")[0] == "torch"}


HEAVY = ("torch", "scipy", "matplotlib", "xarray", "sklearn", "pandas", "numpy")


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after running the code."""
    probe = (
        f"{code}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_loads_nothing_heavy():
    assert loaded_by("from normscope.cli.main import main\nassert main(['--help']) == 0") == set()


def test_import_normscope_loads_nothing_heavy():
    assert loaded_by("import normscope") == set()


@pytest.mark.parametrize("part", sorted({part_of(file) for file in FILES} & set(TORCH_FREE)))
def test_torch_free_column_loads_without_torch(part):
    modules = [
        ".".join(("normscope", *f.relative_to(PACKAGE).with_suffix("").parts))
        for f in FILES
        if part_of(f) == part and f.name != "__init__.py"
    ]
    imports = "\n".join(f"import {module}" for module in modules)
    assert "torch" not in loaded_by(imports or f"import normscope.{part}")


def test_wording_of_charts_loads_without_matplotlib():
    modules = "plots.names", "plots.edge_of_stability", "watch.gauge"
    assert "matplotlib" not in loaded_by("\n".join(f"import normscope.{name}" for name in modules))


def test_help_answers_within_half_a_second():
    def seconds() -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "normscope", "--help"], check=True, capture_output=True
        )
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])  # of children, in user and system mode

    # Time of the processor, not of the clock: the wait while others compute is not ours.
    assert min(seconds() for _ in range(3)) < 0.5


REFERENCE = re.compile(r"References?: ([a-z]+\d{4})")


def test_references_resolve_to_papers():
    found = {key for file in FILES for key in REFERENCE.findall(file.read_text(encoding="utf-8"))}
    assert found <= set(PAPERS), f"add to papers.py: {sorted(found - set(PAPERS))}"
    assert "ioffe2015" in found
