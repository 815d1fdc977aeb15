"""ServeGen: clients of production services, by their arrivals in windows and their lengths in histograms.

It is no trace of requests: for each client and window of 10 minutes it gives a rate and a distribution of
gaps, for each of some longer windows the histograms of its lengths. So a workload read from it is synthetic.

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
"""Of the histograms of a client."""


@dataclass(frozen=True, slots=True)
class Range:
    """Which part of the measurements is wanted."""

    clients: tuple[str, ...] | None
    start_s: float
    end_s: float
    rate_factor: float

    @classmethod
    def of(cls, clients: Any, start_s: float | None, end_s: float | None, rate_factor: float | None) -> Range:
        """The arguments of `read_trace`, checked."""
        if clients is not None:
            if isinstance(clients, str) or not isinstance(clients, Sequence) or not clients:
                raise ConfigError("clients", f"must be names of clients, at least one, not {clients!r}")
            if len(set(clients)) < len(clients):
                raise ConfigError("clients", f"names one twice: {', '.join(map(str, clients))}")
            clients = tuple(clients)
        start = 0.0 if start_s is None else finite("start_s", start_s)
        end = math.inf if end_s is None else finite("end_s", end_s)
        if not 0 <= start < end:
            raise ConfigError("end_s", f"must be above start_s, which is 0 or more, not {start} and {end}")
        return cls(clients, start, end, 1.0 if rate_factor is None else positive("rate_factor", rate_factor))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Clients(Recipe):
    """Clients side by side, each a renewal process whose rate and gaps change with its windows."""

    source: str
    wanted: Range
    forms: tuple[tuple[str, str], ...]
    """Each client's name and its distributions as JSON, in the form that the core reads."""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data: how it was read, and a SHA-256 of the distributions."""
        digest = hashlib.sha256("".join(f"{name}:{form}" for name, form in self.forms).encode()).hexdigest()
        end = {} if self.wanted.end_s == math.inf else {"end_s": self.wanted.end_s}
        clients = {} if self.wanted.clients is None else {"clients": list(self.wanted.clients)}
        return {
            "trace": self.source,
            "format": NAME,
            **clients,
            "start_s": self.wanted.start_s,
            **end,
            "rate_factor": self.wanted.rate_factor,
            "sha256": digest,
        }

    def __repr__(self) -> str:
        """By file and number of clients."""
        return f"Workload(ServeGen {self.source!r}, {len(self.forms)} clients)"

    @property
    def columns(self) -> list[str]:
        """Arrivals, lengths, and the client as class."""
        return ["arrival_s", "prompt_tokens", "output_tokens", "class"]

    def draw(self, seed: int) -> pl.DataFrame:
        """The canonical frame that belongs to `seed`; at one instant in the order of the clients."""
        drawn = [_core.draw_client(form, subseed(seed, NAME, name)) for name, form in self.forms]
        whole = {name: np.concatenate([one[name] for one in drawn]) for name in self.columns[:3]}
        order = whole["arrival_s"].argsort(kind="stable")
        if not order.size:
            raise TraceError(
                self.source, "no request is drawn; choose a longer range or a larger rate_factor"
            )
        names = sorted(name for name, _ in self.forms)
        sizes = [one["arrival_s"].size for one in drawn]
        codes = np.repeat([names.index(name) for name, _ in self.forms], sizes)
        frame = pl.DataFrame({name: values[order] for name, values in whole.items()})
        return frame.with_columns(pl.Series("class", names, dtype=pl.Enum(names))[codes[order]])


