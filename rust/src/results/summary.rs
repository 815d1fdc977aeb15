//! Means and percentiles of a column by group.
//!
//! Means come from whole-number sums, so they do not depend on the order of rows or the number of threads.

use crate::clock::seconds;

/// Statistics of one group's values; NaN where the group has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Arithmetic mean: the sum in whole attoseconds, divided in whole numbers.
    pub mean: f64,
    /// Linear percentiles at [`PERCENTS`].
    pub percentiles: [f64; PERCENTS.len()],
    /// The largest value.
    pub max: f64,
}

/// The percentiles that are reported, ascending.
pub const PERCENTS: [u32; 4] = [50, 90, 95, 99];

/// Statistics of `values` (seconds, not negative; NaN is absent) for each of `group_count` groups.
pub fn by_group(values: &[f64], groups: &[u32], group_count: usize) -> Vec<Statistics> {
    let mut sizes = vec![0; group_count];
    for (value, &group) in values.iter().zip(groups) {
        if let Some(size) = sizes.get_mut(group as usize).filter(|_| !value.is_nan()) {
            *size += 1;
        }
    }
    let mut split: Vec<Vec<f64>> = sizes.into_iter().map(Vec::with_capacity).collect();
    for (&value, &group) in values.iter().zip(groups) {
        if let Some(members) = split.get_mut(group as usize).filter(|_| !value.is_nan()) {
            members.push(value);
        }
    }
    split.into_iter().map(statistics).collect()
}

fn statistics(mut values: Vec<f64>) -> Statistics {
    if values.is_empty() {
        return Statistics { mean: f64::NAN, percentiles: [f64::NAN; PERCENTS.len()], max: f64::NAN };
    }
    // Each double is taken to its nearest attosecond; a sum of 2^32 values below 2^63 s fits.
    let sum: u128 = values.iter().map(|value| whole(value * 1e18)).fold(0, u128::saturating_add);
    let mean = seconds(sum / values.len() as u128);
    let percentiles = percentiles(&mut values);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Statistics { mean, percentiles, max }
}

/// A number that is not negative, rounded down.
#[inline]
fn whole(number: f64) -> u128 {
    // Most fit 64 bits, for which there is an instruction.
    if number < u64::MAX as f64 { u128::from(number as u64) } else { number as u128 }
}

/// The linear percentiles: at place (n − 1) · percent / 100 of the sorted values, between neighbours in proportion.
fn percentiles(values: &mut [f64]) -> [f64; PERCENTS.len()] {
    let most = values.len() as u64 - 1;
    // Values before a percentile are not looked at for the next.
    let (mut rest, mut first) = (values, 0);
    PERCENTS.map(|percent| {
        let place = most * u64::from(percent);
        let (whole, between) = ((place / 100) as usize, place % 100);
        let from_here = &mut std::mem::take(&mut rest)[..];
        let (_, &mut lower, above) = from_here.select_nth_unstable_by(whole - first, f64::total_cmp);
        let upper = above.iter().copied().fold(f64::INFINITY, f64::min);
        rest = &mut from_here[whole - first..];
        first = whole;
        if between == 0 { lower } else { lower + (upper - lower) * (between as f64 / 100.0) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_linear_between_neighbours() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let of = by_group(&values, &[0; 11], 1)[0];
        assert_eq!(of.percentiles, [5.0, 9.0, 9.5, 9.9]);
        assert_eq!((of.mean, of.max), (5.0, 10.0));
    }

    #[test]
    fn percentiles_of_a_few_values_are_those_of_the_sorted() {
        for rows in 1..30_u32 {
            let values: Vec<f64> = (0..rows).map(|row| f64::from(row * 7 % rows) * 0.1).collect();
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let of = by_group(&values, &vec![0; rows as usize], 1)[0];
            for (percent, told) in PERCENTS.into_iter().zip(of.percentiles) {
                let place = f64::from((rows - 1) * percent) / 100.0;
                let (lower, upper) = (sorted[place as usize], sorted[place.ceil() as usize]);
                assert!((told - (lower + (upper - lower) * place.fract())).abs() < 1e-12, "p{percent} of {rows}");
            }
        }
    }

    #[test]
    fn groups_are_apart_and_absent_values_do_not_count() {
        let of = by_group(&[1.0, f64::NAN, 3.0, 5.0], &[0, 0, 1, 1], 3);
        assert_eq!((of[0].mean, of[1].mean), (1.0, 4.0));
        assert!(of[2].mean.is_nan() && of[2].max.is_nan());
    }
}
