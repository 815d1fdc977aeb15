"""Length distributions of requests: expectations over prompt and output tokens."""

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
"""Work of requests with s prompt and o output tokens, in any unit: arrays in, arrays out."""

_TAIL = 1e-16
"""Unbounded distributions are cut where the probability of longer lengths falls below this."""
_SINGLE = 2048
"""Up to here every length has its own entry; longer ones are in as many bins of equal ratio."""
_AT_ONCE = 2**16
"""Pairs of lengths per block, few enough for the cache of a core."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Prompts and outputs with probabilities: as pairs, or separately if they are independent."""

    prompt: Numbers
    prompt_chance: Numbers
    output: Numbers
    output_chance: Numbers | None
    """None: `output[k]` belongs to `prompt[k]`."""
    most: tuple[float, float]
    """The longest prompt and output that the distribution allows."""

    def blocks(self) -> Iterable[tuple[Numbers, Numbers, Numbers]]:
        """Prompts, outputs and probabilities that broadcast against each other, in blocks of limited size."""
        if self.output_chance is None:
            yield self.prompt, self.output, self.prompt_chance
            return
        rows = max(1, _AT_ONCE // len(self.output))
        for first in range(0, len(self.prompt), rows):
            block = slice(first, first + rows)
            chance = self.prompt_chance[block, None] * self.output_chance[None, :]
            yield self.prompt[block, None], self.output[None, :], chance

    def mean(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """E[f(prompt, output)]."""
        return math.fsum(float((chance * f(s, o)).sum()) for s, o, chance in self.blocks())

    def top(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """The largest f(prompt, output), for an f that is monotonic in both."""
        if math.inf in self.most:
            return math.inf
        if self.output_chance is None:
            return float(np.max(f(self.prompt, self.output)))
        return float(np.max(f(np.array(self.most[:1]), np.array(self.most[1:]))))


class Lengths:
    """A joint distribution of prompt and output tokens; expectations are sums over the distribution.

    `Fixed`, `Uniform`, `Geometric`, `PoissonLength`, `LogUniform` and `Lognormal` have exact probabilities;
    observed lengths are used as pairs. Beyond 2,048 tokens a distribution has 2,048 bins of equal ratio, each
    represented by its mean. Means stay exact; second moments are low by less than one millionth if the
    longest length is below 2,000,000.
    """

    __slots__ = ("__dict__", "_parts")

    def __init__(self, parts: Sequence[tuple[float, _Pairs]]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def of(cls, prompt: int | LengthDistribution, output: int | LengthDistribution) -> Lengths:
        """Independent prompt and output, each a number of tokens or a distribution.

        Raises:
            ConfigError: a length is invalid.
        """
        values, chance, most = chances("prompt", prompt)
        outputs, output_chance, most_output = chances("output", output)
        return cls([(1.0, _Pairs(values, chance, outputs, output_chance, (most, most_output)))])

    @classmethod
    def observed(cls, prompt_tokens: Any, output_tokens: Any) -> Lengths:
        """Observed pairs with equal weights.

        Raises:
            ConfigError: there is no pair, or the columns differ in length.
        """
        prompt = np.asarray(prompt_tokens, dtype=np.float64)
        output = np.asarray(output_tokens, dtype=np.float64)
        if not len(prompt) or len(prompt) != len(output):
            raise ConfigError(
                "lengths", f"must be pairs of lengths, got {len(prompt)} prompts and {len(output)} outputs"
            )
        even = np.full(len(prompt), 1 / len(prompt))
        return cls([(1.0, _Pairs(prompt, even, output, None, (float(prompt.max()), float(output.max()))))])

    @classmethod
    def mixed(cls, parts: Iterable[tuple[float, Lengths]]) -> Lengths:
        """A mixture of distributions with these weights, which need not add up to 1."""
        components = list(parts)
        total = math.fsum(share for share, _ in components)
        return cls(
            [
                (share / total * weight, pairs)
                for share, lengths in components
                for weight, pairs in lengths._parts
            ]
        )

    def mean(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """E[f(s, o)]; `f` takes and returns arrays that broadcast."""
        return math.fsum(share * pairs.mean(f) for share, pairs in self._parts)

    def most(self, f: Callable[[Numbers, Numbers], Any]) -> float:
        """The largest f(s, o) for an f that is monotonic in both; infinite for unbounded lengths."""
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
        """m_d, the mean number of decodes: E[o], less one if the first token comes from the prefill."""
        return self.output_mean - with_prompt(first_token)

    def by_output(self) -> tuple[Numbers, Numbers, Numbers]:
        """Outputs in ascending order, their probabilities, and the mean prompt of each.

        The mean is over all requests, with 0 for those of another output, so the sum is E[s].
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
        """Tokens of the shortest possible prompt."""
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
        """Whether prompts and outputs have a maximum."""
        return all(math.inf not in pairs.most for _, pairs in self._parts)


def first_token_of(first_token: object) -> FirstToken:
    """A validated convention for the first token.

    Raises:
        ConfigError: the value is not `"prefill"` or `"decode"`.
    """
    if first_token == "prefill" or first_token == "decode":
        return "prefill" if first_token == "prefill" else "decode"
    raise ConfigError("first_token", f"must be 'prefill' or 'decode', got {first_token!r}")


def with_prompt(first_token: FirstToken) -> int:
    """Output tokens that the prefill emits, without a decode: 1 or 0."""
    return 1 if first_token == "prefill" else 0


def chances(side: str, distribution: object) -> tuple[Numbers, Numbers, float]:
    """Lengths, their probabilities, and the longest possible length."""
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
    if isinstance(distribution, LogUniform):  # k with a probability proportional to ln(1 + 1/k)
        values = np.arange(distribution.low, distribution.high + 1, dtype=np.float64)
        return (*_binned(values, np.log1p(1 / values)), float(distribution.high))
    if isinstance(distribution, (Lognormal, Geometric, PoissonLength)):
        longer = _longer_than(distribution)
        cap = distribution.cap if distribution.cap is not None else 2**31 - 1
        end = min(cap, _first(lambda k: longer(np.array([float(k)]))[0] < _TAIL))
        values = np.arange(1, end + 1, dtype=np.float64)
        above = longer(values)
        above[-1] = 0.0  # longer lengths are cut to the cap
        chances = np.concatenate([[1.0], above[:-1]]) - above
        return (*_binned(values, chances), math.inf if distribution.cap is None else float(distribution.cap))
    raise ConfigError(
        side, f"must be a number of tokens or a distribution of one length, got {distribution!r}"
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


def _first(condition: Callable[[int], Any]) -> int:
    """The first of 1, 2, 3, … from which on a condition holds; 2³¹ − 1 if none."""
    low, high = 0, 1
    while not condition(high) and high < 2**31 - 1:
        low, high = high, min(2 * high, 2**31 - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high


def _binned(values: Numbers, chances: Numbers) -> tuple[Numbers, Numbers]:
    """The same distribution with at most 2·`_SINGLE` lengths; its probabilities add up to 1."""
    chances = chances / math.fsum(chances)
    if len(values) > 2 * _SINGLE:
        edges = np.geomspace(values[_SINGLE], values[-1] + 1, _SINGLE + 1)
        starts = np.unique(np.searchsorted(values, edges[:-1]))
        starts = np.concatenate([np.arange(_SINGLE), starts[starts >= _SINGLE]])
        sums = np.add.reduceat(chances, starts)
        used = sums > 0
        values = (np.add.reduceat(values * chances, starts)[used]) / sums[used]
        chances = sums[used]
    return values, chances
