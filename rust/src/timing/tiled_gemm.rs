//! A staircase, because tiles of matrix products are computed whole: bari2025 (7).

use super::{Pace, Shape, Timing, overflow, sum};
use crate::clock::{Span, product};
use crate::error::{Error, Result};

/// Sizes in rows, columns and layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) reduction: u64,
    pub(super) width: u64,
    pub(super) layers: u64,
}

/// Costs in attoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// 1/μ_Lin.
    pub(super) linear_per_tile: u128,
    /// 1/μ_nLin.
    pub(super) other_per_token: u128,
    /// 1/(s·μ(t_row, t_col, t_red)), a pair of tiles in (6).
    pub(super) gemm: u128,
    /// 1/μ(t_row, t_col), a tile in (5).
    pub(super) gemv: u128,
}

/// With t_row, t_col, t_red, d for rows, columns, reduction, width, the tokens of the batch τ, decodes that compute their
/// i-th token, and chunks of c tokens at context x:
///
/// ```text
/// linear·⌈τ/t_col⌉ + other·τ + layers·gemv·Σ decodes (d/t_col·⌈i/t_row⌉ + d/t_row·⌈i/t_col⌉)
///     + layers·gemm·Σ chunks ⌈c/t_col⌉·(d/t_red·⌈(x+c)/t_row⌉ + d/t_row·⌈(x+c)/t_red⌉)
/// ```
///
/// The paper counts tokens from 1: its i_j + c_j − 1 is x + c, and its i_j of a decode is context + 1.
#[derive(Debug)]
pub(super) struct TiledGemm {
    sizes: Sizes,
    costs: Costs,
    /// t_row and t_col: a decode takes a tile more whenever its context fills one of either.
    moduli: [u64; 2],
    /// A step of the decodes' ceilings by rows, and by columns.
    decode_by_rows: u128,
    decode_by_columns: u128,
    /// A pair of tiles of the chunks, counted by rows of their contexts, and by reductions.
    chunk_by_rows: u128,
    chunk_by_reduction: u128,
}

/// Far above every model and every tile: a tile has a counter for each of its rows and columns.
const LARGEST: u64 = 1 << 20;

impl TiledGemm {
    pub(super) fn new(sizes: Sizes, costs: Costs) -> Result<TiledGemm> {
        let Sizes { rows, columns, reduction, width, layers } = sizes;
        let tiles = [("rows", rows), ("columns", columns), ("reduction", reduction)];
        for (name, size) in tiles.into_iter().chain([("width", width), ("layers", layers)]) {
            if !(1..=LARGEST).contains(&size) {
                return Err(Error::config(name, format!("{size}: it must be at least 1 and at most {LARGEST}")));
            }
        }
        for (name, size) in tiles {
            if width % size != 0 {
                return Err(Error::config(name, format!("{size} does not divide the width, {width}")));
            }
        }
        let in_all_layers = |cost: u128, tiles: u64| product(cost, u128::from(layers * tiles));
        Ok(TiledGemm {
            sizes,
            costs,
            moduli: [rows, columns],
            decode_by_rows: in_all_layers(costs.gemv, width / columns)?,
            decode_by_columns: in_all_layers(costs.gemv, width / rows)?,
            chunk_by_rows: in_all_layers(costs.gemm, width / reduction)?,
            chunk_by_reduction: in_all_layers(costs.gemm, width / rows)?,
        })
    }
}

