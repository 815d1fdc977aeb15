//! A step function from the tiles of matrix products, which are computed whole: bari2025 (7).

use super::prelude::*;
use super::{common_divisor, overflow, sum};
use crate::clock::{Span, attoseconds, product};

/// Matrix products in whole tiles, which make the time a step function.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TiledGemm {
    /// Rows of an output tile.
    pub rows: u64,
    /// Columns of an output tile.
    pub columns: u64,
    /// Reduction length of a tile.
    pub reduction: u64,
    /// Width of the model's attention, a multiple of the three tile sizes.
    pub width: u64,
    /// Time of the linear layers per tile of token columns.
    pub linear_s_per_tile: f64,
    /// Time of everything else per token.
    pub other_s_per_token: f64,
    /// Time of a pair of tiles of a matrix product in the attention of chunks.
    pub gemm_s: f64,
    /// Time of a tile of a matrix-vector product in the attention of decodes.
    pub gemv_s: f64,
    /// Layers of the model.
    pub layers: u64,
}

impl TiledGemm {
    fn timing(&self) -> Result<TiledGemmTiming> {
        let TiledGemm { rows, columns, reduction, width, layers, .. } = *self;
        let costs = Costs {
            linear_per_tile: attoseconds(self.linear_s_per_tile, "linear_s_per_tile")?,
            other_per_token: attoseconds(self.other_s_per_token, "other_s_per_token")?,
            gemm: attoseconds(self.gemm_s, "gemm_s")?,
            gemv: attoseconds(self.gemv_s, "gemv_s")?,
        };
        let tiles = [("rows", rows), ("columns", columns), ("reduction", reduction)];
        for (name, size) in tiles.into_iter().chain([("width", width), ("layers", layers)]) {
            if !(1..=LARGEST).contains(&size) {
                return Err(Error::config(name, format!("must be from 1 to {LARGEST}, got {size}")));
            }
        }
        for (name, size) in tiles {
            if width % size != 0 {
                return Err(Error::config(name, format!("must divide the width ({width}), got {size}")));
            }
        }
        let in_all_layers = |cost: u128, tiles: u64| product(cost, u128::from(layers * tiles));
        Ok(TiledGemmTiming {
            sizes: Sizes { rows, columns, reduction },
            costs,
            moduli: [rows, columns],
            decode_by_rows: in_all_layers(costs.gemv, width / columns)?,
            decode_by_columns: in_all_layers(costs.gemv, width / rows)?,
            chunk_by_rows: in_all_layers(costs.gemm, width / reduction)?,
            chunk_by_reduction: in_all_layers(costs.gemm, width / rows)?,
        })
    }
}

impl TimingParameters for TiledGemm {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(self.timing()?))
    }
}

impl Sample for TiledGemm {
    fn sample(dice: &mut Dice) -> TiledGemm {
        TiledGemm {
            rows: dice.one_of(&[1, 4, 16]),
            columns: dice.one_of(&[2, 4, 8]),
            reduction: dice.one_of(&[1, 2, 16]),
            width: 32,
            linear_s_per_tile: dice.seconds(1000, 9000),
            other_s_per_token: dice.seconds(0, 30),
            gemm_s: dice.seconds(0, 5),
            gemv_s: dice.seconds(0, 5),
            layers: 1 + dice.below(3),
        }
    }
}

/// Tile sizes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: u64,
    columns: u64,
    reduction: u64,
}

/// Costs in attoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// 1/μ_Lin.
    linear_per_tile: u128,
    /// 1/μ_nLin.
    other_per_token: u128,
    /// 1/(s·μ(t_row, t_col, t_red)), a pair of tiles in (6).
    gemm: u128,
    /// 1/μ(t_row, t_col), a tile in (5).
    gemv: u128,
}

/// With t_row, t_col, t_red, d for rows, columns, reduction, width, τ tokens in the batch, decodes that compute their
/// i-th token, and chunks of c tokens at context x:
///
/// ```text
/// linear·⌈τ/t_col⌉ + other·τ + layers·gemv·Σ decodes (d/t_col·⌈i/t_row⌉ + d/t_row·⌈i/t_col⌉)
///     + layers·gemm·Σ chunks ⌈c/t_col⌉·(d/t_red·⌈(x+c)/t_row⌉ + d/t_row·⌈(x+c)/t_red⌉)
/// ```
///
/// The paper counts tokens from 1: its i_j + c_j − 1 is x + c, and its i_j of a decode is context + 1.
#[derive(Debug)]
struct TiledGemmTiming {
    sizes: Sizes,
    costs: Costs,
    /// t_row and t_col: a decode needs another tile whenever its context fills one.
    moduli: [u64; 2],
    /// Step of the decodes' ceilings by rows, and by columns.
    decode_by_rows: u128,
    decode_by_columns: u128,
    /// A pair of tiles of chunks, counted by rows of their contexts, and by reductions.
    chunk_by_rows: u128,
    chunk_by_reduction: u128,
}

/// Far above realistic models and tiles; a tile has a counter for each of its rows and columns.
const LARGEST: u64 = 1 << 20;

