//! Prompts that begin alike, told apart without a token of them.
//!
//! The tokens of a request are those of a chain of contents: shared texts or the outputs of others, each from its
//! beginning for some tokens, and at last its own. Two requests agree on their first n tokens iff their chains do. Chains
//! are kept in a tree: a node is the rest of a chain from where it left all others, so that token n of two requests, and
//! all before, are the same iff both have it and it lies in the same node. A chain that goes on where another one ends
//! makes its node longer, so that all turns of a session lie in one. Contents are compared, not hashes of them: nothing
//! can collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::Place;

/// A part of a prompt: the first tokens of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Which content: a shared one below `OWN`, or `OWN` and the id of the request whose own it is.
    pub content: u64,
    /// How many tokens of it.
    pub tokens: u32,
}

/// With the id of a request: what it alone says, the rest of its prompt and its output.
pub(crate) const OWN: u64 = 1 << 63;

pub(super) const NONE: u32 = u32::MAX;

/// Where a node stands, and its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The node that it leaves, after so many tokens in all.
    parent: u32,
    start: u32,
    /// The first token's content, and how many tokens of that come before it.
    content: u64,
    skipped: u32,
}

/// A content of a node.
#[derive(Clone, Copy, Debug)]
struct Part {
    content: u64,
    /// After how many tokens in all it ends.
    end: u32,
}

/// The rest of a chain behind all that it has in common with others.
#[derive(Debug)]
pub(super) struct ContentNode {
    key: Key,
    /// Its contents, the first from its first token here on.
    content: Vec<Part>,
    /// Its children in use, the chains of live requests that end in it, and the runs of blocks that are known in it.
    uses: u32,
    /// Its children with a pin, and what is remembered of it beyond its use: it keeps its number.
    pins: u32,
    /// Runs of blocks whose last token lies in it, as the cache by blocks links them.
    pub(super) known: KnownRuns,
}

/// The known blocks of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownRuns {
    /// The last of the runs of which each goes on where the one in front of it ends.
    pub(super) last: u32,
    /// The oldest run of blocks that another run knows as well.
    pub(super) oldest_twin: u32,
}

impl ContentNode {
    /// Tokens before it.
    #[inline]
    pub(super) fn start(&self) -> u32 {
        self.key.start
    }
}

/// A node of a chain, and after how many tokens in all it is left.
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

/// What a request says: contents that others say too, and its own.
#[derive(Clone, Copy, Debug)]
struct Chain<'a> {
    content: &'a [Segment],
    /// The own content, and the tokens of the whole chain; none where that is not looked for.
    own: Option<(u64, u32)>,
}

impl Chain<'_> {
    /// The part that comes next.
    #[inline]
    fn next(&self, position: &Position) -> Option<Segment> {
        match self.content.get(position.part) {
            Some(&segment) => Some(segment),
            None if position.part > self.content.len() => None,
            None => self.own.map(|(content, tokens)| Segment { content, tokens: tokens - position.shared }),
        }
    }
}

/// How far a chain has been followed.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// In which node, and after how many tokens in all.
    node: u32,
    tokens: u32,
    /// The part of the chain that comes next, but for its first tokens.
    part: usize,
    skipped: u32,
    /// After how many tokens the own content of the chain begins, once it has been followed so far.
    shared: u32,
}

impl Position {
    const START: Position = Position { node: NONE, tokens: 0, part: 0, skipped: 0, shared: 0 };

    /// So many tokens further, where a part of the chain ends.
    #[inline]
    fn end_part(&mut self, tokens: u32, chain: Chain) {
        self.tokens += tokens;
        (self.part, self.skipped) = (self.part + 1, 0);
        if self.part == chain.content.len() {
            self.shared = self.tokens;
        }
    }

    /// The node in which a chain goes on from here has this key.
    #[inline]
    fn key(&self, content: u64) -> Key {
        Key { parent: self.node, start: self.tokens, content, skipped: self.skipped }
    }
}

impl Tree {
    /// The nodes of the chain of a request, of which the last is used once more. Says from which token on the chain is new
    /// here, and how many tokens of it are not its own.
    fn enter(&mut self, chain: Chain, path: &mut Vec<Step>) -> (u32, u32) {
        let mut position = Position::START;
        let mut new_from = u32::MAX;
        while let Some(next) = chain.next(&position) {
            let key = position.key(next.content);
            let (node, goes_on) = match self.by_key.get(&key) {
                Some(&node) => (node, self.follow(node, chain, &mut position)),
                None => (self.add(key), true),
            };
            if goes_on && chain.next(&position).is_some() {
                new_from = position.tokens;
                let known = &mut self.nodes[node as usize].content;
                while let Some(next) = chain.next(&position) {
                    position.end_part(next.tokens - position.skipped, chain);
                    known.push(Part { content: next.content, end: position.tokens });
                }
            }
            path.push(Step { node, end: position.tokens });
        }
        if let Some(last) = path.last() {
            self.use_node(last.node);
        }
        (new_from, position.shared)
    }

