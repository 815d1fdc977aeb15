//! The allocation: the planned number of requests of each class per replica.
//!
//! The values are those of lin2026 (40), (42) or (49), per replica, rounded to 12 decimal places: the numerical error
//! of a linear program must not increase ⌈n · Σ x*⌉.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::clock::decimal;
use crate::error::{Error, Result};

/// Decimal places kept.
const PLACES: i32 = 12;
/// The number 1 in the units of [`Allocation`].
pub(super) const ONE: u64 = 1_000_000_000_000;
/// Maximum mean number of requests per replica: values fit 64 bits, and their products 128.
const MAX_REQUESTS: f64 = 1e6;

/// An allocation as described by the user: numbers by class. A missing table is not used by any decision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocationTables {
    /// x*: running prefills.
    pub prefill: BTreeMap<String, f64>,
    /// y_m*: decodes on replicas that run a prefill.
    #[serde(default)]
    pub mixed: Option<BTreeMap<String, f64>>,
    /// y_s*: decodes on replicas that run no prefill.
    #[serde(default)]
    pub solo: Option<BTreeMap<String, f64>>,
    /// q_p*: requests that wait for a prefill.
    #[serde(default)]
    pub prefill_queue: Option<BTreeMap<String, f64>>,
    /// q_d*: requests that wait for a decode. No decision uses it.
    #[serde(default)]
    pub decode_queue: Option<BTreeMap<String, f64>>,
}

/// An allocation by class index, in units of 10⁻¹² per replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// x*.
    pub prefill: Vec<u64>,
    /// y_m*, if given.
    pub mixed: Option<Vec<u64>>,
    /// y_s*, if given.
    pub solo: Option<Vec<u64>>,
    /// q_p*, if given.
    pub prefill_queue: Option<Vec<u64>>,
}

impl AllocationTables {
    /// Checks every number, and that all tables have the same classes.
    pub fn check(&self) -> Result<()> {
        let classes: Vec<String> = self.prefill.keys().cloned().collect();
        self.by_class(&classes).map(drop)
    }

    /// Converts the tables; the given classes must be the classes of the tables.
    pub(crate) fn by_class(&self, classes: &[String]) -> Result<Allocation> {
        let optional = |name: &str, table: &Option<BTreeMap<String, f64>>| {
            table.as_ref().map(|table| column(name, table, classes)).transpose()
        };
        optional("decode_queue", &self.decode_queue)?;
        let allocation = Allocation {
            prefill: column("prefill", &self.prefill, classes)?,
            mixed: optional("mixed", &self.mixed)?,
            solo: optional("solo", &self.solo)?,
            prefill_queue: optional("prefill_queue", &self.prefill_queue)?,
        };
        let sum = allocation.prefill_sum();
        if sum > u128::from(ONE) {
            let message =
                format!("must add up to at most 1 (one prefill per replica), got {}", sum as f64 / ONE as f64);
            return Err(Error::config("prefill", message));
        }
        Ok(allocation)
    }
}

impl Allocation {
    /// Σ x*.
    pub(super) fn prefill_sum(&self) -> u128 {
        self.prefill.iter().map(|&share| u128::from(share)).sum()
    }

    /// M = ⌈n · Σ x*⌉ of section 4.1: the number of replicas that run prefills.
    pub(crate) fn mixed_replicas(&self, replicas: u32) -> u32 {
        (u128::from(replicas) * self.prefill_sum()).div_ceil(u128::from(ONE)) as u32
    }
}

/// Returns one table in the order of the classes.
fn column(name: &str, table: &BTreeMap<String, f64>, classes: &[String]) -> Result<Vec<u64>> {
    if let Some(unknown) = table.keys().find(|&class| !classes.contains(class)) {
        let message = format!("unknown class (the workload has {})", classes.join(", "));
        return Err(Error::config(format!("{name}.{unknown}"), message));
    }
    let number = |class: &String| {
        let path = || format!("{name}.{class}");
        let &number =
            table.get(class).ok_or_else(|| Error::config(path(), "missing: every class requires a number"))?;
        if number.is_nan() || number.abs() > MAX_REQUESTS {
            return Err(Error::config(path(), format!("must be from 0 to {MAX_REQUESTS}, got {number}")));
        }
        let units = decimal(number.abs(), PLACES).unwrap_or(u128::MAX);
        match u64::try_from(units) {
            Ok(units) if number >= 0.0 || units == 0 => Ok(units),
            _ => Err(Error::config(path(), format!("must not be negative, got {number}"))),
        }
    };
    classes.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(numbers: &[f64]) -> Result<Allocation> {
        let names: Vec<String> = (0..numbers.len()).map(|class| class.to_string()).collect();
        let prefill = names.iter().cloned().zip(numbers.iter().copied()).collect();
        AllocationTables { prefill, ..AllocationTables::default() }.by_class(&names)
    }

    #[test]
    fn rounding_removes_numerical_noise() {
        // 10 · (0.1 + 0.2) is 3.0000000000000004 in doubles.
        let cases = [
            (&[0.1, 0.2][..], 10, 3),
            (&[0.1 + 0.2], 10, 3),
            (&[0.1, 0.2], 11, 4),
            (&[1.0 / 3.0, 2.0 / 3.0], 3, 3),
            (&[1.000_000_000_000_000_2], 7, 7),
            (&[1e-17, 0.5], 2, 1),
            (&[0.166_2], 5, 1),
        ];
        for (numbers, replicas, mixed) in cases {
            let allocation = shares(numbers).expect("an allocation");
            assert_eq!(allocation.mixed_replicas(replicas), mixed, "{numbers:?} × {replicas}");
        }
    }

    #[test]
    fn invalid_numbers_name_their_class() {
        for (numbers, message) in [
            (&[0.6, 0.5][..], "prefill: must add up to at most 1 (one prefill per replica), got 1.1"),
            (&[0.1, -0.2], "prefill.1: must not be negative, got -0.2"),
            (&[f64::NAN], "prefill.0: must be from 0 to 1000000, got NaN"),
        ] {
            assert_eq!(shares(numbers).expect_err("an error").to_string(), message);
        }
    }
}
