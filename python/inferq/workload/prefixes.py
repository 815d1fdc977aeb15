"""Prefixes: shared beginnings of prompts, as chains of contents, and how much of them an endless cache has.

A prompt begins with a chain of contents and goes on with its own. The core knows contents by number and never
sees a token: two prompts begin alike for as long as their chains do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

from inferq._lazy import NDArray, np, pl
from inferq.errors import TraceError

OWN = 1 << 63
"""Added to the number of a row: what that row alone says, the rest of its prompt and its output."""

_TEXT = 1 << 62
"""Added to the number of a text. Below it are hashes, each its own number."""

_FAR = _TEXT | 1 << 61
"""Added to the number of a hash that is negative or too large to be one itself."""

EXPLICIT = ("prefix_hashes", "prefix_parts", "continues")
"""The columns that say with what a prompt begins, each in its own way."""

COLUMNS = (*EXPLICIT, "session_id")
"""Those and the column that says it where none of them is there."""


NO_ROW = (1 << 32) - 1
"""In the form that the core reads: a chain goes on from that of no row."""


class Chains(NamedTuple):
    """With what each of some rows begins: its segments are those from `start[row]` to `start[row + 1]`.

    With `after` they are those behind the chain of that row, where it is one (`NO_ROW`: of none). So the
    turns of a session take memory in proportion to their number, and not to its square.
    """

    start: NDArray[Any]
    content: NDArray[Any]
    tokens: NDArray[Any]
    after: NDArray[Any] | None = None
    continued: NDArray[Any] | None = None
    """How many later rows go on from each."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """In the form that the core reads."""
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
        """Tokens in each chain."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])
        totals: NDArray[Any] = sums[self.start[1:]] - sums[self.start[:-1]]
        return totals

    def at(self, places: NDArray[Any], rows: int) -> Chains:
        """These as the chains of so many rows, at ascending places of them; those of the others are empty."""
        lengths = np.zeros(rows, dtype=np.int64)
        lengths[places] = np.diff(self.start)
        return Chains(starts(lengths), self.content, self.tokens)

    def without(self, first: int) -> Chains:
        """The same without the first rows, from which none of the others goes on."""
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
        """These rows behind others."""
        return Chains(
            np.concatenate([earlier.start, self.start[1:] + earlier.start[-1]]),
            np.concatenate([earlier.content, self.content]),
            np.concatenate([earlier.tokens, self.tokens]),
        )


def both(one: Chains, other: Chains) -> Chains:
    """The chains of rows that have one in the one or in the other."""
    if not one.content.size:
        return other
    lengths = [np.diff(chains.start) for chains in (one, other)]
    start = starts(lengths[0] + lengths[1])
    content, tokens = np.empty(int(start[-1]), dtype=np.uint64), np.empty(int(start[-1]), dtype=np.int64)
    for chains, length in zip((one, other), lengths, strict=True):
        here = ranges(start[:-1], length)
        content[here], tokens[here] = chains.content, chains.tokens
    return Chains(start, content, tokens)


def resolved(
    chains: Chains, link: NDArray[Any], sizes: NDArray[Any], rows: NDArray[Any], of: NDArray[Any]
) -> Chains:
    """Whole chains of some rows: a linked one has that of the row it continues, then that row's own tokens.

    Args:
        chains: of the rows that are not linked.
        link: for each row the place of the one that it continues; -1 for none.
        sizes: tokens of prompt and output of each.
        rows: the number of each.
        of: the places of those whose chains are asked for.
    """
    own, numbers = own_tokens(chains, link, sizes), rows.astype(np.uint64) | np.uint64(OWN)
    depth, root = np.zeros(of.size, dtype=np.int64), of.copy()
    for place, earlier in upwards(link, of):
        depth[place] += 1
        root[place] = earlier
    first = np.diff(chains.start)[root]
    start = starts(first + depth)
    content, tokens = np.empty(int(start[-1]), dtype=np.uint64), np.empty(int(start[-1]), dtype=np.int64)
    here, there = ranges(start[:-1], first), ranges(chains.start[root], first)
    content[here], tokens[here] = chains.content[there], chains.tokens[there]
    last = start[1:].copy()
    for place, earlier in upwards(link, of):
        last[place] -= 1
        content[last[place]], tokens[last[place]] = numbers[earlier], own[earlier]
    return Chains(start, content, tokens)


