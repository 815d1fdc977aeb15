"""Do the notebooks run, and print what they show? `REWRITE_DOCS=1` makes them show what they print."""

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


def printed_by(cell: dict[str, Any], names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    return printed.getvalue()


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
        printed = printed_by(cell, names)
        streams = [output for output in cell["outputs"] if output["output_type"] == "stream"]
        if os.environ.get("REWRITE_DOCS"):
            assert bool(printed) == bool(streams), "a cell that begins to print: run it in Jupyter"
            for output in streams:
                output["text"] = printed.splitlines(keepends=True)
            notebook.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        else:
            assert printed == "".join(line for output in streams for line in output["text"])
