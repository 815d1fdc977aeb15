//! Timing models, which compute iteration times.
//!
//! A timing model maps the shape of a batch to a [`Pace`]: the duration of the first iteration, the growth per
//! further identical iteration, and the number of iterations for which this line is exact. One model per file.

mod host;

use crate::clock::{Instant, Span, Width, greatest_common_divisor, is_short, product};
use crate::error::{Error, Result};
use crate::kinds::kinds;

pub use host::{HostTime, Overhead};
pub use roofline::{ChunkRoof, DecodeRoof, Exchange, ExpertsRoof, LinearRoof, StateRoof, WindowRoof};
pub use table::{ChunkGrid, DecodeGrid, LinearGrid};

/// A prefill chunk, as priced by a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkShape {
    /// Tokens computed in this iteration.
    pub tokens: u64,
    /// Tokens of its request computed earlier.
    pub context: u64,
}

/// Sums over a set of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkSums {
    tokens: u64,
    context: u64,
    squares: u128,
    cross: u128,
}

impl ChunkSums {
    #[inline]
    pub(crate) fn add(&mut self, chunk: ChunkShape) {
        let ChunkShape { tokens, context } = chunk;
        self.tokens += tokens;
        self.context += context;
        self.squares += u128::from(tokens) * u128::from(tokens);
        self.cross += u128::from(tokens) * u128::from(context);
    }
}

impl FromIterator<ChunkShape> for ChunkSums {
    fn from_iter<Chunks: IntoIterator<Item = ChunkShape>>(chunks: Chunks) -> ChunkSums {
        let mut sums = ChunkSums::default();
        chunks.into_iter().for_each(|chunk| sums.add(chunk));
        sums
    }
}

/// Maximum number of moduli of a model.
pub const MODULI: usize = 2;

/// The batch to be priced, in its state before the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// The chunks of the batch.
    pub chunks: &'a [ChunkShape],
    /// Σ tokens over the chunks.
    pub chunk_tokens: u64,
    /// Σ context over the chunks.
    pub chunk_context: u64,
    /// Σ tokens² over the chunks.
    pub chunk_squares: u128,
    /// Σ tokens · context over the chunks.
    pub chunk_cross: u128,
    /// Decodes in the batch.
    pub decodes: u64,
    /// Σ context over the decodes. Contexts and their number are below 2^32.
    pub decode_context: u64,
    /// Draft tokens verified by decodes, beyond one token each. Attention reads the context once for all of them.
    pub drafts: u64,
    /// Σ ⌈(context + 1) / m⌉ over the decodes, for each modulus m that the model declares.
    pub ceilings: [u128; MODULI],
    /// Identical iterations, including this one, during which no ceiling changes.
    pub steady: u64,
}

impl<'a> Shape<'a> {
    /// Builds a batch of chunks only.
    pub(crate) fn of(chunks: &'a [ChunkShape]) -> Shape<'a> {
        Shape::summed(chunks, &chunks.iter().copied().collect())
    }

    /// Builds a batch of chunks with known sums.
    #[inline]
    pub(crate) fn summed(chunks: &'a [ChunkShape], sums: &ChunkSums) -> Shape<'a> {
        Shape {
            chunks,
            chunk_tokens: sums.tokens,
            chunk_context: sums.context,
            chunk_squares: sums.squares,
            chunk_cross: sums.cross,
            decodes: 0,
            decode_context: 0,
            drafts: 0,
            ceilings: [0; MODULI],
            steady: u64::MAX,
        }
    }

    /// Returns the sums over the chunks.
    #[inline]
    fn sums(&self) -> ChunkSums {
        ChunkSums {
            tokens: self.chunk_tokens,
            context: self.chunk_context,
            squares: self.chunk_squares,
            cross: self.chunk_cross,
        }
    }

    /// Adds decodes with this sum of contexts.
    #[inline]
    pub(crate) fn add_decodes(&mut self, count: u64, context: u64) {
        self.decodes += count;
        self.decode_context += context;
    }

    /// Adds a decode of `tokens` tokens, all but one of them drafts, for a model with these moduli.
    pub(crate) fn add_decode(&mut self, context: u64, tokens: u64, moduli: &[u64]) {
        self.add_decodes(1, context);
        self.drafts += tokens - 1;
        for (ceiling, modulus) in self.ceilings.iter_mut().zip(moduli) {
            *ceiling += u128::from((context + tokens).div_ceil(*modulus));
        }
    }

    /// Tokens that the iteration computes.
    #[inline]
    pub fn tokens(&self) -> u64 {
        self.chunk_tokens + self.decodes + self.drafts
    }
}

/// An exact line: iteration j of a stretch takes `first + j · growth` for every j below `holds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Duration of the first iteration.
    pub first: Span,
    /// Attoseconds added by each further identical iteration.
    pub growth: i128,
    /// Iterations for which the line is exact, at least 1.
    pub holds: u64,
}

impl Pace {
    /// The same duration for all iterations.
    #[inline]
    pub fn constant(length: Span) -> Pace {
        Pace { first: length, growth: 0, holds: u64::MAX }
    }

