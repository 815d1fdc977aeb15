"""Plain language in documents, docstrings, comments and messages.

`python -m tests.test_language [--root ROOT] [PATH …]` prints counts per folder, and all matches in PATH.
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GROUPS = {
    "documents": ["*.md", "docs/**/*.md", "benches/README.md"],
    "python": ["python/inferq/**/*.py", "python/inferq_papers/**/*.py"],
    "rust": ["rust/src/**/*.rs", "python/src/**/*.rs"],
}
SPEECH = re.compile(r"\b(?:says?|said|tells?|told|asks?|asked)\b", re.I)
SPEECH_PER_1000_WORDS = 0.3
BANNED = r"""in vain|so many of|so much for|as it comes|as they come|unasked|company|beside|none where
where nothing|judges?|judged|mends?|mended|gravest|strangers?|juniors?|seats?|fates?|of all that|of those that
those of which|comes? and goes?|who is done|what it costs|lets? happen|\w+[ou]tilis\w+|behaviours?|colours?
(?:serial|random|normal|optim|recogn)is(?:e|ed|ing)"""
PHRASES = re.compile(rf"\b(?:{BANNED})\b".replace("\n", "|").replace(" ", r"\s+"), re.I)
NO_PROSE = re.compile(
    r"^ *```.*?^ *```|^\|[^\n]*|^ *>>> .*?(?:^\s*$|\Z)|`[^`\n]*`|\]\([^)]*\)|</?\w[^>\n]*>", re.M | re.S
)
RUST = re.compile(r'//[/!]?([^\n]*)|r#"(.*?)"#|"((?:\\.|[^"\\])*)"|\'\\?"\'', re.S)


def pieces(path: Path, text: str) -> list[tuple[int, str]]:
    """The comments and strings of a source file, each with the number of its first line."""
    if path.suffix == ".rs":
        matches = (
            (text.count("\n", 0, match.start()), match[match.lastindex or 0]) for match in RUST.finditer(text)
        )
        return [(line + 1, piece) for line, piece in matches]
    strings = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.string[1:]) for token in tokens if token.type == tokenize.COMMENT]
    return comments + [(node.lineno, node.value) for node in strings if isinstance(node.value, str)]


def prose(path: Path) -> str:
    """The prose of a file without code and tables; its lines keep their numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        lines = [""] * (2 * text.count("\n") + 2)
        for number, piece in pieces(path, text):
            if piece.count(" ") >= 2:  # a sentence, not a name
                for offset, line in enumerate(piece.split("\n")):
                    lines[number + offset - 1] += f" {line}"
        text = "\n".join(lines)
    return NO_PROSE.sub(lambda match: "\n" * match[0].count("\n") + " ", text)


def counts(root: Path, group: str) -> list[tuple[Path, int, list[str], list[str]]]:
    """Per file: its words, its verbs of speech and its banned phrases."""
    rows = []
    for path in sorted({path for pattern in GROUPS[group] for path in root.glob(pattern)}):
        name, text = path.relative_to(root), prose(path)
        places = (
            [
                f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {' '.join(hit[0].split())}"
                for hit in pattern.finditer(text)
            ]
            for pattern in (SPEECH, PHRASES)
        )
        rows.append((name, len(re.findall(r"[A-Za-z][\w'’-]*", text)), *places))
    return rows


@pytest.mark.parametrize("group", GROUPS)
def test_prose_is_plain(group: str):
    rows = sorted(counts(ROOT, group), key=lambda row: -len(row[2]))
    phrases = [place for row in rows for place in row[3]]
    assert not phrases, f"{len(phrases)} banned phrases\n" + "\n".join(phrases[:40])
    rate = 1000 * sum(len(row[2]) for row in rows) / sum(row[1] for row in rows)
    worst = "\n".join(place for row in rows for place in row[2])
    assert rate <= SPEECH_PER_1000_WORDS, f"{rate:.2f} verbs of speech per 1,000 words\n{worst[:4000]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("paths", nargs="*")
    given = parser.parse_args()
    totals: dict[str, Counter[str]] = {}
    for group in GROUPS:
        for name, words, speech, phrases in counts(given.root, group):
            for key in (name.parent.as_posix() if name.parent.parts else name.name, f"total {group}"):
                totals.setdefault(key, Counter()).update(words=words, speech=len(speech), banned=len(phrases))
            if name.as_posix().startswith(tuple(given.paths)):
                print(*speech, *phrases, sep="\n", end="\n" * bool(speech + phrases))
    for key, total in sorted(totals.items(), key=lambda item: item[0].startswith("total")):
        rate = 1000 * total["speech"] / max(1, total["words"])
        print(f"{key:48}{total['words']:8,} words{rate:7.2f} speech/1000{total['banned']:5} banned")
