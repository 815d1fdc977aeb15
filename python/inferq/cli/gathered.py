"""What a command says as one JSON object, for `--json`: its values by name, its tables, its sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import typer

from inferq.display.document import Grid
from inferq.results.finding import Finding

_told: dict[str, Any] = {}
_is_on: list[bool] = [False]


def begin() -> None:
    """Gather from here on, and print nothing."""
    _is_on[0] = True
    _told.clear()


def is_on() -> bool:
    """Whether what is said is gathered."""
    return _is_on[0]


def line(text: str) -> None:
    """Add a sentence."""
    if text:
        _told.setdefault("lines", []).append(text)


def findings(findings: Iterable[Finding]) -> None:
    """Add findings, each once, as objects with kind, severity, message and data."""
    listed = _told.setdefault("findings", [])
    listed.extend(parts for finding in findings if (parts := finding.to_json()) not in listed)


def table(shown: Grid) -> None:
    """A table as it would have been printed."""
    rows = [dict(zip(shown.header, map(str, cells), strict=False)) for cells in shown.lines]
    _told.setdefault("tables", []).append({"title": shown.title, "rows": rows})


def value(name: str, said: Any) -> None:
    """Numbers with their whole precision; nothing where a person reads."""
    if _is_on[0]:
        _told[name] = _plain(said)


def end() -> None:
    """Print what was gathered."""
    if _is_on[0]:
        _is_on[0] = False
        typer.echo(json.dumps(_told, indent=2, ensure_ascii=False))


def _plain(said: Any) -> Any:
    """JSON-ready data; a number that is none is null."""
    if isinstance(said, Finding):
        return said.to_json()
    if isinstance(said, Mapping):
        return {str(name): _plain(one) for name, one in said.items()}
    if isinstance(said, (list, tuple)):
        return [_plain(one) for one in said]
    if isinstance(said, float):
        return said if math.isfinite(said) else None
    return said if said is None or isinstance(said, (bool, int, str)) else str(said)
