//! Number of random scenarios: a tenth for each change, all in nightly runs (`INFERQ_NIGHT`).

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::hash::{BuildHasher, RandomState};

use crate::laws::Outcome;

/// Configures the number of cases of a nightly run. A failure prints the seed that reproduces it.
pub(crate) fn cases(at_night: u32) -> ProptestConfig {
    let is_night = std::env::var_os("INFERQ_NIGHT").is_some();
    let cases = if is_night { at_night } else { at_night / 10 };
    let default = ProptestConfig::default();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(cases),
    };
    eprintln!("to repeat: {}PROPTEST_RNG_SEED={seed}", if is_night { "INFERQ_NIGHT=1 " } else { "" });
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..default }
}

/// Checks an invariant over random values.
pub(crate) fn check<T: std::fmt::Debug>(at_night: u32, values: &BoxedStrategy<T>, invariant: &dyn Fn(T) -> Outcome) {
    TestRunner::new(cases(at_night)).run(values, invariant).unwrap_or_else(|failure| panic!("{failure}"));
}
