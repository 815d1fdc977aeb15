//! How many random scenarios: a tenth for each change, all of them at night (`INFERQ_NIGHT`).

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::hash::{BuildHasher, RandomState};

use crate::laws::Outcome;

/// So many cases at night. A failure names the seed that draws them again.
pub(crate) fn cases(at_night: u32) -> ProptestConfig {
    let is_night = std::env::var_os("INFERQ_NIGHT").is_some();
    let cases = if is_night { at_night } else { at_night / 10 };
    let given = ProptestConfig::default();
    let seed = match given.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(cases),
    };
    eprintln!("to repeat: {}PROPTEST_RNG_SEED={seed}", if is_night { "INFERQ_NIGHT=1 " } else { "" });
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..given }
}

/// Tests a law over random values.
pub(crate) fn check<T: std::fmt::Debug>(at_night: u32, values: &BoxedStrategy<T>, law: &dyn Fn(T) -> Outcome) {
    TestRunner::new(cases(at_night)).run(values, law).unwrap_or_else(|failure| panic!("{failure}"));
}
