//! A tree of prompts with common prefixes, without storing tokens.
//!
//! The tokens of a request are a chain of contents: prefixes of shared texts or of outputs of other requests, and
//! finally its own content. Two requests agree on their first n tokens iff their chains do. Chains are in a tree,
//! where a node is the part of a chain after it has diverged from all other chains. So token n of two requests and
//! all tokens before it are equal iff the token is in the same node for both. A chain that continues another one
//! extends its node, so all turns of a session share one node. Contents are compared, not their hashes, so collisions
//! are impossible.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::Place;

/// A part of a prompt: a prefix of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Content id: below `OWN` a shared one; otherwise `OWN` plus the id of the request that owns it.
    pub content: u64,
    /// Number of its tokens.
    pub tokens: u32,
}

/// Plus the id of a request: its own content, i.e. the rest of its prompt and its output.
pub(crate) const OWN: u64 = 1 << 63;

pub(super) const NONE: u32 = u32::MAX;

/// Position of a node and its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The node that it leaves, and the total tokens up to there.
    parent: u32,
    start: u32,
    /// The content of the first token, and the tokens of that content before it.
    content: u64,
    skipped: u32,
}

/// A content of a node.
#[derive(Clone, Copy, Debug)]
struct Part {
    content: u64,
    /// Total tokens at its end.
    end: u32,
}

/// The part of a chain after all that it shares with other chains.
#[derive(Debug)]
pub(super) struct ContentNode {
    key: Key,
    /// Its contents; the first one starts at the first token of the node.
    content: Vec<Part>,
    /// Number of its used children, of live requests whose chains end in it, and of cached runs in it.
    uses: u32,
    /// Number of pinned children and of reports that need it: a pinned node keeps its number.
    pins: u32,
    /// Runs of blocks whose last token is in it, as linked by the block cache.
    pub(super) cached_runs: CachedRuns,
}

/// The cached blocks of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRuns {
    /// The last of the consecutive runs.
    pub(super) last: u32,
    /// The oldest run of duplicate blocks.
    pub(super) oldest_duplicate: u32,
}

impl ContentNode {
    /// Total tokens before it.
    #[inline]
    pub(super) fn start(&self) -> u32 {
        self.key.start
    }
}

/// A node of a chain, and the total tokens at which the chain leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) node: u32,
    pub(super) end: u32,
}

/// All chains.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<ContentNode>,
    vacant: Vec<u32>,
    by_key: HashMap<Key, u32, BuildHasherDefault<Mixer>>,
}

/// Tokens of a request: shared contents, then its own.
#[derive(Clone, Copy, Debug)]
struct Chain<'a> {
    content: &'a [Segment],
    /// The own content, and the tokens of the whole chain; `None` in lookups.
    own: Option<(u64, u32)>,
}

impl Chain<'_> {
    /// Returns the next part.
    #[inline]
    fn next(&self, position: &Position) -> Option<Segment> {
        match self.content.get(position.part) {
            Some(&segment) => Some(segment),
            None if position.part > self.content.len() => None,
            None => self.own.map(|(content, tokens)| Segment { content, tokens: tokens - position.shared }),
        }
    }
}

/// Progress along a chain.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The current node, and the total tokens so far.
    node: u32,
    tokens: u32,
    /// The next part of the chain, and its tokens already passed.
    part: usize,
    skipped: u32,
    /// Total tokens before the chain's own content, once known.
    shared: u32,
}

impl Position {
    const START: Position = Position { node: NONE, tokens: 0, part: 0, skipped: 0, shared: 0 };

    /// Advances by `tokens` to the end of a part of the chain.
    #[inline]
    fn end_part(&mut self, tokens: u32, chain: Chain) {
        self.tokens += tokens;
        (self.part, self.skipped) = (self.part + 1, 0);
        if self.part == chain.content.len() {
            self.shared = self.tokens;
        }
    }

