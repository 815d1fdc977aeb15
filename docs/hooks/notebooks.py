"""Notebooks as pages: each `examples/*.ipynb` becomes a Markdown page with its recorded output."""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig, **kwargs: Any) -> Files:
    """Add one page per notebook; the notebook itself stays available for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(config.docs_dir, file.src_uri)
        page = markdown(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=page))
    return files


def markdown(notebook: dict[str, Any], name: str) -> str:
    """The cells of a notebook and their output, with a download link under the title."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "text/html" in output.get("data", {}):
                parts.append(f'<div class="output">{"".join(output["data"]["text/html"])}</div>')
    parts.insert(1, f"[Download this notebook]({name})")
    return "\n\n".join(parts) + "\n"