    /// Follows a chain from the first token of a node to where it leaves it. Says whether that is the node's end, and the
    /// whole of a content: what comes then may be there too.
    #[inline]
    fn follow(&self, node: u32, chain: Chain, position: &mut Position) -> bool {
        position.node = node;
        let ContentNode { key, content: known, .. } = &self.nodes[node as usize];
        let (mut begin, mut parts) = (key.start, &known[..]);
        if let Some((before, rest)) = self.leap(node, chain, position) {
            (begin, parts) = (before, rest);
        }
        for &Part { content, end } in parts {
            let Some(next) = chain.next(position).filter(|next| next.content == content) else {
                return false;
            };
            let (left, known) = (next.tokens - position.skipped, end - begin);
            if known < left {
                position.tokens += known;
                position.skipped += known;
                return false;
            }
            position.end_part(left, chain);
            if left < known {
                return false;
            }
            begin = end;
        }
        true
    }

    /// Only behind one chain does a request say what is its own. So where a node has that of a request in the same place as
    /// a chain, all before it is the same: the turns of a session need not be compared one by one. Looked for is the place
    /// where the first of the two ends.
    #[inline]
    fn leap(&self, node: u32, chain: Chain, position: &mut Position) -> Option<(u32, &[Part])> {
        let known = &self.nodes[node as usize].content;
        let rest = chain.content.get(position.part..)?;
        let ahead = rest.len().min(known.len()).checked_sub(1).filter(|&ahead| ahead > 0)?;
        let Segment { content, tokens: of_this } = rest[ahead];
        (content >= OWN && known[ahead].content == content).then_some(())?;
        let before = known[ahead - 1].end;
        chain.own.is_none_or(|(_, tokens)| before + of_this <= tokens).then_some(())?;
        (position.part, position.skipped, position.tokens) = (position.part + ahead, 0, before);
        Some((before, &known[ahead..]))
    }

    /// A node that nothing uses yet, without any content.
    fn add(&mut self, key: Key) -> u32 {
        let node = self.vacant.pop().unwrap_or_else(|| {
            let known = KnownRuns { last: NONE, oldest_twin: NONE };
            self.nodes.push(ContentNode { key, content: Vec::new(), uses: 0, pins: 0, known });
            self.nodes.len() as u32 - 1
        });
        self.nodes[node as usize].key = key;
        self.by_key.insert(key, node);
        node
    }

    /// A node that nothing uses or remembers.
    fn forget(&mut self, node: u32) {
        let forgotten = &mut self.nodes[node as usize];
        forgotten.content.clear();
        self.by_key.remove(&forgotten.key);
        self.vacant.push(node);
    }

    /// Is nothing in it?
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.nodes.len() == self.vacant.len()
    }

    /// One chain more ends in a node, or one run of blocks more is known in it.
    #[inline]
    pub(super) fn use_node(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { uses, key, .. } = &mut self.nodes[node as usize];
            *uses += 1;
            node = if *uses == 1 { key.parent } else { NONE };
        }
    }

    /// One chain less ends in a node, or one run less is known in it. Nodes without use are forgotten.
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

    /// A node keeps its number, and all above it keep theirs, even when no request uses them.
    pub(super) fn pin(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { pins, key, .. } = &mut self.nodes[node as usize];
            *pins += 1;
            node = if *pins == 1 { key.parent } else { NONE };
        }
    }

    /// One reason less to keep it.
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

    /// Does a node begin behind a token of another, or is it that one?
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

    /// Is there a chain that begins with this content?
    pub(super) fn knows(&self, content: u64) -> bool {
        self.by_key.contains_key(&Position::START.key(content))
    }

    /// The nodes of a chain of contents, as far as they are there.
    pub(super) fn steps(&self, content: &[Segment]) -> impl Iterator<Item = Step> {
        let (mut position, chain) = (Position::START, Chain { content, own: None });
        std::iter::from_fn(move || {
            let node = *self.by_key.get(&position.key(chain.next(&position)?.content))?;
            self.follow(node, chain, &mut position);
            Some(Step { node, end: position.tokens })
        })
    }
}

