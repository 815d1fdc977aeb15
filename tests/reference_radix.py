"""What is in a tree of runs of pages, said plainly: every token named, every run a list of its pages.

Written from the engine's rules alone; where they are silent, what is found is cut when it is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reference import Request


class Run:
    def __init__(self, pages: list[Any], parent: Run | None, time: int = 0) -> None:
        self.pages, self.parent, self.time = pages, parent, time
        self.children: dict[Any, Run] = {}
        self.locks = 0


class Tree:
    def __init__(self, blocks: int, block: int) -> None:
        self.block, self.free, self.clock = block, blocks, 0
        self.found = self.learned = self.forgotten = 0  # pages, ever
        self.root = Run([], None)
        self.names: dict[Any, int] = {}  # of pages: numbers are quicker to compare than their tokens
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
        whole = range(self.block, len(r.said) + 1, self.block)
        pages = [tuple(r.said[end - self.block : end]) for end in whole]
        self.pages[r] = [self.names.setdefault(page, len(self.names)) for page in pages]
        self.alone[r], self.owned[r], self.end[r] = 0, 0, self.root

    def walk(self, pages: list[Any]) -> list[tuple[Run, int]]:
        """The runs that the pages go through, and how many pages of each they share."""
        path, run, shared = [], self.root, 0
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

    def seen(self) -> set[Any]:
        """What can be found at this instant: every page with all before it."""
        found: set[Any] = set()
        ways: list[tuple[Run, tuple[Any, ...]]] = [(self.root, ())]
        for run, way in ways:  # which grows meanwhile
            for page in run.pages:
                way += (page,)
                found.add(way)
            ways += [(child, way) for child in run.children.values()]
        return found

    def find(self, r: Request, seen: set[Any]) -> int:
        """How many tokens of the prompt of a request that is not here are among these."""
        count, way = 0, tuple[Any, ...]()
        while (end := (count + 1) * self.block) < r.prompt:
            way += (tuple(r.said[end - self.block : end]),)
            if way not in seen:
                break
            count += 1
        return count * self.block

    def idle(self, found: list[Run]) -> int:
        return sum(not run.locks for run in found)

    def split(self, run: Run, at: int) -> Run:
        """The front of a run; the rest stays what it is."""
        front = Run(run.pages[:at], run.parent, run.time)
        assert run.parent is not None
        front.locks = run.locks
        run.parent.children[front.pages[0]] = front
        run.pages, run.parent = run.pages[at:], front
        front.children = {run.pages[0]: run}
        return front

    def touch(self, run: Run) -> None:
        self.clock += 1
        run.time = self.clock

    def lock(self, run: Run, by: int) -> None:
        while run.parent is not None:
            run.locks += by
            assert run.locks >= 0
            run = run.parent

    def refresh(self, pages: list[Any]) -> tuple[Run, int]:
        """The run with which what is found of these pages ends, cut there, and how many are found.

        All of it is then newer than everything else, a run newer than the one before it.
        """
        path = self.walk(pages)
        runs = [run for run, _ in path]
        if path and path[-1][1] < len(runs[-1].pages):
            rest = runs[-1]
            runs[-1] = self.split(rest, path[-1][1])
            self.touch(rest)
        for run in runs:
            self.touch(run)
        return runs[-1] if runs else self.root, sum(shared for _, shared in path)

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

    def insert(self, pages: list[Any]) -> tuple[Run, int]:
        """The run with which the pages end, and how many were there already."""
        path = self.walk(pages)
        run, there = self.root, sum(shared for _, shared in path)
        for run, shared in path:
            if shared < len(run.pages):
                rest, run = run, self.split(run, shared)
                self.touch(run)
                self.touch(rest)
            else:
                self.touch(run)
        if there < len(pages):
            leaf = Run(pages[there:], run)
            self.touch(leaf)
            run.children[leaf.pages[0]] = leaf
            run = leaf
        return run, there

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
