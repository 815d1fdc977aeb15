"""Shared prefixes of prompts as chains of contents, and their reuse by an unlimited cache.

A prompt is a chain of shared contents followed by its own tokens. The core identifies contents by number and
never sees a token: two prompts share a prefix as far as their chains agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

from inferq._lazy import NDArray, np, pl
from inferq.errors import TraceError

OWN = 1 << 63
"""Added to the number of a row: the row's own content, the rest of its prompt and its output."""

_TEXT = 1 << 62
"""Added to the number of a text. Smaller numbers are hashes, which represent themselves."""

_FAR = _TEXT | 1 << 61
"""Added to the number of a hash that is negative or too large to represent itself."""

EXPLICIT = ("prefix_hashes", "prefix_parts", "continues")
"""Columns that describe the prefix of a prompt."""

COLUMNS = (*EXPLICIT, "session_id")
"""`EXPLICIT`, and the column that determines prefixes without them."""

NO_ROW = (1 << 32) - 1
"""Marks a chain that continues no row, in the core's format."""


class Chains(NamedTuple):
    """Prefixes of rows. The segments of a row are `start[row]` to `start[row + 1]`.

    With `after`, they follow the chain of row `after[row]`, unless that is `NO_ROW`. So the memory for the
    turns of a session is linear, not quadratic, in their number.
    """

    start: NDArray[Any]
    content: NDArray[Any]
    tokens: NDArray[Any]
    after: NDArray[Any] | None = None
    continued: NDArray[Any] | None = None
    """Number of later rows that continue each row."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the core's format."""
        columns: dict[str, NDArray[Any]] = {
            "content_start": self.start.astype(np.uint64),
            "content_id": self.content.astype(np.uint64, copy=False),
            "content_tokens": self.tokens.astype(np.uint32),
        }
        if self.after is not None:
            columns["content_after"] = self.after
        if self.continued is not None:
            columns["content_continued"] = self.continued
        return columns

    def totals(self) -> NDArray[Any]:
        """Return the tokens in each chain."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])
        totals: NDArray[Any] = sums[self.start[1:]] - sums[self.start[:-1]]
        return totals

    def at(self, places: NDArray[Any], rows: int) -> Chains:
        """Return chains of `rows` rows with these at ascending `places`; the rest are empty."""
        lengths = np.zeros(rows, dtype=np.int64)
        lengths[places] = np.diff(self.start)
        return Chains(starts(lengths), self.content, self.tokens)

    def without(self, first: int) -> Chains:
        """Return the chains without the first rows, which no other row continues."""
        assert self.after is not None and self.continued is not None
        start, after = self.start[first:], self.after[first:]
        return Chains(
            start - start[0],
            self.content[start[0] :],
            self.tokens[start[0] :],
            np.where(after == NO_ROW, after, after - np.uint32(first)),
            self.continued[first:],
        )

    def behind(self, earlier: Chains) -> Chains:
        """Return the chains of `earlier` followed by these."""
        return Chains(
            np.concatenate([earlier.start, self.start[1:] + earlier.start[-1]]),
            np.concatenate([earlier.content, self.content]),
            np.concatenate([earlier.tokens, self.tokens]),
        )


def combined(left: Chains, right: Chains) -> Chains:
    """Return the chains of rows with a chain in at most one of two arguments."""
    if not left.content.size:
        return right
    lengths = [np.diff(chains.start) for chains in (left, right)]
    start = starts(lengths[0] + lengths[1])
    content, tokens = np.empty(int(start[-1]), dtype=np.uint64), np.empty(int(start[-1]), dtype=np.int64)
    for chains, length in zip((left, right), lengths, strict=True):
        here = ranges(start[:-1], length)
        content[here], tokens[here] = chains.content, chains.tokens
    return Chains(start, content, tokens)


def resolved(
    chains: Chains, link: NDArray[Any], sizes: NDArray[Any], rows: NDArray[Any], of: NDArray[Any]
) -> Chains:
    """Return complete chains: a linked row has the chain of the row it continues, then that row's own tokens.

    Args:
        chains: chains of the rows without a link.
        link: for each row, the place of the row it continues; -1 for none.
        sizes: tokens of prompt and output of each row.
        rows: the number of each row.
        of: places of the rows to return.
    """
    own, numbers = own_tokens(chains, link, sizes), rows.astype(np.uint64) | np.uint64(OWN)
    depth, root = np.zeros(of.size, dtype=np.int64), of.copy()
    for place, earlier in ancestors(link, of):
        depth[place] += 1
        root[place] = earlier
    first = np.diff(chains.start)[root]
    start = starts(first + depth)
    content, tokens = np.empty(int(start[-1]), dtype=np.uint64), np.empty(int(start[-1]), dtype=np.int64)
    here, there = ranges(start[:-1], first), ranges(chains.start[root], first)
    content[here], tokens[here] = chains.content[there], chains.tokens[there]
    last = start[1:].copy()
    for place, earlier in ancestors(link, of):
        last[place] -= 1
        content[last[place]], tokens[last[place]] = numbers[earlier], own[earlier]
    return Chains(start, content, tokens)


def linked(chains: Chains, link: NDArray[Any], sizes: NDArray[Any], rows: NDArray[Any]) -> Chains:
    """Return the chains of all rows; a linked row has only the segments after the row it continues.

    Args:
        chains: chains of the rows without a link.
        link: for each row, the place of the row it continues; -1 for none.
        sizes: tokens of prompt and output of each row.
        rows: the number of each row.
    """
    has = link >= 0
    earlier = link[has]
    links = Chains(
        starts(has.astype(np.int64)),
        rows[earlier].astype(np.uint64) | np.uint64(OWN),
        own_tokens(chains, link, sizes)[earlier],
    )
    return combined(chains, links)._replace(
        after=np.where(has, link, NO_ROW).astype(np.uint32),
        continued=np.bincount(earlier, minlength=link.size).astype(np.uint32),
    )


def own_tokens(chains: Chains, link: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    """Return the tokens of each row that follow its chain. `chains` does not contain those of linked rows."""
    shared = np.where(link >= 0, sizes[link], chains.totals()) if link.size else sizes
    own: NDArray[Any] = sizes - shared
    return own


def ancestors(link: NDArray[Any], of: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the linked rows among `of` with the rows they continue, then with the rows before, and so on."""
    place = np.flatnonzero(link[of] >= 0)
    earlier = link[of[place]]
    while place.size:
        yield place, earlier
        further = link[earlier]
        place, earlier = place[further >= 0], further[further >= 0]


