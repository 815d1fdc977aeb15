"""How many tokens an answer has: as the client asks, by a law, or by a trace."""

from __future__ import annotations

from collections.abc import Sequence

from inferq._lazy import NDArray, np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.workload.distributions import LengthDistribution
from inferq.workload.workload import Workload

UNASKED = 128
"""Tokens of an answer where neither the client nor a law says how many."""


class Lengths:
    """The lengths of answers, by the number of their request.

    Args:
        law: a distribution, drawn anew for each request; a workload or a list, of which each request takes
            the next row, from the first again behind the last; None: as many as the client allows.
        seed: draws them.

    Raises:
        ConfigError: none of these, or lengths below 1.
    """

    def __init__(self, law: LengthDistribution | Workload | Sequence[int] | None, seed: int) -> None:
        self._law, self._seed = None, seed
        self._known: NDArray[np.int32] | None = None
        if isinstance(law, LengthDistribution):
            self._law = law
            self._known = law.draw_column(1024, seed)
        elif isinstance(law, Workload):
            self._known = law.draw(seed).frame["output_tokens"].to_numpy()
        elif isinstance(law, (list, tuple)) and law:
            numbers = [whole(f"output.{place}", number, 1, 2**31 - 1) for place, number in enumerate(law)]
            self._known = np.array(numbers, dtype=np.int32)
        elif law is not None:
            raise ConfigError(
                "output", f"must be a distribution of lengths, a workload or a list, is {law!r}"
            )

    def of(self, number: int, allowed: int, asked: int | None, least: int, ignore_eos: bool) -> int:
        """Tokens of the answer to a request.

        Args:
            number: of the request.
            allowed: most that fit.
            asked: most that its client allows; None where it does not say.
            least: fewest that its client allows.
            ignore_eos: whether its client wants as many as it allows.
        """
        if self._known is None or (ignore_eos and asked is not None):
            wanted = UNASKED if asked is None else asked
        else:
            wanted = self._drawn(number)
        return max(1, min(max(wanted, least), allowed))

    def _drawn(self, number: int) -> int:
        assert self._known is not None
        if self._law is not None and number >= len(self._known):
            self._known = self._law.draw_column(2 * number, self._seed)
        return int(self._known[number % len(self._known)])
