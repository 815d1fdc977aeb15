//! The requests that come, and whether they are well formed.
//!
//! A workload enters the core as columns, one row a request, sorted by arrival. Nothing else in the core reads input:
//! a row that passed here can be simulated.

use crate::clock::{Instant, Span, arrival_nanoseconds, decimal};
use crate::error::{Error, Kind, Result};

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
    /// Arrival times in seconds, ascending; taken to the nearest nanosecond.
    pub arrival_s: &'a [f64],
    /// Prompt lengths in tokens, at least 1.
    pub prompt_tokens: &'a [i32],
    /// Output lengths in tokens, at least 1.
    pub output_tokens: &'a [i32],
    /// Class of each request as an index below `class_count`; empty: all of class 0.
    pub class: &'a [u32],
    /// Number of classes, at least 1.
    pub class_count: usize,
    /// Priority; lower is served first. Empty: all 0.
    pub priority: &'a [i64],
    /// Most tokens that each may generate, as its client said; 0 for a request of which nothing is known. Empty: for none.
    pub max_output_tokens: &'a [i32],
    /// Seconds that a request waits for its first admission before it leaves; NaN: for ever. Empty: all for ever.
    pub patience_s: &'a [f64],
    /// Seconds from its arrival until its client takes it back; NaN: never. Empty: no client does.
    pub cancel_s: &'a [f64],
    /// The longest gap between two tokens that a request should see, in seconds; NaN: any. Empty: any for all.
    pub itl_slo_s: &'a [f64],
    /// What a queue that is ordered by key sorts by, lower first. Empty: all 0.
    pub queue_key: &'a [f64],
    /// Session of each request as a code; `NO_SESSION`: none. Empty: none for all.
    pub session: &'a [u32],
    /// Pool of the cluster that serves each request. Empty: the first for all.
    pub pool: &'a [u32],
    /// How many drafts of each request are accepted, where a drafter is to know it.
    pub accepted: Accepted<'a>,
    /// With what the prompts begin, where a prefix cache is to know it.
    pub content: Content<'a>,
    /// Which requests wait for others.
    pub flow: Flow<'a>,
    /// Id of each request, ascending. Empty: they are numbered from `first` on.
    pub ids: &'a [u32],
    /// The number of the first row, where these rows are not the first of a run.
    pub first: u32,
}

/// How many drafts are accepted of each row of a request that emits, in order. Empty slices: of no request is that known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accepted<'a> {
    /// Those of row r go from `start[r]` to `start[r + 1]`.
    pub start: &'a [u64],
    /// Drafts.
    pub drafts: &'a [u16],
}

impl Accepted<'_> {
    /// Is nothing known?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    /// What is known of a row.
    pub(crate) fn of(&self, row: usize) -> &[u16] {
        &self.drafts[self.start[row] as usize..self.start[row + 1] as usize]
    }

    fn check(&self, rows: usize) -> Result<()> {
        let is_whole =
            self.start.len() == rows + 1 && self.start.is_sorted() && self.start[rows] as usize <= self.drafts.len();
        if self.is_empty() || is_whole {
            return Ok(());
        }
        Err(Error::config("accepted", "start and drafts do not go together"))
    }
}

/// The code of a request that belongs to no session.
pub const NO_SESSION: u32 = u32::MAX;

/// One request as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Row of the workload.
    pub id: u32,
    /// Row among the requests of its run: another one where a replica replays its requests as a workload of its own.
    pub row: u32,
    /// When it arrives.
    pub at: Instant,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Output length in tokens.
    pub output_tokens: u32,
    /// Class index.
    pub class: u32,
    /// Priority; lower is served first.
    pub priority: i64,
    /// Most tokens that it may generate, as its client said; 0 where nothing is known of it.
    pub max_output_tokens: u32,
    /// The longest gap between two tokens that it should see; `Span::NEVER`: any.
    pub itl_slo: Span,
    /// What a queue that is ordered by key sorts by: in the order of the numbers that were given.
    pub queue_key: i64,
    /// Its session, if it belongs to one.
    pub session: Option<u32>,
}

impl Arrival {
    /// Does a scheduler know that its last token will be its last? It does where the client allowed no more; otherwise the
    /// output ends by a stop token.
    #[inline]
    pub(crate) fn end_is_foreseen(&self) -> bool {
        (1..=self.output_tokens).contains(&self.max_output_tokens)
    }
}

