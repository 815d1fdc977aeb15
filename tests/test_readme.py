"""Examples in the README and the documentation run and print what they show.

| block | test |
|---|---|
| `python` | runs, all blocks of a page in one namespace; prints the `text` block that follows it |
| `sh` | `inferq` commands run, `make` targets exist |
| `console` | the command prints the rest of the block |
| `toml` | runs as a scenario |

`REWRITE_DOCS=1` replaces the printed text of pages.
"""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inferq.cli import app
from inferq_papers import nie2026

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "traces" / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "papers" not in page.parts),
]
RUN_PAGES = [page for page in PAGES if page.name != "CONTRIBUTING.md"]
REWRITE = bool(os.environ.get("REWRITE_DOCS"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$(?:\n\n(^```text\n.*?^```$))?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def commands(page: Path) -> list[str]:
    """The commands of a page, without comments."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def shown(command: str) -> str:
    """Output of a command, as in a pipe."""
    done = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"{command}: {done.output}"
    return done.stdout


def tidy(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.fixture(autouse=True)
def in_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run in a directory that looks like a clone, so that examples leave no files behind."""
    for name in ("traces", "docs"):
        os.symlink(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    # test_paper_nie2026.py checks the statements about longer runs.
    short = replace(nie2026.QUICK, seeds=2, requests=4_000, arrivals=4_000, policies=2_000)
    monkeypatch.setattr(nie2026, "QUICK", short)


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_they_show(page: Path, capsys: pytest.CaptureFixture[str]):
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, (text, shown) in enumerate(_PYTHON.findall(page.read_text(encoding="utf-8")), start=1):
        capsys.readouterr()
        exec(compile(text, f"{page.name}, python block {number}", "exec"), namespace)
        printed = tidy(capsys.readouterr().out)
        # A page may wrap long lines.
        if not shown or shown.split()[1:-1] == " ".join(printed).split():
            continue
        assert REWRITE, f"block {number} prints:\n" + "\n".join(printed)
        before, fresh = f"{text}```\n\n", "\n".join(["```text", *printed, "```"])
        rewritten = page.read_text(encoding="utf-8").replace(before + shown, before + fresh)
        page.write_text(rewritten, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_and_targets_exist(page: Path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for command in commands(page):
        program, *arguments = shlex.split(command)
        if program == "make":
            assert set(arguments) <= targets, command
        elif program == "inferq":
            shown(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_console_blocks_print_what_they_show(page: Path):
    for text in blocks(page, "console"):
        command, _, output = text.removeprefix("$ ").partition("\n")
        printed = tidy(shown(command))
        if REWRITE:
            fresh = "\n".join([f"$ {command}", *printed, ""])
            page.write_text(page.read_text(encoding="utf-8").replace(text, fresh), encoding="utf-8")
        else:
            assert printed == tidy(output), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scenarios_run(page: Path):
    for number, text in enumerate(blocks(page, "toml")):
        path = Path(f"scenario_{number}.toml")
        path.write_text(text, encoding="utf-8")
        shown(f"inferq simulate {path}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path):
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
