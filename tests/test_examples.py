"""Notebooks run and print what they show; `REWRITE_DOCS=1` updates their output."""

import ast
import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


def run_cell(cell: dict[str, Any], names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell; its printed text, and the value of a last line that is an expression."""
    tree, value = ast.parse("".join(cell["source"])), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, cell["id"], "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
    return printed.getvalue(), value


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_prints_what_it_shows(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "docs" / "examples").mkdir(parents=True)
    shutil.copytree(ROOT / "traces", tmp_path / "traces")
    monkeypatch.chdir(tmp_path / "docs" / "examples")
    monkeypatch.setenv("COLUMNS", "80")
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = json.loads(notebook.read_text(encoding="utf-8"))
    assert any(cell["cell_type"] == "code" for cell in pages["cells"])
    for cell in pages["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed, value = run_cell(cell, names)
        streams = [output for output in cell["outputs"] if output["output_type"] == "stream"]
        shown = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
        assert bool(printed) == bool(streams), "the outputs of a cell changed in kind: run it in Jupyter"
        assert (value is not None) == bool(shown), "the outputs of a cell changed in kind: run it in Jupyter"
        if os.environ.get("REWRITE_DOCS"):
            for output in streams:
                output["text"] = printed.splitlines(keepends=True)
            for data in shown:
                data["text/html"] = value._repr_html_().splitlines(keepends=True)
                data["text/plain"] = repr(value).splitlines(keepends=True)
            notebook.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        else:
            assert printed == "".join(line for output in streams for line in output["text"])
            assert all(value._repr_html_() == "".join(data["text/html"]) for data in shown)
