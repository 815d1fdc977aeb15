//! Prefix cache as a radix tree of pages (SGLang: `mem_cache/radix_cache.py`).
//!
//! Prompts with a common prefix share runs up to the point where they diverge. Computed tokens enter the tree at the
//! end of the iteration; a page that is already in the tree replaces the request's own page, which is freed. A
//! request that uses a run locks it and its ancestors. Unlocked runs are evicted as a whole, leaves first, in LRU
//! order.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use super::content_tree::{Chains, Mixer, NONE, NewRequest, Segment, Step, step_of};
use super::prefix_cache::{HeldRun, Hit, Part, PrefixCache};
use super::reported::Reported;
use crate::request::Place;

/// The root above all runs.
const ROOT: u32 = 0;

/// A run of pages after those of its parent.
#[derive(Debug)]
struct PageRun {
    parent: u32,
    children: u32,
    /// First page, counted from the start of the prompt.
    first: u64,
    end: u64,
    /// The steps of a chain in which its pages end, from step `depth` on.
    depth: usize,
    steps: Vec<Step>,
    /// Requests that use it or its descendants.
    locks: u32,
    /// Time of last use.
    used: u64,
}

impl PageRun {
    fn pages(&self) -> u64 {
        self.end - self.first
    }
}

/// A request in the tree.
#[derive(Clone, Copy, Debug)]
struct RequestPages {
    prompt: u64,
    /// The last locked run, and the number of locked pages.
    node: u32,
    pages: u64,
}

#[derive(Debug)]
pub(super) struct RadixCache {
    page: u64,
    chains: Chains,
    shares: Vec<RequestPages>,
    runs: Vec<PageRun>,
    vacant: Vec<u32>,
    /// Runs by the first page: the content of its end, and its number.
    by_first_page: HashMap<(u32, u64), u32, BuildHasherDefault<Mixer>>,
    /// Leaves that can be evicted, by time of last use.
    ends: BTreeSet<(u64, u32)>,
    cached: u64,
    inserted: u64,
    unreferenced: u64,
    clock: u64,
    reported: Option<Reported>,
}

impl RadixCache {
    pub(super) fn new(page: u64) -> RadixCache {
        let root =
            PageRun { parent: NONE, children: 0, first: 0, end: 0, depth: 0, steps: Vec::new(), locks: 1, used: 0 };
        RadixCache {
            page,
            chains: Chains::default(),
            shares: Vec::new(),
            runs: vec![root],
            vacant: Vec::new(),
            by_first_page: HashMap::default(),
            ends: BTreeSet::new(),
            cached: 0,
            inserted: 0,
            unreferenced: 0,
            clock: 0,
            reported: None,
        }
    }

    #[inline]
    fn run(&self, run: u32) -> &PageRun {
        &self.runs[run as usize]
    }

    /// The node of the content tree in which a page of a request ends.
    #[inline]
    fn content_of(&self, place: Place, page: u64) -> u32 {
        self.chains.content_at(place, (page + 1) * self.page - 1)
    }

    /// The run that begins with a page of a request.
    #[inline]
    fn child(&self, place: Place, page: u64) -> Option<u32> {
        self.by_first_page.get(&(self.content_of(place, page), page)).copied()
    }

    /// End of the pages of a run that agree with a request, given that its first page agrees.
    fn agreed(&self, place: Place, run: u32, limit: u64) -> u64 {
        self.agreed_with(self.chains.path(place), run, limit)
    }

    /// Like `agreed`, for a chain that begins with these steps.
    fn agreed_with(&self, path: &[Step], run: u32, limit: u64) -> u64 {
        let PageRun { end, depth, ref steps, .. } = *self.run(run);
        let limit = limit.min(end);
        let mut tokens = 0;
        for (of_run, own) in steps.iter().zip(&path[depth..]) {
            if of_run.node != own.node {
                break;
            }
            tokens = of_run.end.min(own.end);
            if of_run.end != own.end {
                break;
            }
        }
        limit.min(u64::from(tokens) / self.page)
    }

    /// Marks a run as used now.
    fn touch(&mut self, run: u32) {
        self.clock += 1;
        let (clock, PageRun { used, locks, children, .. }) = (self.clock, &mut self.runs[run as usize]);
        let before = std::mem::replace(used, clock);
        if *locks == 0 && *children == 0 {
            self.ends.remove(&(before, run));
            self.ends.insert((clock, run));
        }
    }