/// Rows that are checked at once: all that come before the first wrong one are right.
const CHECKED_AT_ONCE: usize = 256;

impl Workload<'_> {
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.arrival_s.len()
    }

    /// Is there no request at all?
    pub fn is_empty(&self) -> bool {
        self.arrival_s.is_empty()
    }

    /// Tests every row once; the first wrong one is the error.
    pub fn check(&self) -> Result<()> {
        self.check_after(0.0).map_err(|error| error.further(self.first as usize))
    }

    /// The same of rows that follow one which arrives at `last`, in seconds; errors count from the first row here.
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
                return Err(Error::config(name, format!("has {length} rows where arrival_s has {rows}")));
            }
        }
        if u32::try_from(self.first as usize + rows).is_err() {
            return Err(Kind::TooMuch(format!("{rows} requests: at most 2^32 − 1 fit")).into());
        }
        for first in (0..rows).step_by(CHECKED_AT_ONCE) {
            let part = first..rows.min(first + CHECKED_AT_ONCE);
            if self.has_wrong_row(part.clone(), last) {
                part.clone().try_fold(last, |last, row| self.check_row(row, last))?;
            }
            last = self.arrival_s[part.end - 1];
        }
        if self.class_count == 0 && rows > 0 {
            return Err(Error::config("class_count", "0 classes: every request is of one"));
        }
        if let Some(row) = self.class.iter().position(|&class| class as usize >= self.class_count) {
            return Err(Error::trace(row, format!("class code {} of {} classes", self.class[row], self.class_count)));
        }
        if !self.ids.is_sorted_by(|before, id| before < id) {
            return Err(Error::config("ids", "must be ascending"));
        }
        if !self.ids.is_empty() && !self.flow.is_empty() {
            return Err(Error::config("ids", "rows that wait for others are named by their places: give no ids"));
        }
        self.flow.check(rows)?;
        self.content.check(self)?;
        self.accepted.check(rows)?;
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
                    format!("{name} is {:e}: it must be from 0 to below 9e9 seconds", column[row]),
                ));
            }
        }
        if let Some(row) = self.queue_key.iter().position(|key| !key.is_finite()) {
            return Err(Error::trace(row, format!("queue_key is {}: it must be a finite number", self.queue_key[row])));
        }
        Ok(())
    }

    /// Is one of some rows wrong, of which the first follows one that arrives at `last`?
    fn has_wrong_row(&self, rows: std::ops::Range<usize>, last: f64) -> bool {
        let arrivals = &self.arrival_s[rows.clone()];
        let lengths = self.prompt_tokens[rows.clone()].iter().zip(&self.output_tokens[rows]);
        // Written so that NaN fails each test.
        let mut are_right = arrivals.first().is_none_or(|&first| first >= last);
        arrivals.iter().for_each(|&arrival| are_right &= arrival < 9e9);
        arrivals.iter().zip(&arrivals[1..]).for_each(|(before, arrival)| are_right &= arrival >= before);
        lengths.for_each(|(&prompt, &output)| {
            // The sum of two positive numbers that does not fit is negative.
            are_right &= (prompt > 0) & (output > 0) & (prompt.wrapping_add(output) > 0);
        });
        !are_right
    }

    /// The arrival of a row, if nothing is wrong with it and it comes after `last`.
    #[cold]
    fn check_row(&self, row: usize, last: f64) -> Result<f64> {
        let arrival = self.arrival_s[row];
        // Written so that NaN fails each test.
        if !(arrival >= last && arrival < 9e9) {
            return Err(self.wrong_arrival(row, last));
        }
        let (prompt, output) = (self.prompt_tokens[row], self.output_tokens[row]);
        if prompt < 1 || output < 1 || prompt.checked_add(output).is_none() {
            return Err(Error::trace(
                row,
                format!(
                    "prompt_tokens {prompt}, output_tokens {output}: each must be at least 1, both together below 2^31"
                ),
            ));
        }
        Ok(arrival)
    }

    fn wrong_arrival(&self, row: usize, last: f64) -> Error {
        let arrival = self.arrival_s[row];
        let message = if arrival < last && arrival >= 0.0 {
            format!("arrival_s is {arrival}, before the row above it ({last}): sort by arrival_s")
        } else {
            format!("arrival_s is {arrival}: it must be finite, not negative and below 9e9")
        };
        Error::trace(row, message)
    }

    /// The instant of a row's arrival. The rows have been checked.
    #[inline]
    pub fn arrival_at(&self, row: usize) -> Instant {
        Instant::from_nanoseconds(arrival_nanoseconds(self.arrival_s[row]).unwrap_or(0))
    }

    /// The id of a row's request.
    #[inline]
    pub(crate) fn id(&self, row: usize) -> u32 {
        self.ids.get(row).copied().unwrap_or(self.first + row as u32)
    }

    /// The row of a request that is here.
    fn row_of(&self, id: u32) -> Option<usize> {
        if self.ids.is_empty() {
            return id.checked_sub(self.first).map(|row| row as usize).filter(|&row| row < self.len());
        }
        self.ids.binary_search(&id).ok()
    }

    /// One row. The rows have been checked.
    #[inline(never)]
    pub(crate) fn request(&self, row: usize, at: Instant) -> Arrival {
        let mut arrival = self.plain_request(row, at);
        self.add_options(row, &mut arrival);
        arrival
    }

    /// The same where no row has more than an arrival, a prompt and an output.
    #[inline(always)]
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

    /// May a request leave before its last token?
    pub(crate) fn has_leavers(&self) -> bool {
        !self.patience_s.is_empty() || !self.cancel_s.is_empty()
    }

    /// Is there a column that says more of a request?
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

    /// What the optional columns say of a row.
    fn add_options(&self, row: usize, arrival: &mut Arrival) {
        arrival.id = self.id(row);
        arrival.class = self.class.get(row).copied().unwrap_or(0);
        arrival.priority = self.priority.get(row).copied().unwrap_or(0);
        arrival.max_output_tokens = self.max_output_tokens.get(row).map_or(0, |&most| most.max(0) as u32);
        arrival.itl_slo = span(self.itl_slo_s, row).unwrap_or(Span::NEVER);
        arrival.queue_key = self.queue_key.get(row).map_or(0, |&key| order_of(key));
        arrival.session = self.session.get(row).copied().filter(|&session| session != NO_SESSION);
    }

    /// The pool of a row's request.
    #[inline]
    pub(crate) fn pool(&self, row: usize) -> usize {
        self.pool.get(row).map_or(0, |&pool| pool as usize)
    }

    /// How long a row's request waits for its first admission; `None`: for ever.
    #[inline]
    pub(crate) fn patience(&self, row: usize) -> Option<Span> {
        span(self.patience_s, row)
    }

    /// How long after its arrival a row's client takes it back; `None`: it does not.
    #[inline]
    pub fn cancelled_after(&self, row: usize) -> Option<Span> {
        span(self.cancel_s, row)
    }
}

