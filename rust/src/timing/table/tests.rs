//! Tests of tables: exact at grid points, interpolated between, extended beyond.

use super::super::TimingModel;
use super::super::tests::price;
use super::*;

const MICRO: u128 = 1_000_000_000_000;

fn micros(micros: &[u32]) -> Vec<Option<f64>> {
    micros.iter().map(|&micros| Some(f64::from(micros) / 1e6)).collect()
}

fn zeros(rows: usize) -> Vec<Vec<Option<f64>>> {
    vec![micros(&[0, 0]); rows]
}

fn no_chunks() -> ChunkGrid {
    ChunkGrid { chunk: vec![1, 1000], context: vec![0, 1000], seconds: zeros(2), shared_s: 0.0 }
}

fn no_decodes() -> DecodeGrid {
    DecodeGrid { sequences: vec![1, 1000], mean_context: vec![0, 1000], seconds: zeros(2) }
}

fn no_linear() -> LinearGrid {
    LinearGrid { tokens: vec![1, 1000], seconds: micros(&[0, 0]) }
}

fn table(linear: &LinearGrid, chunk: &ChunkGrid, decode: &DecodeGrid) -> TableTiming {
    let (linear, chunk, decode) = (linear.clone(), chunk.clone(), decode.clone());
    TimingTable { linear, chunk, decode }.timing().expect("a table")
}

#[test]
fn linear_layers_follow_all_tokens_of_the_batch() {
    let linear = LinearGrid { tokens: vec![10, 20, 40], seconds: micros(&[100, 200, 300]) };
    let table = table(&linear, &no_chunks(), &no_decodes());
    let first = |tokens| price(&table, &[(tokens, 0)], &[], 0).first.0;
    assert_eq!([10, 15, 20, 30, 40].map(first), [100, 150, 200, 250, 300].map(|us| us * MICRO));
    // Before the first point the first line is extended: 10 µs per token. Beyond the last point the last one: 5 µs
    // per token.
    assert_eq!([5, 1].map(first), [50, 10].map(|us| us * MICRO));
    assert_eq!(table.beyond().axes(), [] as [&str; 0]);
    assert_eq!([42, 60].map(first), [310, 400].map(|us| us * MICRO));
    assert_eq!(table.beyond().axes(), ["tokens of a batch"]);
    // A chunk and five decodes have 15 tokens in every iteration.
    let pace = price(&table, &[(10, 0)], &[1; 5], 0);
    assert_eq!((pace.first.0, pace.growth), (150 * MICRO, 0));
}

#[test]
fn a_line_extended_below_zero_is_zero() {
    // 20 µs per token, so 5 tokens would take 0 and 4 tokens −20 µs; and a line that falls to 0 at 30.
    let steep = LinearGrid { tokens: vec![10, 20], seconds: micros(&[100, 300]) };
    let falling = LinearGrid { tokens: vec![10, 20], seconds: micros(&[200, 100]) };
    let of = |linear, tokens| price(&table(linear, &no_chunks(), &no_decodes()), &[(tokens, 0)], &[], 0).first.0;
    assert_eq!([4, 5, 6].map(|tokens| of(&steep, tokens)), [0, 0, 20 * MICRO]);
    assert_eq!([29, 30, 31].map(|tokens| of(&falling, tokens)), [10 * MICRO, 0, 0]);
    // Chunks of 10 tokens along their contexts: −100 µs, −50 µs, 0 µs, 50 µs at 0, 10, 20, 30.
    let late =
        ChunkGrid { chunk: vec![10, 20], context: vec![30, 40], seconds: vec![micros(&[50, 100]); 2], shared_s: 0.0 };
    let late = table(&no_linear(), &late, &no_decodes());
    let paces = [0, 1, 2, 3].map(|later| price(&late, &[(10, 0)], &[], later));
    assert_eq!(paces.map(|pace| pace.first.0), [0, 0, 0, 50 * MICRO]);
    // The first line begins where it becomes positive, and ends at the second point.
    assert_eq!(paces.map(|pace| pace.holds), [2, 1, 2, 1]);
}

#[test]
fn the_shared_part_of_chunks_counts_once() {
    let seconds = vec![micros(&[10, 20]), micros(&[30, 40])];
    let grid =
        |shared_s| ChunkGrid { chunk: vec![100, 300], context: vec![0, 1000], seconds: seconds.clone(), shared_s };
    let table = table(&no_linear(), &grid(8e-6), &no_decodes());
    let of = |chunks: &[(u64, u64)], decodes: &[u64]| price(&table, chunks, decodes, 0).first.0;
    assert_eq!(of(&[(100, 0)], &[]), 10 * MICRO);
    assert_eq!(of(&[(100, 0), (300, 1000), (200, 500)], &[]), (10 + 40 + 25 - 2 * 8) * MICRO);
    assert_eq!(of(&[], &[700]), 0);
    // One token would take 0.1 µs on the first line, less than the shared part.
    assert_eq!(of(&[(1, 0), (1, 0)], &[]), 8 * MICRO);
    let dear = TimingTable { linear: no_linear(), chunk: grid(11e-6), decode: no_decodes() };
    let error = dear.timing().expect_err("more than a chunk takes");
    assert_eq!(
        error.to_string(),
        "chunk.shared_s: must not exceed the smallest chunk time of the grid, got 0.000011 s"
    );
}

