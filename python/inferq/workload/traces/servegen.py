"""ServeGen: arrival statistics and length histograms of clients of production services.

It contains no requests. Each client has a rate and a distribution of gaps per window of 10 minutes, and
histograms of lengths per longer window. So the workload is synthetic.

Source: alibaba/ServeGen, `data/**`; cite "ServeGen", arXiv 2505.09999.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inferq import _core
from inferq._lazy import np, pl
from inferq.checks import finite, nearest, positive
from inferq.errors import ConfigError, TraceError
from inferq.inputs import parsed_json, read_text
from inferq.workload.generated import Recipe
from inferq.workload.transforms import subseed

NAME = "servegen"
_TRACE, _LENGTHS = "-trace.csv", "-dataset.json"
_PIECES = ("image", "audio", "video")
_MOST = 2**32 - 1
_MOST_BYTES = 1 << 30
"""Maximum size of a client's file of histograms."""


@dataclass(frozen=True, slots=True)
class Range:
    """Selected part of the measurements."""

    clients: tuple[str, ...] | None
    start_s: float
    end_s: float
    rate_factor: float

    @classmethod
    def of(cls, clients: Any, start_s: float | None, end_s: float | None, rate_factor: float | None) -> Range:
        """Check the arguments of `read_trace`."""
        if clients is not None:
            if isinstance(clients, str) or not isinstance(clients, Sequence) or not clients:
                raise ConfigError("clients", f"must be a non-empty list of names, got {clients!r}")
            if len(set(clients)) < len(clients):
                raise ConfigError("clients", f"must be unique names, got {', '.join(map(str, clients))}")
            clients = tuple(clients)
        start = 0.0 if start_s is None else finite("start_s", start_s)
        end = math.inf if end_s is None else finite("end_s", end_s)
        if not 0 <= start < end:
            raise ConfigError(
                "end_s", f"must be above start_s, and start_s non-negative; got {end} and {start}"
            )
        return cls(clients, start, end, 1.0 if rate_factor is None else positive("rate_factor", rate_factor))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Clients(Recipe):
    """Clients that are renewal processes with a rate and a distribution of gaps per window."""

    source: str
    selection: Range
    forms: tuple[tuple[str, str], ...]
    """Name and distributions of each client as JSON in the core's format."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data: the options of reading, and a SHA-256 of the distributions."""
        digest = hashlib.sha256("".join(f"{name}:{form}" for name, form in self.forms).encode()).hexdigest()
        end = {} if self.selection.end_s == math.inf else {"end_s": self.selection.end_s}
        clients = {} if self.selection.clients is None else {"clients": list(self.selection.clients)}
        return {
            "trace": self.source,
            "format": NAME,
            **clients,
            "start_s": self.selection.start_s,
            **end,
            "rate_factor": self.selection.rate_factor,
            "sha256": digest,
        }

    def __repr__(self) -> str:
        """Return the file and the number of clients."""
        return f"Workload(ServeGen {self.source!r}, {len(self.forms)} clients)"

    @property
    def columns(self) -> list[str]:
        """Arrivals, lengths, and the client as class."""
        return ["arrival_s", "prompt_tokens", "output_tokens", "class"]

    def draw(self, seed: int) -> pl.DataFrame:
        """Return the canonical frame for `seed`; ties are in the order of the clients."""
        drawn = [_core.draw_client(form, subseed(seed, NAME, name)) for name, form in self.forms]
        merged = {name: np.concatenate([client[name] for client in drawn]) for name in self.columns[:3]}
        order = merged["arrival_s"].argsort(kind="stable")
        if not order.size:
            raise TraceError(
                self.source, "no request is drawn; choose a longer range or a larger rate_factor"
            )
        names = sorted(name for name, _ in self.forms)
        sizes = [client["arrival_s"].size for client in drawn]
        codes = np.repeat([names.index(name) for name, _ in self.forms], sizes)
        frame = pl.DataFrame({name: values[order] for name, values in merged.items()})
        return frame.with_columns(pl.Series("class", names, dtype=pl.Enum(names))[codes[order]])


