"""Is every public name in the reference, every page in the navigation, and no line of prose too long?"""

import importlib.util
import re
from pathlib import Path

import pytest

import inferq as iq

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = ("benches", "docs", "tests", "traces")
PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])


def entries(page: Path) -> list[str]:
    """What a page of the reference holds, its lists written out as mkdocs writes them out."""
    spec = importlib.util.spec_from_file_location("lists", DOCS / "hooks" / "lists.py")
    assert spec is not None and spec.loader is not None
    lists = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lists)
    return re.findall(r"^::: (\S+)$", lists.on_page_markdown(page.read_text(encoding="utf-8")), re.MULTILINE)


def test_every_public_name_is_in_the_reference_once():
    documented = [name for page in (DOCS / "reference").glob("*.md") for name in entries(page)]
    names = {f"inferq.{name}" for name in iq.__all__ if name not in ("theory", "timing", "__version__")}
    names |= {f"inferq.theory.{name}" for name in iq.theory.__all__}
    names |= {f"inferq.timing.{name}" for name in iq.timing.__all__ if name not in iq.__all__}
    public = [name for name in documented if re.fullmatch(r"inferq\.((theory|timing)\.)?\w+", name)]
    assert sorted(public) == sorted({*names, "inferq.scenario"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_beyond_120_characters(page: Path):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, long[0]


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = [*DOCS.rglob("*.md"), *(notebook.with_suffix(".md") for notebook in DOCS.rglob("*.ipynb"))]
    assert listed == {str(page.relative_to(DOCS)) for page in pages}


def test_the_picture_of_the_tree_is_true():
    """Every path in it exists, and every room of the package and of the core is in it."""
    text = (DOCS / "explanation" / "code-map.md").read_text(encoding="utf-8")
    roots: list[str] = []
    drawn = set()
    for line in re.findall(r"^(?:[│├└─ ]*)[\w./-]+(?:, [\w./-]+)*  .*$", text, re.MULTILINE):
        depth = len(re.match(r"[│├└─ ]*", line)[0]) // 4
        for path in re.split(", ", line.lstrip("│├└─ ").split("  ")[0]):
            whole = "".join(roots[:depth]) + path
            assert (ROOT / whole).exists(), whole
            drawn.add(whole.rstrip("/"))
        roots[depth:] = [path]
    rooms = {path for top in ("python/inferq", "rust/src") for path in (ROOT / top).iterdir()}
    rooms |= {path for path in (ROOT / "python" / "inferq" / "theory").iterdir() if path.is_dir()}
    names = {
        path.relative_to(ROOT).as_posix() for path in rooms if not path.name.startswith(("__", "_core.abi"))
    }
    assert names - drawn <= {"python/inferq/py.typed", "rust/src/lib.rs"}