/// A row of an optional column of seconds; `None` where there is no value.
#[inline]
fn span(column: &[f64], row: usize) -> Option<Span> {
    let seconds = column.get(row).copied().filter(|seconds| !seconds.is_nan())?;
    decimal(seconds, 18).map(Span)
}

/// A whole number for each float, in the same order; both zeros are one.
fn order_of(key: f64) -> i64 {
    let bits = (key + 0.0).to_bits() as i64;
    if bits < 0 { i64::MIN - bits } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with two requests of which all else is right.
    pub(super) fn wrong(change: impl FnOnce(&mut Workload)) -> String {
        let mut workload = Workload {
            arrival_s: &[0.0, 1.0],
            prompt_tokens: &[3, 3],
            output_tokens: &[2, 2],
            class_count: 1,
            ..Workload::default()
        };
        workload.check().expect("a workload");
        change(&mut workload);
        workload.check().expect_err("it is wrong").to_string()
    }

    #[test]
    fn requests_are_of_a_class_and_have_ascending_ids() {
        assert!(wrong(|workload| workload.class_count = 0).contains("class_count"));
        assert!(wrong(|workload| workload.ids = &[7]).contains("ids"));
        assert!(wrong(|workload| workload.ids = &[7, 7]).contains("ascending"));
        let flow = Flow { parents: &[0, 1], children_start: &[0, 1, 1], children: &[1], delay_s: &[0.0, 0.0] };
        assert!(
            wrong(|workload| {
                workload.flow = flow;
                workload.ids = &[7, 8];
            })
            .contains("by their places")
        );
    }
}
