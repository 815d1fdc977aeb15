//! Measured: the linear layers, the attention of chunks and the attention of decodes on a grid.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};

use super::prelude::*;
use super::{Beyond, overflow};
use crate::clock::{Span, attoseconds};
use crate::dice::Scale;

/// What the linear layers take, by all tokens of the batch.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinearGrid {
    /// Tokens, ascending, at least two.
    pub tokens: Vec<u64>,
    /// A time for each.
    pub seconds: Vec<Option<f64>>,
}

/// What the attention of one chunk takes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkGrid {
    /// Tokens that the chunk computes, ascending, at least two.
    pub chunk: Vec<u64>,
    /// Tokens of its request that were computed before, ascending, at least two.
    pub context: Vec<u64>,
    /// A row for each chunk, in it a time for each context.
    pub seconds: Vec<Vec<Option<f64>>>,
    /// Of each of these times, in seconds, what the chunks of a batch share: it is counted once.
    #[serde(default)]
    pub shared_s: f64,
}

/// What the attention of all decodes takes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeGrid {
    /// Decodes in the batch, ascending, at least two.
    pub sequences: Vec<u64>,
    /// The mean of their contexts, ascending, at least two.
    pub mean_context: Vec<u64>,
    /// A row for each number of sequences, in it a time for each mean.
    pub seconds: Vec<Vec<Option<f64>>>,
}

/// Measured on a grid.
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
                let message = format!("{} s: some chunk of the grid takes less", chunk.shared_s);
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
        let mut points = |least: u64, most: u64| {
            let points: BTreeSet<u64> = (0..2 + dice.below(4)).map(|_| least + dice.below(most - least)).collect();
            // With the last there are at least two.
            points.into_iter().chain([most]).collect::<Vec<u64>>()
        };
        let (mut tokens, chunk) = (points(1, token_budget.max(80)), points(1, token_budget.max(80)));
        let (context, mean_context) = (points(0, longest.max(20)), points(0, longest.max(20)));
        let sequences = points(1, max_seqs.max(12));
        // The linear layers of one token are measured and more take no less, so that every batch takes a while.
        tokens[0] = 1;
        let mut of_linear: Vec<f64> = tokens.iter().map(|_| dice.seconds(1000, 3000)).collect();
        of_linear.sort_by(f64::total_cmp);
        // Times of attention fall as well as rise.
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

/// linear(tokens) + shared + Σ chunks (chunk(c, x) − shared) + decode(n, Σ contexts / n), each a straight line from one grid
/// point to the next; shared only where there are chunks.
///
/// A line rises by a whole number of attoseconds a step: the exact slope, rounded towards 0 once. So it meets the grid point
/// where it begins, stays between its two, and is short of the second by less than an attosecond a step. Between two rows the
/// values at the columns are such lines, and then the line along the columns is drawn through them; along the contexts of
/// n decodes a step is one token of their sum.
///
/// Along tokens and contexts a table that does not fall on its grid does not fall in between either. Along chunks, between two
/// columns, it can fall by the rounding alone, which is less than an attosecond for each step of context.
///
/// Before the first point the first line goes on, and no part falls below 0, no chunk below what is shared. Beyond the last point the last line goes on,
/// and [`Timing::beyond`] tells which axis was too short.
#[derive(Debug)]
struct TableTiming {
    linear: GridRow,
    /// Without what the chunks share.
    chunk: Surface,
    shared: i128,
    decode: Surface,
    beyond: AtomicU8,
}

impl TableTiming {
    #[cold]
    fn note(&self, beyond: Beyond) {
        // A set only grows, and is read when the run is over: the order of the notes does not matter.
        self.beyond.fetch_or(beyond.0, Ordering::Relaxed);
    }

    #[inline]
    fn note_if(&self, is_beyond: bool, beyond: Beyond) {
        if is_beyond {
            self.note(beyond);
        }
    }

    /// Σ over the chunks, and what they share.
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
                // The next iteration is the first beyond the grid.
                None if context == last => 1,
                None => u64::MAX,
            };
            all = all.plus(GridLine { first, growth: multiply(slope, i128::from(tokens))?, holds }.not_negative())?;
        }
        Ok(all)
    }

    fn decodes(&self, shape: &Shape) -> Result<GridLine> {
        let surface = &self.decode;
        let count = shape.decodes;
        let context = shape.decode_context;
        // n · m ≤ Σ contexts is m ≤ ⌊Σ contexts / n⌋, and each iteration raises the mean by one.
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
        Ok(GridLine { first, growth: multiply(slope, i128::from(count))?, holds }.not_negative())
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
        debug_assert!(line.first >= 0, "no part is negative");
        Ok(Pace { first: Span(line.first as u128), growth: line.growth, holds: line.holds })
    }

    fn beyond(&self) -> Beyond {
        Beyond(self.beyond.load(Ordering::Relaxed))
    }
}