def linked(chains: Chains, link: NDArray[Any], sizes: NDArray[Any], rows: NDArray[Any]) -> Chains:
    """The chains of all rows, that of a linked one only from where that of the row it continues ends.

    Args:
        chains: of the rows that are not linked.
        link: for each row the place of the one that it continues; -1 for none.
        sizes: tokens of prompt and output of each.
        rows: the number of each.
    """
    has = link >= 0
    earlier = link[has]
    said = Chains(
        starts(has.astype(np.int64)),
        rows[earlier].astype(np.uint64) | np.uint64(OWN),
        own_tokens(chains, link, sizes)[earlier],
    )
    return both(chains, said)._replace(
        after=np.where(has, link, NO_ROW).astype(np.uint32),
        continued=np.bincount(earlier, minlength=link.size).astype(np.uint32),
    )


def own_tokens(chains: Chains, link: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    """Tokens that each row alone says: those behind its chain, of which that of a linked row is not given."""
    shared = np.where(link >= 0, sizes[link], chains.totals()) if link.size else sizes
    own: NDArray[Any] = sizes - shared
    return own


def upwards(link: NDArray[Any], of: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Which of some rows continue one, and those they continue; then those before these; and so on."""
    place = np.flatnonzero(link[of] >= 0)
    earlier = link[of[place]]
    while place.size:
        yield place, earlier
        further = link[earlier]
        place, earlier = place[further >= 0], further[further >= 0]


def starts(lengths: NDArray[Any]) -> NDArray[Any]:
    """Where each of some stretches begins that lie behind one another, and where the last ends."""
    begins: NDArray[Any] = np.concatenate([[0], np.cumsum(lengths)])
    return begins


def ranges(start: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """The places `start[i]`, `start[i] + 1`, … of each of some stretches, one stretch after the other."""
    ends = np.cumsum(lengths)
    places: NDArray[Any] = np.arange(int(ends[-1]) if ends.size else 0)
    places = places + np.repeat(start - (ends - lengths), lengths)
    return places


def no_segments() -> tuple[NDArray[Any], NDArray[Any]]:
    """Contents and tokens of chains that are empty."""
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


def nothing() -> tuple[NDArray[Any], NDArray[Any], Chains]:
    """No row, and so nothing said."""
    none = np.empty(0, dtype=np.int64)
    return none, none, Chains(np.zeros(1, dtype=np.int64), *no_segments())


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
        self._rows, self._sizes, self._chains = nothing()
        self._open: pl.DataFrame | None = None

    def of(self, frame: pl.DataFrame, first: int = 0) -> Chains | None:
        """The chains of the next rows; None for a workload in one part where no prompt begins like another.

        In a workload of several parts a row that continues one of its own part has `after`.

        Args:
            frame: the requests, canonical.
            first: the number of the first.

        Raises:
            TraceError: naming the row.
        """
        chains, link, strict = self._said(frame, first)
        if self._later is not None:
            chains = self._in_part(frame, first, chains, link, strict)
        elif link is not None:
            rows, sizes, local = self._placed(frame, first, link, strict)
            chains = resolved(chains, local, sizes, rows, np.arange(rows.size))
        self._part += 1
        return chains if chains.content.size or self._later is not None else None

    def linked(self, frame: pl.DataFrame) -> Chains | None:
        """The same of a workload in one part, with `after` where rows continue others."""
        chains, link, strict = self._said(frame, 0)
        if link is not None:
            rows, sizes, link = self._placed(frame, 0, link, strict)
            if (link >= 0).any():
                return linked(chains, link, sizes, rows)
        return chains if chains.content.size else None

    def _said(self, frame: pl.DataFrame, first: int) -> tuple[Chains, NDArray[Any] | None, bool]:
        """What the columns say: chains, rows that are continued, and whether each of those must fit."""
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
        return chains, link, "continues" in filled

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
                "workload", "there are prefix_hashes, and no prefix_block_tokens that says of what blocks"
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
        sizes = tokens.to_numpy()
        prompts = frame["prompt_tokens"].to_numpy()
        chains = Chains(start, self._named(text), sizes)
        # in float64 first: a sum of 64-bit numbers may come round to a small one
        long = np.add.reduceat(np.append(sizes, 0).astype(np.float64), start[:-1]) * (lengths > 0) > prompts
        if long.any():
            at = int(long.argmax())
            total = sum(sizes[start[at] : start[at + 1]].tolist())
            raise TraceError(
                f"row {first + at}: prefix_parts has {total} tokens, and prompt_tokens is {prompts[at]}"
            )
        return chains

    def _named(self, text: pl.Series) -> NDArray[Any]:
        """Texts as contents, numbered as they come."""
        names = text.unique(maintain_order=True)
        numbers = [self._texts.setdefault(name, len(self._texts)) for name in names.to_list()]
        codes = pl.DataFrame({"text": names, "number": pl.Series(numbers, dtype=pl.UInt64)})
        coded = text.rename("text").to_frame().join(codes, on="text", how="left", maintain_order="left")
        return coded["number"].to_numpy() | np.uint64(_TEXT)

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
            late = turns.with_columns(pl.col("turn").shift(1).alias("last")).filter(pl.Series(wrong))
            session, turn, at, last = late.row(int(late["row"].arg_min() or 0))
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

    def _in_part(
        self, frame: pl.DataFrame, first: int, chains: Chains, link: NDArray[Any] | None, strict: bool
    ) -> Chains:
        """The chains of rows of a part, and what of them later parts need.

        Rows that continue one of an earlier part get their whole chains, which are known of that one: so the
        turns of a session cost what they add, and in each part once what was said before it.
        """
        rows, sizes, local = self._placed(frame, first, link, strict)
        kept = self._rows.size
        chains = chains.behind(self._chains)
        begins = np.flatnonzero((local >= 0) & (local < kept))
        chains = both(chains, resolved(chains, local, sizes, rows, begins).at(begins, rows.size))
        local[begins] = -1
        parts = linked(chains, local, sizes, rows)
        stay = np.searchsorted(rows, self._go_on(first + frame.height))
        whole = resolved(chains, local, sizes, rows, stay)
        self._rows, self._sizes, self._chains = rows[stay], sizes[stay], whole
        return parts.without(kept)

    def _placed(
        self, frame: pl.DataFrame, first: int, link: NDArray[Any] | None, strict: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Rows that are kept and these, their tokens, and for each the place of the one that it continues."""
        kept = self._rows.size
        rows = np.concatenate([self._rows, np.arange(first, first + frame.height)])
        sizes = np.concatenate([self._sizes, context_tokens(frame)])
        local = np.full(rows.size, -1, dtype=np.int64)
        if link is not None:
            has = link >= 0
            at = np.where(link >= first, link - first + kept, np.searchsorted(self._rows, link))
            prompts = frame["prompt_tokens"].to_numpy()
            short = has & (sizes[np.where(has, at, 0)] > prompts)
            if strict and short.any():
                row = int(short.argmax())
                raise TraceError(
                    f"row {first + row}: continues row {link[row]} with its {sizes[at[row]]} tokens "
                    f"in a prompt of {prompts[row]}"
                )
            local[kept:] = np.where(has & ~short, at, -1)
        return rows, sizes, local

    def _go_on(self, end: int) -> NDArray[Any]:
        """The rows before `end` to which later parts go back."""
        assert self._later is not None
        if self._open is not None:
            return np.sort(self._open["row"].to_numpy())
        rows, until = self._later.rows, self._later.until
        needed: NDArray[Any] = rows[(rows < end) & (until > self._part)]
        return needed


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


def with_links(frame: pl.DataFrame, transform: str) -> pl.DataFrame:
    """The frame with the column `continues` where sessions stand for it so far.

    Raises:
        TraceError: a turn comes before its time, or lengths are missing that say which turn goes on.
    """
    if not is_linked_by_session(frame):
        return frame
    for name in ("prompt_tokens", "output_tokens"):
        if name not in frame.columns:
            raise TraceError(
                transform,
                f"the workload has sessions and no {name}, which decides whose turns go on from "
                f"one another: use .with_{name.removesuffix('_tokens')}s(…) before",
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
    """The row with which the chain of each row begins: itself where it continues none."""
    roots = np.arange(continues.len())
    for row, earlier in upwards(continues.fill_null(-1).to_numpy().astype(np.int64), roots.copy()):
        roots[row] = earlier
    return roots


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
            "prefix_parts", f"holds {parts.dtype}, must hold lists of pairs, a text and its tokens"
        )
    named = kinds[0].is_integer() or kinds[0] in (pl.String, pl.Categorical, pl.Enum, pl.Null)
    if not named or not (kinds[1].is_integer() or kinds[1] == pl.Null):
        raise TraceError(
            "prefix_parts",
            f"holds {parts.dtype}; a text is named by a text or a whole number, and its tokens "
            "are a whole number",
        )
    entry = pl.struct(pair[0].cast(pl.String).alias("text"), pair[1].cast(pl.Int64).alias("tokens"))
    as_pairs: pl.Series = parts.list.eval(entry)
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

    lists: list[list[dict[str, object]] | None] = []
    for row, parts in enumerate(values):
        if parts is not None and (not isinstance(parts, Sequence) or isinstance(parts, str)):
            raise TraceError(f"row {row}: prefix_parts is {parts!r}, must be a list of pairs, or None")
        lists.append(None if parts is None else [pair(row, one) for one in parts])
    kind = pl.List(pl.Struct({"text": pl.String, "tokens": pl.Int64}))
    return pl.Series("prefix_parts", lists, dtype=kind)


def _only_one(frame: pl.DataFrame, names: list[str], first: int) -> None:
    several = frame.select(pl.sum_horizontal(pl.col(names).is_not_null()) > 1).to_series().to_numpy()
    if several.any():
        at = int(several.argmax())
        both = [name for name in names if frame[name][at] is not None]
        raise TraceError(f"row {first + at}: {' and '.join(both)} both say with what its prompt begins")


def context_tokens(frame: pl.DataFrame) -> NDArray[Any]:
    """Tokens of prompt and output together; an output that is not known counts as one."""
    tokens = frame["prompt_tokens"].to_numpy().astype(np.int64)
    return tokens + frame["output_tokens"].to_numpy() if "output_tokens" in frame.columns else tokens + 1


def reused(frame: pl.DataFrame, block: int) -> NDArray[Any]:
    """Tokens of each prompt that an endless cache of whole blocks would have, had all before it finished.

    The last token of an answer is never computed, and the last token of a prompt always is.
    """
    prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
    chains = Contents().linked(frame)
    if chains is None:
        return np.zeros(frame.height, dtype=np.int64)
    reuse = _shared_before(chains)
    if chains.after is not None:
        # What goes on from a row has all that this one says in common with it, and with what went on from it
        # before; nothing else has more.
        on = np.flatnonzero(chains.after != NO_ROW)
        from_ = chains.after[on].astype(np.int64)
        is_first = np.zeros(on.size, dtype=bool)
        is_first[np.unique(from_, return_index=True)[1]] = True
        reuse[on] = context_tokens(frame)[from_] - is_first
    whole_blocks: NDArray[Any] = np.minimum(reuse, prompts - 1) // block * block
    return whole_blocks


def _shared_before(chains: Chains) -> NDArray[Any]:
    """How many tokens of the chain of each row begin that of one before it; of rows that go on from none."""
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
    # a node is a content behind all that came before it: level by level, those where two rows or more stand
    active = np.flatnonzero(np.diff(whole) > 0)
    place = whole[active]
    node, start = np.zeros((2, active.size), dtype=np.int64)
    while active.size:
        stands = _pairs(_pairs(node, start), codes[place])
        order = np.argsort(stands, kind="stable")
        active, place, stands = active[order], place[order], stands[order]
        many = np.bincount(stands)[stands] > 1
        active, place, stands = active[many], place[many], stands[many]
        if not active.size:
            break
        ends = end[place]
        # the furthest of the rows before at the same node; between two nodes the sums cannot meet
        furthest = np.maximum.accumulate(stands << 32 | ends)
        earlier = np.where(np.diff(stands, prepend=-1) == 0, np.append(0, furthest[:-1]) & 0xFFFFFFFF, 0)
        reuse[active] = np.maximum(reuse[active], np.minimum(earlier, ends))
        deeper = place + 1 < whole[active + 1]
        active, place, node, start = active[deeper], place[deeper] + 1, stands[deeper], ends[deeper]
        rows_in_order = np.argsort(active, kind="stable")
        active, place = active[rows_in_order], place[rows_in_order]
        node, start = node[rows_in_order], start[rows_in_order]
    return reuse


def _pairs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Equal numbers, from 0, for equal pairs."""
    pairs: NDArray[Any] = np.unique(one * (int(other.max()) + 1) + other, return_inverse=True)[1]
    return pairs.astype(np.int64)
