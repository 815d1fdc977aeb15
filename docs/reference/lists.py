"""Lists of the reference: one line of a page for all public names of a package or module.

`::: inferq.scheduler.*` stands for every public name that comes from there and that the page does not hold
yet, in the order of the stubs `__init__.pyi`. So a new scheduler is in the reference without an edit here.
"""

import ast
import re
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent.parent / "python" / "inferq"
_ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The page with its lists written out, a hook of mkdocs."""
    held = {entry for entry in _ENTRY.findall(markdown) if not entry.endswith(".*")}

    def written_out(entry: re.Match[str]) -> str:
        if not entry[1].endswith(".*"):
            return entry[0]
        place = entry[1].removesuffix("*")
        names = [name for name, origin in public_names().items() if f"{origin}.".startswith(place)]
        fresh = [name for name in names if name not in held]
        if not fresh:
            raise ValueError(f"no public name is left for {entry[0]!r}")
        held.update(fresh)
        return "\n\n".join(f"::: {name}" for name in fresh)

    return _ENTRY.sub(written_out, markdown)


def public_names() -> dict[str, str]:
    """Every public name with its path, such as `inferq.theory.fluid`, and the module that it comes from."""
    root = _listed(PACKAGE, "inferq")
    names = {f"inferq.{name}": origin for name, origin in root.items()}
    for wing in ("theory", "timing"):
        listed = _listed(PACKAGE / wing, f"inferq.{wing}")
        names |= {f"inferq.{wing}.{name}": origin for name, origin in listed.items() if name not in root}
    return names


def _listed(folder: Path, package: str) -> dict[str, str]:
    """The names in a stub, those of a wing's own stub with the file that they come from there."""
    names: dict[str, str] = {}
    for node in ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            inner, origin = folder.joinpath(*node.module.split(".")), f"{package}.{node.module}"
            within = _listed(inner, origin) if (inner / "__init__.pyi").exists() else {}
            for alias in node.names:
                names |= within if alias.name == "*" else {alias.name: within.get(alias.name, origin)}
    return {name: origin for name, origin in names.items() if not name.startswith("_")}
