//! How long does an iteration take?
//!
//! A timing model reads the shape of a batch and answers a [`Pace`]: the length of the first iteration, what each further
//! identical iteration adds, and for how many that line is exact. One model, one file.

mod constant;
mod memory_linear;
mod mixed_solo;
mod piecewise_linear;
mod tiled_gemm;

use serde::Deserialize;

use crate::clock::{Span, attoseconds, product};
use crate::error::{Error, Result};

/// A prefill chunk as a model prices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkShape {
    /// Tokens that it computes.
    pub tokens: u64,
    /// Tokens of its request that were computed before.
    pub context: u64,
}

/// Most moduli that a model may declare.
pub const MODULI: usize = 2;

/// The batch that a model prices, as it stands before the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// The chunks of the batch.
    pub chunks: &'a [ChunkShape],
    /// Σ tokens over the chunks.
    pub chunk_tokens: u64,
    /// Σ context over the chunks.
    pub chunk_context: u128,
    /// Σ tokens² over the chunks.
    pub chunk_squares: u128,
    /// Σ tokens · context over the chunks.
    pub chunk_cross: u128,
    /// Decodes in the batch.
    pub decodes: u64,
    /// Σ context over the decodes.
    pub decode_context: u128,
    /// Σ ⌈(context + 1) / m⌉ over the decodes, for each modulus m that the model declares.
    pub ceilings: [u128; MODULI],
    /// Identical iterations, this one included, over which no ceiling takes a step.
    pub steady: u64,
}

impl<'a> Shape<'a> {
    /// A batch of chunks alone.
    #[inline]
    pub fn of(chunks: &'a [ChunkShape]) -> Shape<'a> {
        let mut shape = Shape {
            chunks,
            chunk_tokens: 0,
            chunk_context: 0,
            chunk_squares: 0,
            chunk_cross: 0,
            decodes: 0,
            decode_context: 0,
            ceilings: [0; MODULI],
            steady: u64::MAX,
        };
        for &ChunkShape { tokens, context } in chunks {
            shape.chunk_tokens += tokens;
            shape.chunk_context += u128::from(context);
            shape.chunk_squares += u128::from(tokens) * u128::from(tokens);
            shape.chunk_cross += u128::from(tokens) * u128::from(context);
        }
        shape
    }

    /// Adds decodes whose contexts have the given sum.
    #[inline]
    pub fn add_decodes(&mut self, count: u64, context: u128) {
        self.decodes += count;
        self.decode_context += context;
    }

    /// Tokens that the iteration loads.
    #[inline]
    pub fn tokens(&self) -> u64 {
        self.chunk_tokens + self.decodes
    }
}

/// An exact line: iteration j of a stretch takes `first + j · growth` for every j below `holds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Length of the first iteration.
    pub first: Span,
    /// Attoseconds that each further identical iteration adds.
    pub growth: i128,
    /// Iterations for which the line is exact, at least 1.
    pub holds: u64,
}

impl Pace {
    /// All iterations alike.
    #[inline]
    pub fn constant(length: Span) -> Pace {
        Pace { first: length, growth: 0, holds: u64::MAX }
    }

    /// Lengths that grow by the same amount for ever.
    #[inline]
    pub fn line(first: u128, growth: u128) -> Result<Pace> {
        Ok(Pace { first: Span(first), growth: i128::try_from(growth).map_err(|_| overflow())?, holds: u64::MAX })
    }

    /// What the first `count` iterations take together.
    #[inline]
    pub fn total(&self, count: u64) -> Result<Span> {
        if count == 1 {
            return Ok(self.first);
        }
        let base = product(self.first.0, u128::from(count))?;
        if self.growth == 0 || count < 2 {
            return Ok(Span(base));
        }
        let pairs = u128::from(count) * u128::from(count - 1) / 2;
        let change = product(self.growth.unsigned_abs(), pairs)?;
        let total = if self.growth > 0 { base.checked_add(change) } else { base.checked_sub(change) };
        total.map(Span).ok_or_else(overflow)
    }

