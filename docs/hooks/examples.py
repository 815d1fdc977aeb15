"""Checks of the Python reference: examples are rendered as consoles, return values as one value."""

import re
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page


def on_post_page(output: str, page: Page, **kwargs: Any) -> str:
    """The unchanged page (a mkdocs hook); an error if a docstring is rendered in an unintended way."""
    if "doc-object" not in output:
        return output
    if "<blockquote" in output:
        raise PluginError(f"{page.file.src_uri}: an example is taken for a quotation")
    for returned in re.findall(r"Returns:</span>.*?</table>", output, re.DOTALL):
        if returned.count('class="doc-section-item"') != 1:
            raise PluginError(f"{page.file.src_uri}: a sentence is taken for two values: {returned}")
    if 'class="gp"' not in output and page.file.name != "scenarios":
        raise PluginError(f"{page.file.src_uri}: no example is shown as a console")
    return output
