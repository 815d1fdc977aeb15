//! Synthetic workloads: distributions of arrivals, lengths, sessions and clients, and draws from them.
//!
//! Request k depends only on its own draws (see [`crate::random`]), so the first n requests are the same regardless
//! of the number of requests. Each distribution uses one draw per request; gamma arrivals use as many as their
//! rejection sampling requires.

use crate::error::{Error, Kind, Result};
use crate::random::{Source, Stream, below};
use serde::Deserialize;

mod arrivals;
mod client;
mod duration;
mod gaps;
mod length;
mod poisson;
mod sessions;
mod varying;

pub use arrivals::{Arrivals, seconds};
pub use client::{Client, Family, Frequencies, LengthTables, PromptPart};
pub use duration::Duration;
pub use length::{Length, Side};
pub use sessions::{SessionColumns, Sessions};

#[cfg(test)]
mod tests;

/// The longest prompt or output.
const LONGEST: i64 = i32::MAX as i64;
/// The maximum number of requests of a workload and of rows of a table: ids have 32 bits.
const MAX_REQUESTS: u64 = u32::MAX as u64;

/// A description of a synthetic workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Form")]
pub struct Synthetic {
    /// Number of requests.
    pub requests: u64,
    /// Arrival process.
    pub arrivals: Arrivals,
    /// Length distributions.
    pub lengths: Lengths,
}

/// Prompt and output lengths, independent or joint.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Independent prompt and output.
    Independent {
        /// Tokens of the prompt.
        prompt: Length,
        /// Tokens of the output.
        output: Length,
    },
    /// One joint distribution.
    Joint(Joint),
    /// No lengths: the requests are jobs whose stages have lengths.
    Absent,
}

/// Joint distributions of prompt and output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Joint {
    /// A uniformly drawn row of the table, with replacement.
    Empirical {
        /// Tokens of each row's prompt.
        prompt_tokens: Vec<i64>,
        /// Tokens of each row's output.
        output_tokens: Vec<i64>,
    },
}

/// A drawn workload, one entry per request, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrawnColumns {
    /// Arrival, in nanoseconds after 0.
    pub arrival_ns: Vec<i64>,
    /// Tokens of the prompt; empty if the workload has no lengths.
    pub prompt_tokens: Vec<i32>,
    /// Tokens of the output; empty if the workload has no lengths.
    pub output_tokens: Vec<i32>,
}

impl Synthetic {
    /// Returns an error with the path of the invalid field, such as `arrivals.rate`, if any.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_REQUESTS).contains(&self.requests) {
            return Err(Error::config("requests", format!("must be from 1 to {MAX_REQUESTS}, got {}", self.requests)));
        }
        self.arrivals.check().map_err(|error| error.within("arrivals"))?;
        match &self.lengths {
            Lengths::Independent { prompt, output } => {
                prompt.check().map_err(|error| error.within("prompt"))?;
                output.check().map_err(|error| error.within("output"))
            }
            Lengths::Joint(joint) => joint.check().map_err(|error| error.within("lengths")),
            Lengths::Absent => Ok(()),
        }
    }

    /// Draws the requests. Besides the errors of `check`, an arrival beyond the clock and a length beyond 2³¹ − 1
    /// without a cap are errors.
    pub fn draw(&self, seed: u64) -> Result<DrawnColumns> {
        self.check()?;
        let arrival_ns = self.arrivals.draw(self.requests, seed).map_err(|error| error.within("arrivals"))?;
        let (prompt_tokens, output_tokens) = self.lengths(seed, 0, self.requests)?;
        Ok(DrawnColumns { arrival_ns, prompt_tokens, output_tokens })
    }

    /// Draws prompts and outputs of `requests` requests from `first` on, a multiple of four.
    fn lengths(&self, seed: u64, first: u64, requests: u64) -> Result<(Vec<i32>, Vec<i32>)> {
        let lengths = |length: &Length, side: Side| {
            let stream = Stream::new(seed, side.source()).from(first);
            length.draw_from(stream, requests).map_err(|error| error.within(side.name()))
        };
        match &self.lengths {
            Lengths::Independent { prompt, output } => {
                Ok((lengths(prompt, Side::Prompt)?, lengths(output, Side::Output)?))
            }
            Lengths::Joint(joint) => {
                let stream = Stream::new(seed, Source::Rows).from(first);
                joint.draw_from(stream, requests).map_err(|error| error.within("lengths"))
            }
            Lengths::Absent => Ok((Vec::new(), Vec::new())),
        }
    }
}

/// A workload that is drawn in parts. All parts together equal the result of [`Synthetic::draw`].
pub struct Drawing {
    synthetic: Synthetic,
    seed: u64,
    process: arrivals::Process,
    drawn: u64,
}

impl Drawing {
    /// Every part except the last is a multiple of it, because draws come in blocks.
    pub(crate) const STEP: u64 = 4;

    /// Starts with the first request.
    pub fn new(synthetic: Synthetic, seed: u64) -> Result<Drawing> {
        synthetic.check()?;
        let process = synthetic.arrivals.process(seed).map_err(|error| error.within("arrivals"))?;
        Ok(Drawing { synthetic, seed, process, drawn: 0 })
    }

