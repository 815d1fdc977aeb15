//! Exact histogram of the gaps between tokens.
//!
//! Bins are the same in every run: 128 per doubling, so a bin is at most 1/128 as wide as its lower edge. The gaps of
//! a stretch are an arithmetic progression, which is counted per bin, not per gap.

use crate::clock::{Span, product};
use crate::error::{Error, Result};

/// Counts of spans by bin, with their exact number, sum and maximum.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Index of the first bin of `counts`, the first bin of an octave. Octaves are stored completely.
    lowest: usize,
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    longest: Span,
    /// Limits in ascending order, each with the exact number of spans at or below it.
    limits: Vec<(Span, u64)>,
}

/// Histograms are equal regardless of the range of stored bins.
impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        (self.count, self.sum, self.longest, &self.limits) == (other.count, other.sum, other.longest, &other.limits)
            && self.bins().eq(other.bins())
    }
}

/// Bins per doubling.
const OCTAVE: usize = 128;

/// Returns the bin of a span: its leading 8 bits and their position.
#[inline]
fn bin(span: u128) -> usize {
    let bits = 128 - span.leading_zeros() as usize;
    if bits <= 8 {
        return span as usize;
    }
    let shift = bits - 8;
    (shift << 7) + (span >> shift) as usize
}

/// Like `bin`, for a span that fits 64 bits.
fn short_bin(span: u64) -> usize {
    let shift = 56_u32.saturating_sub((span | 1).leading_zeros());
    ((shift as usize) << 7) + (span >> shift) as usize
}

#[cold]
fn sum_overflow() -> Error {
    Error::overflow("the sum of all gaps")
}

/// Returns the inclusive lower edge of a bin. Its upper edge is the next bin's lower one.
fn lower_edge(bin: usize) -> u128 {
    if bin < 256 {
        return bin as u128;
    }
    let shift = (bin >> 7) - 1;
    let leading = (bin & 127) as u128 + 128;
    // The last bin ends at the end of 128 bits.
    if shift > 120 { u128::MAX } else { leading << shift }
}

impl Histogram {
    /// An empty histogram that also counts the spans at or below each of these limits.
    pub(crate) fn with_limits(limits: &[Span]) -> Histogram {
        let mut limits: Vec<(Span, u64)> = limits.iter().map(|&limit| (limit, 0)).collect();
        limits.sort_unstable();
        limits.dedup();
        Histogram { limits, ..Histogram::default() }
    }

    /// Counts a progression like [`Histogram::add_progression`], and against the limits.
    pub(crate) fn add_with_limits(&mut self, first: Span, growth: i128, count: u64, times: u64) -> Result<()> {
        self.add_progression(first, growth, count, times)?;
        let travel = growth.unsigned_abs() * u128::from(count - 1);
        // The spans in ascending order, which may be the reverse.
        let least = if growth < 0 { first.0 - travel } else { first.0 };
        for (limit, below) in &mut self.limits {
            let within = match limit.0.checked_sub(least) {
                None => 0,
                Some(room) => (room.checked_div(growth.unsigned_abs()).unwrap_or(u128::MAX)).saturating_add(1),
            };
            *below += within.min(u128::from(count)) as u64 * times;
        }
        Ok(())
    }

    /// Counts a span `times` times.
    #[inline(always)]
    pub(crate) fn add(&mut self, span: Span, times: u64) -> Result<()> {
        // Most spans are below 18 s and fit 64 bits.
        let Ok(short) = u64::try_from(span.0) else { return self.add_wide(span, times) };
        let sum = u128::from(short) * u128::from(times);
        self.sum = self.sum.checked_add(sum).ok_or_else(sum_overflow)?;
        self.count += times;
        self.note_longest(span);
        *self.bin_mut(short_bin(short)) += times;
        Ok(())
    }

    /// Updates the maximum, which seldom changes.
    fn note_longest(&mut self, span: Span) {
        if self.longest < span {
            self.set_longest(span);
        }
    }

    #[cold]
    fn set_longest(&mut self, span: Span) {
        self.longest = span;
    }

    fn add_wide(&mut self, span: Span, times: u64) -> Result<()> {
        self.longest = self.longest.max(span);
        self.total(span.0, 1, times)?;
        *self.bin_mut(bin(span.0)) += times;
        Ok(())
    }

    /// Counts `first, first + growth, …` (`count` spans), each `times` times.
    #[inline(always)]
    pub(crate) fn add_progression(&mut self, first: Span, growth: i128, count: u64, times: u64) -> Result<()> {
        if count == 1 {
            return self.add(first, times);
        }
        if let (Ok(low), Ok(step)) = (u64::try_from(first.0), u64::try_from(growth))
            && let Some(high) = step.checked_mul(count - 1).and_then(|travel| low.checked_add(travel))
            && (count | times) >> 31 == 0
        {
            return self.add_short_progression(low, high, step, count, times);
        }
        self.add_wide_progression(first, growth, count, times)
    }