def starts(lengths: NDArray[Any]) -> NDArray[Any]:
    """Return the start of each of some consecutive ranges, and the end of the last."""
    begins: NDArray[Any] = np.concatenate([[0], np.cumsum(lengths)])
    return begins


def ranges(start: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """Return the places `start[i]`, `start[i] + 1`, … of each range, concatenated."""
    ends = np.cumsum(lengths)
    places: NDArray[Any] = np.arange(int(ends[-1]) if ends.size else 0)
    places = places + np.repeat(start - (ends - lengths), lengths)
    return places


def no_segments() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return contents and tokens of empty chains."""
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


def no_rows() -> tuple[NDArray[Any], NDArray[Any], Chains]:
    """Return rows, sizes and chains of an empty workload."""
    empty = np.empty(0, dtype=np.int64)
    return empty, empty, Chains(np.zeros(1, dtype=np.int64), *no_segments())


@dataclass(frozen=True, slots=True, eq=False)
class LaterLinks:
    """Rows of a workload that its later parts continue."""

    rows: NDArray[Any]
    """Rows that a row of a later part continues, ascending."""
    until: NDArray[Any]
    """Last part that continues each of these rows."""
    sessions: pl.DataFrame | None
    """Sessions with turns in several parts: `session_id` and `until`, the part of the last turn."""


class Contents:
    """Numbers of the contents of a workload that is read in parts, in the order of its rows.

    The numbers do not depend on the division into parts. Between parts, it stores the name of every text,
    every hash that is negative or at least 2^62, and the chains of the rows that later parts continue.

    Args:
        later: links from later parts; None for a workload in one part.
    """

    def __init__(self, later: LaterLinks | None = None) -> None:
        self._later, self._part, self._block = later, 0, 0
        self._texts: dict[Any, int] = {}
        self._far: dict[int, int] = {}
        self._rows, self._sizes, self._chains = no_rows()
        self._open: pl.DataFrame | None = None

    def of(self, frame: pl.DataFrame, first: int = 0) -> Chains | None:
        """Return the chains of the next rows; None for a workload in one part without shared prefixes.

        In a workload of several parts, a row that continues a row of the same part has `after`.

        Args:
            frame: canonical requests.
            first: number of the first row.

        Raises:
            TraceError: a prefix is wrong; it names the row.
        """
        chains, link, strict = self._declared(frame, first)
        if self._later is not None:
            chains = self._in_part(frame, first, chains, link, strict)
        elif link is not None:
            rows, sizes, local = self._placed(frame, first, link, strict)
            chains = resolved(chains, local, sizes, rows, np.arange(rows.size))
        self._part += 1
        return chains if chains.content.size or self._later is not None else None

    def linked(self, frame: pl.DataFrame) -> Chains | None:
        """Return the chains of a workload in one part, with `after` for rows that continue others."""
        chains, link, strict = self._declared(frame, 0)
        if link is not None:
            rows, sizes, link = self._placed(frame, 0, link, strict)
            if (link >= 0).any():
                return linked(chains, link, sizes, rows)
        return chains if chains.content.size else None

    def _declared(self, frame: pl.DataFrame, first: int) -> tuple[Chains, NDArray[Any] | None, bool]:
        """Return chains, links, and whether a link that does not fit is an error."""
        present = [name for name in EXPLICIT if name in frame.columns]
        filled = [name for name in present if frame[name].null_count() < frame.height]
        if len(filled) > 1:
            _only_one(frame, filled, first)
        chains = Chains(np.zeros(frame.height + 1, dtype=np.int64), *no_segments())
        if "prefix_hashes" in filled:
            chains = self._of_hashes(frame, first)
        if "prefix_parts" in filled:
            chains = combined(chains, self._of_parts(frame, first))
        link = None
        if "continues" in filled:
            link = frame["continues"].fill_null(-1).to_numpy().astype(np.int64)
        elif not present and "session_id" in frame.columns and "turn" in frame.columns:
            link = self._before(frame, first)
        return chains, link, "continues" in filled

    def _of_hashes(self, frame: pl.DataFrame, first: int) -> Chains:
        """Return chains of hashes. Each is a block of tokens; the last block may be partial."""
        hashes, block = frame["prefix_hashes"], self._block_of(frame, first)
        lengths = hashes.list.len().fill_null(0).to_numpy().astype(np.int64)
        prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
        present = hashes.is_not_null().to_numpy()
        wrong = present & (lengths != -(-prompts // block)) & (lengths != prompts // block)
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(
                f"row {first + at}: prefix_hashes has {lengths[at]} hashes, must have "
                f"{-(-prompts[at] // block)} for a prompt of {prompts[at]} tokens in blocks of {block}"
            )
        codes = hashes.filter(hashes.list.len() > 0).explode()
        if codes.null_count():
            at = int(hashes.list.contains(None).fill_null(False).to_numpy().argmax())
            raise TraceError(f"row {first + at}: prefix_hashes contains null, must contain integers only")
        start = starts(lengths)
        tokens = np.full(int(start[-1]), block, dtype=np.int64)
        has = lengths > 0
        tokens[start[1:][has] - 1] = np.minimum(prompts[has] - (lengths[has] - 1) * block, block)
        return Chains(start, self._numbered(codes), tokens)

    def _numbered(self, codes: pl.Series) -> NDArray[Any]:
        """Return hashes as contents: unchanged from 0 to below 2^62."""
        far = (codes < 0) | (codes >= _TEXT)
        if not far.any():
            return codes.cast(pl.UInt64).to_numpy()
        numbers = codes.zip_with(~far, pl.Series([0], dtype=codes.dtype)).cast(pl.UInt64).to_numpy().copy()
        numbers[far.to_numpy()] = [
            _FAR | self._far.setdefault(value, len(self._far)) for value in codes.filter(far).to_list()
        ]
        return numbers

    def _block_of(self, frame: pl.DataFrame, first: int) -> int:
        """Return the block size, which is the same in every row."""
        if "prefix_block_tokens" not in frame.columns:
            raise TraceError(
                "workload", "prefix_hashes requires the column prefix_block_tokens, the tokens of a block"
            )
        block, hashes = frame["prefix_block_tokens"], frame["prefix_hashes"]
        missing = (block.is_null() & hashes.is_not_null()).to_numpy()
        if missing.any():
            at = first + int(missing.argmax())
            raise TraceError(f"row {at}: prefix_block_tokens is null, must be set for prefix_hashes")
        self._block = self._block or int(block.drop_nulls()[0])
        mixed = (block != self._block).fill_null(False).to_numpy()
        if mixed.any():
            at = int(mixed.argmax())
            raise TraceError(
                f"row {first + at}: prefix_block_tokens is {block[at]}, must be {self._block} as in earlier "
                "rows"
            )
        return self._block

    def _of_parts(self, frame: pl.DataFrame, first: int) -> Chains:
        """Return chains of texts, each with a number of tokens."""
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
            number, at = row(unknown)
            raise TraceError(
                f"row {number}: prefix_parts has null as the name of a text with {tokens[at]} tokens; "
                "name the text"
            )
        few = ~(tokens.fill_null(0) >= 1).to_numpy()
        if few.any():
            number, at = row(few)
            raise TraceError(
                f"row {number}: prefix_parts has {tokens[at]} tokens of text {text[at]!r}, must be at least 1"
            )
        sizes = tokens.to_numpy()
        prompts = frame["prompt_tokens"].to_numpy()
        chains = Chains(start, self._named(text), sizes)
        # In float64 first: a sum of 64-bit integers may overflow to a small number.
        long = np.add.reduceat(np.append(sizes, 0).astype(np.float64), start[:-1]) * (lengths > 0) > prompts
        if long.any():
            at = int(long.argmax())
            total = sum(sizes[start[at] : start[at + 1]].tolist())
            raise TraceError(
                f"row {first + at}: prefix_parts has {total} tokens, must have at most prompt_tokens, "
                f"{prompts[at]}"
            )
        return chains

    def _named(self, text: pl.Series) -> NDArray[Any]:
        """Return texts as contents, numbered by first occurrence."""
        names = text.unique(maintain_order=True)
        numbers = [self._texts.setdefault(name, len(self._texts)) for name in names.to_list()]
        codes = pl.DataFrame({"text": names, "number": pl.Series(numbers, dtype=pl.UInt64)})
        coded = text.rename("text").to_frame().join(codes, on="text", how="left", maintain_order="left")
        return coded["number"].to_numpy() | np.uint64(_TEXT)

    def _before(self, frame: pl.DataFrame, first: int) -> NDArray[Any]:
        """Return for each row the previous turn of its session; -1 for none."""
        number = pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("row")
        rows = frame.select("session_id", "turn", number).drop_nulls()
        if self._open is not None:
            rows = pl.concat([self._open, rows])
        turns = rows.sort("session_id", maintain_order=True)  # makes the turns of a session adjacent
        same = (turns["session_id"] == turns["session_id"].shift(1)).fill_null(False)
        wrong = (same & (turns["turn"] <= turns["turn"].shift(1))).to_numpy()
        if wrong.any():
            late = turns.with_columns(pl.col("turn").shift(1).alias("last")).filter(pl.Series(wrong))
            session, turn, at, last = late.row(int(late["row"].arg_min() or 0))
            raise TraceError(
                f"row {at}: turn {turn} of session {session!r} is after turn {last}, must be before it"
            )
        if self._later is not None and self._later.sessions is not None:
            active = self._later.sessions.filter(pl.col("until") > self._part)
            newest = (same.shift(-1, fill_value=False)).not_()
            self._open = turns.filter(newest).join(active, on="session_id", how="semi", maintain_order="left")
        link = np.full(frame.height, -1, dtype=np.int64)
        row = turns["row"].to_numpy()
        here = np.flatnonzero(same.to_numpy() & (row >= first))
        link[row[here] - first] = row[here - 1]
        return link

    def _in_part(
        self, frame: pl.DataFrame, first: int, chains: Chains, link: NDArray[Any] | None, strict: bool
    ) -> Chains:
        """Return the chains of a part, and store those that later parts need.

        A row that continues a row of an earlier part has its complete chain. So the memory for a session's
        turns is linear in their number, plus one complete chain per part.
        """
        rows, sizes, local = self._placed(frame, first, link, strict)
        stored = self._rows.size
        chains = chains.behind(self._chains)
        from_earlier = np.flatnonzero((local >= 0) & (local < stored))
        complete = resolved(chains, local, sizes, rows, from_earlier).at(from_earlier, rows.size)
        chains = combined(chains, complete)
        local[from_earlier] = -1
        parts = linked(chains, local, sizes, rows)
        needed = np.searchsorted(rows, self._continued_later(first + frame.height))
        needed_chains = resolved(chains, local, sizes, rows, needed)
        self._rows, self._sizes, self._chains = rows[needed], sizes[needed], needed_chains
        return parts.without(stored)

    def _placed(
        self, frame: pl.DataFrame, first: int, link: NDArray[Any] | None, strict: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the stored rows and these, their tokens, and for each the place of the row it continues."""
        stored = self._rows.size
        rows = np.concatenate([self._rows, np.arange(first, first + frame.height)])
        sizes = np.concatenate([self._sizes, context_tokens(frame)])
        local = np.full(rows.size, -1, dtype=np.int64)
        if link is not None:
            has = link >= 0
            at = np.where(link >= first, link - first + stored, np.searchsorted(self._rows, link))
            prompts = frame["prompt_tokens"].to_numpy()
            short = has & (sizes[np.where(has, at, 0)] > prompts)
            if strict and short.any():
                row = int(short.argmax())
                raise TraceError(
                    f"row {first + row}: prompt_tokens is {prompts[row]}, must be at least "
                    f"{sizes[at[row]]}, the tokens of row {link[row]}, which it continues"
                )
            local[stored:] = np.where(has & ~short, at, -1)
        return rows, sizes, local

    def _continued_later(self, end: int) -> NDArray[Any]:
        """Return the rows before `end` that later parts continue."""
        assert self._later is not None
        if self._open is not None:
            return np.sort(self._open["row"].to_numpy())
        rows, until = self._later.rows, self._later.until
        needed: NDArray[Any] = rows[(rows < end) & (until > self._part)]
        return needed


def contents(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the chains of all rows in the core's format.

    A row has at most one of `prefix_hashes`, `prefix_parts` and `continues`. If the frame has none of these
    columns, a turn of a session (`session_id` and `turn`) continues the turn before it. A turn whose prompt
    is shorter than the previous prompt and output does not: its conversation was truncated.

    Args:
        frame: canonical requests.

    Returns:
        `content_start`, one more than rows; `content_id` and `content_tokens`, one for each segment of a
        chain; an empty mapping without shared prefixes.

    Raises:
        TraceError: a prefix is wrong; it names the row.
    """
    chains = Contents().of(frame)
    return {} if chains is None else chains.columns()


def is_linked_by_session(frame: pl.DataFrame) -> bool:
    """Return whether turns of sessions continue each other because no column describes prefixes."""
    return {"session_id", "turn"} <= set(frame.columns) and not any(
        name in frame.columns for name in EXPLICIT
    )


def with_links(frame: pl.DataFrame, transform: str) -> pl.DataFrame:
    """Return the frame with the column `continues` if sessions imply it.

    Raises:
        TraceError: turns are not in order, or lengths that determine the links are missing.
    """
    if not is_linked_by_session(frame):
        return frame
    for name in ("prompt_tokens", "output_tokens"):
        if name not in frame.columns:
            raise TraceError(
                transform,
                f"requires {name} to link the turns of sessions: use "
                f".with_{name.removesuffix('_tokens')}s(…) first",
            )
    try:
        link = Contents()._before(frame, 0)
    except TraceError as error:
        raise error.within(transform) from None
    prompts = frame["prompt_tokens"].to_numpy()
    link[context_tokens(frame)[link] > prompts] = -1
    continues = pl.Series("continues", link.astype("int32"))
    return frame.with_columns(continues.set(continues < 0, None))


def firsts(continues: pl.Series) -> NDArray[Any]:
    """Return the first row of each row's chain: itself if it continues no row."""
    roots = np.arange(continues.len())
    for row, earlier in ancestors(continues.fill_null(-1).to_numpy().astype(np.int64), roots.copy()):
        roots[row] = earlier
    return roots


def spelled(parts: pl.Series, first: int = 0) -> pl.Series:
    """Return `prefix_parts` as lists of structs of `text` and `tokens`.

    Raises:
        TraceError: an entry is not a pair of a name (string or integer) and an integer.
    """
    inner = parts.dtype.inner  # type: ignore[attr-defined]  # the column holds lists
    if isinstance(inner, pl.Array):
        inner = pl.List(inner.inner)
        parts = parts.cast(pl.List(inner))
    if isinstance(inner, pl.Struct) and len(inner.fields) == 2:
        names = [field.name for field in inner.fields]
        text, tokens = ("text", "tokens") if set(names) == {"text", "tokens"} else names
        kinds = [next(field.dtype for field in inner.fields if field.name == name) for name in (text, tokens)]
        pair = [pl.element().struct.field(name) for name in (text, tokens)]
    elif isinstance(inner, pl.List):
        kinds = [inner.inner] * 2
        pair = [pl.element().list.get(place, null_on_oob=True) for place in (0, 1)]
        wrong = parts.list.eval(pl.element().list.len() != 2).list.any().fill_null(False).to_numpy()
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(
                f"row {first + at}: prefix_parts is {parts[at].to_list()}, must be pairs of a text and its "
                "tokens"
            )
    elif inner == pl.Null:
        kinds, pair = [pl.Null()] * 2, [pl.element(), pl.element()]
    else:
        raise TraceError(
            "prefix_parts", f"must contain lists of pairs of a text and its tokens, got {parts.dtype}"
        )
    named = kinds[0].is_integer() or kinds[0] in (pl.String, pl.Categorical, pl.Enum, pl.Null)
    if not named or not (kinds[1].is_integer() or kinds[1] == pl.Null):
        raise TraceError(
            "prefix_parts",
            f"must contain pairs of a name (string or integer) and an integer, got {parts.dtype}",
        )
    entry = pl.struct(pair[0].cast(pl.String).alias("text"), pair[1].cast(pl.Int64).alias("tokens"))
    as_pairs: pl.Series = parts.list.eval(entry)
    return as_pairs


def paired(values: Sequence[object]) -> pl.Series:
    """Return Python lists of `prefix_parts` as a column: polars cannot read pairs of two types.

    Raises:
        TraceError: a row is not a list of pairs of a name and an integer; it names the row.
    """

    def pair(row: int, entry: object) -> dict[str, object]:
        if isinstance(entry, Mapping) and set(entry) == {"text", "tokens"}:
            entry = (entry["text"], entry["tokens"])
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
            raise TraceError(f"row {row}: prefix_parts has {entry!r}, must be pairs of a text and its tokens")
        text, tokens = entry
        if isinstance(text, bool) or not (text is None or isinstance(text, (str, Integral))):
            raise TraceError(f"row {row}: prefix_parts has the name {text!r}, must be a string or an integer")
        if isinstance(tokens, bool) or not (tokens is None or isinstance(tokens, Integral)):
            raise TraceError(
                f"row {row}: prefix_parts has {tokens!r} tokens of text {text!r}, must be an integer"
            )
        if tokens is not None and abs(int(tokens)) >= 1 << 63:
            raise TraceError(
                f"row {row}: prefix_parts has {tokens} tokens of text {text!r}, must be below 2^63"
            )
        return {
            "text": None if text is None else str(text),
            "tokens": None if tokens is None else int(tokens),
        }

    lists: list[list[dict[str, object]] | None] = []
    for row, parts in enumerate(values):
        if parts is not None and (not isinstance(parts, Sequence) or isinstance(parts, str)):
            raise TraceError(f"row {row}: prefix_parts is {parts!r}, must be a list of pairs, or None")
        lists.append(None if parts is None else [pair(row, entry) for entry in parts])
    kind = pl.List(pl.Struct({"text": pl.String, "tokens": pl.Int64}))
    return pl.Series("prefix_parts", lists, dtype=kind)


def _only_one(frame: pl.DataFrame, names: list[str], first: int) -> None:
    several = frame.select(pl.sum_horizontal(pl.col(names).is_not_null()) > 1).to_series().to_numpy()
    if several.any():
        at = int(several.argmax())
        filled = [name for name in names if frame[name][at] is not None]
        raise TraceError(f"row {first + at}: {' and '.join(filled)} cannot be combined; set one of them")


def context_tokens(frame: pl.DataFrame) -> NDArray[Any]:
    """Return the tokens of prompt and output; an unknown output counts as one."""
    tokens = frame["prompt_tokens"].to_numpy().astype(np.int64)
    return tokens + frame["output_tokens"].to_numpy() if "output_tokens" in frame.columns else tokens + 1


def reused(frame: pl.DataFrame, block: int) -> NDArray[Any]:
    """Return the tokens of each prompt in an unlimited cache of whole blocks after all earlier requests.

    The last token of an answer is never in the cache, and the last token of a prompt is always computed.
    """
    prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
    chains = Contents().linked(frame)
    if chains is None:
        return np.zeros(frame.height, dtype=np.int64)
    reuse = _shared_before(chains)
    if chains.after is not None:
        # A row that continues another shares the whole context of that row, and no other row shares more.
        # The first row to do so misses the last token of the answer.
        continuing = np.flatnonzero(chains.after != NO_ROW)
        from_ = chains.after[continuing].astype(np.int64)
        is_first = np.zeros(continuing.size, dtype=bool)
        is_first[np.unique(from_, return_index=True)[1]] = True
        reuse[continuing] = context_tokens(frame)[from_] - is_first
    whole_blocks: NDArray[Any] = np.minimum(reuse, prompts - 1) // block * block
    return whole_blocks


def _shared_before(chains: Chains) -> NDArray[Any]:
    """Return the longest shared prefix, in tokens, with an earlier row, for rows that continue no row."""
    lengths = np.diff(chains.start)
    if chains.after is not None:
        lengths = np.where(chains.after == NO_ROW, lengths, 0)
    rows = lengths.size
    whole = starts(lengths)
    here = ranges(chains.start[:-1], lengths)
    content = chains.content[here]
    sums = np.concatenate([[0], np.cumsum(chains.tokens[here])])
    end = sums[1:] - np.repeat(sums[whole[:-1]], lengths)
    reuse = np.zeros(rows, dtype=np.int64)
    codes = np.unique(content, return_inverse=True)[1].astype(np.int64)
    # A node is a content after a sequence of contents. The loop descends level by level, over the nodes that
    # at least two rows reach.
    active = np.flatnonzero(np.diff(whole) > 0)
    place = whole[active]
    node, start = np.zeros((2, active.size), dtype=np.int64)
    while active.size:
        reached = _pairs(_pairs(node, start), codes[place])
        order = np.argsort(reached, kind="stable")
        active, place, reached = active[order], place[order], reached[order]
        shared = np.bincount(reached)[reached] > 1
        active, place, reached = active[shared], place[shared], reached[shared]
        if not active.size:
            break
        ends = end[place]
        # The longest earlier row at the same node; the shift keeps the sums of different nodes apart.
        furthest = np.maximum.accumulate(reached << 32 | ends)
        earlier = np.where(np.diff(reached, prepend=-1) == 0, np.append(0, furthest[:-1]) & 0xFFFFFFFF, 0)
        reuse[active] = np.maximum(reuse[active], np.minimum(earlier, ends))
        deeper = place + 1 < whole[active + 1]
        active, place, node, start = active[deeper], place[deeper] + 1, reached[deeper], ends[deeper]
        rows_in_order = np.argsort(active, kind="stable")
        active, place = active[rows_in_order], place[rows_in_order]
        node, start = node[rows_in_order], start[rows_in_order]
    return reuse


def _pairs(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return a number for each pair, from 0, equal for equal pairs."""
    pairs: NDArray[Any] = np.unique(left * (int(right.max()) + 1) + right, return_inverse=True)[1]
    return pairs.astype(np.int64)
