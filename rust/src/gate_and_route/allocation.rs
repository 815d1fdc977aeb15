//! The allocation: what the plan says that each replica should hold of each class.
//!
//! The numbers of lin2026 (40), (42) or (49), per replica. They count to 12 decimal places: what a linear program adds
//! beyond them is dust, and must not make a replica more out of ⌈n · Σ x*⌉.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::clock::decimal;
use crate::error::{Error, Result};

/// Decimal places that count.
const PLACES: i32 = 12;
/// One, in the units of [`Allocation`].
pub(super) const ONE: u64 = 1_000_000_000_000;
/// The largest number of requests that a replica may hold on average: it fits 64 bits, and products of it 128.
const MOST: f64 = 1e6;

/// An allocation as a user describes it: numbers by class. A table left out is not used by any decision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocationTables {
    /// x*: prefills under way.
    pub prefill: BTreeMap<String, f64>,
    /// y_m*: decodes beside a prefill.
    #[serde(default)]
    pub mixed: Option<BTreeMap<String, f64>>,
    /// y_s*: decodes alone.
    #[serde(default)]
    pub solo: Option<BTreeMap<String, f64>>,
    /// q_p*: requests that wait for their prefill.
    #[serde(default)]
    pub prefill_queue: Option<BTreeMap<String, f64>>,
    /// q_d*: requests that wait for their decode. No decision looks at it.
    #[serde(default)]
    pub decode_queue: Option<BTreeMap<String, f64>>,
}

/// The same by class index, in units of 10⁻¹² a replica.
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
    /// Tests every number, and that all tables name the same classes.
    pub fn check(&self) -> Result<()> {
        let classes: Vec<String> = self.prefill.keys().cloned().collect();
        self.by_class(&classes).map(drop)
    }

    /// The numbers of these classes, which must be the classes of the tables.
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
            let message = format!("adds up to {}, and a replica has one prefill at most", sum as f64 / ONE as f64);
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

    /// M = ⌈n · Σ x*⌉ of section 4.1: how many of the replicas run prefills.
    pub(crate) fn mixed_replicas(&self, replicas: u32) -> u32 {
        (u128::from(replicas) * self.prefill_sum()).div_ceil(u128::from(ONE)) as u32
    }
}

/// One table in the order of the classes.
fn column(name: &str, table: &BTreeMap<String, f64>, classes: &[String]) -> Result<Vec<u64>> {
    if let Some(unknown) = table.keys().find(|&class| !classes.contains(class)) {
        let message = format!("no such class (there are {})", classes.join(", "));
        return Err(Error::config(format!("{name}.{unknown}"), message));
    }
    let number = |class: &String| {
        let path = || format!("{name}.{class}");
        let &number = table.get(class).ok_or_else(|| Error::config(path(), "missing: every class needs a number"))?;
        if number.is_nan() || number.abs() > MOST {
            return Err(Error::config(path(), format!("{number}: must be from 0 to {MOST}")));
        }
        let units = decimal(number.abs(), PLACES).unwrap_or(u128::MAX);
        match u64::try_from(units) {
            Ok(units) if number >= 0.0 || units == 0 => Ok(units),
            _ => Err(Error::config(path(), format!("{number}: must not be negative"))),
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
    fn the_ceiling_knows_no_dust() {
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
    fn numbers_that_make_no_sense_name_their_class() {
        for (numbers, says) in [
            (&[0.6, 0.5][..], "prefill: adds up to 1.1, and a replica has one prefill at most"),
            (&[0.1, -0.2], "prefill.1: -0.2: must not be negative"),
            (&[f64::NAN], "prefill.0: NaN: must be from 0 to 1000000"),
        ] {
            assert_eq!(shares(numbers).expect_err("an error").to_string(), says);
        }
    }
}