    fn add(&mut self, run: PageRun, place: Place) -> u32 {
        let key = (self.content_of(place, run.first), run.first);
        for step in &run.steps {
            self.chains.tree.use_node(step.node);
        }
        let number = match self.vacant.pop() {
            Some(vacant) => {
                self.runs[vacant as usize] = run;
                vacant
            }
            None => {
                self.runs.push(run);
                self.runs.len() as u32 - 1
            }
        };
        self.by_first_page.insert(key, number);
        number
    }

    /// The steps in which the pages `first..end` of a request end, and the index of the first step.
    fn steps(&self, place: Place, first: u64, end: u64) -> (usize, Vec<Step>) {
        let path = self.chains.path(place);
        let from = step_of(path, (first + 1) * self.page - 1);
        let to = step_of(path, end * self.page - 1);
        (from, path[from..=to].to_vec())
    }

    /// Splits a run before a page at which a request agrees with it, and returns the front. The rest keeps its
    /// number.
    fn split(&mut self, place: Place, run: u32, at: u64) -> u32 {
        let PageRun { parent, first, locks, used, .. } = *self.run(run);
        let (depth, steps) = self.steps(place, first, at);
        let front = self.add(PageRun { parent, children: 1, first, end: at, depth, steps, locks, used }, place);
        let (page, rest) = (self.page, &mut self.runs[run as usize]);
        let passed = step_of(&rest.steps, (at + 1) * page - 1);
        let left: Vec<Step> = rest.steps.drain(..passed).collect();
        (rest.parent, rest.first, rest.depth) = (front, at, rest.depth + passed);
        let content = rest.steps[0].node;
        left.iter().for_each(|step| self.chains.tree.leave(step.node));
        self.by_first_page.insert((content, at), run);
        front
    }

    /// Descends along the cached part of the first `pages` pages of a request and splits the run in which it ends.
    /// Returns the last run, the number of pages, and the rest of the split run.
    fn descend(&mut self, place: Place, pages: u64, mut see: impl FnMut(&mut Self, u32)) -> (u32, u64, Option<u32>) {
        let (mut node, mut page) = (ROOT, 0);
        while page < pages {
            let Some(child) = self.child(place, page) else { break };
            let agreed = self.agreed(place, child, pages);
            debug_assert!(agreed > page, "the first page of a run agrees");
            if agreed < self.run(child).end {
                let front = self.split(place, child, agreed);
                see(self, front);
                return (front, agreed, Some(child));
            }
            see(self, child);
            (node, page) = (child, agreed);
        }
        (node, page, None)
    }

    /// Marks the cached part of the first `pages` pages of a request as used. Returns the last run and the number of
    /// pages.
    fn follow(&mut self, place: Place, pages: u64) -> (u32, u64) {
        let mut path = Vec::new();
        let (node, pages, rest) = self.descend(place, pages, |_, run| path.push(run));
        // The last run is the newest and its ancestors slightly older; the rest of a split run is older than all of
        // them.
        if let Some(rest) = rest {
            self.touch(rest);
        }
        path.iter().for_each(|&run| self.touch(run));
        (node, pages)
    }

    /// Adds a lock to a run and its ancestors, up to the run that the same request has locked.
    fn lock(&mut self, mut node: u32, locked: u32) {
        while node != locked {
            let PageRun { locks, used, children, parent, .. } = &mut self.runs[node as usize];
            *locks += 1;
            let (is_first, end, above) = (*locks == 1, (*used, node), *parent);
            if is_first {
                if *children == 0 {
                    self.ends.remove(&end);
                }
                self.unreferenced -= self.run(node).pages();
            }
            node = above;
        }
    }

    /// Removes a lock from a run and its ancestors.
    fn unlock(&mut self, mut node: u32) {
        while node != ROOT {
            let PageRun { locks, used, children, parent, .. } = &mut self.runs[node as usize];
            debug_assert!(*locks > 0, "a run is unlocked only by requests that locked it");
            *locks -= 1;
            let (is_last, end, above) = (*locks == 0, (*used, node), *parent);
            if is_last {
                if *children == 0 {
                    self.ends.insert(end);
                }
                self.unreferenced += self.run(node).pages();
            }
            node = above;
        }
    }