    /// Key of the node in which a chain continues from here.
    #[inline]
    fn key(&self, content: u64) -> Key {
        Key { parent: self.node, start: self.tokens, content, skipped: self.skipped }
    }
}

impl Tree {
    /// Enters the chain of a request and uses its last node once more. Returns the token from which the chain is new,
    /// and the number of shared tokens.
    fn enter(&mut self, chain: Chain, path: &mut Vec<Step>) -> (u32, u32) {
        let mut position = Position::START;
        let mut new_from = u32::MAX;
        while let Some(next) = chain.next(&position) {
            let key = position.key(next.content);
            let (node, is_at_end) = match self.by_key.get(&key) {
                Some(&node) => (node, self.follow(node, chain, &mut position)),
                None => (self.add(key), true),
            };
            if is_at_end && chain.next(&position).is_some() {
                new_from = position.tokens;
                let node_parts = &mut self.nodes[node as usize].content;
                while let Some(next) = chain.next(&position) {
                    position.end_part(next.tokens - position.skipped, chain);
                    node_parts.push(Part { content: next.content, end: position.tokens });
                }
            }
            path.push(Step { node, end: position.tokens });
        }
        if let Some(last) = path.last() {
            self.use_node(last.node);
        }
        (new_from, position.shared)
    }

    /// Follows a chain from the first token of a node until it leaves the node. Returns whether that is the end of
    /// the node and of a content, so that the chain may continue in a child.
    #[inline]
    fn follow(&self, node: u32, chain: Chain, position: &mut Position) -> bool {
        position.node = node;
        let ContentNode { key, content: node_parts, .. } = &self.nodes[node as usize];
        let (mut begin, mut parts) = (key.start, &node_parts[..]);
        if let Some((before, rest)) = self.leap(node, chain, position) {
            (begin, parts) = (before, rest);
        }
        for &Part { content, end } in parts {
            let Some(next) = chain.next(position).filter(|next| next.content == content) else {
                return false;
            };
            let (left, in_node) = (next.tokens - position.skipped, end - begin);
            if in_node < left {
                position.tokens += in_node;
                position.skipped += in_node;
                return false;
            }
            position.end_part(left, chain);
            if left < in_node {
                return false;
            }
            begin = end;
        }
        true
    }

    /// The own content of a request follows one chain only. So if a node contains it at the same place as a chain,
    /// all tokens before it are equal, and the turns of a session need not be compared individually. Returns the end
    /// of the shorter of the two.
    #[inline]
    fn leap(&self, node: u32, chain: Chain, position: &mut Position) -> Option<(u32, &[Part])> {
        let node_parts = &self.nodes[node as usize].content;
        let rest = chain.content.get(position.part..)?;
        let ahead = rest.len().min(node_parts.len()).checked_sub(1).filter(|&ahead| ahead > 0)?;
        let Segment { content, tokens: of_this } = rest[ahead];
        (content >= OWN && node_parts[ahead].content == content).then_some(())?;
        let before = node_parts[ahead - 1].end;
        chain.own.is_none_or(|(_, tokens)| before + of_this <= tokens).then_some(())?;
        (position.part, position.skipped, position.tokens) = (position.part + ahead, 0, before);
        Some((before, &node_parts[ahead..]))
    }

    /// Adds an unused node without content.
    fn add(&mut self, key: Key) -> u32 {
        let node = self.vacant.pop().unwrap_or_else(|| {
            let cached_runs = CachedRuns { last: NONE, oldest_duplicate: NONE };
            self.nodes.push(ContentNode { key, content: Vec::new(), uses: 0, pins: 0, cached_runs });
            self.nodes.len() as u32 - 1
        });
        self.nodes[node as usize].key = key;
        self.by_key.insert(key, node);
        node
    }

