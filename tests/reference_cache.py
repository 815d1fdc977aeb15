"""What is in a cache of blocks, said plainly: every token named, every block of memory a number of its own.

Written from C1 "Blocks" of the engine's rules, and from nothing in the core: a free list that is a list,
contents that are lists of tokens, and each block taken, known and freed one by one. `reference.py` asks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reference import Request

Token = tuple[Any, int]  # of which text (or of which request's own words), and the how manieth


def said(rows: list[dict[str, Any]]) -> list[list[Token]]:
    """All tokens of each row, of prompt and output: `prefix_parts` or `continues`, then its own."""
    everything: list[list[Token]] = []
    for at, row in enumerate(rows):
        tokens: list[Token] = []
        if row.get("continues") is not None:
            tokens += everything[row["continues"]]
        for text, count in row.get("prefix_parts") or []:
            tokens += [(text, place) for place in range(count)]
        own = row["prompt_tokens"] + row["output_tokens"] - len(tokens)
        everything.append(tokens + [(("own", at), place) for place in range(own)])
    return everything


def whole_blocks(names: dict[Any, int], tokens: list[Token], block: int) -> list[int]:
    """The contents of whole blocks: one is its tokens and all that comes before them, under a number."""
    numbers, before = [], 0
    for end in range(block, len(tokens) + 1, block):
        before = names.setdefault((before, tuple(tokens[end - block : end])), len(names) + 1)
        numbers.append(before)
    return numbers


class Cache:
    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self.found = self.learned = self.forgotten = 0  # blocks, since the beginning
        self.unused = blocks  # never held by anybody
        self.made = 0
        self.free: list[int] = []  # the first is taken next: those without content, then the longest unused
        self.content: dict[int, int] = {}  # of each block that has one
        self.known: dict[int, list[int]] = {}  # the blocks of each content, in the order of registration
        self.holders: dict[int, int] = {}
        self.held: dict[Request, list[int]] = {}  # of each request, from the first token on
        self.names: dict[Any, int] = {}
        self.contents: dict[Request, list[int]] = {}

    @property
    def left(self) -> int:
        return self.unused + len(self.free)

    def meet(self, r: Request) -> None:
        self.contents[r], self.held[r] = whole_blocks(self.names, r.said, self.block), []

    def match(self, r: Request) -> list[int]:
        """C1.2.2: the longest chain of whole blocks, at most known - 1 tokens; the oldest of several."""
        found: list[int] = []
        for content in self.contents[r][: (r.goal - 1) // self.block]:
            if not self.known.get(content):
                break
            found.append(self.known[content][0])
        return found

    def seen(self) -> set[int]:
        """The contents that can be found at this instant."""
        return {content for content, blocks in self.known.items() if blocks}

    def idle(self, blocks: list[int]) -> int:
        return sum(self.holders[one] == 0 for one in blocks)

    def grab(self, r: Request) -> None:
        """A hit takes a block out of the free list and adds a reference."""
        for one in self.match(r):
            if self.holders[one] == 0:
                self.free.remove(one)
            self.holders[one] += 1
            self.held[r].append(one)
            self.found += 1

    def take(self, r: Request, blocks: int) -> None:
        """From the front of the free list; what a block held is then forgotten."""
        for _ in range(blocks):
            if self.free and (self.free[0] not in self.content or not self.unused):
                one = self.free.pop(0)
                self.forget(one)
            else:
                self.unused, self.made = self.unused - 1, self.made + 1
                one = self.made
            self.holders[one] = 1
            self.held[r].append(one)
        assert self.unused >= 0

    def forget(self, one: int) -> None:
        content = self.content.pop(one, None)
        if content is not None:
            self.known[content].remove(one)
            self.forgotten += 1

    def register(self, r: Request, tokens: int) -> None:
        """Full blocks are known from the instant at which they are scheduled; equal ones are not merged."""
        for one, content in zip(self.held[r][: tokens // self.block], self.contents[r], strict=False):
            if one not in self.content:
                self.content[one] = content
                self.learned += 1
                self.known.setdefault(content, []).append(one)

    def computed(self, r: Request, tokens: int) -> None:
        """It is known already."""

    def release(self, r: Request) -> None:
        """In reverse order: to the back with content, to the front without."""
        held, self.held[r] = self.held[r], []
        for one in reversed(held):
            self.holders[one] -= 1
            assert self.holders[one] >= 0
            if self.holders[one] == 0 and one in self.content:
                self.free.append(one)
            elif self.holders[one] == 0:
                self.free.insert(0, one)

    def forget_free(self) -> None:
        """All free blocks are as good as taken."""
        for one in [one for one in self.free if one in self.content]:
            self.forget(one)
