"""With what prompts begin: blocks of the same tokens, and prompts that go on from an answer.

A prompt is hashed block by block, each hash over all blocks before it, as engines do. An answer is of its
request alone; a prompt that begins with the prompt and the answer of an earlier request goes on from it, as
the next turn of a chat does, and is told by the tokens of both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from inferq.serving.texts import packed
from inferq.simulation.live import Chain

_HASHES = 2**62 - 1
_REMEMBERED = 1 << 21
"""Contents of the chains of answers from which a prompt may go on, over the latest of them."""
_AN_ANSWER = 64
"""An answer takes the memory of so many contents beside those of its chain."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, and with what it begins."""

    ids: list[int]
    hashes: list[int]
    """Of its blocks, the last of which may be a part of one; empty where it goes on from a request."""
    continues: int | None
    chain: Chain


class Prompts:
    """Reads prompts in the order in which they arrive.

    Args:
        block: tokens of a block.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._answers: OrderedDict[bytes, tuple[int, Chain, int]] = OrderedDict()
        self._contents = 0

    def read(self, ids: list[int], answers_end: Sequence[int] = (), salt: bytes = b"") -> Prompt:
        """A prompt of these tokens.

        Args:
            ids: its tokens.
            answers_end: behind how many of them an answer ends.
            salt: keeps apart what must not be shared, as `cache_salt` does.
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

    def answered(self, prompt: Prompt, answer: list[int], request: int, salt: bytes = b"") -> None:
        """A request has its whole answer: prompts may go on from it."""
        context = prompt.ids + answer
        key = _key(context, salt)
        if key in self._answers:
            return
        self._answers[key] = (request, prompt.chain, len(context))
        self._contents += len(prompt.chain.contents) + _AN_ANSWER
        while self._contents > _REMEMBERED:
            _, (_, chain, _) = self._answers.popitem(last=False)
            self._contents -= len(chain.contents) + _AN_ANSWER


def _key(ids: list[int], salt: bytes) -> bytes:
    return blake2b(salt + packed(ids), digest_size=16).digest()
