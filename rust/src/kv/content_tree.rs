//! Prompts that begin alike, told apart without a token of them.
//!
//! The tokens of a request are those of a chain of contents: shared texts or the outputs of others, each from its
//! beginning for some tokens, and at last its own. Two requests agree on their first n tokens iff their chains do. Chains
//! are kept in a tree: a node is a content behind all that came before it, so that token n of two requests, and all
//! before, are the same iff it lies in the same node. Contents are compared, not hashes of them: nothing can collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::Place;

/// A part of a prompt: the first tokens of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which content: a shared one below `OWN`, or `OWN` and the id of the request whose own it is.
    pub content: u64,
    /// How many tokens of it.
    pub tokens: u32,
}

/// With the id of a request: what it alone says, the rest of its prompt and its output.
pub(crate) const OWN: u64 = 1 << 63;

pub(super) const NONE: u32 = u32::MAX;

/// A content behind all that comes before it.
#[derive(Debug)]
pub(super) struct ContentNode {
    /// Where it stands: behind its parent, which is left after so many tokens in all.
    key: (u32, u32, u64),
    /// Its children, the chains of live requests that go through it, and the blocks that are known in it.
    uses: u32,
    /// Its children with a pin, and what is remembered of it beyond its use: it keeps its number.
    pins: u32,
    /// The request whose own content it is, while that is here.
    pub(super) owner: u32,
    /// For each block whose last token lies in it, the first entry of the cache.
    pub(super) blocks: Vec<u32>,
}

impl ContentNode {
    /// Does another than its owner go through it?
    pub(super) fn is_used_by_others(&self) -> bool {
        self.uses > 1
    }

    /// So many blocks more are known in it.
    pub(super) fn add_uses(&mut self, blocks: u32) {
        self.uses += blocks;
    }

    /// Tokens before it.
    #[inline]
    pub(super) fn start(&self) -> u32 {
        self.key.1
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
    by_key: HashMap<(u32, u32, u64), u32, BuildHasherDefault<Mixer>>,
}

impl Tree {
    /// The chain of a request, of which every node is used once more. The last node is its own.
    fn enter(&mut self, content: &[Segment], own: u64, path: &mut Vec<Step>) {
        let (mut parent, mut start) = (NONE, 0);
        for segment in content {
            let node = self.node((parent, start, segment.content));
            start += segment.tokens;
            path.push(Step { node, end: start });
            parent = node;
        }
        path.push(Step { node: self.node((parent, start, own)), end: u32::MAX });
    }

    /// Is nothing in it?
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.nodes.len() == self.vacant.len()
    }

    fn node(&mut self, key: (u32, u32, u64)) -> u32 {
        if let Some(&node) = self.by_key.get(&key) {
            let uses = &mut self.nodes[node as usize].uses;
            *uses += 1;
            if *uses == 1 && key.0 != NONE {
                self.nodes[key.0 as usize].uses += 1;
            }
            return node;
        }
        let fresh = ContentNode { key, uses: 1, pins: 0, owner: NONE, blocks: Vec::new() };
        let node = match self.vacant.pop() {
            Some(node) => {
                self.nodes[node as usize] = fresh;
                node
            }
            None => {
                self.nodes.push(fresh);
                self.nodes.len() as u32 - 1
            }
        };
        self.by_key.insert(key, node);
        if key.0 != NONE {
            self.nodes[key.0 as usize].uses += 1;
        }
        node
    }

    /// One block more is known in a node.
    pub(super) fn use_node(&mut self, node: u32) {
        self.nodes[node as usize].uses += 1;
    }

    /// One chain less goes through a node, or one block less is known in it. Nodes without use are forgotten.
    pub(super) fn leave(&mut self, mut node: u32) {
        loop {
            let left = &mut self.nodes[node as usize];
            left.uses -= 1;
            if left.uses > 0 {
                return;
            }
            let (key, is_pinned) = (left.key, left.pins > 0);
            left.blocks = Vec::new();
            if !is_pinned {
                self.by_key.remove(&key);
                self.vacant.push(node);
            }
            if key.0 == NONE {
                return;
            }
            node = key.0;
        }
    }

    /// A node keeps its number, and all above it keep theirs, even when no request uses them.
    pub(super) fn pin(&mut self, mut node: u32) {
        while node != NONE {
            let ContentNode { pins, key, .. } = &mut self.nodes[node as usize];
            *pins += 1;
            node = if *pins == 1 { key.0 } else { NONE };
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
            let (key, is_used) = (*key, *uses > 0);
            if !is_used {
                self.by_key.remove(&key);
                self.vacant.push(node);
            }
            node = key.0;
        }
    }

    /// The nodes of a chain of contents, as far as they are there.
    pub(super) fn steps(&self, content: &[Segment]) -> impl Iterator<Item = Step> {
        let (mut parent, mut start) = (NONE, 0);
        content.iter().map_while(move |segment| {
            let node = *self.by_key.get(&(parent, start, segment.content))?;
            (parent, start) = (node, start + segment.tokens);
            Some(Step { node, end: start })
        })
    }
}

/// The chains of the requests that are here, by their places.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pub(super) tree: Tree,
    paths: Vec<Vec<Step>>,
}

impl Chains {
    /// A request comes. Its last node is its own.
    pub(super) fn open(&mut self, place: Place, content: &[Segment], own: u64) {
        if self.paths.len() <= place.index() {
            self.paths.resize_with(place.index() + 1, Vec::new);
        }
        let path = &mut self.paths[place.index()];
        debug_assert!(path.is_empty(), "a place is one request's");
        self.tree.enter(content, own, path);
    }

    /// A request goes.
    pub(super) fn close(&mut self, place: Place) {
        for step in self.paths[place.index()].drain(..) {
            self.tree.leave(step.node);
        }
    }

    /// The nodes of a request.
    #[inline]
    pub(super) fn path(&self, place: Place) -> &[Step] {
        &self.paths[place.index()]
    }

    /// What `open` was told, without the request's own content.
    pub(super) fn content(&self, place: Place) -> Vec<Segment> {
        let path = self.path(place);
        let mut start = 0;
        let segment = |step: &Step| {
            let tokens = step.end - std::mem::replace(&mut start, step.end);
            Segment { content: self.tree.nodes[step.node as usize].key.2, tokens }
        };
        path[..path.len() - 1].iter().map(segment).collect()
    }

    /// The node in which a token of a request lies.
    pub(super) fn content_at(&self, place: Place, token: u64) -> u32 {
        let path = self.path(place);
        path[step_of(path, token)].node
    }

    /// Have two requests the same block behind their first `tokens` tokens, and all before it?
    pub(super) fn go_on_alike(&self, one: Place, other: Place, tokens: u64, block: u64) -> bool {
        let last = tokens / block * block + block - 1;
        let (one, other) = (self.path(one), self.path(other));
        let step = step_of(one, last);
        // A node stands behind the same nodes in every chain.
        other.get(step).is_some_and(|other| other.node == one[step].node && u64::from(other.end) > last)
    }
}

/// The step of a chain in which a token lies.
#[inline]
pub(super) fn step_of(path: &[Step], token: u64) -> usize {
    path.partition_point(|step| u64::from(step.end) <= token)
}

/// Mixes the three numbers of a key well enough for a table; no result depends on the order of one.
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