    /// Counts an ascending progression from `low` to `high` of fewer than 2^62 members.
    #[inline(always)]
    fn add_short_progression(&mut self, low: u64, high: u64, step: u64, count: u64, times: u64) -> Result<()> {
        let all = count * times;
        let twice = (u128::from(low) + u128::from(high)) * u128::from(all);
        self.sum = self.sum.checked_add(twice / 2).ok_or_else(sum_overflow)?;
        self.count += all;
        self.note_longest(Span(u128::from(high)));
        let (lowest, highest) = (short_bin(low), short_bin(high));
        if lowest == highest {
            *self.bin_mut(lowest) += all;
        } else {
            // Room for the first and the last bin includes all bins between.
            self.bin_mut(highest);
            self.bin_mut(lowest);
            self.fill(low, step, count, times);
        }
        Ok(())
    }

    fn add_wide_progression(&mut self, first: Span, growth: i128, count: u64, times: u64) -> Result<()> {
        if growth == 0 {
            let all = count.checked_mul(times).ok_or_else(|| Error::overflow("a count of gaps"))?;
            return self.add(first, all);
        }
        let travel = product(growth.unsigned_abs(), u128::from(count - 1))?;
        // A descending progression is an ascending one in reverse.
        let (low, high) = if growth > 0 {
            let high = first.0.checked_add(travel).ok_or_else(|| Error::overflow("a gap"))?;
            (first.0, high)
        } else {
            let low = first.0.checked_sub(travel).ok_or_else(|| Error::overflow("a gap"))?;
            (low, first.0)
        };
        let step = growth.unsigned_abs();
        // Σ = count · (low + high) / 2; the product is even, and the sum includes it `times` times.
        let sum = product(low.checked_add(high).ok_or_else(|| Error::overflow("a gap"))?, u128::from(count))? / 2;
        self.total(sum, count, times)?;
        self.longest = self.longest.max(Span(high));
        let (mut value, mut left) = (low, count);
        while left > 0 {
            let bin = bin(value);
            let distance = lower_edge(bin + 1) - value;
            let inside = distance.div_ceil(step).min(u128::from(left)) as u64;
            *self.bin_mut(bin) += inside * times;
            left -= inside;
            value += step * u128::from(inside);
        }
        Ok(())
    }

    /// Counts an ascending progression of spans that fit 64 bits (18 s); the bins exist.
    fn fill(&mut self, low: u64, step: u64, count: u64, times: u64) {
        let (mut value, mut left) = (low, count);
        while left > 0 {
            // All bins up to the next power of two are 2^shift wide.
            let shift = 56_u32.saturating_sub((value | 1).leading_zeros());
            let first = (short_bin(value) - self.lowest) / OCTAVE;
            let octave = &mut self.counts.as_chunks_mut::<OCTAVE>().0[first];
            let place = |value: u64| (value >> shift) as usize % OCTAVE;
            if step >> shift > 0 {
                // No two members are in the same bin.
                let end = if value < OCTAVE as u64 { OCTAVE as u64 } else { 256 << shift };
                let members = end.wrapping_sub(value).div_ceil(step).min(left);
                for _ in 0..members {
                    octave[place(value)] += times;
                    value = value.wrapping_add(step);
                }
                left -= members;
            } else {
                // Members below the upper edge: the least j with value + j·step ≥ edge.
                let distance = (((value >> shift) + 1) << shift).wrapping_sub(value);
                let inside = distance.div_ceil(step).min(left);
                octave[place(value)] += inside * times;
                left -= inside;
                value = value.wrapping_add(step * inside);
            }
        }
    }

    fn total(&mut self, sum: u128, count: u64, times: u64) -> Result<()> {
        let sum = product(sum, u128::from(times))?;
        self.sum = self.sum.checked_add(sum).ok_or_else(sum_overflow)?;
        self.count += count * times;
        Ok(())
    }

    #[inline]
    fn bin_mut(&mut self, bin: usize) -> &mut u64 {
        let place = bin.wrapping_sub(self.lowest);
        if place >= self.counts.len() {
            return self.make_room(bin);
        }
        &mut self.counts[place]
    }

    #[cold]
    fn make_room(&mut self, bin: usize) -> &mut u64 {
        const MARGIN: usize = 2 * OCTAVE;
        let first = bin / OCTAVE * OCTAVE;
        if self.counts.is_empty() {
            self.lowest = first;
        }
        if bin < self.lowest {
            let added = (self.lowest - first + MARGIN).min(self.lowest);
            self.counts.splice(0..0, std::iter::repeat_n(0, added));
            self.lowest -= added;
        }
        let place = bin - self.lowest;
        if place >= self.counts.len() {
            self.counts.resize(first - self.lowest + MARGIN, 0);
        }
        &mut self.counts[place]
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) -> Result<()> {
        for (place, &count) in other.counts.iter().enumerate().filter(|bin| *bin.1 > 0) {
            *self.bin_mut(place + other.lowest) += count;
        }
        self.sum = self.sum.checked_add(other.sum).ok_or_else(sum_overflow)?;
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
        if self.limits.is_empty() {
            self.limits.clone_from(&other.limits);
        } else {
            debug_assert_eq!(self.limits.len(), other.limits.len(), "all parts of a run have the same limits");
            self.limits.iter_mut().zip(&other.limits).for_each(|(limit, more)| limit.1 += more.1);
        }
        Ok(())
    }

