//! The outcome of a run, and its findings.

use std::collections::BTreeSet;

use super::options::Options;
use crate::clock::{Instant, product};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::plan::Limits;
use crate::results::{BatchRow, Cut, Facts, IterationRow, Rejections, Results, Sample, Status, of_run};
use crate::timing::Beyond;

/// A completed run before the summary. Runs of independent replicas are combined first.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) results: Results,
    pub(super) rejections: Vec<Rejections>,
    pub(super) cut: Cut,
    /// Whether events were left at the end.
    pub(super) has_more_events: bool,
    pub(super) stalled: bool,
    /// Requests that waited for a replica at the end, when none was to open.
    pub(super) stranded: u64,
    /// Commands that were not applicable.
    pub(super) ignored_events: usize,
    pub(super) most_preempted: u32,
    pub(super) beyond: Beyond,
    /// Findings of the schedulers.
    pub(super) findings: BTreeSet<Finding>,
    pub(super) waiting_at_last_arrival: u64,
    /// The common token budget of all replicas; `NONE` if they differ.
    pub(super) token_budget: u64,
    pub(super) replicas: usize,
    /// Replicas that served no request.
    pub(super) unused: usize,
    /// Requests that depended on others that did not finish.
    pub(super) never_came: usize,
    /// Due requests that were not sent, because `max_in_flight` was reached.
    pub(super) held_back: usize,
    /// Requests cancelled by clients.
    pub(super) taken_back: u64,
    /// ∫ number of paid replicas dt; `None`: all replicas are always paid.
    pub(super) replica_time: Option<u128>,
    /// A sample of each replica at the end.
    pub(super) last: Vec<Sample>,
}

impl Outcome {
    /// Extends the run to a later end without further events; unfinished requests stay.
    pub(super) fn extend(&mut self, end: Instant) -> Result<()> {
        let totals = &mut self.results.totals;
        let unfinished = totals.by_status[Status::Unfinished as usize];
        let rest = product(end.since(totals.end).0, u128::from(unfinished))?;
        let sum = |part: u128| part.checked_add(rest).ok_or_else(|| Error::overflow("∫ number in system dt"));
        totals.in_system = sum(totals.in_system)?;
        totals.sojourn = sum(totals.sojourn)?;
        totals.end = end;
        Ok(())
    }

    /// Merges the outcome of another replica, except for the rows of its requests and its timeline.
    pub(super) fn merge(&mut self, part: Outcome) -> Result<()> {
        let (all, results) = (&mut self.results, part.results);
        for (histogram, other) in all.itl.iter_mut().zip(&results.itl) {
            histogram.merge(other)?;
        }
        all.work.merge(&results.work);
        all.drained.extend(results.drained);
        all.block_operations.extend(results.block_operations);
        let first_row = all.iterations.len() as u64;
        all.iterations.extend(results.iterations);
        let whole = |row: &BatchRow| BatchRow { iteration: row.iteration + first_row, ..*row };
        all.batches.extend(results.batches.iter().map(whole));
        let (totals, other) = (&mut all.totals, results.totals);
        totals.iterations += other.iterations;
        totals.stretches += other.stretches;
        totals.stretched_iterations += other.stretched_iterations;
        let sum =
            |left: u128, right: u128| left.checked_add(right).ok_or_else(|| Error::overflow("∫ number in system dt"));
        totals.in_system = sum(totals.in_system, other.in_system)?;
        totals.sojourn = sum(totals.sojourn, other.sojourn)?;
        for (count, other) in totals.by_status.iter_mut().zip(other.by_status) {
            *count += other;
        }
        for rejections in part.rejections {
            rejections.add_to(&mut self.rejections);
        }
        self.cut = self.cut.and(part.cut);
        self.has_more_events |= part.has_more_events;
        self.stalled |= part.stalled;
        self.most_preempted = self.most_preempted.max(part.most_preempted);
        self.beyond = self.beyond.and(part.beyond);
        self.findings.extend(part.findings);
        self.waiting_at_last_arrival += part.waiting_at_last_arrival;
        let is_common = self.replicas == 0 || self.token_budget == part.token_budget;
        self.token_budget = if is_common { part.token_budget } else { Limits::NONE };
        self.replicas += part.replicas;
        self.unused += part.unused;
        self.never_came += part.never_came;
        self.held_back += part.held_back;
        self.taken_back += part.taken_back;
        self.last.extend(part.last);
        Ok(())
    }

    /// The results with findings. `arrived` is the number of arrived requests, unless it depends on the run.
    pub(super) fn results(mut self, options: &Options, arrived: Option<u64>) -> Result<Results> {
        let results = &mut self.results;
        let end = results.totals.end.0;
        results.totals.replica_time = self.replica_time.map_or_else(|| product(end, self.replicas as u128), Ok)?;
        if self.replicas > 1 && (options.iterations || options.batches) {
            sort_iterations(&mut results.iterations, &mut results.batches);
        }
        results.drained.sort_unstable();
        results.drained.dedup();
        self.rejections.sort_unstable_by_key(|rejections| rejections.first);
        results.findings = of_run(&Facts {
            by_status: results.totals.by_status,
            rejections: &self.rejections,
            cut: self.cut,
            most_preempted: self.most_preempted,
            beyond: self.beyond,
            of_schedulers: &self.findings,
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            stalled: self.stalled,
            stranded: self.stranded,
            ignored_events: self.ignored_events,
            drained: results.drained.len(),
            work: &results.work,
            token_budget: self.token_budget,
            replicas: self.replicas,
            unused: self.unused,
            never_came: if self.has_more_events { 0 } else { self.never_came },
            held_back: if self.has_more_events { 0 } else { self.held_back },
            taken_back: self.taken_back,
            iterations: results.totals.iterations,
        });
        debug_assert!(
            arrived.is_none_or(|arrived| arrived == results.totals.by_status.iter().sum::<u64>()),
            "L1: a request that arrived has one status"
        );
        Ok(self.results)
    }
}

/// Sorts the rows of several replicas by start, then by replica; batches follow.
fn sort_iterations(iterations: &mut Vec<IterationRow>, batches: &mut [BatchRow]) {
    let mut order: Vec<u64> = (0..iterations.len() as u64).collect();
    order.sort_unstable_by_key(|&row| (iterations[row as usize].start, iterations[row as usize].replica));
    let mut place = vec![0; order.len()];
    for (new, &old) in order.iter().enumerate() {
        place[old as usize] = new as u64;
    }
    *iterations = order.iter().map(|&row| iterations[row as usize]).collect();
    for batch in batches.iter_mut() {
        batch.iteration = place[batch.iteration as usize];
    }
    // The sort is stable: the rows of a batch keep their order.
    batches.sort_by_key(|batch| batch.iteration);
}
