"""Import circles of the Rust core; each re-export counts as an import of the defining module."""

import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "rust" / "src"
USE = re.compile(r"^\s*(pub(?:\(\w+\))?\s+)?use\s+([^;]+);", re.MULTILINE)
Names = tuple[str, ...]


def module_of(file: Path) -> Names:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("lib", "mod") else parts


def expanded(tree: str) -> Iterator[Names]:
    """The paths of a `use` tree, without aliases."""
    head, brace, body = tree.partition("{")
    if not brace:
        yield tuple(tree.split(" as ")[0].strip().removesuffix("::*").split("::"))
        return
    for item in re.findall(r"(?:[^,{}]|\{(?:[^{}]|\{[^{}]*\})*\})+", body[: body.rindex("}")]):
        yield from expanded(head + item.strip())


def absolute(module: Names, path: Names, modules: set[Names]) -> Names | None:
    """The path from the crate root; None for a path into another crate."""
    while path[0] == "super":
        module, path = module[:-1], (path[1:] if path[1:2] == ("super",) else ("self", *path[1:]))
    if path[0] in ("crate", "self"):
        return path[1:] if path[0] == "crate" else module + path[1:]
    return module + path if (*module, path[0]) in modules else None


def test_no_import_circle_has_more_than_four_modules():
    texts = {module_of(file): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.rs")}
    uses: dict[Names, set[Names]] = {module: set() for module in texts}
    exports: dict[Names, Names] = {}
    for module, source in texts.items():
        text = re.sub(r"//[^\n]*|pub\(in [\w:]+\)", "", source.partition("#[cfg(test)]\nmod tests")[0])
        inline = re.findall(r"\b(?:crate|super)(?:::\w+)+", USE.sub("", text))
        for visibility, tree in [*USE.findall(text), *(("", path) for path in inline)]:
            paths = (absolute(module, path, set(texts)) for path in expanded(" ".join(tree.split())))
            for path in filter(None, paths):
                exports.update({(*module, path[-1]): path} if visibility else {})
                if not visibility or path[: len(module)] != module:
                    uses[module].add(path)

    def defining(path: Names) -> Names:
        prefixes = [path[:n] for n in range(len(path), -1, -1)]
        export = next((p for p in prefixes if p in exports and p not in texts and exports[p] != p), None)
        known = next(p for p in prefixes if p in texts)
        return known if export is None else defining(exports[export] + path[len(export) :])

    reached = {module: {module, *map(defining, paths)} for module, paths in uses.items()}
    for _ in reached:
        reached = {module: set().union(*map(reached.__getitem__, seen)) for module, seen in reached.items()}
    circles = [sorted(other for other in reached[module] if module in reached[other]) for module in reached]
    assert max(map(len, circles)) <= 4, max(circles, key=len)
