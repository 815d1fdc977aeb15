//! Seconds of rows with short times: integers in the run's unit that a double represents exactly, so that each needs
//! one division, which rounds once. All requests of these rows have ended, so all their times exist.

use super::block::{parts, time_per_token};
use super::rows::{FIRST_TOKEN, LEFT, LONGEST_GAP, Row};
use super::times::{Times, double, whole};
use crate::clock::Unit;

/// Rows of requests that stayed for less than 2^52 units.
pub(super) struct Short<'a> {
    rows: &'a [Row],
    unit: Unit,
    /// In units.
    arrivals: Vec<u64>,
    /// Units per second: a divisor of 10^18 and a multiple of 10^9, exact as a double.
    in_a_second: f64,
    /// Whether all instants are below 2^52 units too.
    are_early: bool,
}

impl<'a> Short<'a> {
    /// Builds the block if the rows are short. Arrivals are in whole nanoseconds below 2^52.
    pub(super) fn of(rows: &'a [Row], unit: Unit, nanoseconds: &[f64]) -> Option<Short<'a>> {
        let instants = rows.iter().fold(0, |all, row| all | row[0] | row[1] | row[2]);
        if instants >> 62 != 0 {
            return None;
        }
        // Exact, since no request is admitted before it arrives.
        let in_a_nanosecond = unit.nanosecond();
        let arrivals: Vec<u64> =
            nanoseconds.iter().map(|&arrival| whole(arrival).wrapping_mul(in_a_nanosecond)).collect();
        let stays = rows
            .iter()
            .zip(&arrivals)
            .fold(0, |all, (row, &arrival)| all | row[LEFT].wrapping_sub(arrival) | row[LONGEST_GAP]);
        let in_a_second = in_a_nanosecond as f64 * 1e9;
        (stays >> 52 == 0).then_some(Short { rows, unit, arrivals, in_a_second, are_early: instants >> 52 == 0 })
    }

    /// Fills the cells with one of the instants; none is absent.
    pub(super) fn fill<const WHICH: usize>(&self, cells: &mut [f64]) -> usize {
        if !self.are_early {
            return Times::of(self.rows.iter().map(|row| parts(self.unit.short(row[WHICH])))).fill_seconds(cells);
        }
        for (cell, row) in cells.iter_mut().zip(self.rows) {
            *cell = double(row[WHICH]) / self.in_a_second;
        }
        0
    }

    /// Fills the cells with the time since the arrival.
    pub(super) fn fill_since_arrival<const WHICH: usize>(&self, cells: &mut [f64]) -> usize {
        for ((cell, row), &arrival) in cells.iter_mut().zip(self.rows).zip(&self.arrivals) {
            *cell = double(row[WHICH] - arrival) / self.in_a_second;
        }
        0
    }

    /// Fills the cells with the longest gap. Returns the number of requests without gaps.
    pub(super) fn fill_longest_gap(&self, cells: &mut [f64]) -> usize {
        let absent = self.rows.iter().filter(|row| row[LONGEST_GAP] == 0).count();
        for (cell, row) in cells.iter_mut().zip(self.rows) {
            let gap = if row[LONGEST_GAP] == 0 { f64::NAN } else { double(row[LONGEST_GAP]) };
            *cell = gap / self.in_a_second;
        }
        absent
    }

    /// Fills the cells with the time per token after the first, in attoseconds rounded down.
    pub(super) fn fill_time_per_token(&self, outputs: &[i32], cells: &mut [f64]) -> usize {
        let each: Vec<(u64, u64)> = self
            .rows
            .iter()
            .zip(outputs)
            .map(|(row, &output_tokens)| {
                parts(time_per_token(self.unit.short(row[LEFT] - row[FIRST_TOKEN]), output_tokens))
            })
            .collect();
        Times::of(each.iter().copied()).fill_seconds(cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{NANOSECOND, seconds};
    use crate::results::rows::ADMITTED;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn seconds_of_short_rows_equal_seconds_of_each_time(
            steps in prop::collection::vec(
                ((0_u64..1 << 50, 0_u64..1 << 50, 0_u64..1 << 50, 0_u64..1 << 50), 0_u32..50, 1_i32..5000),
                1..40,
            ),
            (twos, fives) in (0_u32..10, 0_u32..10),
            late in prop_oneof![Just(0_u64), 0_u64..1 << 60],
        ) {
            let unit = Unit::of(2_u128.pow(twos) * 5_u128.pow(fives));
            let each = unit.nanosecond();
            let (mut nanoseconds, mut rows, mut outputs) = (Vec::new(), Vec::<Row>::new(), Vec::new());
            for ((arrival, queue, first, last), shift, output) in steps {
                let arrival = ((arrival >> shift) + late) / each;
                prop_assume!(arrival >> 52 == 0);
                let admitted = arrival * each + (queue >> shift);
                let first_token = admitted + (first >> shift);
                nanoseconds.push(arrival as f64);
                rows.push([admitted, first_token, first_token + (last >> shift), last >> shift]);
                outputs.push(output);
            }
            let short = Short::of(&rows, unit, &nanoseconds).expect("all stay for less than 2^52 units");
            let mut cells = vec![0.0; rows.len()];
            let of = |time: &dyn Fn(&Row, u64) -> u64| -> Vec<f64> {
                let since = nanoseconds.iter().map(|&arrival| arrival as u64 * each);
                rows.iter().zip(since).map(|(row, arrival)| seconds(unit.short(time(row, arrival)))).collect()
            };
            prop_assert_eq!(short.fill::<FIRST_TOKEN>(&mut cells), 0);
            prop_assert_eq!(&cells, &of(&|row, _| row[FIRST_TOKEN]));
            short.fill_since_arrival::<ADMITTED>(&mut cells);
            prop_assert_eq!(&cells, &of(&|row, arrival| row[ADMITTED] - arrival));
            let absent = short.fill_longest_gap(&mut cells);
            prop_assert_eq!(absent, rows.iter().filter(|row| row[LONGEST_GAP] == 0).count());
            let bits = |cells: &[f64]| cells.iter().map(|cell| (cell + 0.0).to_bits()).collect::<Vec<_>>();
            let gaps = of(&|row, _| row[LONGEST_GAP]).into_iter();
            prop_assert_eq!(bits(&cells), bits(&gaps.map(|gap| if gap == 0.0 { f64::NAN } else { gap }).collect::<Vec<_>>()));
            let absent = short.fill_time_per_token(&outputs, &mut cells);
            prop_assert_eq!(absent, outputs.iter().filter(|&&output| output == 1).count());
            for ((cell, row), output) in cells.iter().zip(&rows).zip(outputs) {
                let span = u128::from(row[LEFT] - row[FIRST_TOKEN]) * (NANOSECOND / u128::from(each));
                prop_assert!(output == 1 && cell.is_nan() || *cell == seconds(span / (output as u128 - 1).max(1)));
            }
        }
    }

    #[test]
    fn missing_and_long_times_are_not_short() {
        for (row, is_short) in [([5, 6, 7, 1 << 52], false), ([u64::MAX, 6, 7, 1], false), ([5, 6, 1 << 53, 1], false)]
        {
            assert_eq!(Short::of(&[row], Unit::of(50_000), &[0.0]).is_some(), is_short);
        }
    }
}
