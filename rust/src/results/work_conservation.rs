//! The audit of work conservation: work that the scheduler left undone and could have done.
//!
//! The audit of work conservation, li2025 (2.6), for any policy: of each iteration it is known how many tokens it loaded
//! and whether another one could have been added without exceeding the sequence cap or the free blocks. Which budget it
//! is held against is the reader's choice, so the table keeps every load apart.

use std::collections::BTreeMap;

/// What stood in the way of loading another token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nothing: the policy did not want to.
    Policy,
    /// The cap on sequences.
    MaxSeqs,
    /// The free blocks, as the policy counts them at admission (rule 11).
    Blocks,
    /// No request had another token to load.
    Work,
}

/// Iterations that loaded the same number of tokens, by what stood in the way of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// All of them.
    pub iterations: u64,
    /// Another token could have been added.
    pub broken: u64,
    /// The sequence cap bound.
    pub cap: u64,
    /// The free blocks bound.
    pub memory: u64,
}

/// Loads up to which the table is a vector.
const DENSE: u64 = 1 << 12;

/// How often which load was bound by what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    dense: Vec<Load>,
    sparse: BTreeMap<u64, Load>,
}

impl Work {
    #[inline(always)]
    pub(crate) fn note(&mut self, tokens: u64, bound: Bound, iterations: u64) {
        let load = match self.dense.get_mut(tokens as usize) {
            Some(load) => load,
            None if iterations == 0 => return,
            None => self.new_load(tokens),
        };
        load.iterations += iterations;
        match bound {
            Bound::Policy => load.broken += iterations,
            Bound::MaxSeqs => load.cap += iterations,
            Bound::Blocks => load.memory += iterations,
            Bound::Work => {}
        }
    }

    /// A load beyond the vector.
    #[inline(never)]
    fn new_load(&mut self, tokens: u64) -> &mut Load {
        if tokens >= DENSE {
            return self.sparse.entry(tokens).or_default();
        }
        self.dense.resize(tokens as usize + 1, Load::default());
        &mut self.dense[tokens as usize]
    }

    /// Adds the iterations of another table.
    pub(crate) fn merge(&mut self, other: &Work) {
        for (tokens, load) in other.loads() {
            let bounds = [(Bound::Policy, load.broken), (Bound::MaxSeqs, load.cap), (Bound::Blocks, load.memory)];
            let of_work = load.iterations - load.broken - load.cap - load.memory;
            for (bound, iterations) in bounds.into_iter().chain([(Bound::Work, of_work)]) {
                self.note(tokens, bound, iterations);
            }
        }
    }

    /// Every load that occurred, in ascending order.
    pub fn loads(&self) -> impl Iterator<Item = (u64, Load)> {
        let dense = self.dense.iter().enumerate().map(|(tokens, &load)| (tokens as u64, load));
        let sparse = self.sparse.iter().map(|(&tokens, &load)| (tokens, load));
        dense.chain(sparse).filter(|(_, load)| load.iterations > 0)
    }

    /// Iterations that loaded fewer tokens than `budget` although another could have been added.
    pub(crate) fn broken(&self, budget: u64) -> u64 {
        self.loads().take_while(|&(tokens, _)| tokens < budget).map(|(_, load)| load.broken).sum()
    }
}
