//! Results per request as columns. Each column is declared once, in one list.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::block::{BLOCK, Block};
use super::rows::RequestRows;
use crate::workload::Workload;

/// Replica of a request that no replica served, and `prefill_replica` without a hand-off.
pub const NO_REPLICA: u32 = u32::MAX;

/// A column of any type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "variants are named after their types")]
pub enum Column {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Types of cells.
pub(crate) trait Cell: Copy {
    /// Whether two cells are equal bit for bit.
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

/// Declares columns of equal length, each with its empty value.
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
            /// Builds empty rows.
            pub(crate) fn new(rows: usize) -> $Columns {
                $Columns { $($column: vec![$empty; rows],)* }
            }

            /// Writes an empty row. If a cell stays empty, the memory of the column is not touched.
            #[inline]
            pub(crate) fn write(&mut self, row: usize, cells: $Row) {
                $(
                    if !$crate::results::columns::Cell::is(cells.$column, $empty) {
                        self.$column[row] = cells.$column;
                    }
                )*
            }

            /// Returns all columns with their names, in order.
            pub fn into_columns(self) -> Vec<(&'static str, $crate::results::Column)> {
                vec![$((stringify!($column), self.$column.into()),)*]
            }
        }
    };
}

pub(crate) use columns;

/// A column with its name and the number of its empty cells.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedColumn {
    /// Name, as in [`RequestColumns`].
    pub name: &'static str,
    /// Cells.
    pub column: Column,
    /// Number of cells that are NaN or [`NO_REPLICA`].
    pub absent: usize,
}

/// Declares the columns of requests: type, runs that have the column, and the function that fills the cells of a
/// block and counts empty ones.
macro_rules! request_columns {
    ($($(#[$doc:meta])* $column:ident: $type:ty = $is_present:expr, $fill:expr;)*) => {
        /// One row per request that arrived by the horizon; seconds, NaN if there is no value.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct RequestColumns {
            $($(#[$doc])* pub $column: Vec<$type>,)*
        }

        impl RequestRows {
            /// Names of the columns of these rows, in order.
            pub fn names(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if $is_present(self) { names.push(stringify!($column)) })*
                names
            }

            /// Returns one column of the rows, given their workload; `None` if the name is unknown. Uses up to
            /// `threads` threads; `None`: one per core.
            pub fn column(
                &self,
                name: &str,
                workload: &Workload,
                threads: Option<NonZeroUsize>,
            ) -> Option<NamedColumn> {
                $(
                    if name == stringify!($column) && $is_present(self) {
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

            /// Returns all columns of the rows.
            pub fn columns(&self, workload: &Workload, threads: Option<NonZeroUsize>) -> RequestColumns {
                self.counted(&[], workload, threads).0
            }

            /// Returns all columns with their names, in order, except those in `but`.
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
                    if $is_present(self) && !but.contains(&stringify!($column)) {
                        named.push(NamedColumn { name: stringify!($column), column: columns.$column.into(), absent });
                    }
                )*
                named
            }

            /// Returns all columns with the number of empty cells of each. Blocks are processed one after another, so
            /// that their data stay in cache for the next column.
            fn counted(
                &self,
                but: &[&str],
                workload: &Workload,
                threads: Option<NonZeroUsize>,
            ) -> (RequestColumns, Vec<usize>) {
                let room = |name, is_present: bool| if is_present && !but.contains(&name) { self.len() } else { 0 };
                let mut columns = RequestColumns {
                    $($column: vec![Default::default(); room(stringify!($column), $is_present(self))],)*
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
    /// Departure, whatever the status.
    left_s: f64 = every_run, Block::left_s;
    /// Admitted − arrival.
    queue_s: f64 = every_run, Block::queue_s;
    /// First token − arrival.
    ttft_s: f64 = every_run, Block::ttft_s;
    /// (Last − first token) / (output tokens − 1).
    tpot_s: f64 = every_run, Block::tpot_s;
    /// Longest gap between two of its tokens.
    max_itl_s: f64 = every_run, Block::max_itl_s;
    /// Last token − arrival.
    e2e_s: f64 = every_run, Block::e2e_s;
    /// Number of preemptions.
    preemptions: u32 = every_run, Block::preemptions;
    /// Prompt tokens hit in a prefix cache.
    cached_tokens: i32 = every_run, Block::cached_tokens;
    /// Emitted tokens that were discarded; empty if no policy discards tokens.
    discarded_tokens: i64 = RequestRows::keeps_discards, Block::discarded_tokens;
    /// Drafts that it verified; empty, like the next column, without speculative decoding.
    drafted_tokens: i32 = RequestRows::keeps_drafts, Block::drafted_tokens;
    /// Accepted drafts that became output tokens.
    accepted_tokens: i32 = RequestRows::keeps_drafts, Block::accepted_tokens;
    /// Number of retries after failures of its replica; empty if no replica can fail.
    retries: u32 = RequestRows::keeps_retries, Block::retries;
    /// Last token − the workload's `arrival_s`, which differs from its arrival if it waited for other requests: for a
    /// stage of a job, the job's arrival. Empty if no request waits for other requests.
    elapsed_s: f64 = RequestRows::keeps_arrivals, Block::elapsed_s;
    /// Replica that computed the prompt; `NO_REPLICA`: not handed off. This column and the following ones are empty
    /// if no request is handed off.
    prefill_replica: u32 = RequestRows::keeps_hand_offs, Block::prefill_replica;
    /// End of the prompt's last iteration.
    prefilled_s: f64 = RequestRows::keeps_hand_offs, Block::prefilled_s;
    /// Time from then to the start of the first iteration on the other replica.
    handoff_s: f64 = RequestRows::keeps_hand_offs, Block::handoff_s;
}

fn every_run(_rows: &RequestRows) -> bool {
    true
}

/// Blocks per thread that justify starting a thread.
const BLOCKS_PER_THREAD: usize = 32;

/// Processes all blocks of the rows on several threads.
fn in_parallel<Block: Send>(
    mut blocks: impl Iterator<Item = Block> + Send,
    rows: usize,
    threads: Option<NonZeroUsize>,
    work: impl Fn(Block) + Sync,
) {
    let threads = threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let threads = threads.min(rows / BLOCK / BLOCKS_PER_THREAD);
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

/// Removes and returns the first entries of a column.
pub(crate) fn take_first<T>(column: &mut Vec<T>, rows: usize) -> Vec<T> {
    let rest = column.split_off(rows);
    std::mem::replace(column, rest)
}

/// Rows to which entries are copied in a column that begins with row `first`.
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
