//! Measured timing tables: linear layers, attention of chunks and attention of decodes on a grid.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};

use super::prelude::*;
use super::{Beyond, overflow};
use crate::clock::{Span, attoseconds};
use crate::dice::Scale;

/// Time of the linear layers by tokens of the batch.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinearGrid {
    /// Tokens, ascending, at least two points.
    pub tokens: Vec<u64>,
    /// A time per point.
    pub seconds: Vec<Option<f64>>,
}

/// Attention time of one chunk.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkGrid {
    /// Tokens of the chunk, ascending, at least two points.
    pub chunk: Vec<u64>,
    /// Tokens of its request computed earlier, ascending, at least two points.
    pub context: Vec<u64>,
    /// One row per chunk size, with a time per context.
    pub seconds: Vec<Vec<Option<f64>>>,
    /// The part of each of these times, in seconds, that all chunks of a batch share and that counts once.
    #[serde(default)]
    pub shared_s: f64,
}

/// Attention time of all decodes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeGrid {
    /// Number of decodes in the batch, ascending, at least two points.
    pub sequences: Vec<u64>,
    /// Mean context of the decodes, ascending, at least two points.
    pub mean_context: Vec<u64>,
    /// One row per number of sequences, with a time per mean context.
    pub seconds: Vec<Vec<Option<f64>>>,
}

/// Times measured on a grid.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TimingTable {
    /// Linear layers.
    pub linear: LinearGrid,
    /// Attention of chunks.
    pub chunk: ChunkGrid,
    /// Attention of decodes.
    pub decode: DecodeGrid,
}

impl TimingTable {
    fn timing(&self) -> Result<TableTiming> {
        let TimingTable { linear, chunk, decode } = self;
        let row = || {
            let points = axis(&linear.tokens, "tokens", 1)?;
            Ok(GridRow::new(points, times(&linear.seconds, linear.tokens.len(), "seconds")?))
        };
        let surface = |rows: (&[u64], &str), columns: (&[u64], &str), seconds: &[Vec<Option<f64>>]| {
            Surface::new(axis(rows.0, rows.1, 1)?, axis(columns.0, columns.1, 0)?, seconds)
        };
        let of_chunk = || {
            let mut surface = surface((&chunk.chunk, "chunk"), (&chunk.context, "context"), &chunk.seconds)?;
            let shared = i128::try_from(attoseconds(chunk.shared_s, "shared_s")?).map_err(|_| overflow())?;
            if surface.values.iter().any(|&value| value < shared) {
                let message = format!("must not exceed the smallest chunk time of the grid, got {} s", chunk.shared_s);
                return Err(Error::config("shared_s", message));
            }
            surface.values.iter_mut().for_each(|value| *value -= shared);
            Ok((surface, shared))
        };
        let of_decode =
            surface((&decode.sequences, "sequences"), (&decode.mean_context, "mean_context"), &decode.seconds);
        let linear = row().map_err(|error: Error| error.within("linear"))?;
        let (chunk, shared) = of_chunk().map_err(|error: Error| error.within("chunk"))?;
        Ok(TableTiming {
            linear,
            chunk,
            shared,
            decode: of_decode.map_err(|error| error.within("decode"))?,
            beyond: AtomicU8::new(0),
        })
    }
}

impl TimingParameters for TimingTable {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(self.timing()?))
    }
}

impl Sample for TimingTable {
    fn sample(dice: &mut Dice) -> TimingTable {
        let Scale { token_budget, max_seqs, longest, .. } = dice.scale;
        let mut points = |low: u64, high: u64| {
            let points: BTreeSet<u64> = (0..2 + dice.below(4)).map(|_| low + dice.below(high - low)).collect();
            // Together with the last point there are at least two.
            points.into_iter().chain([high]).collect::<Vec<u64>>()
        };
        let (mut tokens, chunk) = (points(1, token_budget.max(80)), points(1, token_budget.max(80)));
        let (context, mean_context) = (points(0, longest.max(20)), points(0, longest.max(20)));
        let sequences = points(1, max_seqs.max(12));
        // The linear layers of one token are measured and times do not decrease, so every batch takes some time.
        tokens[0] = 1;
        let mut of_linear: Vec<f64> = tokens.iter().map(|_| dice.seconds(1000, 3000)).collect();
        of_linear.sort_by(f64::total_cmp);
        // Attention times may decrease as well as increase.
        let mut surface = |rows: &[u64], columns: &[u64]| -> Vec<Vec<Option<f64>>> {
            rows.iter().map(|_| columns.iter().map(|_| Some(dice.seconds(0, 900))).collect()).collect()
        };
        let (of_chunk, of_decode) = (surface(&chunk, &context), surface(&sequences, &mean_context));
        let least = of_chunk.iter().flatten().flatten().copied().fold(1.0, f64::min);
        TimingTable {
            linear: LinearGrid { tokens, seconds: of_linear.into_iter().map(Some).collect() },
            chunk: ChunkGrid { chunk, context, seconds: of_chunk, shared_s: dice.one_of(&[0.0, least]) },
            decode: DecodeGrid { sequences, mean_context, seconds: of_decode },
        }
    }
}

