//! Which requests does a workload have that is given by laws: when do they arrive, and how long are they?
//!
//! Request k is drawn from its own numbers alone (see [`crate::random`]), so the first n requests of a law are the same
//! however many follow. Each law uses one draw per request; gamma arrivals use as many as their rejection needs.

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
pub use client::{Client, Family, Histogram, Part, Tables};
pub use duration::Duration;
pub use length::{Length, Side};
pub use sessions::{SessionColumns, Sessions};

#[cfg(test)]
mod tests;

/// The longest prompt or output.
const LONGEST: i64 = i32::MAX as i64;
/// The most requests of a law, and the most rows of a table: what the core can number.
const MOST: u64 = u32::MAX as u64;

/// A workload that is drawn when it is needed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Form")]
pub struct Law {
    /// How many requests.
    pub requests: u64,
    /// When they arrive.
    pub arrivals: Arrivals,
    /// How long they are.
    pub lengths: Lengths,
}

/// Prompts and outputs, each by its own law or together.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Independent of each other.
    Apart {
        /// Tokens of the prompt.
        prompt: Length,
        /// Tokens of the output.
        output: Length,
    },
    /// From one law of pairs.
    Together(Joint),
    /// None: the requests are jobs, whose stages have lengths.
    Absent,
}

/// The law of a prompt and an output together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Joint {
    /// A row of the table, each alike, with replacement.
    Empirical {
        /// Tokens of each row's prompt.
        prompt_tokens: Vec<i64>,
        /// Tokens of each row's output.
        output_tokens: Vec<i64>,
    },
}

/// A drawn workload, one entry per request, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Arrival, in nanoseconds after 0.
    pub arrival_ns: Vec<i64>,
    /// Tokens of the prompt; empty where the law has no lengths.
    pub prompt_tokens: Vec<i32>,
    /// Tokens of the output; empty where the law has no lengths.
    pub output_tokens: Vec<i32>,
}

impl Law {
    /// Says which parameter is wrong, if one is: the error has the field's path, such as `arrivals.rate`.
    pub fn check(&self) -> Result<()> {
        if !(1..=MOST).contains(&self.requests) {
            return Err(Error::config("requests", format!("must be from 1 to {MOST}, got {}", self.requests)));
        }
        self.arrivals.check().map_err(|error| error.within("arrivals"))?;
        match &self.lengths {
            Lengths::Apart { prompt, output } => {
                prompt.check().map_err(|error| error.within("prompt"))?;
                output.check().map_err(|error| error.within("output"))
            }
            Lengths::Together(joint) => joint.check().map_err(|error| error.within("lengths")),
            Lengths::Absent => Ok(()),
        }
    }

    /// The requests of this law under `seed`. Besides what [`Law::check`] finds, an arrival beyond the clock and a length
    /// beyond 2³¹ − 1 without a cap are errors.
    pub fn draw(&self, seed: u64) -> Result<Columns> {
        self.check()?;
        let arrival_ns = self.arrivals.draw(self.requests, seed).map_err(|error| error.within("arrivals"))?;
        let one = |length: &Length, side: Side| {
            length.draw(self.requests, seed, side).map_err(|error| error.within(side.name()))
        };
        let (prompt_tokens, output_tokens) = match &self.lengths {
            Lengths::Apart { prompt, output } => (one(prompt, Side::Prompt)?, one(output, Side::Output)?),
            Lengths::Together(joint) => joint.draw(self.requests, seed).map_err(|error| error.within("lengths"))?,
            Lengths::Absent => (Vec::new(), Vec::new()),
        };
        Ok(Columns { arrival_ns, prompt_tokens, output_tokens })
    }
}

impl Joint {
    /// Says which parameter is wrong, if one is.
    pub fn check(&self) -> Result<()> {
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

    /// Prompts and outputs of `requests` requests under `seed`, in tokens.
    pub fn draw(&self, requests: u64, seed: u64) -> Result<(Vec<i32>, Vec<i32>)> {
        self.check()?;
        let Joint::Empirical { prompt_tokens, output_tokens } = self;
        let rows = draw_rows(prompt_tokens.len() as u64, requests, seed)?;
        let gather = |table: &[i64]| -> Result<Vec<i32>> {
            let mut tokens = column(requests)?;
            tokens.extend(rows.iter().map(|&row| table[row as usize] as i32));
            Ok(tokens)
        };
        Ok((gather(prompt_tokens)?, gather(output_tokens)?))
    }
}

/// Row numbers in `0..rows` of `requests` requests under `seed`, each alike, with replacement: the rows that
/// [`Joint::Empirical`] takes from a table of that many.
pub fn draw_rows(rows: u64, requests: u64, seed: u64) -> Result<Vec<u32>> {
    check_rows("rows", rows)?;
    let mut row_numbers = column(requests)?;
    Stream::new(seed, Source::Rows).extend(&mut row_numbers, requests, |word| below(word, rows) as u32);
    Ok(row_numbers)
}

/// The JSON form of [`Law`]: `prompt` and `output`, or `lengths`, or none of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    requests: u64,
    arrivals: Arrivals,
    prompt: Option<Length>,
    output: Option<Length>,
    lengths: Option<Joint>,
}

impl TryFrom<Form> for Law {
    type Error = &'static str;

    fn try_from(form: Form) -> std::result::Result<Law, &'static str> {
        let lengths = match (form.prompt, form.output, form.lengths) {
            (Some(prompt), Some(output), None) => Lengths::Apart { prompt, output },
            (None, None, Some(joint)) => Lengths::Together(joint),
            (None, None, None) => Lengths::Absent,
            _ => return Err("a law has either `prompt` and `output`, or `lengths`, or none of them"),
        };
        Ok(Law { requests: form.requests, arrivals: form.arrivals, lengths })
    }
}

/// An empty column with room for all requests: a number that no machine can hold is an error, not an abort.
fn column<T>(requests: u64) -> Result<Vec<T>> {
    let mut column = Vec::new();
    match usize::try_from(requests).map(|requests| column.try_reserve_exact(requests)) {
        Ok(Ok(())) if requests <= MOST => Ok(column),
        _ => Err(Kind::TooMuch(format!("{requests} requests do not fit in memory")).into()),
    }
}

fn check_rows(field: &str, rows: u64) -> Result<()> {
    if !(1..=MOST).contains(&rows) {
        return Err(Error::config(field, format!("must be from 1 to {MOST} rows, got {rows}")));
    }
    Ok(())
}

fn check_tokens(field: &str, tokens: i64) -> Result<()> {
    if !(1..=LONGEST).contains(&tokens) {
        return Err(Error::config(field, format!("must be from 1 to {LONGEST} tokens, got {tokens}")));
    }
    Ok(())
}

/// Not a number lies in no range, so it fails here too.
fn within(field: &str, value: f64, (low, high): (f64, f64)) -> Result<()> {
    if !(low..=high).contains(&value) {
        return Err(Error::config(field, format!("must be from {low:e} to {high:e}, got {value:?}")));
    }
    Ok(())
}