    /// Inserts the first `tokens` tokens of a request.
    fn publish(&mut self, place: Place, tokens: u64) {
        let pages = self.chains.limit_tokens(place, tokens) / self.page;
        if pages == 0 {
            return;
        }
        let end = self.insert(place, pages);
        let prompt = self.shares[place.index()].prompt / self.page;
        if (1..pages).contains(&prompt) {
            self.pass(place, prompt);
            // The end of a run keeps its number when the run is split.
            debug_assert_eq!(self.run(end).end, pages, "all pages are in the tree");
        }
        let share = &mut self.shares[place.index()];
        (share.node, share.pages) = (end, pages);
    }

    /// Marks the cached part of the first pages of a request as used. Returns the last run and the number of pages.
    fn pass(&mut self, place: Place, pages: u64) -> (u32, u64) {
        let (node, page, rest) = self.descend(place, pages, |cache, run| cache.touch(run));
        if let Some(rest) = rest {
            self.touch(rest);
        }
        (node, page)
    }

    /// Inserts and locks the first pages of a request. Returns the last run.
    fn insert(&mut self, place: Place, pages: u64) -> u32 {
        let (node, page) = self.pass(place, pages);
        let locked = self.shares[place.index()].node;
        if page == pages {
            self.lock(node, locked);
            return node;
        }
        let (depth, steps) = self.steps(place, page, pages);
        let parent = &mut self.runs[node as usize];
        let was_end = node != ROOT && parent.children == 0 && parent.locks == 0;
        parent.children += 1;
        let end = (parent.used, node);
        if was_end {
            self.ends.remove(&end);
        }
        self.lock(node, locked);
        self.clock += 1;
        let used = self.clock;
        let leaf = PageRun { parent: node, children: 0, first: page, end: pages, depth, steps, locks: 1, used };
        let leaf = self.add(leaf, place);
        self.note(leaf, true);
        self.cached += pages - page;
        self.inserted += pages - page;
        leaf
    }

    /// Records the pages of a run that is inserted or evicted.
    fn note(&mut self, run: u32, is_cached: bool) {
        let Some(reported) = &mut self.reported else { return };
        let PageRun { first, end, ref steps, .. } = self.runs[run as usize];
        let mut page = first;
        for &Step { node, end: until } in steps {
            let (until, tree) = (end.min(u64::from(until) / self.page), &mut self.chains.tree);
            let from = u64::from(tree.nodes[node as usize].start()) / self.page;
            if page < until {
                reported.note(tree, node, (page - from) as u32..(until - from) as u32, is_cached);
                page = until;
            }
        }
    }

    /// Clears the pages of a request. Returns their last run, which is still locked.
    fn give_up(&mut self, place: Place) -> u32 {
        let share = &mut self.shares[place.index()];
        share.pages = 0;
        std::mem::replace(&mut share.node, ROOT)
    }

    /// Whether the tree is empty and has no requests.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.chains.tree.is_empty() && self.by_first_page.is_empty() && self.ends.is_empty()
    }
}

impl PrefixCache for RadixCache {
    fn open(&mut self, place: Place, request: NewRequest) {
        let share = RequestPages { prompt: u64::from(request.prompt), node: ROOT, pages: 0 };
        if self.shares.len() <= place.index() {
            self.shares.resize(place.index() + 1, share);
        }
        self.shares[place.index()] = share;
        self.chains.open(place, request);
    }

    fn close(&mut self, place: Place) {
        self.chains.close(place);
    }

    fn content(&self, place: Place) -> Vec<Segment> {
        self.chains.content(place)
    }

    /// Runs are split and count as used when they are taken, not when they are looked up.
    fn find(&self, place: Place, limit: u64) -> Hit {
        let (limit, mut page, mut unreferenced) = (limit / self.page, 0, 0);
        while page < limit {
            let Some(child) = self.child(place, page) else { break };
            let agreed = self.agreed(place, child, limit);
            unreferenced += if self.run(child).locks == 0 { agreed - page } else { 0 };
            page = agreed;
            if agreed < self.run(child).end {
                break;
            }
        }
        Hit { tokens: page * self.page, unreferenced }
    }

