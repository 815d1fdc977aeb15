"""How do the sections of a docstring become those that the reference knows?"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:\n", re.MULTILINE)
_SOURCE = re.compile(r"^( *)Source: (.+(?:\n\1 +\S.*)*)", re.MULTILINE)


class Sections(griffe.Extension):
    """`Example:` is a section of examples, `Source:` one paragraph."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:\n", obj.docstring.value)
            obj.docstring.value = _SOURCE.sub(_paragraph, text)


def _paragraph(found: re.Match[str]) -> str:
    return f"{found[1]}**Source:** {' '.join(found[2].split())}"
