"""Lists of the reference: one line of a page for all public names of a package or module.

`::: inferq.scheduler.*` is replaced by every public name that is defined there and that the page does not
name elsewhere, in the order of the stubs `__init__.pyi`. A new scheduler needs no edit here.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from inferq import _lazy
from inferq._lazy import homes

PACKAGE = Path(_lazy.__file__).parent
_ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Expand the lists of a page (a mkdocs hook)."""
    listed = {entry for entry in _ENTRY.findall(markdown) if not entry.endswith(".*")}

    def expanded(entry: re.Match[str]) -> str:
        if not entry[1].endswith(".*"):
            return entry[0]
        place = entry[1].removesuffix("*")
        names = [name for name, origin in public_names().items() if f"{origin}.".startswith(place)]
        fresh = [name for name in names if name not in listed]
        if not fresh:
            raise ValueError(f"no public name is left for {entry[0]!r}")
        listed.update(fresh)
        return "\n\n".join(f"::: {name}" for name in fresh)

    return _ENTRY.sub(expanded, markdown)


def public_names() -> dict[str, str]:
    """Every public name with its path, such as `inferq.theory.fluid`, and the module that defines it."""
    root = _names("inferq")
    names = {f"inferq.{name}": home for name, home in root.items() if home != f"inferq.{name}"}
    for module in [name for name, home in root.items() if home == f"inferq.{name}"]:
        for name, home in _names(f"inferq.{module}").items():
            known = {path.rpartition(".")[2] for path, origin in names.items() if origin == home}
            if name not in known:
                names[f"inferq.{module}.{name}"] = home
    return names


def _names(package: str) -> dict[str, str]:
    """The public names of a package, without its version and its tuples, and the modules that define them."""
    stub = PACKAGE.parent.joinpath(*package.split("."), "__init__.pyi")
    if not stub.exists():
        module = import_module(package)
        return {name: getattr(module, name).__module__ for name in module.__all__}
    return {
        name: home
        for name, (home, _) in homes(stub, package).items()
        if not (name.isupper() or name.startswith("_"))
    }
