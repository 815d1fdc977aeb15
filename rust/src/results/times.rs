//! Branch-free conversion of cells times to seconds, so that the compiler can vectorize it.

use crate::clock::{Instant, SECOND, seconds};

/// Whole attoseconds of rows, each the sum of two doubles: a multiple of 2^48, plus or minus at most 2^48.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    upper: Vec<f64>,
    lower: Vec<f64>,
    /// Whether all times happened and are below [`LIMIT`].
    are_usual: bool,
}

/// Bits of a time in a row; all are set if it never happened.
pub(super) const BITS: u32 = 96;

/// Below this limit, 628 years, no quotient by 10^18 is midway between two doubles.
const LIMIT: f64 = (1_u128 << 94) as f64;

/// From here on a time never happened: instants fit 95 bits, 1,255 years.
const NEVER: f64 = (1_u128 << (BITS - 1)) as f64;

const LOWER_BITS: u32 = 48;
/// With 52 bits below its leading one a double has unit spacing; with an exponent higher by 48, spacing 2^48.
const WHOLE: f64 = (1_u64 << 52) as f64;
const UPPER: f64 = (1_u128 << (52 + LOWER_BITS)) as f64;

impl Times {
    /// Builds times from their low 64 and high 32 bits.
    #[inline]
    pub(super) fn of(times: impl ExactSizeIterator<Item = (u64, u64)> + Clone) -> Times {
        // Each part has its own pass, so that memory written once is not cleared before.
        let upper = times.clone().map(|(low, high)| {
            let above = high << (64 - LOWER_BITS) | low >> LOWER_BITS;
            f64::from_bits(UPPER.to_bits() | above) - UPPER
        });
        let lower = times.map(|(low, _)| double(low & ((1 << LOWER_BITS) - 1)));
        let (upper, lower): (Vec<f64>, Vec<f64>) = (upper.collect(), lower.collect());
        let are_usual = upper.iter().fold(true, |all, &upper| all & (upper < LIMIT));
        Times { upper, lower, are_usual }
    }

    /// Builds times from instants.
    pub(super) fn of_instants(instants: impl ExactSizeIterator<Item = Instant> + Clone) -> Times {
        Times::of(instants.map(|at| (at.0 as u64, (at.0 >> 64) as u64)))
    }

    /// Builds times from whole nanoseconds below 2^52.
    pub(super) fn of_nanoseconds(nanoseconds: &[f64]) -> Times {
        // Parts of 26 bits, of which a double represents 10^9 times each exactly: 10^9 is 2^9 times a number of 21
        // bits.
        const TO_26_BITS: f64 = WHOLE * (3 << 25) as f64;
        const TO_LOWER_BITS: f64 = UPPER * 1.5;
        let upper = |time: f64| (time + TO_LOWER_BITS) - TO_LOWER_BITS;
        let parts = nanoseconds.iter().map(|&all| {
            let above = (all + TO_26_BITS) - TO_26_BITS;
            (above * 1e9, (all - above) * 1e9)
        });
        let lower = parts.clone().map(|(above, rest)| (above - upper(above)) + (rest - upper(rest)));
        let upper = parts.map(|(above, rest)| upper(above) + upper(rest));
        Times { upper: upper.collect(), lower: lower.collect(), are_usual: true }
    }

    /// Whether all times happened and are small enough for the fast conversion.
    pub(super) fn are_usual(&self) -> bool {
        self.are_usual
    }

    /// Marks some times as never happened.
    pub(super) fn forget(&mut self, rows: impl Iterator<Item = usize>) {
        for row in rows {
            self.upper[row] = NEVER;
            self.are_usual = false;
        }
    }

    /// Fills the cells with seconds, NaN for times that never happened. Returns the number of NaNs.
    pub(super) fn fill_seconds(&self, cells: &mut [f64]) -> usize {
        for ((cell, &upper), &lower) in cells.iter_mut().zip(&self.upper).zip(&self.lower) {
            *cell = seconds_of(upper, lower);
        }
        self.fill_unusual(cells, |row| self.whole(row))
    }

    /// Fills the cells with the time since an earlier time.
    pub(super) fn fill_seconds_since(&self, earlier: &Times, cells: &mut [f64]) -> usize {
        let earlier_parts = earlier.upper.iter().zip(&earlier.lower);
        for (((cell, &upper), &lower), (&since_upper, &since_lower)) in
            cells.iter_mut().zip(&self.upper).zip(&self.lower).zip(earlier_parts)
        {
            *cell = seconds_of(upper - since_upper, lower - since_lower);
        }
        self.fill_unusual(cells, |row| self.whole(row) - earlier.whole(row))
    }

    fn whole(&self, row: usize) -> i128 {
        self.upper[row] as i128 + self.lower[row] as i128
    }

    fn fill_unusual(&self, cells: &mut [f64], whole: impl Fn(usize) -> i128) -> usize {
        if self.are_usual {
            return 0;
        }
        let mut absent = 0;
        for (row, (cell, &upper)) in cells.iter_mut().zip(&self.upper).enumerate() {
            if upper >= NEVER {
                *cell = f64::NAN;
                absent += 1;
            } else if upper >= LIMIT {
                *cell = seconds(whole(row) as u128);
            }
        }
        absent
    }
}

