"""Does the guide about the gate show what happens?"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app

DOCS = Path(__file__).parent.parent / "docs"


def blocks(language: str) -> list[str]:
    page = (DOCS / "guides" / "gate-in-ci.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_guide_shows_the_scenario_and_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "gate.toml").read_text()
    without_comments = re.sub(r"^#.*\n+", "", text, flags=re.MULTILINE)
    assert blocks("toml") == [without_comments]
    Path("gate.toml").write_text(text.replace("token_budget = 512", "token_budget = 384"))
    printed = str(iq.gate("gate.toml", DOCS / "gate-baseline.json")).splitlines()
    assert set(blocks("text")[0].splitlines()) < set(printed)


def test_the_action_of_the_example_workflow_runs_what_the_guide_says(tmp_path: Path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((DOCS / "gate.yml").read_text())
    (used,) = (step for step in workflow["jobs"]["gate"]["steps"] if "/actions/gate@" in step["uses"])
    assert used["uses"].endswith(f"@v{iq.__version__}")
    action = yaml.safe_load((DOCS.parent / ".github/actions/gate/action.yml").read_text())
    assert used["with"].keys() == action["inputs"].keys()
    _, judge = action["runs"]["steps"]
    says = blocks("text")[1].split()
    assert [used["with"]["scenario"], used["with"]["baseline"]] == [says[2], says[4]]

    (tmp_path / "inferq/bin").mkdir(parents=True)
    (tmp_path / "inferq/bin/inferq").symlink_to(Path(sys.executable).parent / "inferq")
    (tmp_path / "scenarios").mkdir()
    text = (DOCS / "gate.toml").read_text().replace("requests = 2_000", "requests = 200")
    (tmp_path / "scenarios/chat.toml").write_text(text)
    made = ["gate", str(tmp_path / "scenarios"), "--baseline", str(tmp_path / used["with"]["baseline"])]
    assert CliRunner().invoke(app, [*made, "--update"]).exit_code == 0

    def judged() -> tuple[int, str, str]:
        files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for file in files.values():
            file.write_text("before\n")
        expressions = {f"${{{{ inputs.{name} }}}}": value for name, value in used["with"].items()}
        given = {name: expressions[value] for name, value in judge["env"].items()}
        environment = {**os.environ, **given, **files, "RUNNER_TEMP": str(tmp_path)}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", judge["run"]]
        done = subprocess.run(shell, env=environment, cwd=tmp_path, timeout=60)
        return done.returncode, *(file.read_text() for file in files.values())

    summary = tmp_path / "gate.md"
    assert judged() == (0, "before\n" + summary.read_text(), "before\npassed=true\n")
    (tmp_path / "scenarios/chat.toml").write_text(text.replace("token_budget = 512", "token_budget = 64"))
    assert judged() == (1, "before\n" + summary.read_text(), "before\npassed=false\n")
