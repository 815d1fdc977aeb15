"""Lists of the reference: one line of a page for all public names of a package or module.

`::: inferq.scheduler.*` stands for every public name that comes from there and that the page does not hold
yet, in the order of the stubs `__init__.pyi`. So a new scheduler is in the reference without an edit here.
"""

import re
from pathlib import Path
from typing import Any

from inferq import _lazy
from inferq._lazy import homes

PACKAGE = Path(_lazy.__file__).parent
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
    root = _objects("inferq")
    names = {f"inferq.{name}": home for name, (home, inside) in root.items() if inside}
    for wing in [name for name, (_, inside) in root.items() if not inside]:
        for name, (home, _) in _objects(f"inferq.{wing}").items():
            names[f"inferq.{name}" if name in root else f"inferq.{wing}.{name}"] = home
    return names


def _objects(package: str) -> dict[str, tuple[str, str]]:
    """What a package makes public but for its version and its lists."""
    stub = PACKAGE.parent.joinpath(*package.split("."), "__init__.pyi")
    return {
        name: home
        for name, home in homes(stub, package).items()
        if not (name.isupper() or name.startswith("_"))
    }
