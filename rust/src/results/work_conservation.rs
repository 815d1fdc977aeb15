//! Audit of work conservation: work that the scheduler could have done but did not.
//!
//! The audit of li2025 (2.6), for any policy. For each iteration it records the loaded tokens, and whether another
//! token could have been added within the sequence limit and the free blocks. The table keeps every load separately,
//! so that readers can apply any budget.

use std::collections::BTreeMap;

/// The limit that prevented loading another token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Only the policy: another token would have fitted.
    Policy,
    /// The sequence limit.
    MaxSeqs,
    /// The free blocks, as the policy counts them at admission (rule R11).
    Blocks,
    /// No request had another token to load.
    Work,
}

/// Iterations with the same number of loaded tokens, by the limit that prevented another token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// All iterations.
    pub iterations: u64,
    /// Another token could have been added.
    pub broken: u64,
    /// The sequence limit was reached.
    pub cap: u64,
    /// The free blocks were used up.
    pub memory: u64,
}

/// Loads below this are in a vector.
const DENSE: u64 = 1 << 12;

/// Iterations by load and limit.
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

    /// Returns the entry of a load that is not in the vector yet.
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

    /// Returns every load that occurred, in ascending order.
    pub fn loads(&self) -> impl Iterator<Item = (u64, Load)> {
        let dense = self.dense.iter().enumerate().map(|(tokens, &load)| (tokens as u64, load));
        let sparse = self.sparse.iter().map(|(&tokens, &load)| (tokens, load));
        dense.chain(sparse).filter(|(_, load)| load.iterations > 0)
    }

    /// Iterations that loaded fewer tokens than `budget` although another token could have been added.
    pub(crate) fn broken(&self, budget: u64) -> u64 {
        self.loads().take_while(|&(tokens, _)| tokens < budget).map(|(_, load)| load.broken).sum()
    }
}
