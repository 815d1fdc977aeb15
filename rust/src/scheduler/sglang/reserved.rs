//! SGLang's estimate of the memory that running requests still need.
//!
//! The estimate is a sum of doubles over all running requests, from left to right. Computing it in every pass would
//! dominate the run time. So the sum is bounded by a whole number that is updated incrementally. The exact sum is
//! computed only if the bounds do not decide.

use std::collections::BTreeSet;

use crate::request::Place;

/// Maximum number of reserved tokens per output.
pub(super) const MOST_RESERVED: u64 = 4096;

/// Σ min(remaining output, [`MOST_RESERVED`]) over running requests. All of them emit one token per decode iteration.
/// The end of a request, as a tick of these iterations, therefore stays constant.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    near: u64,
    sum_of_ends: u64,
    /// Requests with more remaining output, by their ends.
    far: BTreeSet<(u64, u32)>,
    /// End of each running request, by place.
    ends: Vec<u64>,
}

impl Outstanding {
    pub(super) fn join(&mut self, place: Place, end: u64, tick: u64) {
        if place.index() >= self.ends.len() {
            self.ends.resize(place.index() + 1, 0);
        }
        self.ends[place.index()] = end;
        if end - tick > MOST_RESERVED {
            self.far.insert((end, place.0));
        } else {
            self.near += 1;
            self.sum_of_ends += end;
        }
    }

    pub(super) fn leave(&mut self, place: Place) {
        let end = self.ends[place.index()];
        if self.far.is_empty() || !self.far.remove(&(end, place.0)) {
            self.near -= 1;
            self.sum_of_ends -= end;
        }
    }

    /// The sum at a tick.
    pub(super) fn tokens(&mut self, tick: u64) -> u64 {
        while let Some(&(end, _)) = self.far.first().filter(|(end, _)| end - tick <= MOST_RESERVED) {
            self.far.pop_first();
            self.near += 1;
            self.sum_of_ends += end;
        }
        self.sum_of_ends - self.near * tick + self.far.len() as u64 * MOST_RESERVED
    }
}

/// Tokens reserved in a pass, for running and picked requests.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// Decodes mixed into the step.
    along: u64,
    /// Number of running requests, their remaining output, and the reserved share of it.
    rows: u64,
    outstanding: u64,
    ratio: f64,
    added: Vec<u64>,
    sum_of_added: u64,
    exact: Option<f64>,
}

impl Reserved {
    /// Starts a pass without picked requests.
    pub(super) fn open(&mut self, along: u64, rows: u64, outstanding: u64, ratio: f64) {
        self.added.clear();
        let added = std::mem::take(&mut self.added);
        *self = Reserved { along, rows, outstanding, ratio, added, sum_of_added: 0, exact: None };
    }

    pub(super) fn add(&mut self, tokens: u64) {
        self.added.push(tokens);
        self.sum_of_added += tokens;
        if let Some(exact) = &mut self.exact {
            *exact += tokens as f64;
        }
    }

    /// Lower and upper bound of the remaining tokens of `available`.
    fn bounds(&self, available: i64) -> (f64, f64) {
        let total = self.outstanding as f64 * self.ratio + (self.along + self.sum_of_added) as f64;
        let left = available as f64 - total;
        if self.rows == 0 || self.ratio == 1.0 {
            // Whole numbers: no rounding.
            return (left, left);
        }
        // Every product and every addition is off by at most half a unit in the last place of the total.
        let operations = (2 * self.rows + self.added.len() as u64 + 8) as f64;
        let off = operations * f64::EPSILON * total + f64::EPSILON * available as f64;
        (left - off, left + off)
    }

    fn exactly(&mut self, available: i64, sum: impl FnOnce(f64) -> f64) -> f64 {
        let (ratio, along, added) = (self.ratio, self.along as f64, &self.added);
        let total = self
            .exact
            .get_or_insert_with(|| added.iter().fold(along + sum(ratio), |total, &tokens| total + tokens as f64));
        available as f64 - *total
    }

    /// Whether more than `least` of `available` tokens remain; `sum` computes the exact sum.
    pub(super) fn leaves_more_than(&mut self, least: u64, available: i64, sum: impl FnOnce(f64) -> f64) -> bool {
        // The share is at most 1, and rounding never passes a whole number. So this is an upper bound.
        debug_assert!(self.ratio <= 1.0, "the reserved share is at most 1");
        let most = self.outstanding + self.along + self.sum_of_added;
        if i128::from(available) > i128::from(least) + i128::from(most) {
            return true;
        }
        let (low, high) = self.bounds(available);
        if low > least as f64 || high <= least as f64 {
            return low > least as f64;
        }
        self.exactly(available, sum) > least as f64
    }

    /// The remaining tokens, truncated.
    pub(super) fn left(&mut self, available: i64, sum: impl FnOnce(f64) -> f64) -> i64 {
        let (low, high) = self.bounds(available);
        let left = if low.trunc() == high.trunc() { low } else { self.exactly(available, sum) };
        left as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decisions_are_those_of_the_sum_from_left_to_right(
            rows in prop::collection::vec((100_u64..9000, any::<bool>()), 0..60),
            (begun, elapsed) in (0_u64..1000, 0_u64..=100),
            ratio in prop_oneof![Just(1.0), (0_u32..=700).prop_map(|share| f64::from(share) / 1000.0), 0.0..1.0_f64],
            (along, added) in (0_u64..9, prop::collection::vec(1_u64..5000, 0..5)),
            (available, near) in (0_i64..400_000, -2_i64..3),
        ) {
            let mut outstanding = Outstanding::default();
            for (place, &(row, _)) in rows.iter().enumerate() {
                outstanding.join(Place(place as u32), begun + row, begun);
            }
            prop_assert_eq!(outstanding.tokens(begun), rows.iter().map(|row| row.0.min(MOST_RESERVED)).sum::<u64>());
            for (place, _) in rows.iter().enumerate().filter(|(_, row)| !row.1) {
                outstanding.leave(Place(place as u32));
            }
            let here = rows.iter().filter(|row| row.1).map(|row| (row.0 - elapsed).min(MOST_RESERVED));
            let here: Vec<u64> = here.collect();
            let tokens = outstanding.tokens(begun + elapsed);
            prop_assert_eq!(tokens, here.iter().sum::<u64>());
            let sum = |ratio: f64| here.iter().fold(0.0, |sum, &row| sum + row as f64 * ratio);
            let mut reserved = Reserved::default();
            reserved.open(along, here.len() as u64, tokens, ratio);
            let mut total = along as f64 + sum(ratio);
            for &tokens in &added {
                // The result does not depend on queries between two additions.
                prop_assert_eq!(reserved.leaves_more_than(0, available, sum), available as f64 - total > 0.0);
                reserved.add(tokens);
                total += tokens as f64;
            }
            let left = available as f64 - total;
            let least = (left as i64 + near).max(0) as u64;
            prop_assert_eq!(reserved.leaves_more_than(least, available, sum), left > least as f64);
            prop_assert_eq!(reserved.left(available, sum), left.trunc() as i64);
        }
    }
}
