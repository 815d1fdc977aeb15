"""Is every public name in the reference, and every page in the navigation?"""

import re
from pathlib import Path

import inferq as iq

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    names = {f"inferq.{name}" for name in iq.__all__ if name not in ("theory", "__version__")}
    names |= {f"inferq.theory.{name}" for name in iq.theory.__all__}
    assert {name for name in documented if re.fullmatch(r"inferq\.(theory\.)?\w+", name)} - {
        "inferq.scenario"
    } == names


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