/// linear(tokens) + shared + Σ chunks (chunk(c, x) − shared) + decode(n, Σ contexts / n), each interpolated linearly
/// between grid points; `shared` only if there are chunks.
///
/// A line rises by whole attoseconds per step: the exact slope, rounded towards 0 once. So it starts exactly at its
/// grid point, stays between its two points, and misses the second by less than an attosecond per step. Between two
/// rows, the values at the columns are such lines, and the line along the columns connects them; along the contexts
/// of n decodes a step is one token of their sum.
///
/// Along tokens and contexts, interpolation is monotonic wherever the grid is. Along chunks, between two columns, it
/// may decrease by rounding, by less than an attosecond per step of context.
///
/// Before the first point the first line is extended; no part falls below 0, and no chunk below the shared part.
/// Beyond the last point the last line is extended, and [`Timing::beyond`] returns the axis.
#[derive(Debug)]
struct TableTiming {
    linear: GridRow,
    /// Chunk times without the shared part.
    chunk: Surface,
    shared: i128,
    decode: Surface,
    beyond: AtomicU8,
}

impl TableTiming {
    fn note(&self, beyond: Beyond) {
        // The set only grows and is read after the run, so the order of updates does not matter.
        self.beyond.fetch_or(beyond.0, Ordering::Relaxed);
    }

    #[inline]
    fn note_if(&self, is_beyond: bool, beyond: Beyond) {
        if is_beyond {
            self.note(beyond);
        }
    }

    /// Sum over the chunks, plus the shared part.
    fn chunks(&self, shape: &Shape) -> Result<GridLine> {
        let surface = &self.chunk;
        let mut all = GridLine { first: self.shared, growth: 0, holds: u64::MAX };
        for chunk in shape.chunks {
            let (tokens, context) = (chunk.tokens, chunk.context);
            let row = surface.row(tokens);
            let column = cell(&surface.columns, context);
            let last = surface.last_column();
            self.note_if(tokens > surface.last_row(), Beyond::CHUNK);
            self.note_if(context > last, Beyond::CHUNK_CONTEXT);
            let slope = surface.slope(row, column, 1)?;
            let value = surface.value(row, column)?;
            let distance = i128::from(context) - i128::from(surface.columns[column]);
            let first = add(value, multiply(slope, distance)?)?;
            let holds = match surface.columns.get(column + 1) {
                Some(edge) => (edge - context).div_ceil(tokens),
                // The next iteration is the first one beyond the grid.
                None if context == last => 1,
                None => u64::MAX,
            };
            all = all.plus(GridLine { first, growth: multiply(slope, i128::from(tokens))?, holds }.positive_part())?;
        }
        Ok(all)
    }

    fn decodes(&self, shape: &Shape) -> Result<GridLine> {
        let surface = &self.decode;
        let count = shape.decodes;
        let context = shape.decode_context;
        // n · m ≤ Σ contexts is m ≤ ⌊Σ contexts / n⌋, and each iteration increases the mean by one.
        let mean = context / count;
        let row = surface.row(count);
        let column = cell(&surface.columns, mean);
        let last = surface.last_column();
        let of_last = last.saturating_mul(count);
        self.note_if(count > surface.last_row(), Beyond::SEQUENCES);
        self.note_if(shape.decode_context > of_last, Beyond::MEAN_CONTEXT);
        let slope = surface.slope(row, column, count)?;
        let value = surface.value(row, column)?;
        let of_column = multiply(i128::from(surface.columns[column]), i128::from(count))?;
        let first = add(value, multiply(slope, i128::from(context) - of_column)?)?;
        let holds = match surface.columns.get(column + 1) {
            Some(edge) => edge - mean,
            None if shape.decode_context == of_last => 1,
            None => u64::MAX,
        };
        Ok(GridLine { first, growth: multiply(slope, i128::from(count))?, holds }.positive_part())
    }
}

