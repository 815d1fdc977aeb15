//! What became of each request, column by column. Each column is named once, in its list, and everything follows from that.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::rows::{ADMITTED, FIRST_TOKEN, LEFT, LONGEST_GAP, NEVER, RequestRows};
use super::times::Times;
use crate::clock::{Instant, Span, arrival_nanoseconds_as_doubles};
use crate::workload::Workload;

/// The replica of a request that none served, and the `prefill_replica` of one that was not handed off.
pub const NO_REPLICA: u32 = u32::MAX;

/// A column of any type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is named after its type")]
pub enum Column {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// What a column can hold.
pub(crate) trait Cell: Copy {
    /// The very same, bit for bit.
    fn is(self, other: Self) -> bool;
}

macro_rules! cells {
    ($($Column:ident: $type:ty,)*) => {$(
        impl From<Vec<$type>> for Column {
            fn from(column: Vec<$type>) -> Column {
                Column::$Column(column)
            }
        }

        impl Cell for $type {
            #[inline]
            fn is(self, other: $type) -> bool {
                self.to_ne_bytes() == other.to_ne_bytes()
            }
        }
    )*};
}

cells! { U8: u8, U32: u32, I32: i32, I64: i64, F64: f64, }

/// Declares columns of equal length, each with the value of an empty row.
macro_rules! columns {
    (
        $(#[$meta:meta])* $Columns:ident, $(#[$row_meta:meta])* $Row:ident
        { $($(#[$doc:meta])* $column:ident: $type:ty = $empty:expr,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $Columns {
            $($(#[$doc])* pub $column: Vec<$type>,)*
        }

        $(#[$row_meta])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $Row {
            $(pub(crate) $column: $type,)*
        }

        impl $Columns {
            /// So many empty rows.
            pub(crate) fn new(rows: usize) -> $Columns {
                $Columns { $($column: vec![$empty; rows],)* }
            }

            /// Writes an empty row. Where a cell stays empty, the memory of the column need not be touched.
            #[inline]
            pub(crate) fn write(&mut self, row: usize, cells: $Row) {
                $(
                    if !$crate::results::columns::Cell::is(cells.$column, $empty) {
                        self.$column[row] = cells.$column;
                    }
                )*
            }

            /// All columns by name, in their order.
            pub fn into_columns(self) -> Vec<(&'static str, $crate::results::Column)> {
                vec![$((stringify!($column), self.$column.into()),)*]
            }
        }
    };
}

pub(crate) use columns;

/// A column under its name, and how many of its cells have no value.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedColumn {
    /// As in [`RequestColumns`].
    pub name: &'static str,
    /// Its cells.
    pub column: Column,
    /// How many of them are NaN or [`NO_REPLICA`].
    pub absent: usize,
}

/// Declares the columns of requests: the type of each, which runs have it, and what fills its cells in a block of rows
/// and counts those without a value.
macro_rules! request_columns {
    ($($(#[$doc:meta])* $column:ident: $type:ty = $is_there:expr, $fill:expr;)*) => {
        /// One row for each request that arrived by the horizon; seconds, NaN where there is no value.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct RequestColumns {
            $($(#[$doc])* pub $column: Vec<$type>,)*
        }

        impl RequestRows {
            /// The names of the columns that these rows have, in their order.
            pub fn names(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if $is_there(self) { names.push(stringify!($column)) })*
                names
            }

            /// One column of the rows, which are those of this workload; `None` where they have none of that name.
            /// `threads` may be used; `None`: one for each core.
            pub fn column(
                &self,
                name: &str,
                workload: &Workload,
                threads: Option<NonZeroUsize>,
            ) -> Option<NamedColumn> {
                $(
                    if name == stringify!($column) && $is_there(self) {
                        let absent = AtomicUsize::new(0);
                        let mut cells: Vec<$type> = vec![Default::default(); self.len()];
                        let blocks = (0..).step_by(BLOCK).zip(cells.chunks_mut(BLOCK));
                        in_parallel(blocks, self.len(), threads, |(first, cells)| {
                            let block = Block::new(self, workload, first);
                            absent.fetch_add($fill(&block, cells), Ordering::Relaxed);
                        });
                        let (column, absent) = (cells.into(), absent.into_inner());
                        return Some(NamedColumn { name: stringify!($column), column, absent });
                    }
                )*
                None
            }

            /// All columns of the rows.
            pub fn columns(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> RequestColumns {
                self.counted(&[], workload, threads).0
            }

            /// All columns of the rows under their names, in their order, `but` those of some names.
            pub fn named_columns(
                &self,
                but: &[&str],
                workload: &Workload,
                threads: Option<NonZeroUsize>,
            ) -> Vec<NamedColumn> {
                let (columns, counts) = self.counted(but, workload, threads);
                let mut counts = counts.into_iter();
                let mut named = Vec::new();
                $(
                    let absent = counts.next().unwrap_or(0);
                    if $is_there(self) && !but.contains(&stringify!($column)) {
                        named.push(NamedColumn { name: stringify!($column), column: columns.$column.into(), absent });
                    }
                )*
                named
            }

            /// All columns, and of each how many cells have no value. A block of rows after the other, so that what is read
            /// of them for one column is still near for the next.
            fn counted(
                &self,
                but: &[&str],
                workload: &Workload,
                threads: Option<NonZeroUsize>,
            ) -> (RequestColumns, Vec<usize>) {
                let room = |name, is_there: bool| if is_there && !but.contains(&name) { self.len() } else { 0 };
                let mut columns = RequestColumns {
                    $($column: vec![Default::default(); room(stringify!($column), $is_there(self))],)*
                };
                let counts = [$(stringify!($column)),*].map(|_| AtomicUsize::new(0));
                $(let mut $column = columns.$column.chunks_mut(BLOCK);)*
                let blocks = (0..self.len()).step_by(BLOCK);
                let blocks = blocks.map(|first| (first, $($column.next().unwrap_or_default(),)*));
                in_parallel(blocks, self.len(), threads, |(first, $($column,)*)| {
                    let block = Block::new(self, workload, first);
                    let absent = [$(if $column.is_empty() { 0 } else { $fill(&block, $column) }),*];
                    for (count, absent) in counts.iter().zip(absent) {
                        count.fetch_add(absent, Ordering::Relaxed);
                    }
                });
                (columns, counts.map(AtomicUsize::into_inner).to_vec())
            }
        }
    };
}

request_columns! {
    /// Replica that served it.
    replica: u32 = every_run, Block::replica;
    /// [`Status`](super::Status) as a number.
    status: u8 = every_run, Block::status;
    /// Arrival, on the nanosecond grid.
    arrival_s: f64 = every_run, Block::arrival_s;
    /// Start of its first iteration.
    admitted_s: f64 = every_run, Block::admitted_s;
    /// First output token.
    first_token_s: f64 = every_run, Block::first_token_s;
    /// Last output token.
    finish_s: f64 = every_run, Block::finish_s;
    /// When it left, whatever the status.
    left_s: f64 = every_run, Block::left_s;
    /// Admitted − arrival.
    queue_s: f64 = every_run, Block::queue_s;
    /// First token − arrival.
    ttft_s: f64 = every_run, Block::ttft_s;
    /// (Last − first token) / (output tokens − 1).
    tpot_s: f64 = every_run, Block::tpot_s;
    /// Longest gap between two of its tokens.
    max_tbt_s: f64 = every_run, Block::max_tbt_s;
    /// Last token − arrival.
    e2e_s: f64 = every_run, Block::e2e_s;
    /// How often it was preempted.
    preemptions: u32 = every_run, Block::preemptions;
    /// Prompt tokens that were found in a cache.
    cached_tokens: i32 = every_run, Block::cached_tokens;
    /// Tokens that it emitted and that were thrown away; empty where no policy does that.
    discarded_tokens: i64 = RequestRows::keeps_discards, Block::discarded_tokens;
    /// Drafts that it verified; empty, as the next column, where no policy decodes by drafts.
    drafted_tokens: i32 = RequestRows::keeps_drafts, Block::drafted_tokens;
    /// Those of them that became tokens of its output.
    accepted_tokens: i32 = RequestRows::keeps_drafts, Block::accepted_tokens;
    /// How often it was sent again because its replica had died; empty where none can.
    retries: u32 = RequestRows::keeps_retries, Block::retries;
    /// Last token − the workload's `arrival_s`, which is another instant than its arrival for a request that waited for
    /// others: for a stage of a job, the job's arrival. Empty where no request waits for others.
    elapsed_s: f64 = RequestRows::keeps_arrivals, Block::elapsed_s;
    /// Replica that computed the prompt; `NO_REPLICA`: the request stayed there. This column and those below are empty where
    /// no request is handed off.
    prefill_replica: u32 = RequestRows::keeps_hand_offs, Block::prefill_replica;
    /// End of the prompt's last iteration.
    prefilled_s: f64 = RequestRows::keeps_hand_offs, Block::prefilled_s;
    /// From then to the start of the first iteration on the other replica.
    handoff_s: f64 = RequestRows::keeps_hand_offs, Block::handoff_s;
}

fn every_run(_rows: &RequestRows) -> bool {
    true
}

/// Rows that are made into cells at once, and the workload whose requests they are.
struct Block<'a> {
    rows: &'a RequestRows,
    workload: &'a Workload<'a>,
    first: usize,
    last: usize,
    // What several columns need is made once.
    arrivals: OnceCell<Arrivals>,
    admitted: OnceCell<Times>,
    first_token: OnceCell<Times>,
    left: OnceCell<Times>,
    /// Where not all that left have finished.
    finish: OnceCell<Option<Times>>,
}

struct Arrivals {
    times: Times,
    /// Whole ones, as doubles; `None` where the workload does not say them or where they are not.
    nanoseconds: Option<Vec<f64>>,
}

impl<'a> Block<'a> {
    fn new(rows: &'a RequestRows, workload: &'a Workload<'a>, first: usize) -> Block<'a> {
        let last = rows.len().min(first + BLOCK);
        let (arrivals, finish) = (OnceCell::new(), OnceCell::new());
        let (admitted, first_token, left) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Block { rows, workload, first, last, arrivals, admitted, first_token, left, finish }
    }

    fn arrivals(&self) -> &Arrivals {
        self.arrivals.get_or_init(|| {
            if let Some(arrivals) = self.rows.arrivals(self.first..self.last) {
                return Arrivals { times: Times::of_instants(arrivals.iter().copied()), nanoseconds: None };
            }
            let Some(nanoseconds) = arrival_nanoseconds_as_doubles(&self.workload.arrival_s[self.first..self.last])
            else {
                let arrivals = (self.first..self.last).map(|row| self.workload.arrival_at(row));
                return Arrivals { times: Times::of_instants(arrivals), nanoseconds: None };
            };
            Arrivals { times: Times::of_nanoseconds(&nanoseconds), nanoseconds: Some(nanoseconds) }
        })
    }

    fn admitted(&self) -> &Times {
        self.admitted.get_or_init(|| self.rows.times::<ADMITTED>(self.first..self.last))
    }

    fn first_token(&self) -> &Times {
        self.first_token.get_or_init(|| self.rows.times::<FIRST_TOKEN>(self.first..self.last))
    }

    fn left(&self) -> &Times {
        self.left.get_or_init(|| self.rows.times::<LEFT>(self.first..self.last))
    }

    fn finish(&self) -> &Times {
        let of_some = self.finish.get_or_init(|| {
            let others = self.rows.not_finished(self.first..self.last)?;
            let mut finish = self.left().clone();
            finish.forget(others);
            Some(finish)
        });
        of_some.as_ref().unwrap_or_else(|| self.left())
    }

    fn replica(&self, cells: &mut [u32]) -> usize {
        match self.rows.replicas.fill(self.first, cells) {
            Some(every) if every == NO_REPLICA => cells.len(),
            Some(_) => 0,
            None => count_without_replica(cells),
        }
    }

    fn status(&self, cells: &mut [u8]) -> usize {
        self.rows.fill_statuses(self.first, cells);
        0
    }

    fn arrival_s(&self, cells: &mut [f64]) -> usize {
        let Arrivals { times, nanoseconds } = self.arrivals();
        let Some(nanoseconds) = nanoseconds else { return times.fill_seconds(cells) };
        for (cell, &nanoseconds) in cells.iter_mut().zip(nanoseconds) {
            // Both numbers are exact, so one division rounds once.
            *cell = nanoseconds / 1e9;
        }
        0
    }

    fn admitted_s(&self, cells: &mut [f64]) -> usize {
        self.admitted().fill_seconds(cells)
    }

    fn first_token_s(&self, cells: &mut [f64]) -> usize {
        self.first_token().fill_seconds(cells)
    }

    fn finish_s(&self, cells: &mut [f64]) -> usize {
        self.finish().fill_seconds(cells)
    }

    fn left_s(&self, cells: &mut [f64]) -> usize {
        self.left().fill_seconds(cells)
    }

    fn queue_s(&self, cells: &mut [f64]) -> usize {
        self.admitted().fill_seconds_since(&self.arrivals().times, cells)
    }

    fn ttft_s(&self, cells: &mut [f64]) -> usize {
        self.first_token().fill_seconds_since(&self.arrivals().times, cells)
    }

    fn tpot_s(&self, cells: &mut [f64]) -> usize {
        let outputs = self.outputs();
        let rows = (self.first..self.last).zip(&*outputs);
        // In most blocks every request has finished.
        let each: Vec<(u64, u64)> = if self.first_token().are_usual() && self.finish().are_usual() {
            let span = |row| self.rows.time(row, LEFT).wrapping_sub(self.rows.time(row, FIRST_TOKEN));
            rows.map(|(row, &output_tokens)| parts(time_per_token(span(row), output_tokens))).collect()
        } else {
            let emitted = |row| self.rows.finish(row).zip(self.rows.first_token(row));
            let span = |row| emitted(row).map(|(last, first_token)| last.since(first_token).0);
            let time = |span, output_tokens| parts(time_per_token(span, output_tokens));
            rows.map(|(row, &output_tokens)| span(row).map_or(parts(NEVER), |span| time(span, output_tokens))).collect()
        };
        Times::of(each.iter().copied()).fill_seconds(cells)
    }

    /// The lengths of the outputs that were emitted, or would have been.
    fn outputs(&self) -> Cow<'_, [i32]> {
        let all = &self.workload.output_tokens[self.first..self.last];
        if self.rows.none_is_cut() {
            return Cow::Borrowed(all);
        }
        Cow::Owned((self.first..).zip(all).map(|(row, &tokens)| tokens - self.rows.cut_tokens(row)).collect())
    }

    fn max_tbt_s(&self, cells: &mut [f64]) -> usize {
        self.rows.times::<LONGEST_GAP>(self.first..self.last).fill_seconds(cells);
        let absent = cells.iter().filter(|&&gap_s| gap_s == 0.0).count();
        if absent > 0 {
            cells.iter_mut().filter(|gap_s| **gap_s == 0.0).for_each(|gap_s| *gap_s = f64::NAN);
        }
        absent
    }

    fn e2e_s(&self, cells: &mut [f64]) -> usize {
        self.finish().fill_seconds_since(&self.arrivals().times, cells)
    }

    fn preemptions(&self, cells: &mut [u32]) -> usize {
        self.rows.preemptions.fill(self.first, cells);
        0
    }

    fn cached_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.cached_tokens.fill(self.first, cells);
        0
    }

    fn discarded_tokens(&self, cells: &mut [i64]) -> usize {
        self.rows.discarded_tokens.fill(self.first, cells);
        0
    }

    fn drafted_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.drafted_tokens.fill(self.first, cells);
        0
    }

    fn accepted_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.accepted_tokens.fill(self.first, cells);
        0
    }

    fn retries(&self, cells: &mut [u32]) -> usize {
        self.rows.retries.fill(self.first, cells);
        0
    }

    fn elapsed_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let (last, named) = (self.rows.finish(row)?, self.workload.arrival_at(row));
            (last >= named).then(|| last.since(named))
        })
    }

    fn prefill_replica(&self, cells: &mut [u32]) -> usize {
        for (row, cell) in (self.first..).zip(cells.iter_mut()) {
            *cell = self.rows.hand_offs.at(row).from;
        }
        count_without_replica(cells)
    }

    fn prefilled_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let prefilled = self.rows.hand_offs.at(row).prefilled;
            (prefilled != Instant::NEVER).then_some(Span(prefilled.0))
        })
    }

    fn handoff_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let hand_off = self.rows.hand_offs.at(row);
            (hand_off.resumed != Instant::NEVER).then(|| hand_off.resumed.since(hand_off.prefilled))
        })
    }

    /// Fills the cells of a column that few runs have with seconds; says how many have none.
    fn fill_each(&self, cells: &mut [f64], time: impl Fn(usize) -> Option<Span>) -> usize {
        for (row, cell) in (self.first..).zip(cells.iter_mut()) {
            *cell = time(row).map_or(f64::NAN, Span::seconds);
        }
        cells.iter().filter(|cell| cell.is_nan()).count()
    }
}