    /// Durations that grow by the same amount without end.
    #[inline]
    pub fn line(first: u128, growth: u128) -> Result<Pace> {
        Ok(Pace { first: Span(first), growth: i128::try_from(growth).map_err(|_| overflow())?, holds: u64::MAX })
    }

    /// The sum of two paces.
    #[inline]
    pub(crate) fn plus(&self, other: &Pace) -> Result<Pace> {
        Ok(Pace {
            first: self.first.plus(other.first)?,
            growth: self.growth.checked_add(other.growth).ok_or_else(overflow)?,
            holds: self.holds.min(other.holds),
        })
    }

    /// The longer of two concurrent paces, up to the iteration in which the other one becomes longer.
    #[inline]
    pub(crate) fn larger(&self, other: &Pace) -> Pace {
        let is_self = (self.first, self.growth) >= (other.first, other.growth);
        let (above, below) = if is_self { (self, other) } else { (other, self) };
        let mut holds = above.holds.min(below.holds);
        if below.growth > above.growth {
            // Iteration j is on the upper line while j · (difference of growths) ≤ difference of firsts.
            let closing = below.growth.abs_diff(above.growth);
            let iterations = (above.first.0 - below.first.0) / closing;
            holds = holds.min(u64::try_from(iterations).map_or(u64::MAX, |iterations| iterations.saturating_add(1)));
        }
        Pace { holds, ..*above }
    }

    /// First duration and growth if they fit 64 bits: nearly all are below 18 s and do not shrink.
    fn short(&self) -> Option<(u64, u64)> {
        let is_short = (self.first.0 | self.growth as u128) >> 64 == 0;
        is_short.then_some((self.first.0 as u64, self.growth as u64))
    }

    /// Restricts the pace to the given width; the growth of a single iteration is arbitrary.
    pub(crate) fn within<W: Width>(&self) -> Pace {
        let growth = if W::IS_SHORT { i128::from(self.growth as u64) } else { self.growth };
        Pace { first: self.first.within::<W>(), growth, holds: self.holds }
    }

    /// Returns the end of the first `count` iterations from `start` on, if everything fits 64 bits.
    #[inline(always)]
    pub(crate) fn short_end(&self, start: Instant, count: u64) -> Option<Instant> {
        let (start, first) = (u64::try_from(start.0).ok()?, u64::try_from(self.first.0).ok()?);
        let end = if count == 1 { start.checked_add(first)? } else { self.short_end_of_several(start, first, count)? };
        // Nothing is longer than the time up to the end.
        is_short(end.into()).then_some(Instant(end.into()))
    }

    fn short_end_of_several(&self, start: u64, first: u64, count: u64) -> Option<u64> {
        let growth = u64::try_from(self.growth).ok()?;
        let pairs = u64::try_from(u128::from(count) * u128::from(count - 1) / 2).ok()?;
        start.checked_add(first.checked_mul(count)?)?.checked_add(growth.checked_mul(pairs)?)
    }

    /// Total duration of the first `count` iterations.
    #[inline(always)]
    pub fn total(&self, count: u64) -> Result<Span> {
        if count == 1 {
            return Ok(self.first);
        }
        match self.short() {
            Some((first, growth)) if count >> 32 == 0 => Ok(Span(total(first, growth, count))),
            _ => self.long_total(count),
        }
    }

    fn long_total(&self, count: u64) -> Result<Span> {
        let base = product(self.first.0, u128::from(count))?;
        if self.growth == 0 || count < 2 {
            return Ok(Span(base));
        }
        let pairs = u128::from(count) * u128::from(count - 1) / 2;
        let change = product(self.growth.unsigned_abs(), pairs)?;
        let total = if self.growth > 0 { base.checked_add(change) } else { base.checked_sub(change) };
        total.map(Span).ok_or_else(overflow)
    }

