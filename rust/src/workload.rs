//! Workloads and their validation.
//!
//! A workload enters the core as columns, one row per request, sorted by arrival. No other part of the core reads
//! input: a row that passes the checks here can be simulated.

use crate::clock::{Instant, Span, arrival_nanoseconds, decimal};
use crate::error::{Error, Kind, Result};
use crate::speculation::{ProposalRate, RequestDrafts};

mod class;
mod columns;
mod content;
mod flow;

pub use class::Class;
pub use columns::Columns;
pub(crate) use content::Beginning;
pub use content::{Content, NO_ROW};
pub use flow::Flow;

/// The columns of a workload. Optional columns are empty slices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Workload<'a> {
    /// Arrival times in seconds, ascending; rounded to the nearest nanosecond.
    pub arrival_s: &'a [f64],
    /// Prompt lengths in tokens, at least 1.
    pub prompt_tokens: &'a [i32],
    /// Output lengths in tokens, at least 1.
    pub output_tokens: &'a [i32],
    /// Class of each request as an index below `class_count`; empty: all have class 0.
    pub class: &'a [u32],
    /// Number of classes, at least 1.
    pub class_count: usize,
    /// Priority; lower is served first. Empty: all 0.
    pub priority: &'a [i64],
    /// Output limit set by the client (`max_tokens`); 0: unknown. Empty: unknown for all.
    pub max_output_tokens: &'a [i32],
    /// Maximum time until first admission in seconds, after which a request abandons; NaN: unlimited. Empty:
    /// unlimited for all.
    pub patience_s: &'a [f64],
    /// Seconds from arrival until the client cancels; NaN: never. Empty: never for all.
    pub cancel_s: &'a [f64],
    /// ITL objective in seconds; NaN: none. Empty: none for all.
    pub itl_slo_s: &'a [f64],
    /// Sort key of queues ordered by key, lower first. Empty: all 0.
    pub queue_key: &'a [f64],
    /// Session code of each request; `NO_SESSION`: none. Empty: none for all.
    pub session: &'a [u32],
    /// Pool of each request. Empty: the first pool for all.
    pub pool: &'a [u32],
    /// Accepted drafts of each request, if given.
    pub accepted: Accepted<'a>,
    /// Share of rows for which an n-gram lookup proposes drafts, from 0 to 1. Empty: not given.
    pub proposal_rate: &'a [f64],
    /// Shared beginnings of prompts, if a prefix cache uses them.
    pub content: Content<'a>,
    /// Dependencies between requests.
    pub flow: Flow<'a>,
    /// Id of each request, ascending. Empty: numbered from `first` on.
    pub ids: &'a [u32],
    /// Number of the first row, if these rows are not the first of a run.
    pub first: u32,
}

/// Accepted drafts of each emitting row of a request, in order. Empty slices: not given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accepted<'a> {
    /// Entries of request r are those from `start[r]` to `start[r + 1]`.
    pub start: &'a [u64],
    /// Numbers of accepted drafts.
    pub drafts: &'a [u16],
}

impl Accepted<'_> {
    /// Whether nothing is given.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    /// Accepted drafts of a row; empty if none are given.
    pub(crate) fn of(&self, row: usize) -> &[u16] {
        if self.is_empty() {
            return &[];
        }
        &self.drafts[self.start[row] as usize..self.start[row + 1] as usize]
    }

    fn check(&self, rows: usize) -> Result<()> {
        let is_whole =
            self.start.len() == rows + 1 && self.start.is_sorted() && self.start[rows] as usize <= self.drafts.len();
        if self.is_empty() || is_whole {
            return Ok(());
        }
        Err(Error::config("accepted", "start and drafts have inconsistent lengths"))
    }
}

/// The code of a request without a session.
pub const NO_SESSION: u32 = u32::MAX;

