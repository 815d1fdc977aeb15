"""Prefixes of prompts: hashed blocks, and prompts that continue an earlier answer.

Prompts are hashed block by block, each hash covering all earlier blocks, as in engines. A prompt that starts
with the prompt and the answer of an earlier request continues that request, as the next turn of a chat does;
it is recognized by the tokens of both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from inferq.serving.texts import packed
from inferq.simulation.live import Chain

_HASHES = 2**62 - 1
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
            answers_end: positions after which an answer ends.
            salt: separates prefixes that must not be shared (`cache_salt`).
        """
        for end in reversed(answers_end):
            earlier = self._answers.get(_key(ids[:end], salt)) if end < len(ids) else None
            if earlier is not None:
                request, chain, tokens = earlier
                return Prompt(ids, [], request, chain.after(request, tokens))
        hashes, sizes, parent = [], [], blake2b(salt, digest_size=8).digest()
        for first in range(0, len(ids), self.block):
            part = ids[first : first + self.block]
            parent = blake2b(parent + packed(part), digest_size=8).digest()
            hashes.append(int.from_bytes(parent, "little") & _HASHES)
            sizes.append(len(part))
        return Prompt(ids, hashes, None, Chain.of(hashes, sizes))

    def remember(self, prompt: Prompt, answer: list[int], request: int, salt: bytes = b"") -> None:
        """Store a complete answer, which later prompts may continue."""
        context = prompt.ids + answer
        key = _key(context, salt)
        if key in self._answers:
            return
        self._answers[key] = (request, prompt.chain, len(context))
        self._contents += len(prompt.chain.contents) + _ANSWER_CONTENTS
        while self._contents > _MOST_CONTENTS:
            _, (_, chain, _) = self._answers.popitem(last=False)
            self._contents -= len(chain.contents) + _ANSWER_CONTENTS


def _key(ids: list[int], salt: bytes) -> bytes:
    return blake2b(salt + packed(ids), digest_size=16).digest()
