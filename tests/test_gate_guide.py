"""Does the guide about the gate show what happens?"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app

DOCS = Path(__file__).parent.parent / "docs"


def blocks(language: str) -> list[str]:
    page = (DOCS / "gate-in-ci.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_guide_shows_the_scenario_and_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "gate.toml").read_text()
    without_comments = re.sub(r"^#.*\n+", "", text, flags=re.MULTILINE)
    assert blocks("toml") == [without_comments]
    Path("gate.toml").write_text(text.replace("token_budget = 512", "token_budget = 384"))
    printed = str(iq.gate("gate.toml", DOCS / "gate-baseline.json")).splitlines()
    assert set(blocks("text")[0].splitlines()) < set(printed)


def test_the_example_workflow_runs_what_the_guide_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((DOCS / "gate.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    (command,) = (step["run"] for step in steps if step.get("run", "").startswith("inferq gate"))
    assert command == blocks("text")[1].strip()
    Path("scenarios").mkdir()
    shutil.copy(DOCS / "gate.toml", "scenarios")
    arguments = shlex.split(command)[1:]
    for given in ([*arguments, "--update"], arguments):
        assert CliRunner().invoke(app, given).exit_code == 0
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": "page.md"}
    (show,) = (step for step in steps if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    assert show["if"] == "always()"
    Path("page.md").write_text("before\n")
    subprocess.run(["sh", "-c", show["run"]], check=True, env=environment, timeout=20)
    assert Path("page.md").read_text() == "before\n" + Path("gate.md").read_text()
    (kept,) = (step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", ""))
    assert kept == "gate.md"