/// An arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Row of the workload.
    pub id: u32,
    /// Row among the requests of its run: differs from `id` if a replica simulates its requests as a separate
    /// workload.
    pub row: u32,
    /// Arrival time.
    pub at: Instant,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Output length in tokens.
    pub output_tokens: u32,
    /// Class index.
    pub class: u32,
    /// Priority; lower is served first.
    pub priority: i64,
    /// Output limit set by the client; 0: unknown.
    pub max_output_tokens: u32,
    /// ITL objective; `Span::NEVER`: none.
    pub itl_slo: Span,
    /// Sort key of queues ordered by key, as an integer in the order of the given numbers.
    pub queue_key: i64,
    /// Its session, if any.
    pub session: Option<u32>,
}

impl Arrival {
    /// Whether a scheduler can foresee the last token, because the client allowed no further one. Otherwise the
    /// output ends with a stop token.
    #[inline]
    pub(crate) fn end_is_foreseen(&self) -> bool {
        (1..=self.output_tokens).contains(&self.max_output_tokens)
    }
}

/// Rows that are checked together: all rows before the first invalid one are valid.
const ROWS_PER_CHECK: usize = 256;

impl Workload<'_> {
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.arrival_s.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.arrival_s.is_empty()
    }

    /// Checks every row once; returns an error for the first invalid one.
    pub fn check(&self) -> Result<()> {
        self.check_after(0.0).map_err(|error| error.further(self.first as usize))
    }

    /// Like `check`, for rows after one that arrives at `last` seconds; errors count from the first row here.
    pub(crate) fn check_after(&self, mut last: f64) -> Result<()> {
        let rows = self.len();
        let columns = [
            ("prompt_tokens", self.prompt_tokens.len(), true),
            ("output_tokens", self.output_tokens.len(), true),
            ("class", self.class.len(), false),
            ("priority", self.priority.len(), false),
            ("max_output_tokens", self.max_output_tokens.len(), false),
            ("patience_s", self.patience_s.len(), false),
            ("cancel_s", self.cancel_s.len(), false),
            ("itl_slo_s", self.itl_slo_s.len(), false),
            ("queue_key", self.queue_key.len(), false),
            ("session", self.session.len(), false),
            ("pool", self.pool.len(), false),
            ("ids", self.ids.len(), false),
        ];
        for (name, length, required) in columns {
            if length != rows && (required || length != 0) {
                return Err(Error::config(name, format!("has {length} rows, but arrival_s has {rows}")));
            }
        }
        if u32::try_from(self.first as usize + rows).is_err() {
            return Err(Kind::TooMuch(format!("{rows} requests exceed the maximum of 2^32 − 1")).into());
        }
        for first in (0..rows).step_by(ROWS_PER_CHECK) {
            let part = first..rows.min(first + ROWS_PER_CHECK);
            if self.has_invalid_row(part.clone(), last) {
                part.clone().try_fold(last, |last, row| self.check_row(row, last))?;
            }
            last = self.arrival_s[part.end - 1];
        }
        if self.class_count == 0 && rows > 0 {
            return Err(Error::config("class_count", "must be at least 1, got 0"));
        }
        if let Some(row) = self.class.iter().position(|&class| class as usize >= self.class_count) {
            return Err(Error::trace(
                row,
                format!("class code must be below {}, got {}", self.class_count, self.class[row]),
            ));
        }
        if !self.ids.is_sorted_by(|before, id| before < id) {
            return Err(Error::config("ids", "must be ascending"));
        }
        if !self.ids.is_empty() && !self.flow.is_empty() {
            return Err(Error::config(
                "ids",
                "not supported with dependent rows, which are referred to by their row numbers",
            ));
        }
        self.flow.check(rows)?;
        self.content.check(self)?;
        self.accepted.check(rows)?;
        if let Some(row) = self.proposal_rate.iter().position(|rate| !(0.0..=1.0).contains(rate)) {
            let rate = self.proposal_rate[row];
            return Err(Error::trace(row, format!("proposal_rate must be from 0 to 1, got {rate}")));
        }
        let spans = [
            ("patience_s", self.patience_s),
            ("cancel_s", self.cancel_s),
            ("itl_slo_s", self.itl_slo_s),
            ("delay_s", self.flow.delay_s),
        ];
        for (name, column) in spans {
            if let Some(row) = column.iter().position(|&s| !s.is_nan() && !(0.0..9e9).contains(&s)) {
                return Err(Error::trace(
                    row,
                    format!("{name} must be from 0 to below 9e9 seconds, got {:e}", column[row]),
                ));
            }
        }
        if let Some(row) = self.queue_key.iter().position(|key| !key.is_finite()) {
            return Err(Error::trace(row, format!("queue_key must be a finite number, got {}", self.queue_key[row])));
        }
        Ok(())
    }

    /// Whether the workload has columns that describe drafts.
    #[inline]
    pub(crate) fn describes_drafts(&self) -> bool {
        !(self.accepted.is_empty() && self.proposal_rate.is_empty())
    }

    /// The drafts of a row.
    #[cold]
    pub(crate) fn drafts(&self, row: usize) -> Result<RequestDrafts> {
        let rate = self.proposal_rate.get(row).map(|&rate| ProposalRate::new(rate, "proposal_rate"));
        Ok(RequestDrafts { accepted: self.accepted.of(row).to_vec(), proposal_rate: rate.transpose()? })
    }

    /// Whether any of these rows is invalid; the first row follows one that arrives at `last`.
    fn has_invalid_row(&self, rows: std::ops::Range<usize>, last: f64) -> bool {
        let arrivals = &self.arrival_s[rows.clone()];
        let lengths = self.prompt_tokens[rows.clone()].iter().zip(&self.output_tokens[rows]);
        // NaN fails each test.
        let mut are_valid = arrivals.first().is_none_or(|&first| first >= last);
        arrivals.iter().for_each(|&arrival| are_valid &= arrival < 9e9);
        arrivals.iter().zip(&arrivals[1..]).for_each(|(before, arrival)| are_valid &= arrival >= before);
        lengths.for_each(|(&prompt, &output)| {
            // The wrapped sum of two positive numbers is negative if it overflows.
            are_valid &= (prompt > 0) & (output > 0) & (prompt.wrapping_add(output) > 0);
        });
        !are_valid
    }

    /// Returns the arrival of a row if it is valid and not before `last`.
    fn check_row(&self, row: usize, last: f64) -> Result<f64> {
        let arrival = self.arrival_s[row];
        // NaN fails each test.
        if !(arrival >= last && arrival < 9e9) {
            return Err(self.invalid_arrival(row, last));
        }
        let (prompt, output) = (self.prompt_tokens[row], self.output_tokens[row]);
        if prompt < 1 || output < 1 || prompt.checked_add(output).is_none() {
            return Err(Error::trace(
                row,
                format!(
                    "prompt_tokens and output_tokens must each be at least 1 and add up to less than 2^31, got {prompt} and {output}"
                ),
            ));
        }
        Ok(arrival)
    }

    fn invalid_arrival(&self, row: usize, last: f64) -> Error {
        let arrival = self.arrival_s[row];
        let message = if arrival < last && arrival >= 0.0 {
            format!("arrival_s is {arrival}, before that of the previous row ({last}): sort by arrival_s")
        } else {
            format!("arrival_s must be finite, non-negative and below 9e9, got {arrival}")
        };
        Error::trace(row, message)
    }

    /// Arrival of a row. The rows have been checked.
    #[inline]
    pub fn arrival_at(&self, row: usize) -> Instant {
        Instant::from_nanoseconds(arrival_nanoseconds(self.arrival_s[row]).unwrap_or(0))
    }

    /// Id of a row's request.
    #[inline]
    pub(crate) fn id(&self, row: usize) -> u32 {
        self.ids.get(row).copied().unwrap_or(self.first + row as u32)
    }

    /// Row of a request, if it is part of this workload.
    fn row_of(&self, id: u32) -> Option<usize> {
        if self.ids.is_empty() {
            return id.checked_sub(self.first).map(|row| row as usize).filter(|&row| row < self.len());
        }
        self.ids.binary_search(&id).ok()
    }

    /// Returns a row. The rows have been checked.
    pub(crate) fn request(&self, row: usize, at: Instant) -> Arrival {
        let mut arrival = self.plain_request(row, at);
        self.add_options(row, &mut arrival);
        arrival
    }

    /// Like `request`, for workloads with only arrivals, prompts and outputs.
    pub(crate) fn plain_request(&self, row: usize, at: Instant) -> Arrival {
        let number = self.first + row as u32;
        Arrival {
            id: number,
            row: number,
            at,
            prompt_tokens: self.prompt_tokens[row] as u32,
            output_tokens: self.output_tokens[row] as u32,
            class: 0,
            priority: 0,
            max_output_tokens: 0,
            itl_slo: Span::NEVER,
            queue_key: 0,
            session: None,
        }
    }

    /// Whether requests may leave before their last token.
    pub(crate) fn has_leavers(&self) -> bool {
        !self.patience_s.is_empty() || !self.cancel_s.is_empty()
    }

    /// Whether any optional column of requests is present.
    pub(crate) fn has_options(&self) -> bool {
        let optional = self.ids.len()
            | self.class.len()
            | self.priority.len()
            | self.max_output_tokens.len()
            | self.itl_slo_s.len()
            | self.queue_key.len()
            | self.session.len();
        optional != 0
    }

    /// Adds the values of the optional columns.
    fn add_options(&self, row: usize, arrival: &mut Arrival) {
        arrival.id = self.id(row);
        arrival.class = self.class.get(row).copied().unwrap_or(0);
        arrival.priority = self.priority.get(row).copied().unwrap_or(0);
        arrival.max_output_tokens = self.max_output_tokens.get(row).map_or(0, |&limit| limit.max(0) as u32);
        arrival.itl_slo = span(self.itl_slo_s, row).unwrap_or(Span::NEVER);
        arrival.queue_key = self.queue_key.get(row).map_or(0, |&key| order_of(key));
        arrival.session = self.session.get(row).copied().filter(|&session| session != NO_SESSION);
    }

    /// Pool of a row's request.
    #[inline]
    pub(crate) fn pool(&self, row: usize) -> usize {
        self.pool.get(row).map_or(0, |&pool| pool as usize)
    }

    /// Patience of a row's request; `None`: unlimited.
    #[inline]
    pub(crate) fn patience(&self, row: usize) -> Option<Span> {
        span(self.patience_s, row)
    }

    /// Time from arrival to cancellation of a row's request; `None`: never.
    #[inline]
    pub fn canceled_after(&self, row: usize) -> Option<Span> {
        span(self.cancel_s, row)
    }
}

