//! Means and percentiles of a column by group, from values in parts.
//!
//! Means come from integer sums, so they do not depend on the order of rows or the number of threads. Percentiles are
//! exact. A small number of values is stored. A larger number is counted by leading bits, which preserve the order of
//! nonnegative doubles, and another pass over the parts collects the values around the percentiles.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::seconds;

/// Statistics of one group; NaN if the group has no values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Arithmetic mean: the sum in to_integer attoseconds, divided as integers.
    pub mean: f64,
    /// Linear percentiles at [`PERCENTS`].
    pub percentiles: [f64; PERCENTS.len()],
    /// The largest value.
    pub max: f64,
}

/// Reported percentiles, ascending.
pub const PERCENTS: [u32; 4] = [50, 90, 95, 99];

/// Maximum number of stored values: 32 MiB.
const MAX_STORED: usize = 1 << 22;

/// Maximum number of counters, with the same memory.
const MAX_COUNTS: usize = 1 << 22;

/// Bits of a nonnegative double.
const BITS: u32 = 63;

/// Statistics of groups during the passes over their values. [`ByGroup::end_pass`] returns whether another pass is
/// needed.
#[derive(Clone, Debug)]
pub struct ByGroup {
    groups: Vec<Group>,
    /// Maximum numbers of stored values and of counters.
    room: (usize, usize),
    limits: Limits,
    /// Whether the first pass is complete.
    is_counted: bool,
}

/// Number of stored values per range, and the bits by which further values are counted.
#[derive(Clone, Copy, Debug)]
struct Limits {
    stored: usize,
    bits: u32,
}

#[derive(Clone, Debug)]
struct Group {
    count: u64,
    sum: u128,
    max: f64,
    /// Disjoint ranges of wanted values, ascending.
    ranges: Vec<Range>,
    /// Known values by rank.
    known: BTreeMap<u64, f64>,
}

/// A range of doubles with common leading bits.
#[derive(Clone, Debug)]
struct Range {
    /// The least of them, as bits.
    first: u64,
    /// Number of remaining bits.
    free: u32,
    /// Number of values below the range.
    below: u64,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Stored(Vec<f64>),
    /// Counts by the following bits, without the given number of last bits.
    Counted(Vec<u64>, u32),
}

impl ByGroup {
    /// Builds empty statistics of `group_count` groups.
    pub fn new(group_count: usize) -> ByGroup {
        ByGroup::with_room(group_count, (MAX_STORED, MAX_COUNTS))
    }

    fn with_room(group_count: usize, room: (usize, usize)) -> ByGroup {
        let ranges = vec![Range::new(0, BITS, 0)];
        let group = Group { count: 0, sum: 0, max: f64::NEG_INFINITY, ranges, known: BTreeMap::new() };
        let limits = Limits::of(group_count, room);
        ByGroup { groups: vec![group; group_count], room, limits, is_counted: false }
    }

    /// Adds values (nonnegative seconds; NaN is absent) and the group of each.
    pub fn add(&mut self, values: &[f64], groups: &[u32]) {
        if let [group] = &mut self.groups[..] {
            group.make_room(values.len(), self.limits);
        }
        for (&value, &group) in values.iter().zip(groups) {
            if let Some(group) = self.groups.get_mut(group as usize).filter(|_| !value.is_nan()) {
                if !self.is_counted {
                    group.count += 1;
                    // Each double is rounded to the nearest attosecond; a sum of 2^32 values below 2^63 s fits.
                    group.sum = group.sum.saturating_add(to_integer(value * 1e18));
                    group.max = group.max.max(value);
                }
                group.add(value, self.limits);
            }
        }
    }

    /// Ends a pass. Returns whether another pass is needed.
    pub fn end_pass(&mut self) -> bool {
        self.is_counted = true;
        self.groups.iter_mut().for_each(Group::narrow);
        let ranges: usize = self.groups.iter().map(|group| group.ranges.len()).sum();
        self.limits = Limits::of(ranges, self.room);
        ranges > 0
    }

    /// Returns the statistics of each group, after the last pass.
    pub fn statistics(&self) -> Vec<Statistics> {
        self.groups.iter().map(Group::statistics).collect()
    }
}