impl Timing for TableTiming {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let tokens = shape.tokens();
        self.note_if(tokens > self.linear.last(), Beyond::TOKENS);
        let mut line = GridLine { first: self.linear.at(tokens)?, growth: 0, holds: u64::MAX };
        if !shape.chunks.is_empty() {
            line = line.plus(self.chunks(shape)?)?;
        }
        if shape.decodes > 0 {
            line = line.plus(self.decodes(shape)?)?;
        }
        debug_assert!(line.first >= 0, "times are nonnegative");
        Ok(Pace { first: Span(line.first as u128), growth: line.growth, holds: line.holds })
    }

    fn beyond(&self) -> Beyond {
        Beyond(self.beyond.load(Ordering::Relaxed))
    }
}

/// A pace during summation; extended lines may be negative.
#[derive(Clone, Copy, Debug)]
struct GridLine {
    first: i128,
    growth: i128,
    holds: u64,
}

impl GridLine {
    #[inline]
    fn plus(self, other: GridLine) -> Result<GridLine> {
        Ok(GridLine {
            first: add(self.first, other.first)?,
            growth: add(self.growth, other.growth)?,
            holds: self.holds.min(other.holds),
        })
    }

    /// The positive part of the line, up to where it crosses 0.
    #[inline]
    fn positive_part(self) -> GridLine {
        if self.first >= 0 && self.growth >= 0 { self } else { self.clamp_at_zero() }
    }

    fn clamp_at_zero(self) -> GridLine {
        let GridLine { first, growth, holds } = self;
        let up_to = |count: i128| holds.min(u64::try_from(count).unwrap_or(u64::MAX));
        match (first < 0, growth > 0) {
            // The crossing is the first j with first + j · growth ≥ 0.
            (true, true) => GridLine { first: 0, growth: 0, holds: up_to((-first - 1) / growth + 1) },
            (true, false) => GridLine { first: 0, growth: 0, holds },
            // The line decreases: j is the last one with first + j · growth ≥ 0.
            (false, _) => GridLine { first, growth, holds: up_to(first / -growth + 1) },
        }
    }
}

/// Index of the last point that is at most `at`, or of the first point.
#[inline]
fn cell(points: &[u64], at: u64) -> usize {
    points.partition_point(|&point| point <= at).max(1) - 1
}

/// Values at points, and the slope to the next point; the last slope is extended.
#[derive(Debug)]
struct GridRow {
    points: Vec<u64>,
    values: Vec<i128>,
    slopes: Vec<i128>,
}

impl GridRow {
    fn new(points: Vec<u64>, values: Vec<i128>) -> GridRow {
        let slopes = slopes(&points, |place| values[place]);
        GridRow { points, values, slopes }
    }

    fn last(&self) -> u64 {
        self.points[self.points.len() - 1]
    }

    #[inline]
    fn at(&self, at: u64) -> Result<i128> {
        let place = cell(&self.points, at);
        let distance = i128::from(at) - i128::from(self.points[place]);
        Ok(add(self.values[place], multiply(self.slopes[place], distance)?)?.max(0))
    }
}

/// Slopes between points, rounded towards 0; the last point repeats the previous slope.
fn slopes(points: &[u64], value: impl Fn(usize) -> i128) -> Vec<i128> {
    let slope = |place: usize| {
        let place = place.min(points.len() - 2);
        (value(place + 1) - value(place)) / i128::from(points[place + 1] - points[place])
    };
    (0..points.len()).map(slope).collect()
}

/// Values at rows and columns, in row-major order.
#[derive(Debug)]
struct Surface {
    rows: Vec<u64>,
    columns: Vec<u64>,
    values: Vec<i128>,
    /// Slopes from each value to the value in the next row.
    slopes: Vec<i128>,
}

/// Position between two rows.
#[derive(Clone, Copy)]
struct Between {
    /// Index of the first value of the lower row.
    start: usize,
    /// Distance above the lower row; negative before the first row.
    distance: i128,
}