    /// Deletes a node that is neither used nor pinned.
    fn forget(&mut self, node: u32) {
        let forgotten = &mut self.nodes[node as usize];
        forgotten.content.clear();
        self.by_key.remove(&forgotten.key);
        self.vacant.push(node);
    }

    /// Whether the tree is empty.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.nodes.len() == self.vacant.len()
    }

    /// Adds a use of a node by a chain or by a cached run.
    #[inline]
    pub(super) fn use_node(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { uses, key, .. } = &mut self.nodes[node as usize];
            *uses += 1;
            node = if *uses == 1 { key.parent } else { NONE };
        }
    }

    /// Removes a use of a node. Unused nodes are deleted.
    #[inline]
    pub(super) fn leave(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { uses, pins, key, .. } = &mut self.nodes[node as usize];
            *uses -= 1;
            if *uses > 0 {
                return;
            }
            let (parent, is_pinned) = (key.parent, *pins > 0);
            if !is_pinned {
                self.forget(node);
            }
            node = parent;
        }
    }

    /// Pins a node: it and its ancestors keep their numbers even if unused.
    pub(super) fn pin(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { pins, key, .. } = &mut self.nodes[node as usize];
            *pins += 1;
            node = if *pins == 1 { key.parent } else { NONE };
        }
    }

    /// Removes a pin.
    pub(super) fn unpin(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { pins, uses, key, .. } = &mut self.nodes[node as usize];
            *pins -= 1;
            if *pins > 0 {
                return;
            }
            let (parent, is_used) = (key.parent, *uses > 0);
            if !is_used {
                self.forget(node);
            }
            node = parent;
        }
    }

    /// Whether a node is `other`, or begins after a token of `other`.
    pub(super) fn is_behind(&self, mut node: u32, other: u32, token: u32) -> bool {
        while node != other {
            let Key { parent, start, .. } = self.nodes[node as usize].key;
            if parent == NONE || (parent == other && start <= token) {
                return false;
            }
            node = parent;
        }
        true
    }

    /// Whether a chain begins with this content.
    pub(super) fn has_content(&self, content: u64) -> bool {
        self.by_key.contains_key(&Position::START.key(content))
    }

    /// Returns the existing nodes of a chain of contents.
    pub(super) fn steps(&self, content: &[Segment]) -> impl Iterator<Item = Step> {
        let (mut position, chain) = (Position::START, Chain { content, own: None });
        std::iter::from_fn(move || {
            let node = *self.by_key.get(&position.key(chain.next(&position)?.content))?;
            self.follow(node, chain, &mut position);
            Some(Step { node, end: position.tokens })
        })
    }
}

/// Chains of the current requests by place.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pub(super) tree: Tree,
    paths: Vec<Path>,
}

/// The path of a request in the tree.
#[derive(Debug, Default)]
struct Path {
    steps: Vec<Step>,
    /// Its own content, and the tokens before it.
    own: Segment,
    /// Whether no other request had used its own content before.
    is_new: bool,
}

/// A request that enters a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRequest<'a> {
    /// Shared contents at the start of its tokens.
    pub(crate) content: &'a [Segment],
    /// Its own content.
    pub(crate) own: u64,
    /// Tokens of the prompt, and of prompt plus output.
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
}

impl Chains {
    /// Adds a request.
    pub(super) fn open(&mut self, place: Place, request: NewRequest) {
        if self.paths.len() <= place.index() {
            self.paths.resize_with(place.index() + 1, Path::default);
        }
        let NewRequest { content, own, tokens, .. } = request;
        let Path { steps, own: of_this, is_new } = &mut self.paths[place.index()];
        debug_assert!(steps.is_empty(), "a place belongs to one request");
        let (new_from, shared) = self.tree.enter(Chain { content, own: Some((own, tokens)) }, steps);
        *of_this = Segment { content: own, tokens: shared };
        *is_new = new_from <= shared;
    }

