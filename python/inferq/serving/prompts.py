"""Prefixes of prompts: hashed blocks, and prompts that continue an earlier answer.

Prompts are hashed block by block, each hash covering all earlier blocks, as in engines. A prompt that starts
with the prompt and the answer of an earlier request continues that request, as the next turn of a chat does;
it is recognized by the tokens of both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from inferq.serving.texts import packed
from inferq.simulation.live import Chain

_HASHES = 2**62 - 1
_KEY_BYTES = 16
_ID_BYTES = 8
_MOST_CONTENTS = 1 << 21
"""Upper limit of stored contents over the chains of recent answers."""
_ANSWER_CONTENTS = 64
"""Memory of an answer in addition to its chain, in contents."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt and its prefix."""

    ids: list[int]
    hashes: list[int]
    """Hashes of its blocks, including a partial last block; empty if the prompt continues a request."""
    continues: int | None
    chain: Chain
    hasher: Any = field(compare=False, repr=False)
    """Hash of all tokens, from which `Prompts.remember` continues."""


class Prompts:
    """Prompts in order of arrival.

    Args:
        block: tokens per block.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._answers: OrderedDict[bytes, tuple[int, Chain, int]] = OrderedDict()
        self._contents = 0

    def read(self, ids: list[int], answers_end: Sequence[int] = (), salt: bytes = b"") -> Prompt:
        """Create a prompt.

        Args:
            ids: tokens of the prompt.
            answers_end: positions after which an answer ends, ascending.
            salt: separates prefixes that must not be shared (`cache_salt`).
        """
        data = memoryview(packed(ids))
        hasher, hashed = blake2b(salt, digest_size=_KEY_BYTES), 0
        keys = []
        for end in answers_end:
            if end < len(ids):
                hasher.update(data[_ID_BYTES * hashed : _ID_BYTES * end])
                keys.append(hasher.copy().digest())
                hashed = end
        hasher.update(data[_ID_BYTES * hashed :])
        for key in reversed(keys):
            earlier = self._answers.get(key)
            if earlier is not None:
                request, chain, tokens = earlier
                return Prompt(ids, [], request, chain.after(request, tokens), hasher)
        hashes, parent = [], blake2b(salt, digest_size=8).digest()
        size = _ID_BYTES * self.block
        for first in range(0, len(data), size):
            parent = blake2b(parent + data[first : first + size], digest_size=8).digest()
            hashes.append(int.from_bytes(parent, "little") & _HASHES)
        sizes = [self.block] * len(hashes)
        if sizes:
            sizes[-1] = len(ids) - self.block * (len(sizes) - 1)
        return Prompt(ids, hashes, None, Chain.of(hashes, sizes), hasher)

    def remember(self, prompt: Prompt, answer: list[int], request: int) -> None:
        """Store a complete answer, which later prompts may continue."""
        hasher = prompt.hasher.copy()
        hasher.update(packed(answer))
        key = hasher.digest()
        if key in self._answers:
            return
        self._answers[key] = (request, prompt.chain, len(prompt.ids) + len(answer))
        self._contents += len(prompt.chain.contents) + _ANSWER_CONTENTS
        while self._contents > _MOST_CONTENTS:
            _, (_, chain, _) = self._answers.popitem(last=False)
            self._contents -= len(chain.contents) + _ANSWER_CONTENTS