impl Timing for TiledGemm {
    fn moduli(&self) -> &[u64] {
        // Decodes whose attention costs nothing take no step.
        if self.costs.gemv == 0 { &[] } else { &self.moduli }
    }

    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let Sizes { rows, columns, reduction, .. } = self.sizes;
        let (mut by_rows, mut by_reduction) = (0, 0);
        let (mut more_by_rows, mut more_by_reduction) = (0, 0);
        let mut is_whole = true;
        for chunk in if self.costs.gemm == 0 { &[] } else { shape.chunks } {
            let (tokens, end) = (chunk.tokens, chunk.context + chunk.tokens);
            let wide = u128::from(tokens.div_ceil(columns));
            by_rows += wide * u128::from(end.div_ceil(rows));
            by_reduction += wide * u128::from(end.div_ceil(reduction));
            // Whole tiles more in each further iteration, whatever part of one the context ends in.
            is_whole &= tokens % rows == 0 && tokens % reduction == 0;
            more_by_rows += wide * u128::from(tokens / rows);
            more_by_reduction += wide * u128::from(tokens / reduction);
        }
        let tokens = shape.tokens();
        let first = sum(&[
            (self.costs.linear_per_tile, u128::from(tokens.div_ceil(columns))),
            (self.costs.other_per_token, u128::from(tokens)),
            (self.decode_by_rows, shape.ceilings[0]),
            (self.decode_by_columns, shape.ceilings[1]),
            (self.chunk_by_rows, by_rows),
            (self.chunk_by_reduction, by_reduction),
        ])?;
        if !is_whole {
            return Ok(Pace { first: Span(first), growth: 0, holds: 1 });
        }
        let growth = sum(&[(self.chunk_by_rows, more_by_rows), (self.chunk_by_reduction, more_by_reduction)])?;
        let growth = i128::try_from(growth).map_err(|_| overflow())?;
        Ok(Pace { first: Span(first), growth, holds: shape.steady })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::price;
    use super::*;

    /// Every term of the sum has decimal places of its own.
    fn model() -> TiledGemm {
        let sizes = Sizes { rows: 8, columns: 4, reduction: 2, width: 16, layers: 3 };
        let costs = Costs { linear_per_tile: 1, other_per_token: 1_000, gemm: 1_000_000, gemv: 1_000_000_000_000 };
        TiledGemm::new(sizes, costs).expect("a model")
    }

    #[test]
    fn a_small_batch_is_worked_by_hand() {
        // Two decodes, of their tokens 8 and 9, and chunks of 6 tokens at context 5 and of 1 token at context 0.
        let pace = price(&model(), &[(6, 5), (1, 0)], &[7, 8], 0);
        // τ = 9: ⌈9/4⌉ = 3 tiles.
        let linear = 3 + 9 * 1_000;
        // 16/4·⌈8/8⌉ + 16/8·⌈8/4⌉ = 4 + 4, and 4·⌈9/8⌉ + 2·⌈9/4⌉ = 8 + 6.
        let decodes = 3 * (8 + 14) * 1_000_000_000_000;
        // ⌈6/4⌉·(16/2·⌈11/8⌉ + 16/8·⌈11/2⌉) = 2·(16 + 12), and ⌈1/4⌉·(8·⌈1/8⌉ + 2·⌈1/2⌉) = 10.
        let chunks = 3 * (56 + 10) * 1_000_000;
        assert_eq!(pace, Pace { first: Span(linear + decodes + chunks), growth: 0, holds: 1 });
    }

    #[test]
    fn decodes_climb_a_stair_when_a_context_fills_a_tile() {
        let model = model();
        let first = |context: u64| price(&model, &[], &[context], 0).first.0;
        // Tokens 1 to 4 lie in the first tile of columns, 5 to 8 in the second, both in the first tile of rows.
        let by_columns = 3 * (16 / 8) * 1_000_000_000_000;
        let by_rows = 3 * (16 / 4) * 1_000_000_000_000;
        assert!([0, 1, 2, 3].iter().all(|&context| first(context) == first(0)));
        assert_eq!(first(4), first(0) + by_columns);
        assert!([4, 5, 6, 7].iter().all(|&context| first(context) == first(4)));
        assert_eq!(first(8), first(4) + by_columns + by_rows);
        // The pace holds up to the step of whoever takes it first.
        let holds = |contexts: &[u64]| price(&model, &[], contexts, 0).holds;
        assert_eq!((holds(&[0]), holds(&[2]), holds(&[3]), holds(&[4])), (4, 2, 1, 4));
        assert_eq!(holds(&[4, 2, 1]), 2);
    }

