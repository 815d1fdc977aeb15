//! The blocks of a pool: their users, their names, and the order of eviction.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::super::content_tree::{Mixer, NONE, Tree};

/// The identity of a cached block: equal for all requests that agree on all tokens up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) group: u32,
    /// The node of its last token.
    pub(super) node: u32,
    /// Its number in the sequence.
    pub(super) index: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Number of requests that use it.
    holders: u32,
    name: Option<Name>,
    /// The next newer block with the same name.
    duplicate: u32,
    /// Neighbors in the list of unreferenced blocks.
    older: u32,
    newer: u32,
    /// The plan in which it was named.
    named_in: u64,
}

/// All blocks of a pool.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Blocks ever used.
    all: Vec<Block>,
    capacity: u64,
    used: u64,
    /// Free blocks without a name that were used before.
    spare: Vec<u32>,
    /// Free blocks with a name: the first one is evicted next.
    oldest: u32,
    newest: u32,
    /// The oldest block of each name.
    by_name: HashMap<Name, u32, BuildHasherDefault<Mixer>>,
    inserted: u64,
    evicted: u64,
}

impl Blocks {
    pub(super) fn new(capacity: u64) -> Blocks {
        Blocks {
            all: Vec::new(),
            capacity,
            used: 0,
            spare: Vec::new(),
            oldest: NONE,
            newest: NONE,
            by_name: HashMap::default(),
            inserted: 0,
            evicted: 0,
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity - self.used
    }

    pub(super) fn inserted(&self) -> u64 {
        self.inserted
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) fn holders(&self, block: u32) -> u32 {
        self.at(block).holders
    }

    pub(super) fn named_in(&self, block: u32) -> u64 {
        self.at(block).named_in
    }

    pub(super) fn is_named(&self, block: u32) -> bool {
        self.at(block).name.is_some()
    }

    fn at(&self, block: u32) -> &Block {
        &self.all[block as usize]
    }

    fn at_mut(&mut self, block: u32) -> &mut Block {
        &mut self.all[block as usize]
    }

    /// Returns the oldest block with a name.
    pub(super) fn find(&self, name: Name) -> Option<u32> {
        self.by_name.get(&name).copied()
    }

    /// Takes a free block: one without a name if there is one, otherwise the oldest.
    pub(super) fn take(&mut self, tree: &mut Tree) -> u32 {
        debug_assert!(self.used < self.capacity, "L4: used blocks never exceed the capacity");
        self.used += 1;
        if let Some(block) = self.spare.pop() {
            self.at_mut(block).holders = 1;
            return block;
        }
        if (self.all.len() as u64) < self.capacity {
            let new = Block { holders: 1, name: None, duplicate: NONE, older: NONE, newer: NONE, named_in: 0 };
            self.all.push(new);
            return self.all.len() as u32 - 1;
        }
        let block = self.oldest;
        self.unlist(block);
        self.evict(block, tree);
        self.at_mut(block).holders = 1;
        block
    }

    /// Adds a user to a named block.
    pub(super) fn add_holder(&mut self, block: u32) {
        let entry = self.at_mut(block);
        entry.holders += 1;
        if entry.holders == 1 {
            self.used += 1;
            self.unlist(block);
        }
    }

    /// Removes a user from a block.
    pub(super) fn drop_holder(&mut self, block: u32) {
        let entry = self.at_mut(block);
        debug_assert!(entry.holders > 0, "a block is freed only by its users");
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        self.used -= 1;
        if self.at(block).name.is_none() {
            self.spare.push(block);
            return;
        }
        let newest = self.newest;
        self.join(newest, block);
        self.join(block, NONE);
    }

    /// Names a block that a request uses.
    pub(super) fn name(&mut self, block: u32, name: Name, plan: u64, tree: &mut Tree) {
        let entry = self.at_mut(block);
        (entry.name, entry.duplicate, entry.named_in) = (Some(name), NONE, plan);
        self.inserted += 1;
        tree.use_node(name.node);
        let Some(&oldest) = self.by_name.get(&name) else {
            self.by_name.insert(name, block);
            return;
        };
        let mut last = oldest;
        while self.at(last).duplicate != NONE {
            last = self.at(last).duplicate;
        }
        self.at_mut(last).duplicate = block;
    }

    /// Removes the name of a block.
    fn evict(&mut self, block: u32, tree: &mut Tree) {
        let Some(name) = self.at_mut(block).name.take() else { return };
        self.evicted += 1;
        let next = self.at(block).duplicate;
        let oldest = self.by_name.get(&name).copied().unwrap_or(block);
        if oldest != block {
            let mut before = oldest;
            while self.at(before).duplicate != block {
                before = self.at(before).duplicate;
            }
            self.at_mut(before).duplicate = next;
        } else if next == NONE {
            self.by_name.remove(&name);
        } else {
            self.by_name.insert(name, next);
        }
        tree.leave(name.node);
    }

    /// Removes a block from the list of unreferenced blocks.
    fn unlist(&mut self, block: u32) {
        let Block { older, newer, .. } = *self.at(block);
        self.join(older, newer);
    }

    /// Links two neighbors.
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.at_mut(newer).older = older,
        }
    }
}