    /// Maximum number of iterations, up to `limit`, with a total duration of at most `span`.
    #[inline]
    pub(crate) fn count_within(&self, span: Span, limit: u64) -> Result<u64> {
        if limit <= 1 || span < self.first {
            return Ok(if span < self.first { 0 } else { limit });
        }
        self.several_within(span, limit)
    }

    fn several_within(&self, span: Span, limit: u64) -> Result<u64> {
        let (first, growth, total) = (self.first.0, self.growth as u128, span.0);
        if (first | growth | total) >> 63 == 0 && limit >> 32 == 0 {
            return Ok(count_within(first as i64, growth as i64, total as i64, limit));
        }
        self.long_count_within(span, limit)
    }

    fn long_count_within(&self, span: Span, limit: u64) -> Result<u64> {
        // Most cut stretches are cut early, where a linear scan is fastest.
        let (mut end, mut length) = (self.first.0, self.first);
        for count in 0..limit.min(4) {
            if end > span.0 {
                return Ok(count);
            }
            length = Pace { first: length, ..*self }.length(1)?;
            end = end.checked_add(length.0).ok_or_else(overflow)?;
        }
        // A float estimate, corrected by integer tests: the result is exact for any estimate.
        let (first, target) = (float(self.first.0), float(span.0));
        let growth = i64::try_from(self.growth).map_or_else(|_| self.growth as f64, |short| short as f64);
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

    /// Longest of the first `count` iterations, whose total is valid.
    pub(crate) fn longest<W: Width>(&self, count: u64) -> Result<Span> {
        if W::IS_SHORT {
            let grown = (self.growth as u64).wrapping_mul(count - 1);
            return Ok(Span((self.first.0 as u64).wrapping_add(grown).into()));
        }
        if count > 1 && self.growth > 0 { self.length(count - 1) } else { Ok(self.first) }
    }

    /// Duration of iteration `index`, counted from 0.
    #[inline(always)]
    pub fn length(&self, index: u64) -> Result<Span> {
        match self.short() {
            // (2^64 − 1)² + 2^64 − 1 is below 2^128.
            Some((first, growth)) => Ok(Span(u128::from(growth) * u128::from(index) + u128::from(first))),
            None => self.long_length(index),
        }
    }

    fn long_length(&self, index: u64) -> Result<Span> {
        let change = product(self.growth.unsigned_abs(), u128::from(index))?;
        let length = if self.growth >= 0 { self.first.0.checked_add(change) } else { self.first.0.checked_sub(change) };
        length.map(Span).ok_or_else(overflow)
    }
}

/// Total duration of fewer than 2^32 iterations that begin with `first` and grow: below 2^96 + 2^127.
#[inline(always)]
fn total(first: u64, growth: u64, count: u64) -> u128 {
    let pairs = count * count.wrapping_sub(1) / 2;
    u128::from(first) * u128::from(count) + u128::from(growth) * u128::from(pairs)
}

/// Maximum number of iterations, up to `limit` < 2^32, with a total duration of at most `span`; all numbers are
/// nonnegative.
#[inline]
fn count_within(first: i64, growth: i64, span: i64, limit: u64) -> u64 {
    // Most cut stretches are cut early.
    if span - first - first < growth {
        return 1;
    }
    // A float estimate, corrected by integer tests: the result is exact for any estimate.
    let (rise, target) = (growth as f64, span as f64);
    let slope = first as f64 - rise / 2.0;
    let guess = 2.0 * target / (slope + (slope * slope + 2.0 * rise * target).sqrt());
    let mut count = (guess as i64 as u64).min(limit);
    let (first, growth, span) = (first as u64, growth as u64, span as u128);
    let mut end = total(first, growth, count);
    while end > span {
        count -= 1;
        end = total(first, growth, count);
    }
    while count < limit {
        end += u128::from(first) + u128::from(growth) * u128::from(count);
        if end > span {
            break;
        }
        count += 1;
    }
    count
}

/// Converts a number to a float; most fit 64 bits, for which the conversion is much cheaper.
#[inline]
fn float(number: u128) -> f64 {
    i64::try_from(number).map_or_else(|_| number as f64, |short| short as f64)
}

#[cold]
fn overflow() -> Error {
    Error::overflow("the length of an iteration")
}

/// A set of axes on which a shape exceeded the measured range of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond(u8);

impl Beyond {
    const TOKENS: Beyond = Beyond(1);
    const CHUNK: Beyond = Beyond(2);
    const CHUNK_CONTEXT: Beyond = Beyond(4);
    const SEQUENCES: Beyond = Beyond(8);
    const MEAN_CONTEXT: Beyond = Beyond(16);