    /// Number of counted spans.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The exact sum of all spans in attoseconds.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The exact maximum.
    pub fn longest(&self) -> Span {
        self.longest
    }

    /// Returns the nonempty bins, each split at the limits inside it. A limit belongs to the part below it.
    pub fn bins_at_limits(&self) -> Vec<(Span, Span, u64)> {
        let mut parts = Vec::new();
        let mut below = 0;
        for (mut lower, upper, count) in self.bins() {
            let end = below + count;
            for &(limit, reached) in &self.limits {
                if lower <= limit && limit < upper && reached > below {
                    parts.push((lower, limit, reached - below));
                    below = reached;
                }
                if lower < limit && limit < upper {
                    lower = limit;
                }
            }
            if end > below {
                parts.push((lower, upper, end - below));
            }
            below = end;
        }
        parts
    }

    /// Returns the nonempty bins: lower edge, upper edge, count.
    pub fn bins(&self) -> impl Iterator<Item = (Span, Span, u64)> {
        let filled = self.counts.iter().enumerate().filter(|bin| *bin.1 > 0);
        filled.map(|(place, &count)| {
            let bin = place + self.lowest;
            (Span(lower_edge(bin)), Span(lower_edge(bin + 1)), count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bin_contains_its_span_and_is_narrow(span: u128) {
            let span = span >> 1;
            let bin = bin(span);
            let (lower, upper) = (lower_edge(bin), lower_edge(bin + 1));
            prop_assert!(lower <= span && span < upper);
            prop_assert!(upper - lower <= (lower / 128).max(1));
        }

        #[test]
        fn limits_count_like_the_members(
            progressions in prop::collection::vec((1_u128..5_000, -40_i128..40, 1_u64..60, 1_u64..4), 1..6),
            limits in prop::collection::vec(0_u128..6_000, 1..5),
        ) {
            let limits: Vec<Span> = limits.into_iter().map(Span).collect();
            let (mut counted, mut members) = (Histogram::default(), Vec::new());
            let mut parts = [Histogram::with_limits(&limits), Histogram::with_limits(&limits)];
            for (place, (first, growth, count, times)) in progressions.into_iter().enumerate() {
                let growth = if first as i128 + growth * i128::from(count - 1) < 0 { 0 } else { growth };
                parts[place % 2].add_with_limits(Span(first), growth, count, times).expect("fits");
                for member in (0..count).map(|j| (first as i128 + growth * i128::from(j)) as u128) {
                    members.extend(std::iter::repeat_n(member, times as usize));
                }
            }
            parts.iter().for_each(|part| counted.merge(part).expect("fits"));
            for limit in limits {
                let within = counted.limits.iter().find(|counted| counted.0 == limit).expect("a limit").1;
                prop_assert_eq!(within, members.iter().filter(|&&member| member <= limit.0).count() as u64);
                let parts = counted.bins_at_limits();
                // No part has members on both sides of a limit.
                let below: u64 = parts.iter().filter(|part| part.1 <= limit).map(|part| part.2).sum();
                let above: u64 = parts.iter().filter(|part| part.0 >= limit && part.1 > limit).map(|part| part.2).sum();
                prop_assert_eq!((below, below + above), (within, members.len() as u64));
            }
        }

        #[test]
        fn a_progression_counts_like_its_members(
            first in (1_u128..1 << 80, 0_u32..80).prop_map(|(first, shift)| (first >> shift).max(1)),
            growth in (-(1_i128 << 66)..1 << 66, 0_u32..66).prop_map(|(growth, shift)| growth >> shift),
            count in 1_u64..300,
            times in 1_u64..5,
        ) {
            prop_assume!(first as i128 + growth * i128::from(count - 1) > 0);
            let mut at_once = Histogram::default();
            at_once.add_progression(Span(first), growth, count, times).expect("fits");
            let mut one_by_one = Histogram::default();
            for j in 0..count {
                let span = (first as i128 + growth * i128::from(j)) as u128;
                one_by_one.add(Span(span), times).expect("fits");
            }
            prop_assert_eq!(at_once.bins().collect::<Vec<_>>(), one_by_one.bins().collect::<Vec<_>>());
            prop_assert_eq!(
                (at_once.count(), at_once.sum(), at_once.longest()),
                (one_by_one.count(), one_by_one.sum(), one_by_one.longest())
            );
        }
    }
}