/// A pace while it is summed up: what a line was extended to may be negative.
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

    /// The same line where it is positive and 0 where it is not, up to where it crosses.
    #[inline]
    fn not_negative(self) -> GridLine {
        if self.first >= 0 && self.growth >= 0 { self } else { self.cut_at_nothing() }
    }

    #[cold]
    fn cut_at_nothing(self) -> GridLine {
        let GridLine { first, growth, holds } = self;
        let up_to = |count: i128| holds.min(u64::try_from(count).unwrap_or(u64::MAX));
        match (first < 0, growth > 0) {
            // The crossing is the first j with first + j · growth ≥ 0.
            (true, true) => GridLine { first: 0, growth: 0, holds: up_to((-first - 1) / growth + 1) },
            (true, false) => GridLine { first: 0, growth: 0, holds },
            // It falls: j is the last one with first + j · growth ≥ 0.
            (false, _) => GridLine { first, growth, holds: up_to(first / -growth + 1) },
        }
    }
}

/// The place of the last point that is not above `at`, or of the first.
#[inline]
fn cell(points: &[u64], at: u64) -> usize {
    points.partition_point(|&point| point <= at).max(1) - 1
}

/// Values at points, and the slope from each to the next; the last slope goes on.
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

/// The slope from each point to the next, rounded towards 0; that of the last point is the one before.
fn slopes(points: &[u64], value: impl Fn(usize) -> i128) -> Vec<i128> {
    let slope = |place: usize| {
        let place = place.min(points.len() - 2);
        (value(place + 1) - value(place)) / i128::from(points[place + 1] - points[place])
    };
    (0..points.len()).map(slope).collect()
}

/// Values at rows and columns, row after row.
#[derive(Debug)]
struct Surface {
    rows: Vec<u64>,
    columns: Vec<u64>,
    values: Vec<i128>,
    /// From each value to the one in the next row.
    slopes: Vec<i128>,
}

/// Between which rows a number lies.
#[derive(Clone, Copy)]
struct Between {
    /// Where the values of the lower row begin.
    start: usize,
    /// How far it is above the lower row; below the first row, negative.
    distance: i128,
}

impl Surface {
    fn new(rows: Vec<u64>, columns: Vec<u64>, seconds: &[Vec<Option<f64>>]) -> Result<Surface> {
        if seconds.len() != rows.len() {
            return Err(Error::config("seconds", format!("{} rows, must be {}", seconds.len(), rows.len())));
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

    /// What one step along the columns adds between rows, where `steps` of them raise the column by one.
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

/// The product; both factors fit into 64 bits in practice, where one multiplication answers and nothing can overflow.
#[inline]
fn multiply(left: i128, right: i128) -> Result<i128> {
    if left == i128::from(left as i64) && right == i128::from(right as i64) {
        return Ok(i128::from(left as i64) * i128::from(right as i64));
    }
    left.checked_mul(right).ok_or_else(overflow)
}

/// More tokens than any batch has.
const LARGEST: u64 = 1 << 40;

/// The points of an axis, tested.
fn axis(points: &[u64], name: &str, least: u64) -> Result<Vec<u64>> {
    if points.len() < 2 {
        return Err(Error::config(name, format!("{points:?}: a line needs at least two points")));
    }
    for (place, &point) in points.iter().enumerate() {
        if !(least..=LARGEST).contains(&point) {
            let message = format!("{point}: it must be at least {least} and at most 2^40");
            return Err(Error::config(format!("{name}[{place}]"), message));
        }
        if place > 0 && points[place - 1] >= point {
            let message = format!("{point} after {}: the points must ascend", points[place - 1]);
            return Err(Error::config(format!("{name}[{place}]"), message));
        }
    }
    Ok(points.to_vec())
}

/// The times of a row in attoseconds, tested.
fn times(seconds: &[Option<f64>], count: usize, name: &str) -> Result<Vec<i128>> {
    if seconds.len() != count {
        let message = format!("{} times, must be {count}: one for each point", seconds.len());
        return Err(Error::config(name, message));
    }
    let time = |(place, seconds): (usize, &Option<f64>)| {
        let field = format!("{name}[{place}]");
        let Some(seconds) = *seconds else {
            return Err(Error::config(field, "a hole in the grid: every point needs a time"));
        };
        let whole = attoseconds(seconds, &field)?;
        i128::try_from(whole).map_err(|_| Error::config(field, format!("{seconds} s does not fit the clock")))
    };
    seconds.iter().enumerate().map(time).collect()
}

#[cfg(test)]
mod tests;
