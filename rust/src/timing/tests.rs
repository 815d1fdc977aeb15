//! Tests that every pace equals the prices of later iterations.

use super::*;
use crate::dice::{Dice, Scale};
use proptest::prelude::*;

fn model() -> impl Strategy<Value = TimingModel> {
    let scale = Scale { token_budget: 700, max_seqs: 25, longest: 6000, block: 16 };
    let words = prop::collection::vec(any::<u32>(), 80);
    (prop::sample::select(TimingModel::KINDS), words)
        .prop_map(move |(kind, words)| TimingModel::sample(kind, &mut Dice::new(words, scale)).expect("a kind"))
}

/// The pace of a batch after `later` identical iterations.
pub(super) fn price(model: &dyn Timing, chunks: &[(u64, u64)], decodes: &[u64], later: u64) -> Pace {
    let chunks: Vec<ChunkShape> =
        chunks.iter().map(|&(tokens, context)| ChunkShape { tokens, context: context + later * tokens }).collect();
    let contexts: Vec<u64> = decodes.iter().map(|context| context + later).collect();
    pace_of(model, &chunks, &contexts).expect("a pace")
}

proptest! {
    #[test]
    fn a_pace_is_the_price_of_every_later_iteration(
        model in model(),
        chunks in prop::collection::vec((1_u64..600, 0_u64..5000), 0..4),
        decodes in prop::collection::vec(1_u64..5000, 0..20),
        later in 0_u64..1000,
    ) {
        let model = model.build().expect("a model");
        let first = price(model.as_ref(), &chunks, &decodes, 0);
        for later in [later % first.holds, (first.holds - 1).min(1_000_000)] {
            let then = price(model.as_ref(), &chunks, &decodes, later);
            prop_assert_eq!(first.length(later).expect("a length"), then.first);
        }
    }

    #[test]
    fn a_pace_matches_single_iterations_in_64_bits_and_beyond(
        first in (1_u128..1 << 66, 0_u32..66).prop_map(|(first, shift)| (first >> shift).max(1)),
        growth in (-(1_i128 << 66)..1 << 66, 0_u32..66).prop_map(|(growth, shift)| growth >> shift),
        count in 1_u64..200,
        share in 0_u128..=1000,
    ) {
        prop_assume!(first as i128 + growth * i128::from(count - 1) > 0);
        let pace = Pace { first: Span(first), growth, holds: u64::MAX };
        let mut ends = vec![0];
        for index in 0..count {
            let length = (first as i128 + growth * i128::from(index)) as u128;
            prop_assert_eq!(pace.length(index).expect("a length"), Span(length));
            ends.push(ends[index as usize] + length);
            prop_assert_eq!(pace.total(index + 1).expect("a span"), Span(ends[index as usize + 1]));
        }
        let last = ends[count as usize];
        let near = ends[(share as usize * ends.len() / 1001).max(1)];
        for span in [near - 1, near, near + 1, last / 1000 * share, last + 1] {
            let within = ends[1..].iter().filter(|&&end| end <= span).count() as u64;
            prop_assert_eq!(pace.count_within(Span(span), count).expect("a number"), within);
        }
    }

    #[test]
    fn a_line_prices_sums_like_rows(
        words in prop::collection::vec(any::<u32>(), 80),
        chunks in prop::collection::vec((1_u64..600, 0_u64..5000), 0..4),
        decodes in prop::collection::vec(1_u64..5000, 0..20),
    ) {
        let scale = Scale { token_budget: 700, max_seqs: 25, longest: 6000, block: 16 };
        let sample = <PiecewiseLinear as crate::dice::Sample>::sample(&mut Dice::new(words, scale));
        let model = PiecewiseLinear { per_decode: 0.0, ..sample };
        let model = model.build().expect("a model");
        let line = model.short_line().expect("fits 64 bits");
        let sums = chunks.iter().map(|&(tokens, context)| ChunkShape { tokens, context }).collect();
        let pace = line.pace(&sums, decodes.len() as u64, decodes.iter().sum()).expect("fits 64 bits");
        prop_assert_eq!(pace, price(model.as_ref(), &chunks, &decodes, 0));
        let tokens = chunks.iter().map(|chunk| chunk.0).sum::<u64>() + decodes.len() as u64;
        let of_chunk = |&(c, x): &(u64, u64)| line.per_prefill_square * c * c + line.per_chunk_context * c * x;
        let expected = line.base
            + line.per_token * tokens.saturating_sub(line.knee)
            + chunks.iter().map(of_chunk).sum::<u64>()
            + decodes.iter().map(|context| line.per_context_token * context).sum::<u64>();
        prop_assert_eq!(pace.first, Span(expected.into()));
    }

    #[test]
    fn the_larger_of_two_paces_is_the_larger_of_their_lengths(
        left in (1000_u128..2000, -9_i128..9),
        right in (1000_u128..2000, -9_i128..9),
    ) {
        let [left, right] = [left, right].map(|(first, growth)| Pace { first: Span(first), growth, holds: 100 });
        let larger = left.larger(&right);
        prop_assert!(larger.holds >= 1);
        let length = |pace: &Pace, j| pace.length(j).expect("a length");
        for j in 0..larger.holds {
            prop_assert_eq!(length(&larger, j), length(&left, j).max(length(&right, j)));
        }
        if larger.holds < 100 {
            let j = larger.holds;
            prop_assert!(length(&larger, j) < length(&left, j).max(length(&right, j)), "the pace ends no earlier than necessary");
        }
    }
}

#[test]
fn epsilon_of_twice_alpha_makes_chunking_neutral() {
    // α·(Σc)² = Σ α·c² + 2α·c·x, li2025 (A.1).
    let model = TimingModel::from(PiecewiseLinear {
        base: 0.0,
        per_token: 0.0,
        knee: 0,
        per_decode: 0.0,
        per_context_token: 0.0,
        per_prefill_square: 650e-12,
        per_chunk_context: 1300e-12,
    });
    let model = model.build().expect("a model");
    let price = |tokens, context| price(model.as_ref(), &[(tokens, context)], &[], 0).first.0;
    assert_eq!(price(1000, 0), price(300, 0) + price(512, 300) + price(188, 812));
}
