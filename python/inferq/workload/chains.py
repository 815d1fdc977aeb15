"""With what do rows begin, as numbers, and how are such chains joined?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from inferq._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

OWN = 1 << 63
"""Added to the number of a row: what that row alone says, the rest of its prompt and its output."""


class Chains(NamedTuple):
    """With what each of some rows begins: its segments are those from `start[row]` to `start[row + 1]`."""

    start: NDArray[Any]
    content: NDArray[Any]
    tokens: NDArray[Any]

    def columns(self) -> dict[str, NDArray[Any]]:
        """In the form that the core reads."""
        return {
            "content_start": self.start.astype(np.uint64),
            "content_id": self.content.astype(np.uint64, copy=False),
            "content_tokens": self.tokens.astype(np.uint32),
        }

    def totals(self) -> NDArray[Any]:
        """Tokens in each chain."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])
        totals: NDArray[Any] = sums[self.start[1:]] - sums[self.start[:-1]]
        return totals

    def of(self, rows: NDArray[Any]) -> Chains:
        """The chains of some rows."""
        lengths = (self.start[1:] - self.start[:-1])[rows]
        start = starts(lengths)
        from_ = ranges(self.start[rows], lengths)
        return Chains(start, self.content[from_], self.tokens[from_])

    def after(self, earlier: Chains) -> Chains:
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


def resolved(chains: Chains, link: NDArray[Any], said: NDArray[Any], rows: NDArray[Any]) -> Chains:
    """Whole chains: a linked row has that of the row it continues, and then what that row itself said.

    Args:
        chains: of the rows that are not linked.
        link: for each row the place of the one that it continues; -1 for none.
        said: tokens of prompt and output of each.
        rows: the number of each.
    """
    total = np.where(link >= 0, said[link], chains.totals()) if link.size else said
    own, numbers = said - total, rows.astype(np.uint64) | np.uint64(OWN)
    depth, root = np.zeros(link.size, dtype=np.int64), np.arange(link.size)
    for row, earlier in upwards(link):
        depth[row] += 1
        root[row] = earlier
    first = np.diff(chains.start)[root]
    start = starts(first + depth)
    content, tokens = np.empty(int(start[-1]), dtype=np.uint64), np.empty(int(start[-1]), dtype=np.int64)
    here, there = ranges(start[:-1], first), ranges(chains.start[root], first)
    content[here], tokens[here] = chains.content[there], chains.tokens[there]
    last = start[1:].copy()
    for row, earlier in upwards(link):
        last[row] -= 1
        content[last[row]], tokens[last[row]] = numbers[earlier], own[earlier]
    return Chains(start, content, tokens)


def upwards(link: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """All rows that continue one, and those they continue; then those before these; and so on."""
    row = np.flatnonzero(link >= 0)
    earlier = link[row]
    while row.size:
        yield row, earlier
        further = link[earlier]
        row, earlier = row[further >= 0], further[further >= 0]


def starts(lengths: NDArray[Any]) -> NDArray[Any]:
    """Where each of some stretches begins that lie behind one another, and where the last ends."""
    found: NDArray[Any] = np.concatenate([[0], np.cumsum(lengths)])
    return found


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