impl Timing for TiledGemmTiming {
    fn moduli(&self) -> &[u64] {
        // Decodes whose attention costs nothing cause no steps.
        if self.costs.gemv == 0 { &[] } else { &self.moduli }
    }

    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let Sizes { rows, columns, reduction } = self.sizes;
        let (mut by_rows, mut by_reduction) = (0, 0);
        let (mut more_by_rows, mut more_by_reduction) = (0, 0);
        let mut is_whole = true;
        for chunk in if self.costs.gemm == 0 { &[] } else { shape.chunks } {
            let (tokens, end) = (chunk.tokens, chunk.context + chunk.tokens);
            let wide = u128::from(tokens.div_ceil(columns));
            by_rows += wide * u128::from(end.div_ceil(rows));
            by_reduction += wide * u128::from(end.div_ceil(reduction));
            // Whole tiles are added in each further iteration, wherever the context ends within a tile.
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

    fn unit(&self) -> u128 {
        let Costs { linear_per_tile, other_per_token, gemm, gemv } = self.costs;
        common_divisor(&[linear_per_tile, other_per_token, gemm, gemv])
    }

    fn count_in(&mut self, attoseconds: u128) {
        let Costs { linear_per_tile, other_per_token, gemm, gemv } = &mut self.costs;
        let of_attention = [
            &mut self.decode_by_rows,
            &mut self.decode_by_columns,
            &mut self.chunk_by_rows,
            &mut self.chunk_by_reduction,
        ];
        [linear_per_tile, other_per_token, gemm, gemv]
            .into_iter()
            .chain(of_attention)
            .for_each(|time| *time /= attoseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::price;
    use super::*;

    /// Every term of the sum has its own decimal places.
    const MODEL: TiledGemm = TiledGemm {
        rows: 8,
        columns: 4,
        reduction: 2,
        width: 16,
        linear_s_per_tile: 1e-18,
        other_s_per_token: 1e-15,
        gemm_s: 1e-12,
        gemv_s: 1e-6,
        layers: 3,
    };

    fn model() -> TiledGemmTiming {
        MODEL.timing().expect("a model")
    }

    #[test]
    fn a_small_batch_matches_a_hand_calculation() {
        // Two decodes at their tokens 8 and 9, and chunks of 6 tokens at context 5 and of 1 token at context 0.
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
    fn decodes_take_a_step_when_a_context_fills_a_tile() {
        let model = model();
        let first = |context: u64| price(&model, &[], &[context], 0).first.0;
        // Tokens 1 to 4 are in the first tile of columns, 5 to 8 in the second, all in the first tile of rows.
        let by_columns = 3 * (16 / 8) * 1_000_000_000_000;
        let by_rows = 3 * (16 / 4) * 1_000_000_000_000;
        assert!([0, 1, 2, 3].iter().all(|&context| first(context) == first(0)));
        assert_eq!(first(4), first(0) + by_columns);
        assert!([4, 5, 6, 7].iter().all(|&context| first(context) == first(4)));
        assert_eq!(first(8), first(4) + by_columns + by_rows);
        // The pace holds up to the first step of any decode.
        let holds = |contexts: &[u64]| price(&model, &[], contexts, 0).holds;
        assert_eq!((holds(&[0]), holds(&[2]), holds(&[3]), holds(&[4])), (4, 2, 1, 4));
        assert_eq!(holds(&[4, 2, 1]), 2);
    }

    #[test]
    fn linear_layers_take_a_step_when_tokens_fill_a_tile() {
        let linear = TiledGemm { linear_s_per_tile: 7e-18, other_s_per_token: 0.0, gemm_s: 0.0, gemv_s: 0.0, ..MODEL };
        let model = linear.timing().expect("a model");
        let pace = |decodes: usize| price(&model, &[(3, 1)], &vec![5; decodes], 0);
        let lengths: Vec<u128> = (0..7).map(|decodes| pace(decodes).first.0).collect();
        assert_eq!(lengths, [7, 7, 14, 14, 14, 14, 21]);
        // Attention without cost causes no steps.
        assert!(model.moduli().is_empty());
        assert_eq!(pace(3), Pace::constant(Span(14)));
    }

    #[test]
    fn whole_tiles_of_a_chunk_are_a_line_and_parts_are_not() {
        let model = model();
        // A chunk of 8 tokens adds one tile of rows and four of reduction to each later one: 2·(8·1 + 2·4) pairs.
        let pace = price(&model, &[(8, 3)], &[], 0);
        assert_eq!((pace.growth, pace.holds), (3 * 32 * 1_000_000, u64::MAX));
        // With a decode, until the decode takes a step.
        assert_eq!(price(&model, &[(8, 3)], &[1], 0).holds, 3);
        // 4 tokens are half a tile of rows.
        assert_eq!(price(&model, &[(8, 3), (4, 0)], &[], 0).holds, 1);
    }

    #[test]
    fn chunks_of_the_common_multiple_match_theorem_1() {
        // layers·gemm·width/(rows·columns·reduction)·p·(p + lcm), for prompts that are multiples of the lcm.
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
    fn invalid_tile_sizes_are_errors() {
        let refused = |model: TiledGemm| model.timing().expect_err("a wrong size").to_string();
        assert!(refused(TiledGemm { rows: 0, ..MODEL }).starts_with("rows: must be from 1 to "));
        assert!(refused(TiledGemm { columns: LARGEST + 1, ..MODEL }).starts_with("columns: must be from 1 to "));
        assert!(refused(TiledGemm { layers: 0, ..MODEL }).starts_with("layers: must be from 1 to "));
        assert!(refused(TiledGemm { width: 0, ..MODEL }).starts_with("width: must be from 1 to "));
        assert!(refused(TiledGemm { width: u64::MAX, ..MODEL }).starts_with("width: "));
        assert_eq!(refused(TiledGemm { reduction: 3, ..MODEL }), "reduction: must divide the width (16), got 3");
        assert_eq!(refused(TiledGemm { rows: 32, ..MODEL }), "rows: must divide the width (16), got 32");
        let endless = TiledGemm { layers: LARGEST, gemm_s: 1e15, ..MODEL };
        let error = endless.timing().expect_err("more time than fits");
        assert!(matches!(error.kind(), crate::error::Kind::Overflow(_)));
    }
}