    fn refresh(&mut self, place: Place, limit: u64) -> u64 {
        self.follow(place, limit / self.page).1 * self.page
    }

    fn content_at(&self, place: Place, token: u64) -> u32 {
        self.chains.content_at(place, token)
    }

    fn hold(&mut self, place: Place, hit: Hit) {
        let (node, pages) = self.follow(place, hit.tokens / self.page);
        debug_assert_eq!(pages * self.page, hit.tokens, "the hit is still cached");
        self.lock(node, ROOT);
        let share = &mut self.shares[place.index()];
        (share.node, share.pages) = (node, pages);
    }

    fn scheduled(&mut self, _slot: Place, _tokens: u64) {}

    fn computed(&mut self, place: Place, tokens: u64) {
        self.publish(place, tokens);
    }

    fn ended(&mut self, place: Place, tokens: u64, is_over: bool) {
        if is_over {
            self.publish(place, tokens);
        }
    }

    fn shared(&self, place: Place) -> u64 {
        self.shares[place.index()].pages
    }

    fn leave(&mut self, place: Place) {
        let node = self.give_up(place);
        self.unlock(node);
    }

    fn detach(&mut self, place: Place) -> Part {
        Part(vec![HeldRun { run: self.give_up(place), first: 0 }])
    }

    fn release_detached(&mut self, part: Part) {
        part.0.into_iter().for_each(|entry| self.unlock(entry.run));
    }

    fn cached(&self) -> u64 {
        self.cached
    }

    fn inserted(&self) -> u64 {
        self.inserted
    }

    fn unreferenced(&self) -> u64 {
        self.unreferenced
    }

    fn evict_until(&mut self, unreferenced: u64) {
        while self.unreferenced > unreferenced {
            let Some((_, run)) = self.ends.pop_first() else {
                debug_assert!(false, "unreferenced pages include a leaf");
                return;
            };
            let PageRun { parent, first, .. } = *self.run(run);
            let pages = self.run(run).pages();
            self.note(run, false);
            let steps = std::mem::take(&mut self.runs[run as usize].steps);
            self.by_first_page.remove(&(steps[0].node, first));
            steps.iter().for_each(|step| self.chains.tree.leave(step.node));
            self.vacant.push(run);
            self.cached -= pages;
            self.unreferenced -= pages;
            let above = &mut self.runs[parent as usize];
            above.children -= 1;
            if parent != ROOT && above.children == 0 && above.locks == 0 {
                self.ends.insert((above.used, parent));
            }
        }
    }

    fn evicts_runs(&self) -> bool {
        true
    }

    /// Tokens of decodes are cached when their request ends.
    fn followed(&self) -> &[Place] {
        &[]
    }

    fn has_followed(&self) -> bool {
        false
    }

    fn share_next_block(&self, first: Place, second: Place, tokens: u64) -> bool {
        self.chains.share_next_block(first, second, tokens, self.page)
    }

    fn is_computed_twice(&self, place: Place) -> bool {
        self.child(place, self.shares[place.index()].pages).is_some()
    }

    fn has_content(&self, content: u64) -> bool {
        self.chains.tree.has_content(content)
    }

    fn cached_prefix(&self, content: &[Segment], limit: u64) -> (u64, Option<Place>) {
        let path: Vec<Step> = self.chains.tree.steps(content).collect();
        let end = path.last().map_or(0, |step| u64::from(step.end));
        let (limit, mut page) = (limit.min(end) / self.page, 0);
        while page < limit {
            let node = path[step_of(&path, (page + 1) * self.page - 1)].node;
            let Some(&child) = self.by_first_page.get(&(node, page)) else { break };
            page = self.agreed_with(&path, child, limit);
            if page < self.run(child).end {
                break;
            }
        }
        (page * self.page, None)
    }

    fn report(&mut self) {
        self.reported.get_or_insert_default().update(&mut self.chains.tree);
    }

    fn reported(&self, content: &[Segment], limit: u64) -> u64 {
        let pages = |reported: &Reported| reported.blocks(&self.chains.tree, content, (self.page as u32, 0), limit);
        self.reported.as_ref().map_or(0, pages) * self.page
    }
}