/// A cell of an optional column of seconds; `None` if there is no value.
#[inline]
fn span(column: &[f64], row: usize) -> Option<Span> {
    let seconds = column.get(row).copied().filter(|seconds| !seconds.is_nan())?;
    decimal(seconds, 18).map(Span)
}

/// Maps floats to integers in the same order; both zeros are equal.
fn order_of(key: f64) -> i64 {
    let bits = (key + 0.0).to_bits() as i64;
    if bits < 0 { i64::MIN - bits } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of two otherwise valid requests after a change.
    pub(super) fn error_after(change: impl FnOnce(&mut Workload)) -> String {
        let mut workload = Workload {
            arrival_s: &[0.0, 1.0],
            prompt_tokens: &[3, 3],
            output_tokens: &[2, 2],
            class_count: 1,
            ..Workload::default()
        };
        workload.check().expect("a workload");
        change(&mut workload);
        workload.check().expect_err("an invalid workload").to_string()
    }

    #[test]
    fn classes_exist_and_ids_ascend() {
        assert!(error_after(|workload| workload.class_count = 0).contains("class_count"));
        assert!(error_after(|workload| workload.ids = &[7]).contains("ids"));
        assert!(error_after(|workload| workload.ids = &[7, 7]).contains("ascending"));
        let flow = Flow { parents: &[0, 1], children_start: &[0, 1, 1], children: &[1], delay_s: &[0.0, 0.0] };
        assert!(
            error_after(|workload| {
                workload.flow = flow;
                workload.ids = &[7, 8];
            })
            .contains("by their row numbers")
        );
    }
}