    /// Draws the arrivals of the next `limit` requests, or of all remaining ones, in nanoseconds after 0.
    pub fn arrivals(&mut self, limit: u64) -> Result<Vec<i64>> {
        let requests = self.count(limit);
        let mut arrival_ns = column(requests)?;
        self.process.append(requests, &mut arrival_ns);
        self.synthetic
            .arrivals
            .check_last(&arrival_ns, self.drawn + requests)
            .map_err(|error| error.within("arrivals"))?;
        self.drawn += requests;
        Ok(arrival_ns)
    }

    /// Draws all columns of the next `limit` requests, or of all remaining ones.
    pub fn columns(&mut self, limit: u64) -> Result<DrawnColumns> {
        let (first, requests) = (self.drawn, self.count(limit));
        if requests == 0 {
            return Ok(DrawnColumns::default());
        }
        let arrival_ns = self.arrivals(limit)?;
        let (prompt_tokens, output_tokens) = self.synthetic.lengths(self.seed, first, requests)?;
        Ok(DrawnColumns { arrival_ns, prompt_tokens, output_tokens })
    }

    /// Returns the number of requests of the next part: whole blocks of draws, except in the last part.
    fn count(&self, limit: u64) -> u64 {
        (self.synthetic.requests - self.drawn).min(limit.max(1).next_multiple_of(Self::STEP))
    }
}

impl Joint {
    /// Returns an error that names the invalid parameter, if any.
    pub(crate) fn check(&self) -> Result<()> {
        let Joint::Empirical { prompt_tokens, output_tokens } = self;
        let (prompts, outputs) = (prompt_tokens.len(), output_tokens.len());
        check_rows("prompt_tokens", prompts as u64)?;
        if prompts != outputs {
            return Err(Error::config("output_tokens", format!("has {outputs} rows, prompt_tokens has {prompts}")));
        }
        for (name, tokens) in [("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)] {
            if let Some(row) = tokens.iter().position(|tokens| !(1..=LONGEST).contains(tokens)) {
                check_tokens(&format!("{name}[{row}]"), tokens[row])?;
            }
        }
        Ok(())
    }

    /// Draws prompts and outputs of `requests` requests, in tokens.
    fn draw_from(&self, stream: Stream, requests: u64) -> Result<(Vec<i32>, Vec<i32>)> {
        self.check()?;
        let Joint::Empirical { prompt_tokens, output_tokens } = self;
        let rows = rows_from(stream, prompt_tokens.len() as u64, requests)?;
        let gather = |table: &[i64]| -> Result<Vec<i32>> {
            let mut tokens = column(requests)?;
            tokens.extend(rows.iter().map(|&row| table[row as usize] as i32));
            Ok(tokens)
        };
        Ok((gather(prompt_tokens)?, gather(output_tokens)?))
    }
}

/// Draws row numbers in `0..rows`, uniformly with replacement: the rows that [`Joint::Empirical`] takes from a table
/// of that size.
pub fn draw_rows(rows: u64, requests: u64, seed: u64) -> Result<Vec<u32>> {
    rows_from(Stream::new(seed, Source::Rows), rows, requests)
}

fn rows_from(stream: Stream, rows: u64, requests: u64) -> Result<Vec<u32>> {
    check_rows("rows", rows)?;
    let mut row_numbers = column(requests)?;
    stream.extend(&mut row_numbers, requests, |word| below(word, rows) as u32);
    Ok(row_numbers)
}

/// JSON form of [`Synthetic`]: `prompt` and `output`, or `lengths`, or no lengths.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    requests: u64,
    arrivals: Arrivals,
    prompt: Option<Length>,
    output: Option<Length>,
    lengths: Option<Joint>,
}

impl TryFrom<Form> for Synthetic {
    type Error = &'static str;

    fn try_from(form: Form) -> std::result::Result<Synthetic, &'static str> {
        let lengths = match (form.prompt, form.output, form.lengths) {
            (Some(prompt), Some(output), None) => Lengths::Independent { prompt, output },
            (None, None, Some(joint)) => Lengths::Joint(joint),
            (None, None, None) => Lengths::Absent,
            _ => return Err("a workload must have `prompt` and `output`, or `lengths`, or none of the three"),
        };
        Ok(Synthetic { requests: form.requests, arrivals: form.arrivals, lengths })
    }
}

/// Reserves a column. A size beyond memory is an error, not an abort.
fn column<T>(requests: u64) -> Result<Vec<T>> {
    let mut column = Vec::new();
    match usize::try_from(requests).map(|requests| column.try_reserve_exact(requests)) {
        Ok(Ok(())) if requests <= MAX_REQUESTS => Ok(column),
        _ => Err(Kind::TooMuch(format!("{requests} requests do not fit in memory")).into()),
    }
}

fn check_rows(field: &str, rows: u64) -> Result<()> {
    if !(1..=MAX_REQUESTS).contains(&rows) {
        return Err(Error::config(field, format!("must be from 1 to {MAX_REQUESTS} rows, got {rows}")));
    }
    Ok(())
}

fn check_tokens(field: &str, tokens: i64) -> Result<()> {
    if !(1..=LONGEST).contains(&tokens) {
        return Err(Error::config(field, format!("must be from 1 to {LONGEST} tokens, got {tokens}")));
    }
    Ok(())
}

/// Checks that a number is in a range. NaN fails too.
fn within(field: &str, value: f64, (low, high): (f64, f64)) -> Result<()> {
    if !(low..=high).contains(&value) {
        return Err(Error::config(field, format!("must be from {low:e} to {high:e}, got {value:?}")));
    }
    Ok(())
}
