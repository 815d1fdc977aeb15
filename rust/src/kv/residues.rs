//! Counts of contexts that grow together, by the time when they need the next block.

/// A divisor that is usually a power of two, for which a shift replaces the slower division.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    pub(super) value: u64,
    pub(super) minus_one: u64,
    shift: Option<u32>,
}

impl Divisor {
    pub(super) fn new(value: u64) -> Divisor {
        Divisor { value, minus_one: value - 1, shift: value.is_power_of_two().then(|| value.trailing_zeros()) }
    }

    #[inline]
    pub(super) fn quotient(self, number: u64) -> u64 {
        match self.shift {
            Some(shift) => number >> shift,
            None => number / self.value,
        }
    }

    #[inline]
    pub(super) fn rest(self, number: u64) -> u64 {
        match self.shift {
            Some(_) => number & self.minus_one,
            None => number % self.value,
        }
    }

    /// Subtracts `steps` from a remainder, modulo the divisor.
    #[inline]
    fn below(self, rest: u64, steps: u64) -> u64 {
        match self.shift {
            // 2^64 is a multiple of the divisor.
            Some(_) => rest.wrapping_sub(steps) & self.minus_one,
            None => (rest + self.value - steps % self.value) % self.value,
        }
    }
}

/// Counts of contexts, all growing by one token per tick, by their position in their last block.
///
/// A context of x tokens needs a new block for its next token iff x ≡ 0 (mod m). All members grow together, so their
/// residues relative to the tick are constant, and one counter per residue serves any number of ticks.
#[derive(Clone, Debug)]
pub(crate) struct Residues {
    modulus: Divisor,
    counts: Vec<u64>,
    total: u64,
    /// The residue class that needs a block at the next tick: minus the current tick, modulo m.
    next: usize,
}

impl Residues {
    /// Builds an empty set with modulus `modulus`.
    pub(crate) fn new(modulus: u64) -> Residues {
        Residues { modulus: Divisor::new(modulus), counts: vec![0; modulus as usize], total: 0, next: 0 }
    }

    #[inline]
    fn place(&self, context: u64) -> usize {
        self.modulus.rest(context + self.next as u64) as usize
    }

    /// Adds a context.
    #[inline]
    pub(crate) fn join(&mut self, context: u64) {
        let place = self.place(context);
        self.counts[place] += 1;
        self.total += 1;
    }

    /// Removes a context that is now `context` tokens long.
    #[inline]
    pub(crate) fn leave(&mut self, context: u64) {
        let place = self.place(context);
        self.counts[place] -= 1;
        self.total -= 1;
    }

    /// ⌈context / m⌉.
    #[inline]
    pub(crate) fn ceiling(&self, context: u64) -> u64 {
        self.modulus.quotient(context + self.modulus.minus_one)
    }

    /// Grows all members by `ticks` tokens.
    #[inline]
    pub(crate) fn advance(&mut self, ticks: u64) {
        self.next = self.modulus.below(self.next as u64, ticks) as usize;
    }

    /// Returns the blocks that the next tick takes.
    #[inline]
    pub(crate) fn next_growth(&self) -> u64 {
        self.counts[self.next]
    }

    /// Returns an upper bound of the blocks that the next `ticks` ticks take.
    #[inline]
    pub(crate) fn growth_at_most(&self, ticks: u64) -> u64 {
        (self.modulus.quotient(ticks) + 1).saturating_mul(self.total)
    }

    /// Returns the number of ticks after the next one that take no block.
    pub(crate) fn quiet_ticks(&self) -> u64 {
        if self.total == 0 {
            return u64::MAX;
        }
        let places = self.counts.len();
        (1..=places).find(|steps_back| self.counts[(self.next + places - steps_back) % places] > 0).unwrap_or(places)
            as u64
            - 1
    }

    /// Returns the total blocks that the next `ticks` ticks take.
    #[inline]
    pub(crate) fn growth(&self, ticks: u64) -> u64 {
        let whole = self.modulus.quotient(ticks) * self.total;
        // The next residue classes are at descending places from `next`, with wraparound.
        let rest = self.modulus.rest(ticks) as usize;
        let all = self.counts.len();
        if 2 * rest <= all {
            return whole + self.members_from(self.next, rest);
        }
        let wrapped = if rest > self.next { self.next + all - rest } else { self.next - rest };
        whole + self.total - self.members_from(wrapped, all - rest)
    }

    /// Returns the members in `places` places, descending from `place` with wraparound.
    fn members_from(&self, place: usize, places: usize) -> u64 {
        let down = &self.counts[..place + 1];
        match down.len().checked_sub(places) {
            Some(first) => down[first..].iter().sum(),
            None => {
                let round = self.counts.len() - (places - down.len());
                down.iter().sum::<u64>() + self.counts[round..].iter().sum::<u64>()
            }
        }
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
