"""How is a workload written down until it is drawn: its law, the verbs on it, and the JSON that says so?"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq import _core
from inferq.law import ArrivalLaw, LengthLaw

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, repr=False)
class Law:
    """Where the requests of a law come from: all columns drawn at once in the core."""

    requests: int
    arrivals: ArrivalLaw
    lengths: tuple[tuple[str, LengthLaw], ...]
    """`prompt` and `output`, or the joint `lengths`."""

    def describe(self) -> dict[str, Any]:
        """The law as JSON-ready data, in the form that the core reads."""
        parts = {name: law.describe() for name, law in self.lengths}
        return {"requests": self.requests, "arrivals": self.arrivals.describe(), **parts}

    def __repr__(self) -> str:
        """As the call that makes it."""
        parts = ", ".join(f"{name}={law!r}" for name, law in self.lengths)
        return f"Workload.law(requests={self.requests}, arrivals={self.arrivals!r}, {parts})"

    def draw(self, seed: int) -> pl.DataFrame:
        """The canonical frame that belongs to `seed`."""
        import polars as pl

        columns = _core.draw(json.dumps(self.describe()), seed)
        return pl.DataFrame({name: columns[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")})


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Step:
    """A verb that waits for the draw: its name in `verbs.APPLY` and its arguments."""

    verb: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        """As the call that makes it."""
        return (
            f"{self.verb}({', '.join(f'{name}={_brief(value)}' for name, value in self.arguments.items())})"
        )

    def describe(self) -> dict[str, Any]:
        """The step as JSON-ready data; given values by their number and their SHA-256."""
        return {"kind": self.verb, **{name: _described(value) for name, value in self.arguments.items()}}


def _brief(value: Any) -> str:
    import polars as pl

    if isinstance(value, tuple):
        return f"({', '.join(_brief(one) for one in value)})"
    return f"<{value.len()} values>" if isinstance(value, pl.Series) else repr(value)


def _described(value: Any) -> Any:
    import polars as pl

    if isinstance(value, pl.Series):
        return {"kind": "Given", "rows": value.len(), "sha256": sha256(value.to_frame())}
    if isinstance(value, (ArrivalLaw, LengthLaw)):
        return value.describe()
    if isinstance(value, tuple):  # the workloads of a merge
        return [one.describe_json() for one in value]
    if isinstance(value, float) and value == float("inf"):
        return None  # JSON has no infinity; the open end of a window
    return value


def sha256(frame: pl.DataFrame) -> str:
    """SHA-256 over names and values, independent of how polars lays a column out."""
    digest = hashlib.sha256()
    for name in frame.columns:
        series = frame[name]
        digest.update(f"{name}:{series.len()}:".encode())
        if series.dtype.is_numeric():
            digest.update(series.is_null().to_numpy().tobytes())
            values = series.fill_null(0).to_numpy()
            digest.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
        else:
            digest.update(json.dumps(series.to_list()).encode())
    return digest.hexdigest()