def read(folder: Path, wanted: Range) -> tuple[Clients, dict[str, Any]]:
    """The synthetic workload of the clients in `folder`, and what a reader of the workload should know."""
    traces = {
        path.name.removesuffix(_TRACE): path for path in sorted(folder.glob(f"*{_TRACE}"), key=_natural)
    }
    if not traces:
        inner = sorted({str(path.parent.relative_to(folder)) for path in folder.rglob(f"*{_TRACE}")})
        hint = f"; give one of its folders {', '.join(inner[:10])}" if inner else ""
        raise TraceError(folder, f"is not a file, and as a folder holds no client of ServeGen{hint}")
    for name in wanted.clients or ():
        if name not in traces:
            raise ConfigError("clients", f"{folder} has no client {name!r}{nearest(str(name), traces)}")
    forms: list[tuple[str, str]] = []
    left_out: dict[str, float] = {}
    borrowed: dict[str, int] = {}
    zeros: dict[str, float] = {}
    other_fields: set[str] = set()
    silent, total = 0, 0.0
    for name in wanted.clients or traces:
        windows = _windows(traces[name], wanted)
        expected = math.fsum(
            rate * (end - start)
            for start, end, rate in zip(windows["times_s"], _ends(windows), windows["rates"], strict=True)
        )
        if not expected:
            silent += 1
            continue
        tables = _tables(traces[name].with_name(name + _LENGTHS))
        other_fields |= tables.other_fields
        if not tables.whole:
            if wanted.clients is not None:
                raise TraceError(
                    f"{traces[name]}", f"client {name} sends requests, but has no histogram of lengths"
                )
            left_out[name] = round(expected, 3)
            continue
        if tables.zeros:
            zeros[name] = tables.zeros
        lengths = [{"from_s": start - wanted.start_s, **table} for start, table in tables.whole.items()]
        if without := _without_lengths(windows, [start - wanted.start_s for start in tables.starts], lengths):
            borrowed[name] = without
        forms.append((name, json.dumps({**windows, "lengths": lengths})))
        total += expected
    if not forms:
        why = "has lengths" if left_out else "sends requests in this range"
        raise TraceError(folder, f"no client {why}")
    if total > _MOST:
        raise ConfigError(
            "rate_factor",
            f"{folder} would send {total:.3g} requests, at most {_MOST} can be numbered: "
            "choose a shorter range, fewer clients or a smaller factor",
        )
    metadata: dict[str, Any] = {
        "source": str(folder),
        "format": NAME,
        "clients": len(forms),
        "expected_requests": round(total, 3),
        "clients_silent": silent,
        "clients_left_out": {"no_lengths": left_out},
        "windows_with_lengths_of_others": borrowed,
        "outputs_of_0_left_out": zeros,
        "rows_left_out": {},
        "columns_left_out": sorted(other_fields),
        "token_count": "as in the source",
    }
    return Clients(str(folder), wanted, tuple(forms)), metadata


def _natural(path: Path) -> tuple[int, str]:
    """`chunk-9` before `chunk-10`."""
    return len(path.name), path.name


def _ends(windows: Mapping[str, Any]) -> list[float]:
    return [*windows["times_s"][1:], windows["end_s"]]


def _windows(path: Path, wanted: Range) -> dict[str, Any]:
    """The windows of one client inside the wanted range, on a clock that starts with it.

    A window lasts to the start of the next, the last one as long as the one before it.
    """
    rows = _rows(path)
    starts = [start for start, *_ in rows]
    length = starts[-1] - starts[-2] if len(starts) > 1 else 600.0
    ends = [*starts[1:], starts[-1] + length]
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not start < end:
            raise TraceError(
                path, f"row {row + 1}: the window starts at {end}, not after the {start} before it"
            )
    last = min(ends[-1], wanted.end_s)
    if last <= wanted.start_s:
        return {"times_s": [0.0], "rates": [0.0], "families": ["Gamma"], "shapes": [1.0], "end_s": 1.0}
    times, rates, families, shapes = [0.0], [0.0], ["Gamma"], [1.0]  # nothing before the first window
    for (start, rate, family, shape), end in zip(rows, ends, strict=True):
        if end <= wanted.start_s or start >= last:
            continue
        begin = max(start, wanted.start_s) - wanted.start_s
        if begin == times[-1]:
            for one in (times, rates, families, shapes):
                one.pop()
        times.append(begin)
        rates.append(rate * wanted.rate_factor)
        families.append(family or "Gamma")
        shapes.append(shape)
    return {
        "times_s": times,
        "rates": rates,
        "families": families,
        "shapes": shapes,
        "end_s": last - wanted.start_s,
    }