impl Limits {
    /// Limits of each of `ranges` ranges.
    fn of(ranges: usize, (stored, counts): (usize, usize)) -> Limits {
        let share = |room: usize| (room / ranges.max(1)).max(8);
        Limits { stored: share(stored), bits: share(counts).ilog2() }
    }
}

impl Group {
    #[inline]
    fn add(&mut self, value: f64, limits: Limits) {
        let bits = (value + 0.0).to_bits(); // a zero has no sign
        if let [range] = &mut self.ranges[..] {
            return range.add(bits, limits);
        }
        let after = self.ranges.partition_point(|range| range.first <= bits);
        if let Some(range) = after.checked_sub(1).and_then(|place| self.ranges.get_mut(place)) {
            range.add(bits, limits);
        }
    }

    /// Reserves room for further values while there is only one range.
    fn make_room(&mut self, values: usize, limits: Limits) {
        if let [Range { free: BITS, values: Values::Stored(stored), .. }] = &mut self.ranges[..] {
            stored.reserve(values.min(limits.stored - stored.len()));
        }
    }

    /// Ranks of the values that determine the percentiles.
    fn places(&self) -> BTreeSet<u64> {
        let Some(last_rank) = self.count.checked_sub(1) else { return BTreeSet::new() };
        PERCENTS
            .iter()
            .flat_map(|&percent| {
                let place = last_rank * u64::from(percent);
                [place / 100, place.div_ceil(100)]
            })
            .collect()
    }

    /// Extracts known values and narrows the ranges of the remaining ranks.
    fn narrow(&mut self) {
        let mut ranges = std::mem::take(&mut self.ranges).into_iter().peekable();
        let mut places = self.places().into_iter().filter(|place| !self.known.contains_key(place)).collect::<Vec<_>>();
        let (mut known, mut narrower) = (Vec::new(), Vec::<Range>::new());
        while let Some(range) = ranges.next() {
            let end = ranges.peek().map_or(u64::MAX, |next| next.below);
            let rest = places.split_off(places.partition_point(|&place| place < end));
            range.read(&places, &mut known, &mut narrower);
            places = rest;
        }
        self.known.extend(known);
        self.ranges = narrower;
    }

    fn statistics(&self) -> Statistics {
        if self.count == 0 {
            return Statistics { mean: f64::NAN, percentiles: [f64::NAN; PERCENTS.len()], max: f64::NAN };
        }
        let at = |place: u64| self.known.get(&place).copied().unwrap_or(f64::NAN);
        // At rank (n − 1) · percent / 100 of the sorted values, interpolated linearly.
        let percentiles = PERCENTS.map(|percent| {
            let place = (self.count - 1) * u64::from(percent);
            let (lower, between) = (at(place / 100), place % 100);
            if between == 0 { lower } else { lower + (at(place / 100 + 1) - lower) * (between as f64 / 100.0) }
        });
        Statistics { mean: seconds(self.sum / u128::from(self.count)), percentiles, max: self.max }
    }
}

impl Range {
    fn new(first: u64, free: u32, below: u64) -> Range {
        Range { first, free, below, values: Values::Stored(Vec::new()) }
    }

    #[inline]
    fn add(&mut self, bits: u64, limits: Limits) {
        let offset = bits.wrapping_sub(self.first);
        if offset >> self.free != 0 {
            return;
        }
        match &mut self.values {
            Values::Stored(stored) if stored.len() < limits.stored => stored.push(f64::from_bits(bits)),
            Values::Stored(_) => self.count(bits, limits),
            Values::Counted(counts, shift) => counts[(offset >> *shift) as usize] += 1,
        }
    }

    /// Counts the stored values and a further one.
    fn count(&mut self, bits: u64, limits: Limits) {
        let counted = self.free.min(limits.bits);
        let Values::Stored(stored) =
            std::mem::replace(&mut self.values, Values::Counted(vec![0; 1 << counted], self.free - counted))
        else {
            return;
        };
        stored.into_iter().map(f64::to_bits).chain([bits]).for_each(|bits| self.add(bits, limits));
    }