    #[test]
    fn linear_layers_climb_a_stair_when_tokens_fill_a_tile() {
        let sizes = Sizes { rows: 8, columns: 4, reduction: 2, width: 16, layers: 3 };
        let costs = Costs { linear_per_tile: 7, other_per_token: 0, gemm: 0, gemv: 0 };
        let model = TiledGemm::new(sizes, costs).expect("a model");
        let pace = |decodes: usize| price(&model, &[(3, 1)], &vec![5; decodes], 0);
        let lengths: Vec<u128> = (0..7).map(|decodes| pace(decodes).first.0).collect();
        assert_eq!(lengths, [7, 7, 14, 14, 14, 14, 21]);
        // Attention that costs nothing takes no step.
        assert!(model.moduli().is_empty());
        assert_eq!(pace(3), Pace::constant(Span(14)));
    }

    #[test]
    fn whole_tiles_of_a_chunk_are_a_line_and_parts_are_not() {
        let model = model();
        // A chunk of 8 tokens adds one tile of rows and four of reduction to each later one: 2·(8·1 + 2·4) pairs.
        let pace = price(&model, &[(8, 3)], &[], 0);
        assert_eq!((pace.growth, pace.holds), (3 * 32 * 1_000_000, u64::MAX));
        // With a decode beside it, until that takes a step.
        assert_eq!(price(&model, &[(8, 3)], &[1], 0).holds, 3);
        // 4 tokens are half a tile of rows.
        assert_eq!(price(&model, &[(8, 3), (4, 0)], &[], 0).holds, 1);
    }

    #[test]
    fn chunks_of_the_common_multiple_cost_what_theorem_1_says() {
        // layers·gemm·width/(rows·columns·reduction)·p·(p + lcm), for prompts of whole multiples.
        let (model, lcm) = (model(), 8);
        for chunks in 1..20 {
            let prompt = chunks * lcm;
            let all = (0..chunks).map(|chunk| price(&model, &[(lcm, chunk * lcm)], &[], 0).first.0);
            let linear = prompt.div_ceil(4) + prompt * 1_000;
            let attention = 3 * 1_000_000 * 16 * prompt * (prompt + lcm) / (8 * 4 * 2);
            assert_eq!(all.sum::<u128>(), u128::from(linear + attention));
        }
    }

    #[test]
    fn sizes_that_make_no_tiles_are_refused() {
        let sizes = Sizes { rows: 8, columns: 4, reduction: 2, width: 16, layers: 3 };
        let costs = Costs { linear_per_tile: 1, other_per_token: 0, gemm: 0, gemv: 0 };
        let refused = |sizes: Sizes| TiledGemm::new(sizes, costs).expect_err("a wrong size").to_string();
        assert!(refused(Sizes { rows: 0, ..sizes }).starts_with("rows: 0: "));
        assert!(refused(Sizes { columns: LARGEST + 1, ..sizes }).starts_with("columns: 1048577: "));
        assert!(refused(Sizes { layers: 0, ..sizes }).starts_with("layers: 0: "));
        assert!(refused(Sizes { width: 0, ..sizes }).starts_with("width: 0: "));
        assert!(refused(Sizes { width: u64::MAX, ..sizes }).starts_with("width: "));
        assert_eq!(refused(Sizes { reduction: 3, ..sizes }), "reduction: 3 does not divide the width, 16");
        assert_eq!(refused(Sizes { rows: 32, ..sizes }), "rows: 32 does not divide the width, 16");
        let costs = Costs { gemm: u128::MAX / 2, ..costs };
        let error = TiledGemm::new(sizes, costs).expect_err("more time than fits");
        assert!(matches!(error.kind(), crate::error::Kind::Overflow(_)));
    }
}