    /// The most iterations, up to `limit`, that together take no longer than `span`.
    pub fn count_within(&self, span: Span, limit: u64) -> Result<u64> {
        // Most stretches that are cut are cut early: there a walk is cheapest.
        let (mut end, mut length) = (self.first.0, self.first);
        for count in 0..limit.min(4) {
            if end > span.0 {
                return Ok(count);
            }
            length = Pace { first: length, ..*self }.length(1)?;
            end = end.checked_add(length.0).ok_or_else(overflow)?;
        }
        // A guess in floats, then whole-number tests: what comes out is exact whatever the guess was.
        let (first, growth, target) = (float(self.first.0), self.growth as f64, float(span.0));
        let slope = first - growth / 2.0;
        let guess = 2.0 * target / (slope + (slope * slope + 2.0 * growth * target).max(0.0).sqrt());
        let mut count = (guess as u64).min(limit);
        while self.total(count)? > span {
            count -= 1;
        }
        while count < limit && self.total(count + 1)? <= span {
            count += 1;
        }
        Ok(count)
    }

    /// The longest of the first `count` iterations.
    #[inline]
    pub fn longest(&self, count: u64) -> Result<Span> {
        if self.growth > 0 { self.length(count - 1) } else { Ok(self.first) }
    }

    /// The length of iteration `index`, counted from 0.
    #[inline]
    pub fn length(&self, index: u64) -> Result<Span> {
        if index == 0 || self.growth == 0 {
            return Ok(self.first);
        }
        let change = product(self.growth.unsigned_abs(), u128::from(index))?;
        let length = if self.growth >= 0 { self.first.0.checked_add(change) } else { self.first.0.checked_sub(change) };
        length.map(Span).ok_or_else(overflow)
    }
}

/// A number as a float; most fit 64 bits, where the conversion is many times cheaper.
#[inline]
fn float(number: u128) -> f64 {
    u64::try_from(number).map_or_else(|_| number as f64, |short| short as f64)
}

#[cold]
fn overflow() -> Error {
    Error::overflow("the length of an iteration")
}

/// A model of iteration times. It is pure: the same shape always has the same pace, and the shape after j identical
/// iterations has the pace whose `first` is `first + j · growth`, for every j below `holds`.
pub trait Timing: Send + Sync {
    /// The moduli whose ceilings the model reads from the shape, at most [`MODULI`].
    fn moduli(&self) -> &[u64] {
        &[]
    }

    /// The pace of identical iterations that begin with this shape.
    fn pace(&self, shape: &Shape) -> Result<Pace>;
}

/// A timing model as a user describes it; times in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum TimingModel {
    /// One slot of fixed length.
    Constant {
        /// Length of every iteration.
        seconds: f64,
    },
    /// Linear in tokens above a knee, with attention terms.
    PiecewiseLinear {
        /// Length of every iteration.
        base: f64,
        /// Per token above the knee.
        per_token: f64,
        /// Tokens that cost nothing more.
        #[serde(default)]
        knee: u64,
        /// β: per token of context of a decode.
        #[serde(default)]
        per_context_token: f64,
        /// α: per squared chunk token.
        #[serde(default)]
        per_prefill_square: f64,
        /// ε: per chunk token and token of context.
        #[serde(default)]
        per_chunk_context: f64,
    },
    /// Linear in the KV cache that the iteration reads and writes.
    MemoryLinear {
        /// Length of every iteration.
        base: f64,
        /// Per token in the cache.
        per_kv_token: f64,
    },
    /// Two speeds: with a chunk in the batch, and without.
    MixedSolo {
        /// Length of an iteration with a chunk.
        alpha: f64,
        /// Per chunk token.
        beta: f64,
        /// Length of an iteration without one.
        solo: f64,
    },
    /// A staircase: tiles of matrix products, each computed whole.
    TiledGemm {
        /// Rows of an output tile.
        rows: u64,
        /// Columns of an output tile.
        columns: u64,
        /// Length of the reduction of a tile.
        reduction: u64,
        /// Width of the model's attention, a multiple of each of the three.
        width: u64,
        /// Linear layers, for each tile of columns of tokens.
        linear_s_per_tile: f64,
        /// Everything else that is done for each token.
        other_s_per_token: f64,
        /// A pair of tiles of a matrix product in the attention of chunks.
        gemm_s: f64,
        /// A tile of a matrix-vector product in the attention of decodes.
        gemv_s: f64,
        /// Layers of the model.
        layers: u64,
    },
}

