"""How far do requests get, and how long do those queues grow that wait between two stages?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inferq._lazy import np
from inferq.theory.demands.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Stages:
    """The law of the last stage, l', of a request, and the prompts that go with it."""

    ends: tuple[int, ...]
    """The last stages that occur, ascending."""
    reached: tuple[float, ...]
    """P(l' ≥ end) for each of them."""
    prompt: tuple[float, ...]
    """E[l; l' ≥ end] for each of them."""

    @classmethod
    def of(cls, law: Lengths, shift: int) -> Stages:
        """Those of a law of lengths, whose last stage is the output less `shift`.

        What is binned in it (see `Lengths`) counts as the whole number next to it.
        """
        weight: dict[int, tuple[float, float]] = {}
        outputs, chances, prompts = law.by_output()
        ends = np.rint(outputs - shift).astype(np.int64).tolist()
        for end, chance, tokens in zip(ends, chances.tolist(), prompts.tolist(), strict=True):
            before = weight.get(end, (0.0, 0.0))
            weight[end] = (before[0] + chance, before[1] + tokens)
        return cls._summed(weight)

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Stages]]) -> Stages:
        """A mixture, with weights in any unit."""
        total = sum(share for share, _ in parts)
        weight: dict[int, tuple[float, float]] = {}
        for share, one in parts:
            reached, prompt = (*one.reached, 0.0), (*one.prompt, 0.0)
            for k, end in enumerate(one.ends):
                before = weight.get(end, (0.0, 0.0))
                weight[end] = (
                    before[0] + share / total * (reached[k] - reached[k + 1]),
                    before[1] + share / total * (prompt[k] - prompt[k + 1]),
                )
        return cls._summed(weight)

    @classmethod
    def _summed(cls, weight: dict[int, tuple[float, float]]) -> Stages:
        ends = sorted(end for end, (chance, _) in weight.items() if chance > 0)
        reached, prompt = [0.0], [0.0]
        for end in reversed(ends):
            reached.append(reached[-1] + weight[end][0])
            prompt.append(prompt[-1] + weight[end][1])
        # All reach the first one: its sum is 1 but for rounding.
        scale = 1 / reached[-1]
        return cls(
            tuple(ends),
            tuple(one * scale for one in reached[:0:-1]),
            tuple(one * scale for one in prompt[:0:-1]),
        )

    def beyond(self, end: int) -> float:
        """P(l' > end)."""
        place = bisect_right(self.ends, end)
        return self.reached[place] if place < len(self.ends) else 0.0

    def prompt_beyond(self, end: int) -> float:
        """E[l | l' > end], 0 where nobody goes on."""
        place = bisect_right(self.ends, end)
        return self.prompt[place] / self.reached[place] if place < len(self.ends) else 0.0


def runs(ends: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last stage of each segment; stage 0 is the prompt."""
    return [(before + 1, end) for before, end in pairwise([-1, *ends])]


def exponent(before: int, count: int, share: float) -> float | None:
    """θ of (16): the positive root of E[exp(θ·(Binomial(before, share) − count))] = 1.

    None where the step is never positive, `count` ≥ `before`, so that the queue makes no excursion. Lemma 8:
    θ ≥ 8·(count − before·share)/before, which is where the search begins.

    >>> root = exponent(15, 13, 12 / 14)
    >>> root > 8 * (13 - 15 * 12 / 14) / 15
    True
    >>> round((12 / 14 * math.exp(root) + 2 / 14) ** 15 * math.exp(-13 * root), 9)
    1.0
    """
    if count >= before or share == 0:
        return None
    # ln E, with exp(θ) taken out of the binomial sum: no overflow, however large θ is.
    stay, go = 1 - share, share

    def log_moment(theta: float) -> float:
        return (before - count) * theta + before * math.log(go + stay * math.exp(-theta))

    low = 8 * (count - before * share) / before
    if low <= 0:
        raise ValueError(f"a queue with {before * share} newcomers for {count} places has no such exponent")
    high = 2 * low
    while log_moment(high) < 0:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_moment(middle) < 0 else (low, middle)
    return low