    /// Returns the values at these ascending ranks, or the narrower ranges that contain them.
    fn read(self, places: &[u64], known: &mut Vec<(u64, f64)>, narrower: &mut Vec<Range>) {
        match self.values {
            Values::Stored(mut stored) => {
                // Values before a rank are not inspected for the next one.
                let (mut rest, mut first) = (&mut stored[..], self.below);
                for &place in places {
                    let (_, &mut value, above) = rest.select_nth_unstable_by((place - first) as usize, f64::total_cmp);
                    known.push((place, value));
                    (rest, first) = (above, place + 1);
                }
            }
            Values::Counted(counts, shift) => {
                let (mut below, mut places) = (self.below, places.iter().peekable());
                for (bin, count) in (0..).zip(counts) {
                    let first = self.first + (bin << shift);
                    let is_inside = |&&place: &&u64| place < below + count;
                    if shift > 0 && places.peek().is_some_and(is_inside) {
                        narrower.push(Range::new(first, shift, below));
                    }
                    while let Some(&place) = places.next_if(is_inside) {
                        known.extend((shift == 0).then_some((place, f64::from_bits(first))));
                    }
                    below += count;
                }
            }
        }
    }
}

/// Rounds a nonnegative number down.
#[inline]
fn to_integer(number: f64) -> u128 {
    // Most numbers fit 64 bits, for which there is an instruction.
    if number < u64::MAX as f64 { u128::from(number as u64) } else { number as u128 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_group(values: &[f64], groups: &[u32], group_count: usize) -> Vec<Statistics> {
        in_parts(ByGroup::new(group_count), values, groups, values.len().max(1))
    }

    fn in_parts(mut all: ByGroup, values: &[f64], groups: &[u32], part: usize) -> Vec<Statistics> {
        loop {
            values.chunks(part).zip(groups.chunks(part)).for_each(|(values, groups)| all.add(values, groups));
            if !all.end_pass() {
                return all.statistics();
            }
        }
    }

    #[test]
    fn percentiles_are_linear_between_neighbors() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let of = by_group(&values, &[0; 11], 1)[0];
        assert_eq!(of.percentiles, [5.0, 9.0, 9.5, 9.9]);
        assert_eq!((of.mean, of.max), (5.0, 10.0));
    }

    #[test]
    fn percentiles_match_the_sorted_values() {
        for rows in 1..30_u32 {
            let values: Vec<f64> = (0..rows).map(|row| f64::from(row * 7 % rows) * 0.1).collect();
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let of = by_group(&values, &vec![0; rows as usize], 1)[0];
            for (percent, percentile) in PERCENTS.into_iter().zip(of.percentiles) {
                let place = f64::from((rows - 1) * percent) / 100.0;
                let (lower, upper) = (sorted[place as usize], sorted[place.ceil() as usize]);
                assert!((percentile - (lower + (upper - lower) * place.fract())).abs() < 1e-12, "p{percent} of {rows}");
            }
        }
    }

    #[test]
    fn groups_are_separate_and_absent_values_are_ignored() {
        let of = by_group(&[1.0, f64::NAN, 3.0, 5.0], &[0, 0, 1, 1], 3);
        assert_eq!((of[0].mean, of[1].mean), (1.0, 4.0));
        assert!(of[2].mean.is_nan() && of[2].max.is_nan());
    }

    proptest! {
        #[test]
        fn small_limits_and_many_parts_change_nothing(
            values in prop::collection::vec(
                prop_oneof![Just(f64::NAN), Just(0.0), Just(-0.0), (0_u32..9).prop_map(f64::from), 0.0..1e9_f64, 1.0..1.0001_f64],
                0..200,
            ),
            groups in prop::collection::vec(0_u32..4, 200),
            stored in 0_usize..100,
            counts in 0_usize..3000,
            part in 1_usize..70,
        ) {
            let groups = &groups[..values.len()];
            let to_integer = by_group(&values, groups, 3);
            let limited = in_parts(ByGroup::with_room(3, (stored, counts)), &values, groups, part);
            let bits = |all: &[Statistics]| -> Vec<Vec<u64>> {
                let of = |group: &Statistics| [&[group.mean, group.max][..], &group.percentiles].concat();
                all.iter().map(|group| of(group).into_iter().map(|value| (value + 0.0).to_bits()).collect()).collect()
            };
            prop_assert_eq!(bits(&limited), bits(&to_integer));
        }
    }
}