impl TimingModel {
    /// The model itself, its parameters as whole attoseconds.
    pub fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(match *self {
            TimingModel::Constant { seconds } => {
                Box::new(constant::Constant { length: Span(attoseconds(seconds, "seconds")?) })
            }
            TimingModel::PiecewiseLinear {
                base,
                per_token,
                knee,
                per_context_token,
                per_prefill_square,
                per_chunk_context,
            } => Box::new(piecewise_linear::PiecewiseLinear {
                base: attoseconds(base, "base")?,
                per_token: attoseconds(per_token, "per_token")?,
                knee,
                per_context_token: attoseconds(per_context_token, "per_context_token")?,
                per_prefill_square: attoseconds(per_prefill_square, "per_prefill_square")?,
                per_chunk_context: attoseconds(per_chunk_context, "per_chunk_context")?,
            }),
            TimingModel::MemoryLinear { base, per_kv_token } => Box::new(memory_linear::MemoryLinear {
                base: attoseconds(base, "base")?,
                per_kv_token: attoseconds(per_kv_token, "per_kv_token")?,
            }),
            TimingModel::MixedSolo { alpha, beta, solo } => Box::new(mixed_solo::MixedSolo {
                alpha: attoseconds(alpha, "alpha")?,
                beta: attoseconds(beta, "beta")?,
                solo: Span(attoseconds(solo, "solo")?),
            }),
            TimingModel::TiledGemm {
                rows,
                columns,
                reduction,
                width,
                linear_s_per_tile,
                other_s_per_token,
                gemm_s,
                gemv_s,
                layers,
            } => Box::new(tiled_gemm::TiledGemm::new(
                tiled_gemm::Sizes { rows, columns, reduction, width, layers },
                tiled_gemm::Costs {
                    linear_per_tile: attoseconds(linear_s_per_tile, "linear_s_per_tile")?,
                    other_per_token: attoseconds(other_s_per_token, "other_s_per_token")?,
                    gemm: attoseconds(gemm_s, "gemm_s")?,
                    gemv: attoseconds(gemv_s, "gemv_s")?,
                },
            )?),
        })
    }
}

/// The sum of `amount · price` over all terms.
#[inline(always)]
fn sum<const TERMS: usize>(terms: &[(u128, u128); TERMS]) -> Result<u128> {
    let mut total = 0_u128;
    for &(price, amount) in terms {
        if price != 0 {
            total = total.checked_add(product(price, amount)?).ok_or_else(overflow)?;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
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
            (seconds(), seconds(), seconds()).prop_map(|(alpha, beta, solo)| TimingModel::MixedSolo {
                alpha,
                beta,
                solo
            }),
            tiled_gemm(),
        ]
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
        let mut shape = Shape::of(&chunks);
        let contexts: Vec<u64> = decodes.iter().map(|context| context + later).collect();
        shape.add_decodes(contexts.len() as u64, contexts.iter().map(|&context| u128::from(context)).sum());
        for (ceiling, &modulus) in shape.ceilings.iter_mut().zip(model.moduli()) {
            *ceiling = contexts.iter().map(|context| u128::from((context + 1).div_ceil(modulus))).sum();
            let until_step = |context: &u64| (context + 1).next_multiple_of(modulus) - context;
            shape.steady = shape.steady.min(contexts.iter().map(until_step).min().unwrap_or(u64::MAX));
        }
        model.pace(&shape).expect("a pace")
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
            if later < first.holds {
                let then = price(model.as_ref(), &chunks, &decodes, later);
                prop_assert_eq!(first.length(later).expect("a length"), then.first);
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
}
