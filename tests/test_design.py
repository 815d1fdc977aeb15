"""The rules and invariants of DESIGN.md: every citation has a rule, every invariant has its tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for pattern in ("rust/**/*.rs", "python/**/*.rs", "python/**/*.py", "tests/**/*.py")
    for path in ROOT.glob(pattern)
]
CITATION = re.compile(r"\brules? (\d+)\b|\bR(\d+)(?= of DESIGN|[),:;]|$)", re.MULTILINE)


def test_rules_are_numbered_in_order():
    rules = [int(number) for number in re.findall(r"^### R(\d+) ", DESIGN, re.MULTILINE)]
    assert rules == list(range(1, len(rules) + 1)) and len(rules) >= 12


def test_every_cited_rule_exists():
    rules = set(re.findall(r"^### R(\d+) ", DESIGN, re.MULTILINE))
    for path in SOURCES:
        for match in CITATION.finditer(path.read_text(encoding="utf-8")):
            assert (match[1] or match[2]) in rules, f"{path.relative_to(ROOT)}: {match[0]}"


def test_every_invariant_has_its_tests():
    rows = re.findall(r"^\| (L\d+) [^|]*\|(.*)\|$", DESIGN, re.MULTILINE)
    assert [name for name, _ in rows] == [f"L{number}" for number in range(1, 17)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for name, tests in rows:
        for cited in re.findall(r"`([^`]+)`", tests):
            is_path = any(str(path).endswith(f"/{cited}") for path in SOURCES)
            is_defined = re.search(rf"\b(?:fn|def|struct|enum) {cited.split('::')[-1]}\b", code)
            assert is_path or is_defined, f"{name}: {cited}"