#[test]
fn chunks_are_priced_separately_up_to_the_edges_of_their_cells() {
    // At 100 tokens 10, 20, 60 µs for contexts 0, 1000, 2000, and at 300 tokens 30, 60, 100 µs.
    let chunk = ChunkGrid {
        chunk: vec![100, 300],
        context: vec![0, 1000, 2000],
        seconds: vec![micros(&[10, 20, 60]), micros(&[30, 60, 100])],
        shared_s: 0.0,
    };
    let table = table(&no_linear(), &chunk, &no_decodes());
    // 200 tokens are halfway: 20, 40, 80 µs. From 500 a step is 200 · 20 ns; 1000 is three iterations away.
    let half = price(&table, &[(200, 500)], &[], 0);
    assert_eq!((half.first.0, half.growth, half.holds), (30 * MICRO, 4 * MICRO as i128, 3));
    // With a chunk of 100: 10 + 10 · 0.9 µs, in whose cell one iteration is left.
    let together = price(&table, &[(200, 500), (100, 900)], &[], 0);
    assert_eq!((together.first.0, together.growth, together.holds), (49 * MICRO, 5 * MICRO as i128, 1));
    assert_eq!(table.beyond().axes(), [] as [&str; 0]);
    // At the last point the next iteration is beyond the grid, where the last line is extended: 40 ns per token.
    let last = price(&table, &[(100, 2000)], &[], 0);
    assert_eq!((last.first.0, last.growth, last.holds), (60 * MICRO, 4 * MICRO as i128, 1));
    assert_eq!(table.beyond().axes(), [] as [&str; 0]);
    let beyond = price(&table, &[(100, 2100)], &[], 0);
    assert_eq!((beyond.first.0, beyond.holds), (64 * MICRO, u64::MAX));
    assert_eq!(table.beyond().axes(), ["context of a chunk"]);
}

#[test]
fn decodes_are_priced_by_number_and_mean_context() {
    // One decode: 10 and 20 µs at means 100 and 200; five: 50 and 100 µs.
    let decode = DecodeGrid {
        sequences: vec![1, 5],
        mean_context: vec![100, 200],
        seconds: vec![micros(&[10, 20]), micros(&[50, 100])],
    };
    let table = table(&no_linear(), &no_chunks(), &decode);
    let of = |contexts: &[u64]| price(&table, &[], contexts, 0);
    // Three: 30 and 60 µs, at a mean of 150 in the middle; one more context token for each costs 0.3 µs.
    let three = of(&[100, 150, 200]);
    assert_eq!((three.first.0, three.growth, three.holds), (45 * MICRO, 3 * MICRO as i128 / 10, 50));
    assert_eq!(of(&[101, 150, 200]).first.0, (45 * MICRO) + MICRO / 10);
    assert_eq!(of(&[200, 200, 199]).holds, 1);
    assert_eq!(table.beyond().axes(), [] as [&str; 0]);
    // Seven are two beyond: 70 and 140 µs.
    assert_eq!(of(&[100; 7]).first.0, 70 * MICRO);
    assert_eq!(of(&[200, 200, 201]).holds, u64::MAX);
    assert_eq!(table.beyond().axes(), ["decodes", "mean context of the decodes"]);
}

#[test]
fn a_missing_time_is_an_error_with_its_position() {
    let json = |linear: &str, chunk: &str| {
        let text = format!(
            r#"{{"kind": "TimingTable", "linear": {linear}, "chunk": {chunk},
            "decode": {{"sequences": [1, 2], "mean_context": [0, 1], "seconds": [[0, 0], [0, 0]]}}}}"#
        );
        let model: TimingModel = serde_json::from_str(&text).expect("a description");
        assert!(matches!(model, TimingModel::TimingTable(_)));
        model.build().map(drop).expect_err("no grid").to_string()
    };
    let hole = "missing: every point of the grid requires a time";
    let (linear, chunk) = (
        |seconds| format!(r#"{{"tokens": [1, 2], "seconds": {seconds}}}"#),
        |seconds| format!(r#"{{"chunk": [1, 2], "context": [0, 1], "seconds": {seconds}}}"#),
    );
    assert_eq!(json(&linear("[0, null]"), &chunk("[[0, 0], [0, 0]]")), format!("linear.seconds[1]: {hole}"));
    assert_eq!(json(&linear("[0, 0]"), &chunk("[[0, 0], [null, 0]]")), format!("chunk.seconds[1][0]: {hole}"));
}
