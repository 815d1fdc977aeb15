"""How much of the prompts has somebody said before?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.workload.chains import OWN, ranges, starts
from inferq.workload.prefixes import Contents, said_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


def reused(frame: pl.DataFrame, block: int) -> NDArray[Any]:
    """Tokens of each prompt that an endless cache of whole blocks would have, had all before it finished.

    The last token of an answer is never computed, and the last token of a prompt always is.
    """
    rows = frame.height
    prompts = frame["prompt_tokens"].to_numpy().astype(np.int64)
    chains = Contents().of(frame)
    found = np.zeros(rows, dtype=np.int64)
    if chains is None:
        return found
    # the own content of a row that others continue is the last of its chain
    lengths, is_own = np.diff(chains.start), chains.content >= np.uint64(OWN)
    continued = np.zeros(rows, dtype=bool)
    continued[(chains.content[is_own] ^ np.uint64(OWN)).astype(np.int64)] = True
    whole = starts(lengths + continued)
    content = np.empty(int(whole[-1]), dtype=np.uint64)
    end = np.empty(content.size, dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum(chains.tokens)])
    here = ranges(whole[:-1], lengths)
    content[here] = chains.content
    end[here] = sums[1:] - np.repeat(sums[chains.start[:-1]], lengths)
    last = whole[1:][continued] - 1
    content[last] = np.flatnonzero(continued).astype(np.uint64) | np.uint64(OWN)
    end[last] = (said_in(frame) - 1)[continued]
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
        found[active] = np.maximum(found[active], np.minimum(earlier, ends))
        deeper = place + 1 < whole[active + 1]
        active, place, node, start = active[deeper], place[deeper] + 1, stands[deeper], ends[deeper]
        rows_in_order = np.argsort(active, kind="stable")
        active, place = active[rows_in_order], place[rows_in_order]
        node, start = node[rows_in_order], start[rows_in_order]
    whole_blocks: NDArray[Any] = np.minimum(found, prompts - 1) // block * block
    return whole_blocks


def _pairs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Equal numbers, from 0, for equal pairs."""
    pairs: NDArray[Any] = np.unique(one * (int(other.max()) + 1) + other, return_inverse=True)[1]
    return pairs.astype(np.int64)
