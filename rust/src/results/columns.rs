//! What became of each request, column by column. Each column is named once, in its list, and everything follows from that.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::block::{BLOCK, Block};
use super::rows::RequestRows;
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
    max_itl_s: f64 = every_run, Block::max_itl_s;
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
