"""Output of a command as one JSON object, for `--json`: values, tables and sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import typer

from inferq.display.document import Grid
from inferq.results.finding import Finding

_output: dict[str, Any] = {}
_is_on: list[bool] = [False]


def begin() -> None:
    """Start to collect output instead of printing it."""
    _is_on[0] = True
    _output.clear()


def is_on() -> bool:
    """Whether output is collected."""
    return _is_on[0]


def line(text: str) -> None:
    """Add a sentence."""
    if text:
        _output.setdefault("lines", []).append(text)


def findings(findings: Iterable[Finding]) -> None:
    """Add findings, each once, as objects with kind, severity, message and data."""
    listed = _output.setdefault("findings", [])
    listed.extend(parts for finding in findings if (parts := finding.to_json()) not in listed)


def table(shown: Grid) -> None:
    """Add a table."""
    rows = [dict(zip(shown.header, map(str, cells), strict=False)) for cells in shown.lines]
    _output.setdefault("tables", []).append({"title": shown.title, "rows": rows})


def value(name: str, content: Any) -> None:
    """Add a value in full precision. It is not printed without `--json`."""
    if _is_on[0]:
        _output[name] = _plain(content)


def end() -> None:
    """Print the collected output."""
    if _is_on[0]:
        _is_on[0] = False
        typer.echo(json.dumps(_output, indent=2, ensure_ascii=False))


def _plain(content: Any) -> Any:
    """JSON-ready data; NaN and infinity are null."""
    if isinstance(content, Finding):
        return content.to_json()
    if isinstance(content, Mapping):
        return {str(name): _plain(item) for name, item in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(item) for item in content]
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    return content if content is None or isinstance(content, (bool, int, str)) else str(content)
