//! What became of each request, column by column. Each column is named once, in its list, and everything follows from that.

use super::Status;
use crate::clock::Instant;
use crate::request::HandOff;

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
    /// No value.
    const ABSENT: Self;

    /// The very same, bit for bit.
    fn is(self, other: Self) -> bool;
}

macro_rules! cells {
    ($($Column:ident: $type:ty = $absent:expr,)*) => {$(
        impl From<Vec<$type>> for Column {
            fn from(column: Vec<$type>) -> Column {
                Column::$Column(column)
            }
        }

        impl Cell for $type {
            const ABSENT: $type = $absent;

            #[inline]
            fn is(self, other: $type) -> bool {
                self.to_ne_bytes() == other.to_ne_bytes()
            }
        }
    )*};
}

cells! { U8: u8 = 0, U32: u32 = 0, I32: i32 = 0, F64: f64 = f64::NAN, }

/// Declares columns of equal length, each with the value of an empty row; and fields beside them, if any.
macro_rules! columns {
    (
        $(#[$meta:meta])* $Columns:ident, $(#[$row_meta:meta])* $Row:ident
        { $($(#[$doc:meta])* $column:ident: $type:ty = $empty:expr,)* }
        $({ $($(#[$beside_doc:meta])* $beside:ident: $beside_type:ty,)* })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $Columns {
            $($(#[$doc])* pub $column: Vec<$type>,)*
            $($($(#[$beside_doc])* pub $beside: $beside_type,)*)?
        }

        $(#[$row_meta])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $Row {
            $(pub(crate) $column: $type,)*
        }

        impl $crate::results::columns::Row for $Row {
            const ABSENT: $Row = $Row { $($column: $crate::results::columns::Cell::ABSENT,)* };
        }

        impl $Columns {
            /// So many empty rows.
            pub(crate) fn new(rows: usize) -> $Columns {
                $Columns { $($column: vec![$empty; rows],)* $($($beside: Default::default(),)*)? }
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

        impl $crate::results::columns::Table for $Columns {
            fn resize(&mut self, rows: usize) {
                $(self.$column.resize(rows, $empty);)*
            }

            fn scatter(&mut self, part: &$Columns, to: &$crate::results::Scatter) {
                $(to.column(&mut self.$column, &part.$column);)*
            }

            fn take_first(&mut self, rows: usize) -> $Columns {
                $Columns {
                    $($column: $crate::results::take_first(&mut self.$column, rows),)*
                    $($($beside: Default::default(),)*)?
                }
            }
        }
    };
}

pub(crate) use columns;

/// A cell for each column.
pub(crate) trait Row {
    /// No value in any.
    const ABSENT: Self;
}

/// What is done to all columns at once; fields beside them are left alone.
pub(crate) trait Table: Sized {
    /// Makes room for so many rows.
    fn resize(&mut self, rows: usize);

    /// Writes the rows of a part to where they belong.
    fn scatter(&mut self, part: &Self, to: &Scatter);

    /// Takes the first rows out.
    fn take_first(&mut self, rows: usize) -> Self;
}

columns! {
    /// One row for each request that arrived by the horizon; seconds, NaN where there is no value.
    RequestColumns,
    /// A row of [`RequestColumns`].
    RequestRow {
        /// Replica that served it.
        replica: u32 = 0,
        /// [`Status`] as a number.
        status: u8 = Status::Awaited as u8,
        /// Arrival, on the nanosecond grid.
        arrival_s: f64 = 0.0,
        /// Start of its first iteration.
        admitted_s: f64 = 0.0,
        /// First output token.
        first_token_s: f64 = 0.0,
        /// Last output token.
        finish_s: f64 = 0.0,
        /// When it left, whatever the status.
        left_s: f64 = 0.0,
        /// Admitted − arrival.
        queue_s: f64 = 0.0,
        /// First token − arrival.
        ttft_s: f64 = 0.0,
        /// (Last − first token) / (output tokens − 1).
        tpot_s: f64 = 0.0,
        /// Longest gap between two of its tokens.
        max_tbt_s: f64 = 0.0,
        /// Last token − arrival.
        e2e_s: f64 = 0.0,
        /// How often it was preempted.
        preemptions: u32 = 0,
        /// Prompt tokens that were found in a cache.
        cached_tokens: i32 = 0,
    } {
        /// What became of hand-offs; `None` where no request is handed off.
        hand_off: Option<HandOffColumns>,
        /// Last token − the workload's `arrival_s`, which is another instant than its arrival for a request that waited for
        /// others: for a stage of a job, the job's arrival. `None` where no request waits for others.
        elapsed_s: Option<Vec<f64>>,
    }
}

columns! {
    /// The hand-offs of requests: one row for each.
    HandOffColumns,
    /// A row of [`HandOffColumns`].
    HandOffRow {
        /// Replica that computed the prompt; `NO_REPLICA`: the request stayed there.
        prefill_replica: u32 = NO_REPLICA,
        /// End of the prompt's last iteration.
        prefilled_s: f64 = f64::NAN,
        /// From then to the start of the first iteration on the other replica.
        handoff_s: f64 = f64::NAN,
    }
}

impl HandOffColumns {
    pub(super) fn note(&mut self, row: usize, hand_off: &HandOff) {
        let HandOff { from: prefill_replica, prefilled, resumed, .. } = *hand_off;
        let has_resumed = resumed != Instant::NEVER;
        let handoff_s = if has_resumed { resumed.since(prefilled).seconds() } else { f64::NAN };
        self.write(row, HandOffRow { prefill_replica, prefilled_s: prefilled.seconds(), handoff_s });
    }
}

impl RequestColumns {
    /// Writes the rows of `part`, in order, to `rows`, of which `first` is the first here.
    pub(crate) fn scatter(&mut self, part: &RequestColumns, rows: &[u32], first: u32) {
        let to = Scatter { rows, first };
        Table::scatter(self, part, &to);
        if let (Some(all), Some(part)) = (&mut self.hand_off, &part.hand_off) {
            all.scatter(part, &to);
        }
    }

    /// Keeps what becomes of hand-offs.
    pub(crate) fn keep_hand_offs(&mut self) {
        self.hand_off = Some(HandOffColumns::new(self.status.len()));
    }

    /// The number of rows at the beginning whose requests have left.
    pub(crate) fn left_first(&self) -> usize {
        let here = self.status.iter().position(|&status| status == Status::Awaited as u8);
        here.unwrap_or(self.status.len())
    }

    /// Makes room for requests up to `rows`.
    pub(crate) fn extend_to(&mut self, rows: usize) {
        if self.status.is_empty() {
            // Memory that is zero already need not be touched.
            let hand_off = self.hand_off.is_some().then(|| HandOffColumns::new(rows));
            *self = RequestColumns { hand_off, ..RequestColumns::new(rows) };
            return;
        }
        self.resize(rows);
        if let Some(hand_off) = &mut self.hand_off {
            hand_off.resize(rows);
        }
    }

    /// Takes the first rows out.
    pub(crate) fn take_first(&mut self, rows: usize) -> RequestColumns {
        let hand_off = self.hand_off.as_mut().map(|hand_off| hand_off.take_first(rows));
        RequestColumns { hand_off, ..Table::take_first(self, rows) }
    }
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
