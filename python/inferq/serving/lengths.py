"""Lengths of answers: from the client's limit, a distribution or a trace."""

from __future__ import annotations

from collections.abc import Sequence

from inferq._lazy import NDArray, np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.workload.distributions import LengthDistribution
from inferq.workload.workload import Workload

DEFAULT_TOKENS = 128
"""Length of an answer if neither the client nor the server sets one."""


class Lengths:
    """Lengths of answers by the number of the request.

    Args:
        source: a distribution, drawn for each request; or a workload or list, whose lengths are used in order
            and
            from the start again. None: the client's limit.
        seed: seed of the draws.

    Raises:
        ConfigError: the source has another type, or a length is below 1.
    """

    def __init__(self, source: LengthDistribution | Workload | Sequence[int] | None, seed: int) -> None:
        self._distribution, self._seed = None, seed
        self._known: NDArray[np.int32] | None = None
        if isinstance(source, LengthDistribution):
            self._distribution = source
            self._known = source.draw_column(1024, seed)
        elif isinstance(source, Workload):
            self._known = source.draw(seed).frame["output_tokens"].to_numpy()
        elif isinstance(source, (list, tuple)) and source:
            numbers = [whole(f"output.{place}", number, 1, 2**31 - 1) for place, number in enumerate(source)]
            self._known = np.array(numbers, dtype=np.int32)
        elif source is not None:
            raise ConfigError(
                "output", f"must be a distribution of lengths, a workload or a list, got {source!r}"
            )

    def of(self, number: int, allowed: int, limit: int | None, least: int, ignore_eos: bool) -> int:
        """Length of the answer to a request, in tokens.

        Args:
            number: number of the request.
            allowed: upper limit of the server.
            limit: the client's `max_tokens`; None if it sets none.
            least: the client's `min_tokens`.
            ignore_eos: whether the answer has exactly `max_tokens`.
        """
        if self._known is None or (ignore_eos and limit is not None):
            tokens = DEFAULT_TOKENS if limit is None else limit
        else:
            tokens = self._length(number)
        return max(1, min(max(tokens, least), allowed))

    def _length(self, number: int) -> int:
        assert self._known is not None
        if self._distribution is not None and number >= len(self._known):
            self._known = self._distribution.draw_column(2 * number, self._seed)
        return int(self._known[number % len(self._known)])