/// The chains of the requests that are here, by their places.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pub(super) tree: Tree,
    paths: Vec<Path>,
}

/// The way of a request through the tree.
#[derive(Debug, Default)]
struct Path {
    steps: Vec<Step>,
    /// Its own content, and how many tokens come before that.
    own: Segment,
    /// Had no other request said anything of its own?
    is_new: bool,
}

/// A request as it comes to a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    /// Its tokens are first those of these contents,
    pub(crate) content: &'a [Segment],
    /// then those of its own one.
    pub(crate) own: u64,
    /// Tokens of its prompt, and of prompt and output.
    pub(crate) prompt: u32,
    pub(crate) tokens: u32,
}

impl Chains {
    /// A request comes.
    pub(super) fn open(&mut self, place: Place, newcomer: Newcomer) {
        if self.paths.len() <= place.index() {
            self.paths.resize_with(place.index() + 1, Path::default);
        }
        let Newcomer { content, own, tokens, .. } = newcomer;
        let Path { steps, own: of_this, is_new } = &mut self.paths[place.index()];
        debug_assert!(steps.is_empty(), "a place is one request's");
        let (new_from, shared) = self.tree.enter(Chain { content, own: Some((own, tokens)) }, steps);
        *of_this = Segment { content: own, tokens: shared };
        *is_new = new_from <= shared;
    }

    /// A request goes.
    pub(super) fn close(&mut self, place: Place) {
        let path = &mut self.paths[place.index()].steps;
        if let Some(last) = path.last() {
            self.tree.leave(last.node);
        }
        path.clear();
    }

    /// Of so many tokens of a request those that it says: a row that is dropped computes one more.
    #[inline]
    pub(super) fn said(&self, place: Place, tokens: u64) -> u64 {
        self.path(place).last().map_or(0, |last| tokens.min(u64::from(last.end)))
    }

    /// The nodes of a request.
    #[inline]
    pub(super) fn path(&self, place: Place) -> &[Step] {
        &self.paths[place.index()].steps
    }

    /// What `open` was told, without the request's own content.
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

    /// The node in which a token of a request lies. Behind its last token it is alone.
    #[inline]
    pub(super) fn content_at(&self, place: Place, token: u64) -> u32 {
        let path = self.path(place);
        path.get(step_of(path, token)).map_or(NONE - 1 - place.0, |step| step.node)
    }

    /// Has a request that is here this token in this node?
    pub(super) fn has(&self, place: Place, token: u64, node: u32) -> bool {
        let path = self.path(place);
        path.get(step_of(path, token)).is_some_and(|step| step.node == node)
    }

    /// Have two requests the same block behind their first `tokens` tokens, and all before it?
    pub(super) fn go_on_alike(&self, one: Place, other: Place, tokens: u64, block: u64) -> bool {
        let last = tokens / block * block + block - 1;
        self.has(other, last, self.content_at(one, last))
    }

    /// The own content of a request that is here, and how many tokens come before it.
    #[inline]
    pub(super) fn own(&self, place: Place) -> Segment {
        self.paths[place.index()].own
    }

    /// Does a request begin with the first token that another one says of its own, and all before?
    pub(super) fn continues(&self, place: Place, other: Place) -> bool {
        let first = self.own(other).tokens;
        first < self.own(place).tokens && {
            let first = u64::from(first);
            self.has(other, first, self.content_at(place, first))
        }
    }

    /// Is something known of what a request says from its own first token on, or has another request that? Known is what
    /// lies before the token that `known_until` says of a node's runs.
    #[inline]
    pub(super) fn is_continued(&self, place: Place, known_until: impl Fn(KnownRuns) -> u64) -> bool {
        !self.paths[place.index()].is_new && self.is_old_continued(place, known_until)
    }

    #[cold]
    fn is_old_continued(&self, place: Place, known_until: impl Fn(KnownRuns) -> u64) -> bool {
        let first = u64::from(self.own(place).tokens);
        let node = self.content_at(place, first);
        let mut others = (0..self.paths.len() as u32).map(Place).filter(|&other| other != place);
        let is_known = |(other, at): (usize, &ContentNode)| {
            known_until(at.known) > first && self.tree.is_behind(other as u32, node, first as u32)
        };
        others.any(|other| self.has(other, first, node)) || self.tree.nodes.iter().enumerate().any(is_known)
    }
}

/// The step of a chain in which a token lies.
#[inline]
pub(super) fn step_of(path: &[Step], token: u64) -> usize {
    path.partition_point(|step| u64::from(step.end) <= token)
}

/// Mixes the numbers of a key well enough for a table; no result depends on the order of one.
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