/// Converts an integer below 2^52 to a double.
pub(super) fn double(number: u64) -> f64 {
    f64::from_bits(WHOLE.to_bits() | number) - WHOLE
}

/// Converts an integral double below 2^52 to an integer.
pub(super) fn whole(number: f64) -> u64 {
    (number + WHOLE).to_bits() ^ WHOLE.to_bits()
}

/// Equals [`seconds`] of the sum of two doubles below [`LIMIT`]: a multiple of 2^48, plus or minus at most 2^49.
///
/// A first quotient q has an error below two units in the last place. The remainder x − q · 10^18 is computed
/// exactly, and its quotient c is added. The sum rounds once, except for the error of c, which is below 2^-50 units
/// in the last place. This error cannot change the result: the midpoint of two doubles is an odd number n · 2^-k of
/// 54 bits, where k > 18 as x < 2^94. Its distance from x / 10^18 = x / (2^18 · 5^18) is an integer over 2^k · 5^18,
/// not 0 as n is odd, and so at least 2^-43 units.
fn seconds_of(upper: f64, lower: f64) -> f64 {
    // `sum` and `rest` are the exact number: below 2^53 the sum is exact, above it `upper` exceeds `lower`.
    let sum = upper + lower;
    let rest = lower - (sum - upper);

    // 10^18 and q in two parts each, short enough that all products and differences are exact.
    const SECOND_UPPER: f64 = (SECOND & !((1 << 39) - 1)) as f64;
    const SECOND_LOWER: f64 = (SECOND & ((1 << 39) - 1)) as f64;
    let quotient = sum * 1e-18;
    let quotient_upper = f64::from_bits(quotient.to_bits() & !((1 << 27) - 1));
    let quotient_lower = quotient - quotient_upper;
    let left = sum - quotient_upper * SECOND_UPPER;
    let left = left - quotient_upper * SECOND_LOWER;
    let left = left - quotient_lower * SECOND_UPPER;
    let left = left - quotient_lower * SECOND_LOWER;
    quotient + (left + rest) * 1e-18
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(times: &[u128]) -> Times {
        Times::of(times.iter().map(|&time| (time as u64, (time >> 64) as u64)))
    }

    /// Numbers of all lengths, and numbers nearest to midpoints between two doubles.
    fn times() -> impl Strategy<Value = Vec<u128>> {
        let anywhere =
            prop::collection::vec((0_u128..1 << 95, 0_u32..95).prop_map(|(time, shift)| time >> shift), 1..9);
        let halves = prop::collection::vec((1_u64 << 53..1 << 54, 0_u32..70), 1..9);
        (anywhere, halves).prop_map(|(anywhere, halves)| {
            let near_a_tie = halves.into_iter().flat_map(|(halves, shift)| {
                let below = (u128::from(halves) * 5_u128.pow(18)) >> shift;
                [below - 1, below, below + 1]
            });
            anywhere.into_iter().chain(near_a_tie).filter(|time| time >> 95 == 0).collect()
        })
    }

    proptest! {
        #[test]
        fn seconds_of_many_times_equal_seconds_of_each(times in times()) {
            let mut cells = vec![0.0; times.len()];
            prop_assert_eq!(split(&times).fill_seconds(&mut cells), 0);
            prop_assert_eq!(cells, times.iter().map(|&time| seconds(time)).collect::<Vec<f64>>());
        }

        #[test]
        fn seconds_since_arrivals_equal_seconds_of_spans(
            spans in times(),
            nanoseconds in prop::collection::vec((0_u64..1 << 52, 0_u32..52).prop_map(|(all, shift)| all >> shift), 40),
        ) {
            let since: Vec<u128> = nanoseconds.iter().map(|&arrival| Instant::from_nanoseconds(arrival).0).collect();
            let rows = spans.into_iter().zip(nanoseconds).zip(since);
            let rows = rows.filter(|((span, _), since)| (span + since) >> 95 == 0);
            let ((spans, nanoseconds), since): ((Vec<u128>, Vec<u64>), Vec<u128>) = rows.unzip();
            let nanoseconds: Vec<f64> = nanoseconds.into_iter().map(|arrival| arrival as f64).collect();
            let times: Vec<u128> = spans.iter().zip(&since).map(|(span, since)| span + since).collect();
            let arrivals = Times::of_nanoseconds(&nanoseconds);
            let each = |times: &[u128]| times.iter().map(|&time| seconds(time)).collect::<Vec<f64>>();
            let mut cells = vec![0.0; times.len()];
            prop_assert_eq!(split(&times).fill_seconds_since(&arrivals, &mut cells), 0);
            prop_assert_eq!(&cells, &each(&spans));
            arrivals.fill_seconds(&mut cells);
            prop_assert_eq!(&cells, &each(&since));
        }
    }

    #[test]
    fn missing_times_are_nan_and_counted() {
        let mut cells = [0.0; 4];
        let mut times = split(&[SECOND, u128::MAX >> (128 - BITS), 1 << 94, 2 * SECOND]);
        times.forget([3].into_iter());
        assert_eq!(times.fill_seconds(&mut cells), 2);
        assert_eq!((cells[0], cells[2]), (1.0, seconds(1 << 94)));
        assert!(cells[1].is_nan() && cells[3].is_nan());
    }
}
