"""How the reference reads the package: sections of docstrings, and names from the wings."""

import re
from pathlib import Path
from typing import Any

import griffe

from inferq._lazy import homes

_EXAMPLE = re.compile(r"^( *)Example:\n", re.MULTILINE)
_SOURCE = re.compile(r"^( *)Source: (.+(?:\n\1 +\S.*)*)", re.MULTILINE)


class Sections(griffe.Extension):
    """`Example:` is a section of examples, `Source:` one paragraph."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:\n", obj.docstring.value)
            obj.docstring.value = _SOURCE.sub(_paragraph, text)


class Wings(griffe.Extension):
    """Public names that a stub takes from another package by a star, which griffe leaves out."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Add them to the package and its subpackages with stubs."""
        for package in (pkg, *pkg.modules.values()):
            stub = Path(str(package.filepath)).with_suffix(".pyi")
            if stub.name != "__init__.pyi" or not stub.exists():
                continue
            for name, (home, inside) in homes(stub, package.path).items():
                if inside and name not in package.members:
                    package.set_member(name, griffe.Alias(name, f"{home}.{inside}", parent=package))


def _paragraph(found: re.Match[str]) -> str:
    return f"{found[1]}**Source:** {' '.join(found[2].split())}"
