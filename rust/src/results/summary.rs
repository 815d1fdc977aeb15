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

/// The percentiles that are reported.
pub const PERCENTS: [u32; 4] = [50, 90, 95, 99];

/// Statistics of `values` (seconds, not negative; NaN is absent) for each of `group_count` groups.
pub fn by_group(values: &[f64], groups: &[u32], group_count: usize) -> Vec<Statistics> {
    let mut split: Vec<Vec<f64>> = vec![Vec::new(); group_count];
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
    let sum: u128 = values.iter().map(|value| (value * 1e18) as u128).fold(0, u128::saturating_add);
    let mean = seconds(sum / values.len() as u128);
    let percentiles = PERCENTS.map(|percent| percentile(&mut values, percent));
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Statistics { mean, percentiles, max }
}

/// The linear percentile: at place (n − 1) · percent / 100 of the sorted values, between neighbours in proportion.
fn percentile(values: &mut [f64], percent: u32) -> f64 {
    let place = (values.len() as u64 - 1) * u64::from(percent);
    let (whole, rest) = ((place / 100) as usize, place % 100);
    let (_, &mut lower, above) = values.select_nth_unstable_by(whole, f64::total_cmp);
    if rest == 0 {
        return lower;
    }
    let upper = above.iter().copied().fold(f64::INFINITY, f64::min);
    lower + (upper - lower) * (rest as f64 / 100.0)
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
    fn groups_are_apart_and_absent_values_do_not_count() {
        let of = by_group(&[1.0, f64::NAN, 3.0, 5.0], &[0, 0, 1, 1], 3);
        assert_eq!((of[0].mean, of[1].mean), (1.0, 4.0));
        assert!(of[2].mean.is_nan() && of[2].max.is_nan());
    }
}