    /// Removes a request.
    pub(super) fn close(&mut self, place: Place) {
        let path = &mut self.paths[place.index()].steps;
        if let Some(last) = path.last() {
            self.tree.leave(last.node);
        }
        path.clear();
    }

    /// Limits tokens to those of the request: a dropped row computes one more.
    #[inline]
    pub(super) fn limit_tokens(&self, place: Place, tokens: u64) -> u64 {
        self.path(place).last().map_or(0, |last| tokens.min(u64::from(last.end)))
    }

    /// Returns the nodes of a request.
    #[inline]
    pub(super) fn path(&self, place: Place) -> &[Step] {
        &self.paths[place.index()].steps
    }

    /// Returns the content passed to `open`, without the request's own content.
    pub(super) fn content(&self, place: Place) -> Vec<Segment> {
        let mut content: Vec<Segment> = Vec::new();
        for &Step { node, end } in self.path(place) {
            let ContentNode { key, content: parts, .. } = &self.tree.nodes[node as usize];
            let mut start = key.start;
            for part in parts {
                if start == end {
                    break;
                }
                let tokens = part.end.min(end) - start;
                match content.last_mut() {
                    Some(last) if start == key.start && key.skipped > 0 => last.tokens += tokens,
                    _ => content.push(Segment { content: part.content, tokens }),
                }
                start += tokens;
            }
        }
        content.pop();
        content
    }

    /// Returns the node of a token of a request. After its last token the node is its own.
    #[inline]
    pub(super) fn content_at(&self, place: Place, token: u64) -> u32 {
        let path = self.path(place);
        path.get(step_of(path, token)).map_or(NONE - 1 - place.0, |step| step.node)
    }

    /// Whether a current request has this token in this node.
    pub(super) fn has(&self, place: Place, token: u64, node: u32) -> bool {
        let path = self.path(place);
        path.get(step_of(path, token)).is_some_and(|step| step.node == node)
    }

    /// Whether two requests have the same next block after their first `tokens` tokens, and the same content before
    /// it.
    pub(super) fn share_next_block(&self, first: Place, second: Place, tokens: u64, block: u64) -> bool {
        let last = tokens / block * block + block - 1;
        self.has(second, last, self.content_at(first, last))
    }

    /// Returns the own content of a current request, and the tokens before it.
    #[inline]
    pub(super) fn own(&self, place: Place) -> Segment {
        self.paths[place.index()].own
    }

    /// Whether a request includes the first own token of another request and all tokens before it.
    pub(super) fn continues(&self, place: Place, other: Place) -> bool {
        let first = self.own(other).tokens;
        first < self.own(place).tokens && {
            let first = u64::from(first);
            self.has(other, first, self.content_at(place, first))
        }
    }

    /// Whether own content of a request, from its first token on, is cached or used by another request. Content is
    /// cached before the token that `cached_until` returns for the runs of a node.
    #[inline]
    pub(super) fn is_continued(&self, place: Place, cached_until: impl Fn(CachedRuns) -> u64) -> bool {
        !self.paths[place.index()].is_new && self.is_old_continued(place, cached_until)
    }

    fn is_old_continued(&self, place: Place, cached_until: impl Fn(CachedRuns) -> u64) -> bool {
        let first = u64::from(self.own(place).tokens);
        let node = self.content_at(place, first);
        let mut others = (0..self.paths.len() as u32).map(Place).filter(|&other| other != place);
        let is_known = |(other, at): (usize, &ContentNode)| {
            cached_until(at.cached_runs) > first && self.tree.is_behind(other as u32, node, first as u32)
        };
        others.any(|other| self.has(other, first, node)) || self.tree.nodes.iter().enumerate().any(is_known)
    }
}

/// Index of the step of a chain that contains a token.
#[inline]
pub(super) fn step_of(path: &[Step], token: u64) -> usize {
    path.partition_point(|step| u64::from(step.end) <= token)
}

/// Mixes the numbers of a key for a hash table; no result depends on its order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}
