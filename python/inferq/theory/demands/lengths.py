"""Lengths of requests: expectations over the joint distribution of prompt and output tokens."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from inferq import _core
from inferq._lazy import np
from inferq.errors import ConfigError
from inferq.workload.distributions import (
    Fixed,
    Geometric,
    LengthDistribution,
    Lognormal,
    LogUniform,
    PoissonLength,
    Uniform,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

FirstToken = Literal["prefill", "decode"]

Work: TypeAlias = Callable[[Any, Any], Any]
"""What requests of s prompt and o output tokens ask for, in any unit: arrays in, arrays out."""

_TAIL = 1e-16
"""Of a distribution without a longest length, what is longer with a smaller chance is left out."""
_SINGLE = 2048
"""Up to here every length of a distribution is kept; longer ones are put in as many bins of equal ratio."""
_AT_ONCE = 2**16
"""Pairs of lengths that are looked at together: few enough to stay in the cache of a core."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Prompts and outputs with their chances: pair by pair, or, where they are independent, each apart."""

    prompt: Numbers
    prompt_chance: Numbers
    output: Numbers
    output_chance: Numbers | None
    """None: `output[k]` belongs to `prompt[k]`."""
    most: tuple[float, float]
    """The longest prompt and output that the distribution allows."""

    def blocks(self) -> Iterable[tuple[Numbers, Numbers, Numbers]]:
        """Prompts, outputs and chances that broadcast against each other, not too many at once."""
        if self.output_chance is None:
            yield self.prompt, self.output, self.prompt_chance
            return
        rows = max(1, _AT_ONCE // len(self.output))
        for first in range(0, len(self.prompt), rows):
            here = slice(first, first + rows)
            chance = self.prompt_chance[here, None] * self.output_chance[None, :]
            yield self.prompt[here, None], self.output[None, :], chance

    def mean(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """E[f(prompt, output)]."""
        return math.fsum(float((chance * f(s, o)).sum()) for s, o, chance in self.blocks())

    def top(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """The largest f(prompt, output), for an f that grows with both."""
        if math.inf in self.most:
            return math.inf
        if self.output_chance is None:
            return float(np.max(f(self.prompt, self.output)))
        return float(np.max(f(np.array(self.most[:1]), np.array(self.most[1:]))))


class Lengths:
    """A joint distribution of prompt and output tokens, whose expectations are sums over the distribution.

    Of `Fixed`, `Uniform`, `Geometric`, `PoissonLength`, `LogUniform` and `Lognormal` distributions the exact
    chances are used, of observed lengths the pairs as they are. Beyond 2,048 tokens a distribution is taken
    in 2,048 bins of equal ratio, each by its mean: means stay exact, second moments are low by less than a
    millionth where the longest length is below 2,000,000.
    """

    __slots__ = ("__dict__", "_parts")

    def __init__(self, parts: Sequence[tuple[float, _Pairs]]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def of(cls, prompt: int | LengthDistribution, output: int | LengthDistribution) -> Lengths:
        """Prompt and output independent of each other, each a number of tokens or a distribution.

        Raises:
            ConfigError: naming the side.
        """
        values, chance, most = chances("prompt", prompt)
        outputs, output_chance, most_output = chances("output", output)
        return cls([(1.0, _Pairs(values, chance, outputs, output_chance, (most, most_output)))])

    @classmethod
    def observed(cls, prompt_tokens: Any, output_tokens: Any) -> Lengths:
        """Pairs as they were seen, each alike.

        Raises:
            ConfigError: no pair, or columns of different lengths.
        """
        prompt = np.asarray(prompt_tokens, dtype=np.float64)
        output = np.asarray(output_tokens, dtype=np.float64)
        if not len(prompt) or len(prompt) != len(output):
            raise ConfigError(
                "lengths", f"{len(prompt)} prompts and {len(output)} outputs are no pairs of lengths"
            )
        even = np.full(len(prompt), 1 / len(prompt))
        return cls([(1.0, _Pairs(prompt, even, output, None, (float(prompt.max()), float(output.max()))))])

    @classmethod
    def mixed(cls, parts: Iterable[tuple[float, Lengths]]) -> Lengths:
        """A mixture: with chance `share` a pair of that distribution; the shares need not add up to 1."""
        given = list(parts)
        total = math.fsum(share for share, _ in given)
        return cls(
            [(share / total * one, pairs) for share, lengths in given for one, pairs in lengths._parts]
        )

    def mean(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """E[f(s, o)]: `f` gets prompts and outputs, arrays that broadcast, and answers likewise."""
        return math.fsum(share * pairs.mean(f) for share, pairs in self._parts)

    def most(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """The largest f(s, o), which must grow with both; infinite without a longest length."""
        return max(pairs.top(f) for _, pairs in self._parts)

    @cached_property
    def prompt_mean(self) -> float:
        """E[s] in tokens."""
        return math.fsum(
            share * math.fsum(pairs.prompt * pairs.prompt_chance) for share, pairs in self._parts
        )

    @cached_property
    def output_mean(self) -> float:
        """E[o] in tokens."""
        return math.fsum(
            share
            * math.fsum(
                pairs.output * (pairs.prompt_chance if pairs.output_chance is None else pairs.output_chance)
            )
            for share, pairs in self._parts
        )

    def decode_mean(self, first_token: FirstToken) -> float:
        """m_d, the mean number of decodes: E[o], less the token that comes with the prompt."""
        return self.output_mean - with_prompt(first_token)

    def by_output(self) -> tuple[Numbers, Numbers, Numbers]:
        """Outputs, ascending; how likely each is; and the mean of the prompt over the requests that have it.

        That mean is taken over all requests, those with another output counting 0: it adds up to E[s].
        """
        outputs, likely, prompts = [], [], []
        for share, pairs in self._parts:
            chance = pairs.prompt_chance if pairs.output_chance is None else pairs.output_chance
            together = pairs.output_chance is None
            prompt = pairs.prompt if together else math.fsum(pairs.prompt * pairs.prompt_chance)
            outputs.append(pairs.output)
            likely.append(share * chance)
            prompts.append(share * chance * prompt)
        values, places = np.unique(np.concatenate(outputs), return_inverse=True)
        likely_sums = np.bincount(places, weights=np.concatenate(likely)).astype(np.float64)
        prompt_sums = np.bincount(places, weights=np.concatenate(prompts)).astype(np.float64)
        return values, likely_sums, prompt_sums

    @cached_property
    def shortest_prompt(self) -> float:
        """Tokens of the shortest prompt that the distribution allows."""
        return min(float(pairs.prompt.min()) for _, pairs in self._parts)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether all requests have the same prompt and the same output."""
        firsts = {(pairs.prompt[0], pairs.output[0]) for _, pairs in self._parts}
        alike = all(
            (pairs.prompt == pairs.prompt[0]).all() and (pairs.output == pairs.output[0]).all()
            for _, pairs in self._parts
        )
        return len(firsts) == 1 and alike

    @cached_property
    def is_bounded(self) -> bool:
        """Whether there is a longest prompt and a longest output."""
        return all(math.inf not in pairs.most for _, pairs in self._parts)


def first_token_of(given: object) -> FirstToken:
    """When the first token comes.

    Raises:
        ConfigError: in neither of the two ways.
    """
    if given == "prefill" or given == "decode":
        return "prefill" if given == "prefill" else "decode"
    raise ConfigError("first_token", f"must be 'prefill' or 'decode', is {given!r}")


def with_prompt(first_token: FirstToken) -> int:
    """Output tokens that come with the prompt, and need no decode: 1 or 0."""
    return 1 if first_token == "prefill" else 0


def chances(side: str, distribution: object) -> tuple[Numbers, Numbers, float]:
    """Lengths, their chances, and the longest that the distribution allows."""
    number: Any = None if isinstance(distribution, bool) else distribution
    if isinstance(number, numbers.Integral):
        try:
            distribution = Fixed(int(number))
        except ConfigError as error:
            raise error.within(side, ": ") from None
    if isinstance(distribution, Fixed):
        return np.array([float(distribution.tokens)]), np.ones(1), float(distribution.tokens)
    if isinstance(distribution, Uniform):
        values = np.arange(distribution.low, distribution.high + 1, dtype=np.float64)
        return (*_binned(values, np.full(len(values), 1 / len(values))), float(distribution.high))
    if isinstance(distribution, LogUniform):  # k with a chance proportional to ln(1 + 1/k)
        values = np.arange(distribution.low, distribution.high + 1, dtype=np.float64)
        return (*_binned(values, np.log1p(1 / values)), float(distribution.high))
    if isinstance(distribution, (Lognormal, Geometric, PoissonLength)):
        longer = _longer_than(distribution)
        cap = distribution.cap if distribution.cap is not None else 2**31 - 1
        end = min(cap, _first(lambda k: longer(np.array([float(k)]))[0] < _TAIL))
        values = np.arange(1, end + 1, dtype=np.float64)
        above = longer(values)
        above[-1] = 0.0  # what is longer is cut to the cap
        chances = np.concatenate([[1.0], above[:-1]]) - above
        return (*_binned(values, chances), math.inf if distribution.cap is None else float(distribution.cap))
    raise ConfigError(
        side, f"must be a number of tokens or a distribution of one length, not {distribution!r}"
    )


def _longer_than(distribution: Lognormal | Geometric | PoissonLength) -> Callable[[Numbers], Numbers]:
    """P(more than k tokens) before the cap, for an array of k from 1 on."""
    if isinstance(distribution, Geometric):
        return lambda k: np.asarray((1 - 1 / distribution.mean) ** k, dtype=np.float64)
    if isinstance(distribution, PoissonLength):
        return lambda k: _core.poisson_tail(k, distribution.mean)
    mu, sigma = (
        math.log(distribution.median),
        math.sqrt(2 * math.log(distribution.mean / distribution.median)),
    )
    if sigma == 0:
        return lambda k: np.where(k + 0.5 <= distribution.median, 1.0, 0.0)
    return lambda k: _core.normal_cdf((mu - np.log(k + 0.5)) / sigma)


def _first(is_so: Callable[[int], Any]) -> int:
    """The first of 1, 2, 3, … at which something is so that stays so; 2³¹ − 1 if none."""
    low, high = 0, 1
    while not is_so(high) and high < 2**31 - 1:
        low, high = high, min(2 * high, 2**31 - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_so(middle) else (middle, high)
    return high


def _binned(values: Numbers, chances: Numbers) -> tuple[Numbers, Numbers]:
    """The same distribution with at most 2·`_SINGLE` lengths; its chances add up to 1."""
    chances = chances / math.fsum(chances)
    if len(values) > 2 * _SINGLE:
        edges = np.geomspace(values[_SINGLE], values[-1] + 1, _SINGLE + 1)
        starts = np.unique(np.searchsorted(values, edges[:-1]))
        starts = np.concatenate([np.arange(_SINGLE), starts[starts >= _SINGLE]])
        sums = np.add.reduceat(chances, starts)
        kept = sums > 0
        values = (np.add.reduceat(values * chances, starts)[kept]) / sums[kept]
        chances = sums[kept]
    return values, chances
