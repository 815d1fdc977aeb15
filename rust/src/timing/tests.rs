//! Is every pace the price of what comes later?

use super::*;
use proptest::prelude::*;

fn seconds() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), (1_u32..2_000_000).prop_map(|nanos| f64::from(nanos) * 1e-9)]
}

fn model() -> impl Strategy<Value = TimingModel> {
    prop_oneof![
        seconds().prop_map(|seconds| TimingModel::Constant { seconds }),
        (seconds(), seconds(), 0_u64..300, seconds(), seconds(), seconds()).prop_map(
            |(base, per_token, knee, per_context_token, per_prefill_square, per_chunk_context)| {
                TimingModel::PiecewiseLinear {
                    base,
                    per_token,
                    knee,
                    per_context_token,
                    per_prefill_square,
                    per_chunk_context,
                }
            }
        ),
        (seconds(), seconds()).prop_map(|(base, per_kv_token)| TimingModel::MemoryLinear { base, per_kv_token }),
        (seconds(), seconds(), seconds()).prop_map(|(alpha, beta, solo)| TimingModel::MixedSolo { alpha, beta, solo }),
        tiled_gemm(),
        roofline(),
        table(),
    ]
}

fn roofline() -> impl Strategy<Value = TimingModel> {
    let cost = || prop_oneof![1 => Just(0.0), 4 => (1_u32..2000).prop_map(|nanos| f64::from(nanos) * 1e-9)];
    let costs = (cost(), seconds(), cost(), cost(), (0_u32..400).prop_map(f64::from), cost(), cost(), cost());
    (costs, seconds()).prop_map(|((flops, weight, activation, compute, pairs, read, read_more, exchange), base_s)| {
        TimingModel::Roofline {
            linear: LinearRoof { flops_s_per_token: flops, weight_s: weight, activation_s_per_token: activation },
            // Reading a token costs as much as so many pairs: then the two lines often cross.
            chunk: ChunkRoof { compute_s_per_pair: compute, memory_s_per_token: compute * pairs },
            decode: DecodeRoof { compute_s_per_token: read, memory_s_per_token: read_more },
            all_reduce: AllReduce { latency_s: base_s, s_per_token: exchange },
            base_s,
        }
    })
}

/// Times at random, which also fall.
fn table() -> impl Strategy<Value = TimingModel> {
    let points = |least: u64, most: u64| {
        prop::collection::btree_set(least..most, 2..6).prop_map(|points| points.into_iter().collect::<Vec<u64>>())
    };
    let axes = (points(1, 700), points(1, 700), points(0, 6000), points(1, 25), points(0, 6000));
    axes.prop_flat_map(|(tokens, chunk, context, sequences, mean_context)| {
        let row = |width: usize| prop::collection::vec(seconds().prop_map(Some), width);
        let times = (
            row(tokens.len()),
            prop::collection::vec(row(context.len()), chunk.len()),
            prop::collection::vec(row(mean_context.len()), sequences.len()),
            any::<bool>(),
        );
        times.prop_map(move |(of_linear, of_chunk, of_decode, shares)| TimingModel::TimingTable {
            linear: LinearGrid { tokens: tokens.clone(), seconds: of_linear },
            chunk: ChunkGrid {
                chunk: chunk.clone(),
                context: context.clone(),
                shared_s: if shares { of_chunk.iter().flatten().flatten().copied().fold(1.0, f64::min) } else { 0.0 },
                seconds: of_chunk,
            },
            decode: DecodeGrid { sequences: sequences.clone(), mean_context: mean_context.clone(), seconds: of_decode },
        })
    })
}

fn tiled_gemm() -> impl Strategy<Value = TimingModel> {
    let tile = || prop_oneof![Just(1_u64), Just(3), Just(4), Just(16), Just(64)];
    (tile(), tile(), tile(), 1_u64..40, seconds(), seconds(), seconds(), seconds()).prop_map(
        |(rows, columns, reduction, layers, linear_s_per_tile, other_s_per_token, gemm_s, gemv_s)| {
            TimingModel::TiledGemm {
                rows,
                columns,
                reduction,
                width: 192,
                linear_s_per_tile,
                other_s_per_token,
                gemm_s,
                gemv_s,
                layers,
            }
        },
    )
}

/// The pace of a batch after so many identical iterations.
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
            prop_assert!(length(&larger, j) < length(&left, j).max(length(&right, j)), "no earlier than it must");
        }
    }
}

#[test]
fn epsilon_of_twice_alpha_makes_chunking_neutral() {
    // α·(Σc)² = Σ α·c² + 2α·c·x, li2025 (A.1).
    let model = TimingModel::PiecewiseLinear {
        base: 0.0,
        per_token: 0.0,
        knee: 0,
        per_context_token: 0.0,
        per_prefill_square: 650e-12,
        per_chunk_context: 1300e-12,
    };
    let model = model.build().expect("a model");
    let price = |tokens, context| price(model.as_ref(), &[(tokens, context)], &[], 0).first.0;
    assert_eq!(price(1000, 0), price(300, 0) + price(512, 300) + price(188, 812));
}