def read(folder: Path, selection: Range) -> tuple[Clients, dict[str, Any]]:
    """Read the clients in `folder`; return a recipe and the workload's metadata."""
    traces = {
        path.name.removesuffix(_TRACE): path for path in sorted(folder.glob(f"*{_TRACE}"), key=_natural)
    }
    if not traces:
        inner = sorted({str(path.parent.relative_to(folder)) for path in folder.rglob(f"*{_TRACE}")})
        hint = f"; use one of its folders {', '.join(inner[:10])}" if inner else ""
        raise TraceError(folder, f"is not a file, and is a folder without clients of ServeGen{hint}")
    for name in selection.clients or ():
        if name not in traces:
            raise ConfigError("clients", f"{folder} has no client {name!r}{nearest(str(name), traces)}")
    forms: list[tuple[str, str]] = []
    left_out: dict[str, float] = {}
    borrowed: dict[str, int] = {}
    zeros: dict[str, float] = {}
    other_fields: set[str] = set()
    idle, total = 0, 0.0
    for name in selection.clients or traces:
        windows = _windows(traces[name], selection)
        expected = math.fsum(
            rate * (end - start)
            for start, end, rate in zip(windows["times_s"], _ends(windows), windows["rates"], strict=True)
        )
        if not expected:
            idle += 1
            continue
        tables = _tables(traces[name].with_name(name + _LENGTHS))
        other_fields |= tables.other_fields
        if not tables.complete:
            if selection.clients is not None:
                raise TraceError(
                    f"{traces[name]}", f"client {name} sends requests, but has no histogram of lengths"
                )
            left_out[name] = round(expected, 3)
            continue
        if tables.zeros:
            zeros[name] = tables.zeros
        offset = selection.start_s
        lengths = [{"from_s": start - offset, **table} for start, table in tables.complete.items()]
        if count := _without_lengths(windows, [start - offset for start in tables.starts], lengths):
            borrowed[name] = count
        forms.append((name, json.dumps({**windows, "lengths": lengths})))
        total += expected
    if not forms:
        missing = "has lengths" if left_out else "sends requests in this range"
        raise TraceError(folder, f"no client {missing}")
    if total > _MOST:
        raise ConfigError(
            "rate_factor",
            f"{folder} would send {total:.3g} requests, must be at most {_MOST}: "
            "choose a shorter range, fewer clients or a smaller factor",
        )
    metadata: dict[str, Any] = {
        "source": str(folder),
        "format": NAME,
        "clients": len(forms),
        "expected_requests": round(total, 3),
        "clients_without_requests": idle,
        "clients_left_out": {"no_lengths": left_out},
        "windows_with_borrowed_lengths": borrowed,
        "zero_outputs_left_out": zeros,
        "rows_left_out": {},
        "columns_left_out": sorted(other_fields),
        "token_count": "as in the source",
    }
    return Clients(str(folder), selection, tuple(forms)), metadata


def _natural(path: Path) -> tuple[int, str]:
    """Return a sort key with `chunk-9` before `chunk-10`."""
    return len(path.name), path.name


def _ends(windows: Mapping[str, Any]) -> list[float]:
    return [*windows["times_s"][1:], windows["end_s"]]


def _windows(path: Path, selection: Range) -> dict[str, Any]:
    """Return a client's windows in the selected range, with times relative to its start.

    A window lasts until the start of the next; the last window is as long as the previous one.
    """
    rows = _rows(path)
    starts = [start for start, *_ in rows]
    length = starts[-1] - starts[-2] if len(starts) > 1 else 600.0
    ends = [*starts[1:], starts[-1] + length]
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not start < end:
            raise TraceError(
                path, f"row {row + 1}: start is {end}, must be after the previous start, {start}"
            )
    last = min(ends[-1], selection.end_s)
    if last <= selection.start_s:
        return {"times_s": [0.0], "rates": [0.0], "families": ["Gamma"], "shapes": [1.0], "end_s": 1.0}
    times, rates, families, shapes = [0.0], [0.0], ["Gamma"], [1.0]  # no requests before the first window
    for (start, rate, family, shape), end in zip(rows, ends, strict=True):
        if end <= selection.start_s or start >= last:
            continue
        begin = max(start, selection.start_s) - selection.start_s
        if begin == times[-1]:
            for values in (times, rates, families, shapes):
                values.pop()
        times.append(begin)
        rates.append(rate * selection.rate_factor)
        families.append(family or "Gamma")
        shapes.append(shape)
    return {
        "times_s": times,
        "rates": rates,
        "families": families,
        "shapes": shapes,
        "end_s": last - selection.start_s,
    }


def _rows(path: Path) -> list[tuple[float, float, str, float]]:
    """Return start, rate, family and shape of each window of a client."""
    rows = []
    try:
        text = read_text(path, partial(TraceError, path))
        for number, fields in enumerate(csv.reader(io.StringIO(text, newline=""))):
            if fields:
                rows.append(_row(fields, f"{path}: row {number}"))
    except (OSError, csv.Error) as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    if not rows:
        raise TraceError(path, "is empty")
    return rows


