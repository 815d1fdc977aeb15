//! What became of each request, column by column. Each column is named once, in its list, and everything follows from that.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::rows::RequestRows;
use crate::clock::{Instant, Span};
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

cells! { U8: u8, U32: u32, I32: i32, F64: f64, }

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

/// Declares the columns of requests: the type of each, which runs have it, and what fills its cells from some row on and
/// counts those without a value.
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
                let source = Source { rows: self, workload };
                $(
                    if name == stringify!($column) && $is_there(self) {
                        let absent = AtomicUsize::new(0);
                        let mut cells: Vec<$type> = vec![Default::default(); self.len()];
                        let blocks = (0..).step_by(BLOCK).zip(cells.chunks_mut(BLOCK));
                        in_parallel(blocks, self.len(), threads, |(first, cells)| {
                            absent.fetch_add($fill(&source, first, cells), Ordering::Relaxed);
                        });
                        let (column, absent) = (cells.into(), absent.into_inner());
                        return Some(NamedColumn { name: stringify!($column), column, absent });
                    }
                )*
                None
            }

            /// All columns of the rows.
            pub fn columns(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> RequestColumns {
                self.counted(workload, threads).0
            }

            /// All columns of the rows under their names, in their order.
            pub fn named_columns(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> Vec<NamedColumn> {
                let (columns, counts) = self.counted(workload, threads);
                let mut counts = counts.into_iter();
                let mut named = Vec::new();
                $(
                    let absent = counts.next().unwrap_or(0);
                    if $is_there(self) {
                        named.push(NamedColumn { name: stringify!($column), column: columns.$column.into(), absent });
                    }
                )*
                named
            }

            /// All columns, and of each how many cells have no value. A block of rows after the other, so that what is read
            /// of them for one column is still near for the next.
            fn counted(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> (RequestColumns, Vec<usize>) {
                let source = Source { rows: self, workload };
                let room = |is_there: bool| if is_there { self.len() } else { 0 };
                let mut columns = RequestColumns {
                    $($column: vec![Default::default(); room($is_there(self))],)*
                };
                let counts = [$(stringify!($column)),*].map(|_| AtomicUsize::new(0));
                $(let mut $column = columns.$column.chunks_mut(BLOCK);)*
                let blocks = (0..self.len()).step_by(BLOCK);
                let blocks = blocks.map(|first| (first, $($column.next().unwrap_or_default(),)*));
                in_parallel(blocks, self.len(), threads, |(first, $($column,)*)| {
                    let absent = [$($fill(&source, first, $column)),*];
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
    replica: u32 = every_run, Source::replica;
    /// [`Status`] as a number.
    status: u8 = every_run, Source::status;
    /// Arrival, on the nanosecond grid.
    arrival_s: f64 = every_run, Source::arrival_s;
    /// Start of its first iteration.
    admitted_s: f64 = every_run, Source::admitted_s;
    /// First output token.
    first_token_s: f64 = every_run, Source::first_token_s;
    /// Last output token.
    finish_s: f64 = every_run, Source::finish_s;
    /// When it left, whatever the status.
    left_s: f64 = every_run, Source::left_s;
    /// Admitted − arrival.
    queue_s: f64 = every_run, Source::queue_s;
    /// First token − arrival.
    ttft_s: f64 = every_run, Source::ttft_s;
    /// (Last − first token) / (output tokens − 1).
    tpot_s: f64 = every_run, Source::tpot_s;
    /// Longest gap between two of its tokens.
    max_tbt_s: f64 = every_run, Source::max_tbt_s;
    /// Last token − arrival.
    e2e_s: f64 = every_run, Source::e2e_s;
    /// How often it was preempted.
    preemptions: u32 = every_run, Source::preemptions;
    /// Prompt tokens that were found in a cache.
    cached_tokens: i32 = every_run, Source::cached_tokens;
    /// Last token − the workload's `arrival_s`, which is another instant than its arrival for a request that waited for
    /// others: for a stage of a job, the job's arrival. Empty where no request waits for others.
    elapsed_s: f64 = RequestRows::keeps_arrivals, Source::elapsed_s;
    /// Replica that computed the prompt; `NO_REPLICA`: the request stayed there. This column and those below are empty where
    /// no request is handed off.
    prefill_replica: u32 = RequestRows::keeps_hand_offs, Source::prefill_replica;
    /// End of the prompt's last iteration.
    prefilled_s: f64 = RequestRows::keeps_hand_offs, Source::prefilled_s;
    /// From then to the start of the first iteration on the other replica.
    handoff_s: f64 = RequestRows::keeps_hand_offs, Source::handoff_s;
}

fn every_run(_rows: &RequestRows) -> bool {
    true
}

/// Rows, and the workload whose requests they are.
struct Source<'a> {
    rows: &'a RequestRows,
    workload: &'a Workload<'a>,
}

impl Source<'_> {
    fn arrival(&self, row: usize) -> Instant {
        self.rows.arrival(row).unwrap_or_else(|| self.workload.arrival_at(row))
    }

    fn since_arrival(&self, row: usize, at: Option<Instant>) -> Option<f64> {
        at.map(|at| at.since(self.arrival(row)).seconds())
    }

    fn replica(&self, first: usize, cells: &mut [u32]) -> usize {
        self.rows.replicas.fill(first, cells);
        cells.iter().filter(|&&replica| replica == NO_REPLICA).count()
    }

    fn status(&self, first: usize, cells: &mut [u8]) -> usize {
        fill(first, cells, |row| self.rows.status(row) as u8);
        0
    }

    fn arrival_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| Some(self.arrival(row).seconds()))
    }

    fn admitted_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.rows.admitted(row).map(Instant::seconds))
    }

    fn first_token_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.rows.first_token(row).map(Instant::seconds))
    }

    fn finish_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.rows.finish(row).map(Instant::seconds))
    }

    fn left_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.rows.left(row).map(Instant::seconds))
    }

    fn queue_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.since_arrival(row, self.rows.admitted(row)))
    }

    fn ttft_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.since_arrival(row, self.rows.first_token(row)))
    }

    fn tpot_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| {
            let steps = self.workload.output_tokens[row] as u32 - 1;
            let (last, first_token) = (self.rows.finish(row)?, self.rows.first_token(row)?);
            (steps > 0).then(|| quotient(last.since(first_token), steps).seconds())
        })
    }

    fn max_tbt_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| {
            let gap = self.rows.longest_gap(row);
            (gap > Span::ZERO).then(|| gap.seconds())
        })
    }

    fn e2e_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| self.since_arrival(row, self.rows.finish(row)))
    }

    fn preemptions(&self, first: usize, cells: &mut [u32]) -> usize {
        self.rows.preemptions.fill(first, cells);
        0
    }

    fn cached_tokens(&self, first: usize, cells: &mut [i32]) -> usize {
        self.rows.cached_tokens.fill(first, cells);
        0
    }

    fn elapsed_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| {
            let (last, named) = (self.rows.finish(row)?, self.workload.arrival_at(row));
            (last >= named).then(|| last.since(named).seconds())
        })
    }

    fn prefill_replica(&self, first: usize, cells: &mut [u32]) -> usize {
        fill(first, cells, |row| self.rows.hand_offs.at(row).from);
        cells.iter().filter(|&&replica| replica == NO_REPLICA).count()
    }

    fn prefilled_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| {
            let prefilled = self.rows.hand_offs.at(row).prefilled;
            (prefilled != Instant::NEVER).then(|| prefilled.seconds())
        })
    }

    fn handoff_s(&self, first: usize, cells: &mut [f64]) -> usize {
        fill_some(first, cells, |row| {
            let hand_off = self.rows.hand_offs.at(row);
            (hand_off.resumed != Instant::NEVER).then(|| hand_off.resumed.since(hand_off.prefilled).seconds())
        })
    }
}

/// Fills the cells of the rows from `first` on.
fn fill<T>(first: usize, cells: &mut [T], cell: impl Fn(usize) -> T) {
    for (row, to) in (first..).zip(cells) {
        *to = cell(row);
    }
}

/// The same with seconds; says how many cells have none.
fn fill_some(first: usize, cells: &mut [f64], cell: impl Fn(usize) -> Option<f64>) -> usize {
    let mut absent = 0;
    for (row, to) in (first..).zip(cells) {
        let seconds = cell(row);
        absent += usize::from(seconds.is_none());
        *to = seconds.unwrap_or(f64::NAN);
    }
    absent
}

/// A span over a count, rounded down.
#[inline]
fn quotient(span: Span, count: u32) -> Span {
    // Most spans fit 64 bits, where division is many times cheaper.
    match u64::try_from(span.0) {
        Ok(short) => Span(u128::from(short / u64::from(count))),
        Err(_) => Span(span.0 / u128::from(count)),
    }
}

/// Rows that are made into cells at once: what they take stays in a core's own cache.
const BLOCK: usize = 1 << 12;

/// Blocks for each thread that is worth its start.
const BLOCKS_A_THREAD: usize = 4;

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