    /// The union of two sets.
    #[must_use]
    pub(crate) fn and(self, other: Beyond) -> Beyond {
        Beyond(self.0 | other.0)
    }

    /// The axes in words.
    pub fn axes(self) -> Vec<&'static str> {
        let all = [
            (Beyond::TOKENS, "tokens of a batch"),
            (Beyond::CHUNK, "tokens of a chunk"),
            (Beyond::CHUNK_CONTEXT, "context of a chunk"),
            (Beyond::SEQUENCES, "decodes"),
            (Beyond::MEAN_CONTEXT, "mean context of the decodes"),
        ];
        all.into_iter().filter(|(axis, _)| self.0 & axis.0 != 0).map(|(_, words)| words).collect()
    }
}

/// A model of iteration times. It is pure: equal shapes have equal paces, and the shape after j identical iterations
/// has a pace whose `first` is `first + j · growth`, for every j below `holds`.
pub trait Timing: Send + Sync {
    /// The moduli whose ceilings the model uses, at most [`MODULI`].
    fn moduli(&self) -> &[u64] {
        &[]
    }

    /// Returns the pace of identical iterations that begin with this shape.
    fn pace(&self, shape: &Shape) -> Result<Pace>;

    /// Returns the axes on which shapes priced so far exceeded the measured range.
    fn beyond(&self) -> Beyond {
        Beyond::default()
    }

    /// Returns a divisor, in attoseconds, of all times of the model; 0: all are 0.
    fn unit(&self) -> u128 {
        1
    }

    /// Switches to units of `attoseconds`, a divisor of [`Timing::unit`].
    fn count_in(&mut self, _attoseconds: u128) {}

    /// Returns the model in 64 bits if it is piecewise linear. Then the sums of a batch are sufficient and no shape
    /// is built.
    fn short_line(&self) -> Option<&PiecewiseLinear<u64>> {
        None
    }
}

/// Returns the pace of a batch given row by row: chunks, and the contexts of the decodes.
pub fn pace_of(model: &dyn Timing, chunks: &[ChunkShape], decodes: &[u64]) -> Result<Pace> {
    let contexts = chunks.iter().map(|chunk| chunk.context).chain(decodes.iter().copied());
    if contexts.map(u128::from).sum::<u128>() > u128::from(u64::MAX) {
        return Err(overflow());
    }
    let mut shape = Shape::of(chunks);
    shape.add_decodes(decodes.len() as u64, decodes.iter().sum());
    for (ceiling, &modulus) in shape.ceilings.iter_mut().zip(model.moduli()) {
        *ceiling = decodes.iter().map(|context| u128::from((context + 1).div_ceil(modulus))).sum();
        let until_step = decodes.iter().map(|context| (context + 1).next_multiple_of(modulus) - context).min();
        shape.steady = shape.steady.min(until_step.unwrap_or(u64::MAX));
    }
    model.pace(&shape)
}

/// Parameters of a timing model as described by the user; implemented in each model's file.
trait TimingParameters {
    /// Builds the model, with parameters in attoseconds.
    fn build(&self) -> Result<Box<dyn Timing>>;
}

/// Imports of a timing model's file.
mod prelude {
    pub(super) use super::{Pace, Shape, Timing, TimingParameters};
    pub(super) use crate::kinds::prelude::*;
}

kinds! {
    /// Timing models and their parameters; times in seconds.
    TimingModel: TimingParameters {
        constant::Constant,
        piecewise_linear::PiecewiseLinear,
        memory_linear::MemoryLinear,
        mixed_solo::MixedSolo,
        tiled_gemm::TiledGemm,
        roofline::Roofline,
        table::TimingTable,
    }
}

impl TimingModel {
    /// Builds the model, with parameters in attoseconds.
    pub fn build(&self) -> Result<Box<dyn Timing>> {
        self.parameters().build()
    }
}

/// Greatest common divisor of times.
fn common_divisor(times: &[u128]) -> u128 {
    times.iter().copied().fold(0, greatest_common_divisor)
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
mod tests;