def _row(fields: list[str], place: str) -> tuple[float, float, str, float]:
    if len(fields) != 6:
        raise TraceError(
            place, f"has {len(fields)} fields, must have 6: start, rate, cv, family, shape and scale"
        )
    numbers = []
    for name, text in (("start", fields[0]), ("rate", fields[1]), ("shape", fields[4])):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < 9e9:
            raise TraceError(place, f"{name} is {text!r}, must be a non-negative number")
        numbers.append(number)
    start, rate, shape = numbers
    family = fields[3]
    if rate > 0 and (family not in ("Gamma", "Weibull") or shape == 0):
        raise TraceError(
            place,
            "has a rate, so it must have the family Gamma or Weibull and a positive shape, "
            f"got {family!r} and {fields[4]!r}",
        )
    return start, rate, family, shape


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Histograms of one client."""

    starts: list[float]
    complete: dict[float, dict[str, Any]]
    """By start, windows with histograms of prompts and outputs, in the core's format."""
    zeros: float
    """Weight of outputs of 0 tokens, which are left out."""
    other_fields: set[str]


def _tables(path: Path) -> _Lengths:
    tables = _Lengths([], {}, 0.0, set())
    if not path.exists():
        return tables
    failure = partial(TraceError, path)
    try:
        windows = parsed_json(read_text(path, failure, _MOST_BYTES), failure)
    except OSError as error:
        raise failure(error.strerror or str(error)) from error
    if not isinstance(windows, dict) or not all(isinstance(fields, dict) for fields in windows.values()):
        raise TraceError(path, "must contain an object for each start of a window")
    zeros = 0.0
    for key, fields in windows.items():
        place = f"{path}: window {key}"
        try:
            start = float(key)
        except ValueError:
            raise TraceError(place, "the name of a window must be its start in seconds") from None
        tables.starts.append(start)
        used = ["output_tokens"]
        prompt: list[dict[str, Any] | None] = []
        if "input_tokens" in fields:
            used.append("input_tokens")
            prompt.append(_part(_histogram(fields, "input_tokens", place), None))
        elif "text_tokens" in fields:
            used.append("text_tokens")
            prompt.append(_part(_histogram(fields, "text_tokens", place), None))
            for kind in _PIECES:
                if f"{kind}_count" in fields:
                    used += [f"{kind}_count", f"{kind}_tokens"]
                    count = _histogram(fields, f"{kind}_count", place)
                    if any(count):  # at least one request has such a piece
                        prompt.append(_part(_histogram(fields, f"{kind}_tokens", place), count))
        output = _histogram(fields, "output_tokens", place)
        zeros += output.pop(0, 0.0)
        tables.other_fields.update(set(fields).difference(used))
        if prompt and None not in prompt and output:
            tables.complete[start] = {"prompt": prompt, "output": _form(output)}
    ordered = {start: tables.complete[start] for start in sorted(tables.complete)}
    return _Lengths(sorted(tables.starts), ordered, zeros, tables.other_fields)


def _part(tokens: dict[int, float], count: dict[int, float] | None) -> dict[str, Any] | None:
    """Return a part of a prompt in the core's format; None if its tokens are unknown."""
    return {"count": count and _form(count), "tokens": _form(tokens)} if tokens else None


def _form(histogram: dict[int, float]) -> dict[str, Any]:
    return {"values": list(histogram), "weights": list(histogram.values())}


def _histogram(fields: Mapping[str, Any], name: str, place: str) -> dict[int, float]:
    """Return weights by ascending value, from an object or a string such as `{90: 0.5, 94: 0.5}`."""
    field = fields.get(name, {})
    if isinstance(field, str):
        text = field.strip()
        inside = text[1:-1].strip() if text[:1] == "{" and text[-1:] == "}" else None
        pairs = None if inside is None else [pair.split(":") for pair in inside.split(",")] if inside else []
    else:
        pairs = [list(pair) for pair in field.items()] if isinstance(field, dict) else None
    if pairs is None:
        raise TraceError(place, f"{name} must be a histogram such as {{90: 0.5, 94: 0.5}}")
    histogram = {}
    for pair in pairs:
        try:
            value, weight = float(pair[0]), float(pair[1])
            is_valid = len(pair) == 2 and value == int(value) and 0 <= value < 2**31 and 0 <= weight <= 1e18
        except (ValueError, TypeError, IndexError, OverflowError):
            is_valid = False
        if not is_valid:
            raise TraceError(
                place, f"{name} contains {': '.join(map(str, pair))}, must contain pairs of integer: weight"
            )
        if weight:
            histogram[int(value)] = weight
    return dict(sorted(histogram.items()))


def _without_lengths(windows: Mapping[str, Any], starts: list[float], lengths: list[dict[str, Any]]) -> int:
    """Return the number of windows with requests that use the histograms of another window."""
    complete = {table["from_s"] for table in lengths}
    count = 0
    for begin, rate in zip(windows["times_s"], windows["rates"], strict=True):
        own = max((start for start in starts if start <= begin), default=None)
        count += rate > 0 and own not in complete
    return count
