"""With what does each prompt begin that somebody else has said too?

A prompt begins with a chain of contents and goes on with its own. The core knows contents by number and never
sees a token: two prompts begin alike for as long as their chains do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.errors import TraceError
from inferq.workload.chains import OWN as OWN
from inferq.workload.chains import Chains, both, no_segments, nothing, resolved, starts, upwards

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TEXT = 1 << 62
"""Added to the number of a text. Below it are hashes, each its own number."""

_FAR = _TEXT | 1 << 61
"""Added to the number of a hash that is negative or too large to be one itself."""

EXPLICIT = ("prefix_hashes", "prefix_parts", "continues")
"""The columns that say with what a prompt begins, each in its own way."""

COLUMNS = (*EXPLICIT, "session_id")
"""Those and the column that says it where none of them is there."""


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """To which rows later parts of a workload go back, and until which part."""

    rows: NDArray[Any]
    """Rows that a row of a later part continues, ascending."""
    until: NDArray[Any]
    """The last part that continues each of them."""
    sessions: pl.DataFrame | None
    """`session_id` and `until`, the last part in which it has a turn: of sessions with turns in several."""


class Contents:
    """Numbers the contents of a workload that comes in parts, in the order of its rows.

    The numbers are the same in all parts, and those of the whole workload in one part. Kept from part to part
    are the name of every text, every hash that is negative or 2^62 and above, and for the rows to which later
    parts go back their chains.

    Args:
        later: what is known of the parts to come; None where there is but one.
    """

    def __init__(self, later: Later | None = None) -> None:
        self._later, self._part, self._block = later, 0, 0
        self._texts: dict[Any, int] = {}
        self._far: dict[int, int] = {}
        self._rows, self._said, self._chains = nothing()
        self._open: pl.DataFrame | None = None

    def of(self, frame: pl.DataFrame, first: int = 0) -> Chains | None:
        """The chains of the next rows; None for a workload in one part where no prompt begins like another.

        Args:
            frame: the requests, canonical.
            first: the number of the first.

        Raises:
            TraceError: naming the row.
        """
        there = [name for name in EXPLICIT if name in frame.columns]
        filled = [name for name in there if frame[name].null_count() < frame.height]
        if len(filled) > 1:
            _only_one(frame, filled, first)
        chains = Chains(np.zeros(frame.height + 1, dtype=np.int64), *no_segments())
        if "prefix_hashes" in filled:
            chains = self._of_hashes(frame, first)
        if "prefix_parts" in filled:
            chains = both(chains, self._of_parts(frame, first))
        link = None
        if "continues" in filled:
            link = frame["continues"].fill_null(-1).to_numpy().astype(np.int64)
        elif not there and "session_id" in frame.columns and "turn" in frame.columns:
            link = self._before(frame, first)
        if link is not None or self._later is not None:
            chains = self._linked(frame, first, chains, link, "continues" in filled)
        self._part += 1
        return chains if chains.content.size or self._later is not None else None

    def _of_hashes(self, frame: pl.DataFrame, first: int) -> Chains:
        """Every hash is a content of a block's tokens; the last may be a part of a block."""
        hashes, block = frame["prefix_hashes"], self._block_of(frame, first)
        lengths = hashes.list.len().fill_null(0).to_numpy().astype(np.int64)
        prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
        there = hashes.is_not_null().to_numpy()
        wrong = there & (lengths != -(-prompts // block)) & (lengths != prompts // block)
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(
                f"row {first + at}: has {lengths[at]} prefix_hashes for a prompt of {prompts[at]} tokens; "
                f"blocks of {block} tokens are {-(-prompts[at] // block)}"
            )
        codes = hashes.filter(hashes.list.len() > 0).explode()
        if codes.null_count():
            at = int(hashes.list.contains(None).fill_null(False).to_numpy().argmax())
            raise TraceError(f"row {first + at}: a null is among its prefix_hashes")
        start = starts(lengths)
        tokens = np.full(int(start[-1]), block, dtype=np.int64)
        has = lengths > 0
        tokens[start[1:][has] - 1] = np.minimum(prompts[has] - (lengths[has] - 1) * block, block)
        return Chains(start, self._numbered(codes), tokens)

    def _numbered(self, codes: pl.Series) -> NDArray[Any]:
        """A hash as a content: itself where it is from 0 to below 2^62."""
        far = (codes < 0) | (codes >= _TEXT)
        if not far.any():
            return codes.cast(pl.UInt64).to_numpy()
        numbers = codes.zip_with(~far, pl.Series([0], dtype=codes.dtype)).cast(pl.UInt64).to_numpy().copy()
        numbers[far.to_numpy()] = [
            _FAR | self._far.setdefault(value, len(self._far)) for value in codes.filter(far).to_list()
        ]
        return numbers

    def _block_of(self, frame: pl.DataFrame, first: int) -> int:
        """The tokens of a block, which are the same in every row."""
        if "prefix_block_tokens" not in frame.columns:
            raise TraceError(
                "workload: there are prefix_hashes, and no prefix_block_tokens that says of what blocks"
            )
        block, hashes = frame["prefix_block_tokens"], frame["prefix_hashes"]
        missing = (block.is_null() & hashes.is_not_null()).to_numpy()
        if missing.any():
            at = first + int(missing.argmax())
            raise TraceError(f"row {at}: has prefix_hashes, and prefix_block_tokens is null")
        self._block = self._block or int(block.drop_nulls()[0])
        mixed = (block != self._block).fill_null(False).to_numpy()
        if mixed.any():
            at = int(mixed.argmax())
            raise TraceError(
                f"row {first + at}: prefix_block_tokens is {block[at]}, and {self._block} in rows before it; "
                "one size for all"
            )
        return self._block

    def _of_parts(self, frame: pl.DataFrame, first: int) -> Chains:
        """Every text is a content, of which a part has some tokens."""
        parts = spelled(frame["prefix_parts"], first)
        lengths = parts.list.len().fill_null(0).to_numpy().astype(np.int64)
        start = starts(lengths)
        pairs = parts.filter(parts.list.len() > 0).explode()
        text, tokens = pairs.struct.field("text"), pairs.struct.field("tokens")

        def row(wrong: NDArray[Any]) -> tuple[int, int]:
            at = int(wrong.argmax())
            return first + int(np.searchsorted(start, at, side="right")) - 1, at

        unknown = text.is_null().to_numpy()
        if unknown.any():
            where, at = row(unknown)
            raise TraceError(f"row {where}: prefix_parts has {tokens[at]} tokens of an unknown text (null)")
        few = ~(tokens.fill_null(0) >= 1).to_numpy()
        if few.any():
            where, at = row(few)
            raise TraceError(
                f"row {where}: prefix_parts has {tokens[at]} tokens of text {text[at]!r}, must be at least 1"
            )
        said = tokens.to_numpy()
        prompts = frame["prompt_tokens"].to_numpy()
        chains = Chains(start, self._named(text), said)
        # in float64 first: a sum of 64-bit numbers may come round to a small one
        long = np.add.reduceat(np.append(said, 0).astype(np.float64), start[:-1]) * (lengths > 0) > prompts
        if long.any():
            at = int(long.argmax())
            total = sum(said[start[at] : start[at + 1]].tolist())
            raise TraceError(
                f"row {first + at}: prefix_parts has {total} tokens, and prompt_tokens is {prompts[at]}"
            )
        return chains

    def _named(self, text: pl.Series) -> NDArray[Any]:
        """Texts as contents, numbered as they come."""
        names = text.unique(maintain_order=True)
        numbers = [self._texts.setdefault(name, len(self._texts)) for name in names.to_list()]
        known = pl.DataFrame({"text": names, "number": pl.Series(numbers, dtype=pl.UInt64)})
        found = text.rename("text").to_frame().join(known, on="text", how="left", maintain_order="left")
        return found["number"].to_numpy() | np.uint64(_TEXT)

    def _before(self, frame: pl.DataFrame, first: int) -> NDArray[Any]:
        """For each row the turn of the same session before it; -1 for none."""
        number = pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("row")
        rows = frame.select("session_id", "turn", number).drop_nulls()
        if self._open is not None:
            rows = pl.concat([self._open, rows])
        turns = rows.sort("session_id", maintain_order=True)  # so that turns stand behind one another
        same = (turns["session_id"] == turns["session_id"].shift(1)).fill_null(False)
        wrong = (same & (turns["turn"] <= turns["turn"].shift(1))).to_numpy()
        if wrong.any():
            found = turns.with_columns(pl.col("turn").shift(1).alias("last")).filter(pl.Series(wrong))
            session, turn, at, last = found.row(int(found["row"].arg_min() or 0))
            raise TraceError(f"row {at}: turn {turn} of session {session!r} comes after its turn {last}")
        if self._later is not None and self._later.sessions is not None:
            go_on = self._later.sessions.filter(pl.col("until") > self._part)
            newest = (same.shift(-1, fill_value=False)).not_()
            self._open = turns.filter(newest).join(go_on, on="session_id", how="semi", maintain_order="left")
        link = np.full(frame.height, -1, dtype=np.int64)
        row = turns["row"].to_numpy()
        here = np.flatnonzero(same.to_numpy() & (row >= first))
        link[row[here] - first] = row[here - 1]
        return link

    def _linked(
        self, frame: pl.DataFrame, first: int, chains: Chains, link: NDArray[Any] | None, strict: bool
    ) -> Chains:
        """The chains of rows of which some begin with the prompt and the output of an earlier one."""
        kept = self._rows.size
        rows = np.concatenate([self._rows, np.arange(first, first + frame.height)])
        said = np.concatenate([self._said, said_in(frame)])
        local = np.full(rows.size, -1, dtype=np.int64)
        if link is not None:
            has = link >= 0
            at = np.where(link >= first, link - first + kept, np.searchsorted(self._rows, link))
            prompts = frame["prompt_tokens"].to_numpy()
            short = has & (said[np.where(has, at, 0)] > prompts)
            if strict and short.any():
                row = int(short.argmax())
                raise TraceError(
                    f"row {first + row}: continues row {link[row]} with its {said[at[row]]} tokens "
                    f"in a prompt of {prompts[row]}"
                )
            local[kept:] = np.where(has & ~short, at, -1)
        whole = resolved(chains.after(self._chains), local, said, rows)
        if self._later is not None:
            stay = np.searchsorted(rows, self._go_on(first + frame.height))
            self._rows, self._said, self._chains = rows[stay], said[stay], whole.of(stay)
        return whole.of(np.arange(kept, rows.size)) if kept else whole

    def _go_on(self, end: int) -> NDArray[Any]:
        """The rows before `end` to which later parts go back."""
        assert self._later is not None
        if self._open is not None:
            return np.sort(self._open["row"].to_numpy())
        rows, until = self._later.rows, self._later.until
        found: NDArray[Any] = rows[(rows < end) & (until > self._part)]
        return found


def contents(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """The chains of all rows, in the form that the core reads.

    A row says with what its prompt begins in one way at most: `prefix_hashes`, `prefix_parts` or `continues`.
    Where the frame has none of these columns, a turn of a session (`session_id` and `turn`) goes on from the
    turn before it, if its prompt is long enough to begin with that turn's prompt and output: one that is
    shorter has forgotten its beginning.

    Args:
        frame: the requests, canonical.

    Returns:
        `content_start`, one more than rows; `content_id` and `content_tokens`, one for each part of a chain;
        nothing where no prompt begins like another.

    Raises:
        TraceError: naming the row.
    """
    chains = Contents().of(frame)
    return {} if chains is None else chains.columns()


def is_linked_by_session(frame: pl.DataFrame) -> bool:
    """Do turns of sessions go on from one another, because no column says with what prompts begin?"""
    return {"session_id", "turn"} <= set(frame.columns) and not any(
        name in frame.columns for name in EXPLICIT
    )


def with_links(frame: pl.DataFrame, verb: str) -> pl.DataFrame:
    """The frame with the column `continues` where sessions have said it so far.

    Raises:
        TraceError: a turn comes before its time, or lengths are missing that say which turn goes on.
    """
    if not is_linked_by_session(frame):
        return frame
    for name in ("prompt_tokens", "output_tokens"):
        if name not in frame.columns:
            raise TraceError(
                f"{verb}: the workload has sessions and no {name}, which decides whose turns go on from one "
                f"another: use .with_{name.removesuffix('_tokens')}s(…) before"
            )
    try:
        link = Contents()._before(frame, 0)
    except TraceError as error:
        raise TraceError(f"{verb}: {error}") from None
    prompts = frame["prompt_tokens"].to_numpy()
    link[said_in(frame)[link] > prompts] = -1
    made = pl.Series("continues", link.astype("int32"))
    return frame.with_columns(made.set(made < 0, None))


def firsts(continues: pl.Series) -> NDArray[Any]:
    """The row with which the chain of each row begins: itself where it continues none."""
    found = np.arange(continues.len())
    for row, earlier in upwards(continues.fill_null(-1).to_numpy().astype(np.int64)):
        found[row] = earlier
    return found


def spelled(parts: pl.Series, first: int = 0) -> pl.Series:
    """`prefix_parts` as lists of `text` and `tokens`, however the pairs were given.

    Raises:
        TraceError: entries that are no pairs of a name (text or a whole number) and a whole number.
    """
    inner = parts.dtype.inner  # type: ignore[attr-defined]  # the column holds lists
    if isinstance(inner, pl.Array):
        inner = pl.List(inner.inner)
        parts = parts.cast(pl.List(inner))
    if isinstance(inner, pl.Struct) and len(inner.fields) == 2:
        names = [field.name for field in inner.fields]
        text, tokens = ("text", "tokens") if set(names) == {"text", "tokens"} else names
        kinds = [next(one.dtype for one in inner.fields if one.name == name) for name in (text, tokens)]
        pair = [pl.element().struct.field(name) for name in (text, tokens)]
    elif isinstance(inner, pl.List):
        kinds = [inner.inner] * 2
        pair = [pl.element().list.get(place, null_on_oob=True) for place in (0, 1)]
        wrong = parts.list.eval(pl.element().list.len() != 2).list.any().fill_null(False).to_numpy()
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(f"row {first + at}: prefix_parts has {parts[at].to_list()}, must be pairs")
    elif inner == pl.Null:
        kinds, pair = [pl.Null()] * 2, [pl.element(), pl.element()]
    else:
        raise TraceError(
            f"prefix_parts: holds {parts.dtype}, must hold lists of pairs, a text and its tokens"
        )
    named = kinds[0].is_integer() or kinds[0] in (pl.String, pl.Categorical, pl.Enum, pl.Null)
    if not named or not (kinds[1].is_integer() or kinds[1] == pl.Null):
        raise TraceError(
            f"prefix_parts: holds {parts.dtype}; a text is named by a text or a whole number, and its tokens "
            "are a whole number"
        )
    made = pl.struct(pair[0].cast(pl.String).alias("text"), pair[1].cast(pl.Int64).alias("tokens"))
    as_pairs: pl.Series = parts.list.eval(made)
    return as_pairs


def paired(values: Sequence[object]) -> pl.Series:
    """`prefix_parts` written by hand, as lists of `text` and `tokens`: polars reads no pair of two types.

    Raises:
        TraceError: naming the row that is no list of pairs of a name and a whole number.
    """

    def pair(row: int, given: object) -> dict[str, object]:
        if isinstance(given, Mapping) and set(given) == {"text", "tokens"}:
            given = (given["text"], given["tokens"])
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
            raise TraceError(f"row {row}: prefix_parts has {given!r}, must be pairs of a text and its tokens")
        text, tokens = given
        if isinstance(text, bool) or not (text is None or isinstance(text, (str, Integral))):
            raise TraceError(
                f"row {row}: prefix_parts names a text {text!r}, must be a text or a whole number"
            )
        if isinstance(tokens, bool) or not (tokens is None or isinstance(tokens, Integral)):
            raise TraceError(
                f"row {row}: prefix_parts has {tokens!r} tokens of text {text!r}, must be a whole number"
            )
        if tokens is not None and abs(int(tokens)) >= 1 << 63:
            raise TraceError(f"row {row}: prefix_parts has {tokens} tokens of text {text!r}: too many")
        return {
            "text": None if text is None else str(text),
            "tokens": None if tokens is None else int(tokens),
        }

    made: list[list[dict[str, object]] | None] = []
    for row, parts in enumerate(values):
        if parts is not None and (not isinstance(parts, Sequence) or isinstance(parts, str)):
            raise TraceError(f"row {row}: prefix_parts is {parts!r}, must be a list of pairs, or None")
        made.append(None if parts is None else [pair(row, one) for one in parts])
    kind = pl.List(pl.Struct({"text": pl.String, "tokens": pl.Int64}))
    return pl.Series("prefix_parts", made, dtype=kind)


def _only_one(frame: pl.DataFrame, names: list[str], first: int) -> None:
    told = frame.select(pl.sum_horizontal(pl.col(names).is_not_null()).alias("told"))["told"].to_numpy()
    if (told > 1).any():
        at = int((told > 1).argmax())
        both = [name for name in names if frame[name][at] is not None]
        raise TraceError(f"row {first + at}: {' and '.join(both)} both say with what its prompt begins")


def said_in(frame: pl.DataFrame) -> NDArray[Any]:
    """Tokens of prompt and output together; an output that is not known says nothing."""
    said = frame["prompt_tokens"].to_numpy().astype(np.int64)
    return said + frame["output_tokens"].to_numpy() if "output_tokens" in frame.columns else said + 1
