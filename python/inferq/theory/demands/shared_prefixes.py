"""Tokens that recorded prompts have in common, so that a prefix cache may find them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from inferq._lazy import np, pl
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.workload.prefixes import COLUMNS, OWN, contents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Whole: TypeAlias = NDArray[np.int64]


class Rows:
    """Requests with columns that may describe shared prefixes; evaluated only if a cache needs them."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Rows | None:
        """The rows of a frame; None without such columns."""
        return cls(frame) if any(name in frame.columns for name in COLUMNS) else None

    @cached_property
    def shared(self) -> Shared | None:
        """Their shared prefixes; None if no two prompts begin alike."""
        return Shared.of(self._frame)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The prefixes of recorded requests as a tree.

    Rows agree on a token, and on all tokens before it, exactly if they pass through the same node.
    """

    prompt: Whole
    """Tokens of each row's prompt."""
    output: Whole
    start: Whole
    """First position of each node."""
    end: Whole
    """The position after the longest part of a node that a row has. For tokens of a single row: the position
    after its prompt, because decodes compute its output."""
    way: Whole
    """A number for each row; rows with the same prompt have the same number."""
    common: Whole
    """For each row, the number of its tokens (prompt and output) that another row may also have."""

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Shared | None:
        """The tree of a frame of requests; None if no two prompts begin alike."""
        chains = contents(frame)
        if not chains:
            return None
        prompt, output = (
            frame[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens")
        )
        rows: Whole = np.arange(frame.height)
        # Each chain, followed by the tokens of the row alone.
        starts = chains["content_start"].astype(np.int64)
        count: Whole = starts[1:] - starts[:-1]
        content_tokens, chain_tokens = chains["content_tokens"].astype(np.int64), np.zeros_like(rows)
        np.add.at(chain_tokens, np.repeat(rows, count), content_tokens)
        ends = starts[1:]
        own_id = rows.astype(np.uint64) | np.uint64(OWN)
        every: Any = np.insert(chains["content_id"], ends, own_id)
        ids, code = np.unique(every, return_inverse=True)
        tokens: Whole = np.insert(content_tokens, ends, prompt - chain_tokens)
        begins = starts[:-1] + rows
        own = ids >= OWN
        owner = np.where(own, ids & np.uint64(OWN - 1), 0).astype(np.int64)
        # Node by node from the root: rows with the same path and the same continuation.
        way, at, common = np.zeros_like(rows), np.zeros_like(rows), np.zeros_like(rows)
        alike, node_starts, node_ends = rows.copy(), [], []
        active, level = rows, 0
        while len(active):
            place = begins[active] + level
            whole = active[(count[active] == level) & (tokens[place] == 0)]
            alike[whole] = len(rows) * (1 + level) + way[whole]
            keys, first, node, passing = np.unique(
                way[active] * len(ids) + code[place],
                return_index=True, return_inverse=True, return_counts=True,
            )  # fmt: skip
            most = np.zeros(len(keys), dtype=np.int64)
            np.maximum.at(most, node, tokens[place])
            start, which = at[active][first], keys % len(ids)
            node_starts.append(start)
            node_ends.append(np.where(own[which], np.maximum(prompt[owner[which]], start), start + most))
            at[active] += tokens[place]
            shared_rows = active[passing[node] > 1]
            common[shared_rows] = at[shared_rows]
            continued = owner[which[own[which] & (passing > 1)]]
            common[continued] = prompt[continued] + output[continued]
            way[active] = np.unique(node * (1 + tokens.max()) + tokens[place], return_inverse=True)[1]
            level += 1
            active = active[count[active] >= level]
        return cls(prompt, output, np.concatenate(node_starts), np.concatenate(node_ends), alike, common)

    def least(self, block: int) -> tuple[float, float]:
        """Least computed tokens of a mean prompt, and least pairs of a token and one up to it.

        Caches find whole blocks, and never the last token of a prompt. So in any order of the requests, and
        with any number of replicas, every block is computed once (except those that decodes fill). The rest
        of each prompt after its last whole block is computed every time. If a prompt ends with a whole block,
        that block is computed again for each further identical prompt.
        """
        low = self.start // block * block
        high = np.maximum(self.end // block * block, low)
        whole = self.prompt // block * block
        ends = self.prompt == whole
        _, first, times = np.unique(self.way[ends], return_index=True, return_counts=True)
        again = np.repeat(self.prompt[ends][first], times - 1)
        lows = np.concatenate([low, whole, again - block]).astype(np.float64)
        highs = np.concatenate([high, self.prompt, again]).astype(np.float64)
        pairs = (highs * (highs + 1) - lows * (lows + 1)) / 2
        return float((highs - lows).sum() / len(whole)), float(pairs.sum() / len(whole))

    def alone(self, block: int, first_token: FirstToken) -> Lengths:
        """Prompt tokens that a request shares with no other, and its decodes.

        Requests that others continue count with no decodes: others may hold all their blocks.
        """
        private = np.maximum(self.prompt - self.common // block * block, 0)
        decodes = self.output - with_prompt(first_token)
        return Lengths.observed(private, np.where(self.common > self.prompt, 0, decodes))
