//! What became of each request, column by column?

use super::Status;
use crate::clock::Instant;
use crate::request::HandOff;

/// One row for each request that arrived by the horizon; seconds, NaN where there is no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestColumns {
    /// Replica that served it.
    pub replica: Vec<u32>,
    /// [`Status`] as a number.
    pub status: Vec<u8>,
    /// Arrival, on the nanosecond grid.
    pub arrival_s: Vec<f64>,
    /// Start of its first iteration.
    pub admitted_s: Vec<f64>,
    /// First output token.
    pub first_token_s: Vec<f64>,
    /// Last output token.
    pub finish_s: Vec<f64>,
    /// When it left, whatever the status.
    pub left_s: Vec<f64>,
    /// Admitted − arrival.
    pub queue_s: Vec<f64>,
    /// First token − arrival.
    pub ttft_s: Vec<f64>,
    /// (Last − first token) / (output tokens − 1).
    pub tpot_s: Vec<f64>,
    /// Longest gap between two of its tokens.
    pub max_tbt_s: Vec<f64>,
    /// Last token − arrival.
    pub e2e_s: Vec<f64>,
    /// How often it was preempted.
    pub preemptions: Vec<u32>,
    /// Prompt tokens that were found in a cache.
    pub cached_tokens: Vec<i32>,
    /// What became of hand-offs; `None` where nobody hands off.
    pub hand_off: Option<HandOffColumns>,
    /// Last token − the workload's `arrival_s`, which is another instant than its arrival for a request that waited for
    /// others: for a stage of a job, the job's arrival. `None` where nobody waits for others.
    pub elapsed_s: Option<Vec<f64>>,
}

/// The hand-offs of requests: one row for each.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOffColumns {
    /// Replica that computed the prompt; `NO_REPLICA`: the request stayed there.
    pub prefill_replica: Vec<u32>,
    /// End of the prompt's last iteration.
    pub prefilled_s: Vec<f64>,
    /// From then to the start of the first iteration on the other replica.
    pub handoff_s: Vec<f64>,
}

/// The replica of a request that none served, and the `prefill_replica` of one that was not handed off.
pub const NO_REPLICA: u32 = u32::MAX;

impl HandOffColumns {
    fn new(rows: usize) -> HandOffColumns {
        HandOffColumns {
            prefill_replica: vec![NO_REPLICA; rows],
            prefilled_s: vec![f64::NAN; rows],
            handoff_s: vec![f64::NAN; rows],
        }
    }

    pub(super) fn write(&mut self, row: usize, hand_off: &HandOff) {
        self.prefill_replica[row] = hand_off.from;
        self.prefilled_s[row] = hand_off.prefilled.seconds();
        if hand_off.resumed != Instant::NEVER {
            self.handoff_s[row] = hand_off.resumed.since(hand_off.prefilled).seconds();
        }
    }
}

impl RequestColumns {
    pub(crate) fn new(rows: usize) -> RequestColumns {
        RequestColumns {
            replica: vec![0; rows],
            status: vec![Status::Awaited as u8; rows],
            arrival_s: vec![0.0; rows],
            admitted_s: vec![0.0; rows],
            first_token_s: vec![0.0; rows],
            finish_s: vec![0.0; rows],
            left_s: vec![0.0; rows],
            queue_s: vec![0.0; rows],
            ttft_s: vec![0.0; rows],
            tpot_s: vec![0.0; rows],
            max_tbt_s: vec![0.0; rows],
            e2e_s: vec![0.0; rows],
            preemptions: vec![0; rows],
            cached_tokens: vec![0; rows],
            hand_off: None,
            elapsed_s: None,
        }
    }

    /// Writes the rows of `part`, in order, to `rows`, of which `first` is the first here.
    pub(crate) fn scatter(&mut self, part: &RequestColumns, rows: &[u32], first: u32) {
        let put = Scatter { rows, first };
        put.column(&mut self.replica, &part.replica);
        put.column(&mut self.status, &part.status);
        put.column(&mut self.arrival_s, &part.arrival_s);
        put.column(&mut self.admitted_s, &part.admitted_s);
        put.column(&mut self.first_token_s, &part.first_token_s);
        put.column(&mut self.finish_s, &part.finish_s);
        put.column(&mut self.left_s, &part.left_s);
        put.column(&mut self.queue_s, &part.queue_s);
        put.column(&mut self.ttft_s, &part.ttft_s);
        put.column(&mut self.tpot_s, &part.tpot_s);
        put.column(&mut self.max_tbt_s, &part.max_tbt_s);
        put.column(&mut self.e2e_s, &part.e2e_s);
        put.column(&mut self.preemptions, &part.preemptions);
        put.column(&mut self.cached_tokens, &part.cached_tokens);
        if let (Some(all), Some(part)) = (&mut self.hand_off, &part.hand_off) {
            put.column(&mut all.prefill_replica, &part.prefill_replica);
            put.column(&mut all.prefilled_s, &part.prefilled_s);
            put.column(&mut all.handoff_s, &part.handoff_s);
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
        self.replica.resize(rows, 0);
        self.status.resize(rows, Status::Awaited as u8);
        for seconds in [
            &mut self.arrival_s,
            &mut self.admitted_s,
            &mut self.first_token_s,
            &mut self.finish_s,
            &mut self.left_s,
            &mut self.queue_s,
            &mut self.ttft_s,
            &mut self.tpot_s,
            &mut self.max_tbt_s,
            &mut self.e2e_s,
        ] {
            seconds.resize(rows, 0.0);
        }
        self.preemptions.resize(rows, 0);
        self.cached_tokens.resize(rows, 0);
        if let Some(hand_off) = &mut self.hand_off {
            hand_off.prefill_replica.resize(rows, NO_REPLICA);
            hand_off.prefilled_s.resize(rows, f64::NAN);
            hand_off.handoff_s.resize(rows, f64::NAN);
        }
    }

    /// Takes the first rows out.
    pub(crate) fn take_first(&mut self, rows: usize) -> RequestColumns {
        RequestColumns {
            replica: take_first(&mut self.replica, rows),
            status: take_first(&mut self.status, rows),
            arrival_s: take_first(&mut self.arrival_s, rows),
            admitted_s: take_first(&mut self.admitted_s, rows),
            first_token_s: take_first(&mut self.first_token_s, rows),
            finish_s: take_first(&mut self.finish_s, rows),
            left_s: take_first(&mut self.left_s, rows),
            queue_s: take_first(&mut self.queue_s, rows),
            ttft_s: take_first(&mut self.ttft_s, rows),
            tpot_s: take_first(&mut self.tpot_s, rows),
            max_tbt_s: take_first(&mut self.max_tbt_s, rows),
            e2e_s: take_first(&mut self.e2e_s, rows),
            preemptions: take_first(&mut self.preemptions, rows),
            cached_tokens: take_first(&mut self.cached_tokens, rows),
            hand_off: self.hand_off.as_mut().map(|hand_off| HandOffColumns {
                prefill_replica: take_first(&mut hand_off.prefill_replica, rows),
                prefilled_s: take_first(&mut hand_off.prefilled_s, rows),
                handoff_s: take_first(&mut hand_off.handoff_s, rows),
            }),
            elapsed_s: None,
        }
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