def _rows(path: Path) -> list[tuple[float, float, str, float]]:
    """Start, rate, family and shape of each window of a client."""
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
            place, f"has {len(fields)} fields, must have start, rate, cv, family, shape and scale"
        )
    numbers = []
    for name, text in (("start", fields[0]), ("rate", fields[1]), ("shape", fields[4])):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < 9e9:
            raise TraceError(place, f"{name} is {text!r}, must be a number, 0 or above")
        numbers.append(number)
    start, rate, shape = numbers
    family = fields[3]
    if rate > 0 and (family not in ("Gamma", "Weibull") or shape == 0):
        raise TraceError(
            place, f"has a rate but no distribution of gaps (family {family!r}, shape {fields[4]!r})"
        )
    return start, rate, family, shape


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The histograms of one client."""

    starts: list[float]
    whole: dict[float, dict[str, Any]]
    """By start, those with a prompt and an output, in the form that the core reads."""
    zeros: float
    """Weight of outputs of 0 tokens, which are left out."""
    other_fields: set[str]


def _tables(path: Path) -> _Lengths:
    tables = _Lengths([], {}, 0.0, set())
    if not path.exists():
        return tables
    refuse = partial(TraceError, path)
    try:
        windows = parsed_json(read_text(path, refuse, _MOST_BYTES), refuse)
    except OSError as error:
        raise refuse(error.strerror or str(error)) from error
    if not isinstance(windows, dict) or not all(isinstance(fields, dict) for fields in windows.values()):
        raise TraceError(path, "must hold objects by the start of their window")
    zeros = 0.0
    for key, fields in windows.items():
        place = f"{path}: window {key}"
        try:
            start = float(key)
        except ValueError:
            raise TraceError(place, "must be named by its start in seconds") from None
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
                    if any(count):  # some request has such a piece
                        prompt.append(_part(_histogram(fields, f"{kind}_tokens", place), count))
        output = _histogram(fields, "output_tokens", place)
        zeros += output.pop(0, 0.0)
        tables.other_fields.update(set(fields).difference(used))
        if prompt and None not in prompt and output:
            tables.whole[start] = {"prompt": prompt, "output": _form(output)}
    ordered = {start: tables.whole[start] for start in sorted(tables.whole)}
    return _Lengths(sorted(tables.starts), ordered, zeros, tables.other_fields)


def _part(tokens: dict[int, float], count: dict[int, float] | None) -> dict[str, Any] | None:
    """A part of a prompt in the form that the core reads; None where its tokens are not known."""
    return {"count": count and _form(count), "tokens": _form(tokens)} if tokens else None


def _form(histogram: dict[int, float]) -> dict[str, Any]:
    return {"values": list(histogram), "weights": list(histogram.values())}


def _histogram(fields: Mapping[str, Any], name: str, place: str) -> dict[int, float]:
    """Weights by value, ascending, from an object or from a text such as `{90: 0.5, 94: 0.5}`."""
    given = fields.get(name, {})
    if isinstance(given, str):
        text = given.strip()
        inside = text[1:-1].strip() if text[:1] == "{" and text[-1:] == "}" else None
        pairs = None if inside is None else [pair.split(":") for pair in inside.split(",")] if inside else []
    else:
        pairs = [list(pair) for pair in given.items()] if isinstance(given, dict) else None
    if pairs is None:
        raise TraceError(place, f"{name} must be a histogram such as {{90: 0.5, 94: 0.5}}")
    histogram = {}
    for pair in pairs:
        try:
            value, weight = float(pair[0]), float(pair[1])
            good = len(pair) == 2 and value == int(value) and 0 <= value < 2**31 and 0 <= weight <= 1e18
        except (ValueError, TypeError, IndexError, OverflowError):
            good = False
        if not good:
            raise TraceError(
                place, f"{name} holds {': '.join(map(str, pair))}, must hold a whole number: weight"
            )
        if weight:
            histogram[int(value)] = weight
    return dict(sorted(histogram.items()))


def _without_lengths(windows: Mapping[str, Any], starts: list[float], lengths: list[dict[str, Any]]) -> int:
    """How many windows with requests take the lengths of another time, as those of their own are empty."""
    whole = {table["from_s"] for table in lengths}
    count = 0
    for begin, rate in zip(windows["times_s"], windows["rates"], strict=True):
        own = max((start for start in starts if start <= begin), default=None)
        count += rate > 0 and own not in whole
    return count
