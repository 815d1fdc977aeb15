//! Which blocks of the KV cache are taken, and when will the free ones run out?
//!
//! Law L4: free + used = total after every event, and nothing is held after the last request. The pool counts
//! blocks; *which* block is whose matters only to a prefix cache.

use serde::Deserialize;

use crate::error::{Error, Result};

/// A KV cache as a user describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvCache {
    /// Capacity in tokens; `None`: without limit.
    pub tokens: Option<u64>,
    /// Tokens in a block.
    pub block: u32,
    /// The kind of prefix cache, if any.
    #[serde(default)]
    pub prefix_cache: Option<String>,
}

impl KvCache {
    /// Tests the fields.
    pub fn check(&self) -> Result<()> {
        if !(1..=LARGEST_BLOCK).contains(&self.block) {
            return Err(Error::config("block", format!("{}: a block has 1 to {LARGEST_BLOCK} tokens", self.block)));
        }
        if self.tokens.is_some_and(|tokens| tokens < u64::from(self.block)) {
            return Err(Error::config("tokens", "the cache must hold at least one block"));
        }
        if let Some(kind) = &self.prefix_cache {
            return Err(Error::config(
                "prefix_cache",
                format!("{kind:?} is not available: prefix caches are not built yet, use None"),
            ));
        }
        Ok(())
    }
}

/// A divisor that is a power of two more often than not, where a shift is many times cheaper than a division.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    value: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(value: u64) -> Divisor {
        Divisor { value, shift: value.is_power_of_two().then(|| value.trailing_zeros()) }
    }

    #[inline]
    fn quotient(self, number: u64) -> u64 {
        match self.shift {
            Some(shift) => number >> shift,
            None => number / self.value,
        }
    }

    #[inline]
    fn rest(self, number: u64) -> u64 {
        match self.shift {
            Some(_) => number & (self.value - 1),
            None => number % self.value,
        }
    }
}

/// The blocks of one replica.
#[derive(Clone, Debug)]
pub struct BlockPool {
    block: Divisor,
    capacity: u64,
    used: u64,
}

/// More blocks than any run can take: the capacity of a cache without limit.
pub(crate) const UNLIMITED: u64 = 1 << 62;

/// Contexts are counted by their residue modulo the block.
const LARGEST_BLOCK: u32 = 1 << 20;

impl BlockPool {
    /// An empty cache.
    pub fn new(kv: &KvCache) -> BlockPool {
        let block = u64::from(kv.block);
        BlockPool {
            block: Divisor::new(block),
            capacity: kv.tokens.map_or(UNLIMITED, |tokens| (tokens / block).min(UNLIMITED)),
            used: 0,
        }
    }

    /// Blocks that hold so many tokens.
    #[inline]
    pub fn need(&self, tokens: u64) -> u64 {
        self.block.quotient(tokens + (self.block.value - 1))
    }

    /// Tokens in a block.
    #[inline]
    pub fn block_tokens(&self) -> u64 {
        self.block.value
    }

    /// All blocks.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Blocks that somebody holds.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Blocks that nobody holds.
    #[inline]
    pub fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// Takes blocks that are known to be free.
    #[inline]
    pub(crate) fn take(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.free(), "L4: no more blocks than the cache has");
        self.used += blocks;
    }

    /// Gives blocks back.
    #[inline]
    pub(crate) fn give(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.used, "L4: no more blocks freed than taken");
        self.used -= blocks;
    }
}

/// How many of a set of contexts, all growing by one token a tick, stand where in their last block.
///
/// A context x needs a new block for its next token iff x ≡ 0 (mod m). All members grow together, so a member's
/// residue relative to the tick never changes, and one counter per residue answers for any number of ticks at once.
#[derive(Clone, Debug)]
pub struct Residues {
    modulus: Divisor,
    counts: Vec<u64>,
    total: u64,
    /// The place of those who need a block at the next tick: minus the current tick, modulo m.
    next: usize,
}

impl Residues {
    /// No member, modulo `modulus`.
    pub fn new(modulus: u64) -> Residues {
        Residues { modulus: Divisor::new(modulus), counts: vec![0; modulus as usize], total: 0, next: 0 }
    }

    #[inline]
    fn place(&self, context: u64) -> usize {
        self.modulus.rest(context + self.next as u64) as usize
    }

    /// A context joins.
    #[inline]
    pub fn join(&mut self, context: u64) {
        let place = self.place(context);
        self.counts[place] += 1;
        self.total += 1;
    }

    /// A context that is `context` tokens long now leaves.
    #[inline]
    pub fn leave(&mut self, context: u64) {
        let place = self.place(context);
        self.counts[place] -= 1;
        self.total -= 1;
    }

    /// ⌈context / m⌉.
    #[inline]
    pub fn ceiling(&self, context: u64) -> u64 {
        self.modulus.quotient(context + (self.modulus.value - 1))
    }

    /// All members grow by `ticks` tokens.
    #[inline]
    pub fn advance(&mut self, ticks: u64) {
        let behind = self.modulus.rest(ticks);
        self.next = self.modulus.rest(self.next as u64 + self.modulus.value - behind) as usize;
    }

    /// The blocks that the next tick takes.
    #[inline]
    pub fn next_growth(&self) -> u64 {
        self.counts[self.next]
    }

    /// No more blocks than this are taken by the next `ticks` ticks.
    #[inline]
    pub fn growth_at_most(&self, ticks: u64) -> u64 {
        (self.modulus.quotient(ticks) + 1).saturating_mul(self.total)
    }

    /// The ticks after the next one over which no block is taken.
    pub fn quiet_ticks(&self) -> u64 {
        if self.total == 0 {
            return u64::MAX;
        }
        let places = self.counts.len();
        (1..=places).find(|back| self.counts[(self.next + places - back) % places] > 0).unwrap_or(places) as u64 - 1
    }

    /// The blocks that the next `ticks` ticks take in all.
    #[inline]
    pub fn growth(&self, ticks: u64) -> u64 {
        let whole = self.modulus.quotient(ticks) * self.total;
        // The places that come next lie below one another, from `next` downwards and round.
        let rest = self.modulus.rest(ticks) as usize;
        let (up_to_next, beyond) = self.counts.split_at(self.next + 1);
        let below = rest.min(up_to_next.len());
        let nearest = &up_to_next[up_to_next.len() - below..];
        let farthest = &beyond[beyond.len() - (rest - below)..];
        whole + nearest.iter().sum::<u64>() + farthest.iter().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn growth_is_the_sum_over_members(
            modulus in 1_u64..20,
            contexts in prop::collection::vec(0_u64..100, 0..10),
            before in 0_u64..50,
            ticks in 0_u64..60,
        ) {
            let mut residues = Residues::new(modulus);
            for &context in &contexts {
                residues.join(context);
            }
            residues.advance(before);
            let blocks = |tokens: u64| tokens.div_ceil(modulus);
            let expected: u64 = contexts
                .iter()
                .map(|context| blocks(context + before + ticks) - blocks(context + before))
                .sum();
            prop_assert_eq!(residues.growth(ticks), expected);
            prop_assert_eq!(residues.growth(1), residues.next_growth());
            prop_assert!(residues.growth(ticks) <= residues.growth_at_most(ticks));
            if residues.quiet_ticks() < u64::MAX {
                let quiet = residues.quiet_ticks();
                prop_assert_eq!(residues.growth(1 + quiet), residues.next_growth());
                prop_assert!(residues.growth(2 + quiet) > residues.next_growth());
            }
            for &context in &contexts {
                residues.leave(context + before);
            }
            prop_assert_eq!(residues.growth(ticks), 0);
        }
    }
}