impl Surface {
    fn new(rows: Vec<u64>, columns: Vec<u64>, seconds: &[Vec<Option<f64>>]) -> Result<Surface> {
        if seconds.len() != rows.len() {
            return Err(Error::config("seconds", format!("must have {} rows, got {}", rows.len(), seconds.len())));
        }
        let width = columns.len();
        let mut values = Vec::with_capacity(rows.len() * width);
        for (place, row) in seconds.iter().enumerate() {
            values.extend(times(row, width, &format!("seconds[{place}]"))?);
        }
        let by_column: Vec<Vec<i128>> =
            (0..width).map(|column| slopes(&rows, |row| values[row * width + column])).collect();
        let slopes = (0..values.len()).map(|place| by_column[place % width][place / width]).collect();
        Ok(Surface { rows, columns, values, slopes })
    }

    fn last_row(&self) -> u64 {
        self.rows[self.rows.len() - 1]
    }

    fn last_column(&self) -> u64 {
        self.columns[self.columns.len() - 1]
    }

    #[inline]
    fn row(&self, at: u64) -> Between {
        let place = cell(&self.rows, at);
        Between { start: place * self.columns.len(), distance: i128::from(at) - i128::from(self.rows[place]) }
    }

    /// The value in a column between rows.
    #[inline]
    fn value(&self, row: Between, column: usize) -> Result<i128> {
        let place = row.start + column;
        Ok(add(self.values[place], multiply(self.slopes[place], row.distance)?)?.max(0))
    }

    /// The increment of one step along the columns between rows, if `steps` steps increase the column by one.
    #[inline]
    fn slope(&self, row: Between, column: usize, steps: u64) -> Result<i128> {
        let column = column.min(self.columns.len() - 2);
        let change = self.value(row, column + 1)? - self.value(row, column)?;
        let steps = multiply(i128::from(self.columns[column + 1] - self.columns[column]), i128::from(steps))?;
        Ok(match (i64::try_from(change), i64::try_from(steps)) {
            (Ok(change), Ok(steps)) => i128::from(change / steps),
            _ => change / steps,
        })
    }
}

#[inline]
fn add(left: i128, right: i128) -> Result<i128> {
    left.checked_add(right).ok_or_else(overflow)
}

/// The product; in practice both factors fit 64 bits, where overflow is impossible.
#[inline]
fn multiply(left: i128, right: i128) -> Result<i128> {
    if left == i128::from(left as i64) && right == i128::from(right as i64) {
        return Ok(i128::from(left as i64) * i128::from(right as i64));
    }
    left.checked_mul(right).ok_or_else(overflow)
}

/// Upper bound of tokens in a batch.
const LARGEST: u64 = 1 << 40;

/// Checks the points of an axis.
fn axis(points: &[u64], name: &str, least: u64) -> Result<Vec<u64>> {
    if points.len() < 2 {
        return Err(Error::config(name, format!("must have at least two points, got {points:?}")));
    }
    for (place, &point) in points.iter().enumerate() {
        if !(least..=LARGEST).contains(&point) {
            let message = format!("must be from {least} to 2^40, got {point}");
            return Err(Error::config(format!("{name}[{place}]"), message));
        }
        if place > 0 && points[place - 1] >= point {
            let message = format!("must ascend, got {point} after {}", points[place - 1]);
            return Err(Error::config(format!("{name}[{place}]"), message));
        }
    }
    Ok(points.to_vec())
}

/// Converts the times of a row to attoseconds and checks them.
fn times(seconds: &[Option<f64>], count: usize, name: &str) -> Result<Vec<i128>> {
    if seconds.len() != count {
        let message = format!("must have one time per point ({count}), got {}", seconds.len());
        return Err(Error::config(name, message));
    }
    let time = |(place, seconds): (usize, &Option<f64>)| {
        let field = format!("{name}[{place}]");
        let Some(seconds) = *seconds else {
            return Err(Error::config(field, "missing: every point of the grid requires a time"));
        };
        let whole = attoseconds(seconds, &field)?;
        i128::try_from(whole).map_err(|_| Error::config(field, format!("{seconds} s does not fit the clock")))
    };
    seconds.iter().enumerate().map(time).collect()
}

#[cfg(test)]
mod tests;
