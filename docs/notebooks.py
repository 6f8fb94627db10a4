"""Execute the notebooks in examples/ and store their outputs in them.

    python docs/notebooks.py            # execute and rewrite the notebooks

Needs no Jupyter: a notebook is JSON, and its code cells run in one namespace. What a cell prints
and the value of its last line are kept, a figure as a picture.
"""

from __future__ import annotations

import ast
import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
Cell = dict[str, Any]


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with its code cells executed and numbered."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell |= {"outputs": run_cell("".join(cell["source"]), names, count)}
            cell["execution_count"] = count
    return notebook


def run_cell(source: str, names: dict[str, Any], count: int) -> list[Cell]:
    """Return the outputs of one cell: what it printed, and its last value if it has one."""
    tree, outputs, value = ast.parse(source), [], None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        shown = {"output_type": "execute_result", "metadata": {}, "execution_count": count}
        outputs.append({**shown, "data": displayed(value)})
    return outputs


def displayed(value: Any) -> dict[str, Any]:
    """Return a value as a notebook shows it: a picture, HTML, or text."""
    figure = getattr(value, "figure", value)
    if hasattr(figure, "savefig"):
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=80, bbox_inches="tight")
        return {"image/png": base64.b64encode(stream.getvalue()).decode()}
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return data


def main() -> None:
    """Execute every notebook of the examples and write it back."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = execute(json.loads(path.read_text(encoding="utf-8")))
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"executed {path.name}")


if __name__ == "__main__":
    main()
