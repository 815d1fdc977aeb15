"""Is what ships one version, and do the workflows pin what they use?"""

import re
import sys
from pathlib import Path

import pytest

import inferq as iq
from inferq._lazy import load
from inferq._version import commit

ROOT = Path(__file__).parent.parent


def test_there_is_one_version():
    said = {
        "Cargo.toml": r'^version = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        ".ci/conda/recipe.yaml": r'^  version: "(.+)"$',
        "docs/gate.yml": r"actions/gate@v(.+)$",
        "CHANGELOG.md": r"^## ([0-9.]+)",
    }
    for name, pattern in said.items():
        found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert found is not None and found[1] == iq.__version__, name


def test_the_conda_recipe_needs_what_the_package_needs():
    needs = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert needs is not None
    packages = {re.sub(r"[^a-z0-9-].*", "", line.strip(' ",')) for line in needs[1].splitlines()}
    recipe = (ROOT / ".ci/conda/recipe.yaml").read_text()
    run = re.search(r"^  run:\n(.*?)^tests:", recipe, re.M | re.S)
    assert run is not None
    assert set(re.findall(r"^    - ([a-z0-9-]+)", run[1], re.M)) == packages | {"python"}


def test_actions_are_pinned_by_hash():
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / "docs" / "gate.yml"]
    used = [step for file in files for step in re.findall(r"uses: (\S+)", file.read_text())]
    own = [step for step in used if step.startswith("inferq/inferq/")]
    assert len(used) > len(own) == 1
    loose = [step for step in used if step not in own and not re.fullmatch(r"\S+@[0-9a-f]{40}", step)]
    assert not loose


def test_a_checkout_says_its_commit():
    assert commit() is None or re.fullmatch(r"[0-9a-f]{9,}", commit() or "")


@pytest.mark.parametrize(("package", "extra"), [("vl_convert", "plots"), ("scipy.stats", "fit")])
def test_a_missing_extra_is_named(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, package.partition(".")[0], None)
    with pytest.raises(ImportError, match=rf"pip install 'inferq\[{extra}\]'"):
        load(package)
