"""What is in a tree of runs of pages, said plainly: every token named, every run a list of its pages.

Written from the engine's rules alone; where they are silent, what is found is cut when it is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .reference_cache import whole_blocks

if TYPE_CHECKING:
    from .reference import Request


class Run:
    def __init__(self, pages: list[int], parent: Run | None) -> None:
        self.pages, self.parent, self.time = pages, parent, 0
        self.children: dict[int, Run] = {}
        self.locks = 0


class Tree:
    def __init__(self, blocks: int, block: int) -> None:
        self.block, self.free, self.clock = block, blocks, 0
        self.found = self.learned = self.forgotten = 0  # pages, ever
        self.root = Run([], None)
        self.names: dict[Any, int] = {}
        self.pages: dict[Request, list[int]] = {}
        self.alone: dict[Request, int] = {}  # pages that each request has to itself
        self.owned: dict[Request, int] = {}  # its pages that are in the tree, and the run with which they end
        self.end: dict[Request, Run] = {}

    def runs(self) -> list[Run]:
        found = list(self.root.children.values())
        for run in found:  # which grows meanwhile
            found += run.children.values()
        return found

    @property
    def left(self) -> int:
        return self.free + sum(len(run.pages) for run in self.runs() if not run.locks)

    def meet(self, r: Request) -> None:
        self.pages[r] = whole_blocks(self.names, r.said, self.block)
        self.alone[r], self.owned[r], self.end[r] = 0, 0, self.root

    def walk(self, pages: list[int]) -> list[tuple[Run, int]]:
        """The runs that the pages go through from the root on, and how many pages of each they share."""
        path, run, shared = [(self.root, 0)], self.root, 0
        while pages and shared == len(run.pages) and pages[0] in run.children:
            run = run.children[pages[0]]
            shared = min(len(run.pages), len(pages))
            if run.pages[:shared] != pages[:shared]:
                shared = next(at for at in range(shared) if run.pages[at] != pages[at])
            path.append((run, shared))
            pages = pages[shared:]
        return path

    def match(self, r: Request) -> list[Run]:
        """For each page that is found, its run; at most known - 1 tokens."""
        pages = self.pages[r][: (r.goal - 1) // self.block]
        return [run for run, shared in self.walk(pages) for _ in range(shared)]

    def seen(self) -> set[int]:
        """The pages that can be found at this instant."""
        return {page for run in self.runs() for page in run.pages}

    def idle(self, found: list[Run]) -> int:
        return sum(not run.locks for run in found)

    def cut(self, pages: list[int]) -> tuple[list[Run], list[Run], int]:
        """The runs of what is found of these pages, what a run cut there goes on with, how many are found."""
        path = self.walk(pages)
        runs, found, (rest, shared) = [run for run, _ in path], sum(count for _, count in path), path[-1]
        if shared == len(rest.pages):
            return runs, [], found
        front = runs[-1] = Run(rest.pages[:shared], rest.parent)
        (rest.parent or self.root).children[front.pages[0]] = front
        rest.pages, rest.parent, front.locks = rest.pages[shared:], front, rest.locks
        front.children = {rest.pages[0]: rest}
        return runs, [rest], found

    def touch(self, runs: list[Run]) -> None:
        """They are newer than everything else, each newer than the one before it."""
        for run in runs:
            self.clock += 1
            run.time = self.clock

    def lock(self, run: Run, by: int) -> None:
        while run.parent is not None:
            run.locks += by
            assert run.locks >= 0
            run = run.parent

    def refresh(self, pages: list[int]) -> tuple[Run, int]:
        """The run with which what is found of these pages ends, and how many are found."""
        runs, rest, found = self.cut(pages)
        self.touch(rest + runs)
        return runs[-1], found

    def grab(self, r: Request) -> None:
        self.end[r], self.owned[r] = self.refresh(self.pages[r][: len(self.match(r))])
        self.lock(self.end[r], 1)
        self.found += self.owned[r]

    def take(self, r: Request, pages: int) -> None:
        self.evict(pages)
        self.free, self.alone[r] = self.free - pages, self.alone[r] + pages
        assert self.free >= 0

    def evict(self, pages: int) -> None:
        while self.free < pages:
            oldest = min((r for r in self.runs() if not (r.locks or r.children)), key=lambda run: run.time)
            (oldest.parent or self.root).children.pop(oldest.pages[0])
            self.free, self.forgotten = self.free + len(oldest.pages), self.forgotten + len(oldest.pages)

    def register(self, r: Request, tokens: int) -> None:
        """What a batch will compute is not known before it has."""

    def insert(self, pages: list[int]) -> tuple[Run, int]:
        """The run with which the pages end, and how many were there already."""
        runs, rest, there = self.cut(pages)
        end, more = runs[-1], pages[there:]
        if more:
            end.children[more[0]] = end = Run(more, end)
            rest.append(end)
        self.touch(runs + rest)
        return end, there

    def computed(self, r: Request, tokens: int) -> None:
        """Publish n: its pages enter the tree; those that were there already come back."""
        if not (count := tokens // self.block):
            return
        end, there = self.insert(self.pages[r][:count])
        if 0 < r.prompt // self.block < count:
            self.insert(self.pages[r][: r.prompt // self.block])
        self.lock(end, 1)
        self.lock(self.end[r], -1)
        self.alone[r] -= count - self.owned[r]
        self.free += max(0, there - self.owned[r])
        self.owned[r], self.end[r], self.learned = count, end, self.learned + count - there

    def release(self, r: Request) -> None:
        self.free, self.alone[r] = self.free + self.alone[r], 0
        self.lock(self.end[r], -1)
        self.owned[r], self.end[r] = 0, self.root

    def forget_free(self) -> None:
        self.evict(self.left)
