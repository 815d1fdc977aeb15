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
    """Requests with columns that may say with what prompts begin; looked at only where a cache asks."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Rows | None:
        """Those of a frame; None where no column says anything."""
        return cls(frame) if any(name in frame.columns for name in COLUMNS) else None

    @cached_property
    def shared(self) -> Shared | None:
        """What they share; None where no prompt begins like another."""
        return Shared.of(self._frame)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """With what the prompts of recorded requests begin, as a tree.

    Rows agree on a token, and on all before it, exactly where they pass through the same node.
    """

    prompt: Whole
    """Tokens of each row's prompt."""
    output: Whole
    start: Whole
    """Of each node, its first position."""
    end: Whole
    """The position behind the most that a row has of it; of a row's own words that behind its prompt: what
    follows is its output, which decodes compute."""
    way: Whole
    """Of each row a number that rows with the very same prompt have in common."""
    common: Whole
    """Of each row how many of its tokens, prompt and output, another row may have too."""

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Shared | None:
        """That of a frame of requests; None where no prompt begins like another."""
        chains = contents(frame)
        if not chains:
            return None
        prompt, output = (
            frame[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens")
        )
        rows: Whole = np.arange(frame.height)
        # Each chain, and behind it what the row alone says.
        starts = chains["content_start"].astype(np.int64)
        count: Whole = starts[1:] - starts[:-1]
        given, said = chains["content_tokens"].astype(np.int64), np.zeros_like(rows)
        np.add.at(said, np.repeat(rows, count), given)
        ends = starts[1:]
        own_id = rows.astype(np.uint64) | np.uint64(OWN)
        every: Any = np.insert(chains["content_id"], ends, own_id)
        ids, code = np.unique(every, return_inverse=True)
        tokens: Whole = np.insert(given, ends, prompt - said)
        begins = starts[:-1] + rows
        own = ids >= OWN
        owner = np.where(own, ids & np.uint64(OWN - 1), 0).astype(np.int64)
        # Node by node from the root on: rows that came the same way and go on alike.
        way, at, common = np.zeros_like(rows), np.zeros_like(rows), np.zeros_like(rows)
        alike, begun, ended = rows.copy(), [], []
        here, level = rows, 0
        while len(here):
            place = begins[here] + level
            whole = here[(count[here] == level) & (tokens[place] == 0)]
            alike[whole] = len(rows) * (1 + level) + way[whole]
            keys, first, node, passing = np.unique(
                way[here] * len(ids) + code[place],
                return_index=True, return_inverse=True, return_counts=True,
            )  # fmt: skip
            most = np.zeros(len(keys), dtype=np.int64)
            np.maximum.at(most, node, tokens[place])
            start, which = at[here][first], keys % len(ids)
            begun.append(start)
            ended.append(np.where(own[which], np.maximum(prompt[owner[which]], start), start + most))
            at[here] += tokens[place]
            several = here[passing[node] > 1]
            common[several] = at[several]
            gone_on = owner[which[own[which] & (passing > 1)]]
            common[gone_on] = prompt[gone_on] + output[gone_on]
            way[here] = np.unique(node * (1 + tokens.max()) + tokens[place], return_inverse=True)[1]
            level += 1
            here = here[count[here] >= level]
        return cls(prompt, output, np.concatenate(begun), np.concatenate(ended), alike, common)

    def least(self, block: int) -> tuple[float, float]:
        """What a mean request computes at least of its prompt: tokens, and pairs of one and one up to it.

        Whole blocks are found, and the last token of a prompt never is. So in any order of the requests, on
        any number of replicas, every block is computed once, but for those that decodes fill; what is left of
        each prompt behind its last whole block is its own; and a block with which a prompt ends is computed
        again for each further prompt that is the same.
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
        """Of each request the tokens of its prompt that it alone holds, and its decodes.

        Requests that others continue count with no decode: their blocks may all be held by others too.
        """
        kept = np.maximum(self.prompt - self.common // block * block, 0)
        decodes = self.output - with_prompt(first_token)
        return Lengths.observed(kept, np.where(self.common > self.prompt, 0, decodes))