fn count_without_replica(cells: &[u32]) -> usize {
    cells.iter().filter(|&&replica| replica == NO_REPLICA).count()
}

/// The low 64 bits of a time and those above.
#[inline]
fn parts(time: u128) -> (u64, u64) {
    (time as u64, (time >> 64) as u64)
}

/// From the first token to the last over the tokens after the first, rounded down; `NEVER` where there are none.
#[inline]
fn time_per_token(span: u128, output_tokens: i32) -> u128 {
    let steps = u64::from(output_tokens as u32 - 1);
    match u64::try_from(span) {
        _ if steps == 0 => NEVER,
        // Most spans fit 64 bits, where division is many times cheaper.
        Ok(short) => u128::from(short / steps),
        Err(_) => span / u128::from(steps),
    }
}

/// Rows that are made into cells at once: what they take stays in a core's own cache.
const BLOCK: usize = 1 << 9;

/// Blocks for each thread that is worth its start.
const BLOCKS_A_THREAD: usize = 32;

/// Does the work of all blocks of so many rows on some threads.
fn in_parallel<Block: Send>(
    mut blocks: impl Iterator<Item = Block> + Send,
    rows: usize,
    threads: Option<NonZeroUsize>,
    work: impl Fn(Block) + Sync,
) {
    let threads = threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let threads = threads.min(rows / BLOCK / BLOCKS_A_THREAD);
    if threads <= 1 {
        return blocks.for_each(work);
    }
    let blocks = Mutex::new(&mut blocks);
    let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(block) = next() {
                    work(block);
                }
            });
        }
    });
}

/// Takes the first entries out of a column.
pub(crate) fn take_first<T>(column: &mut Vec<T>, rows: usize) -> Vec<T> {
    let rest = column.split_off(rows);
    std::mem::replace(column, rest)
}

/// Where the entries of some rows belong in a column that begins with row `first`.
pub(crate) struct Scatter<'a> {
    pub(crate) rows: &'a [u32],
    pub(crate) first: u32,
}

impl Scatter<'_> {
    pub(crate) fn column<T: Copy>(&self, all: &mut [T], part: &[T]) {
        for (&value, &row) in part.iter().zip(self.rows) {
            all[(row - self.first) as usize] = value;
        }
    }
}
