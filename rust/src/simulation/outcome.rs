//! The outcome of a run, and what is to be said of it.

use std::collections::BTreeSet;

use super::options::Options;
use crate::clock::{Instant, product};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::plan::Limits;
use crate::results::{BatchRow, Cut, Facts, IterationRow, Rejections, Results, Sample, Status, of_run};
use crate::timing::Beyond;

/// A run that has ended, before it is summed up. Runs of replicas that know nothing of one another are put together
/// first.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) results: Results,
    pub(super) rejections: Vec<Rejections>,
    pub(super) cut: Cut,
    /// Would more have happened after the end?
    pub(super) goes_on: bool,
    pub(super) stalled: bool,
    /// Requests that waited for a replica when none was to come.
    pub(super) stranded: u64,
    /// Scheduled events that named replicas to which they did not apply.
    pub(super) ignored_events: usize,
    pub(super) most_preempted: u32,
    pub(super) beyond: Beyond,
    /// Findings of the schedulers.
    pub(super) findings: BTreeSet<Finding>,
    pub(super) waiting_at_last_arrival: u64,
    /// The budget that every replica has; `NONE` if they differ.
    pub(super) token_budget: u64,
    pub(super) replicas: usize,
    /// Replicas that served no request.
    pub(super) unused: usize,
    /// Requests that waited for others, which did not finish.
    pub(super) never_came: usize,
    /// Requests that were due and not sent, because as many as may be were in flight.
    pub(super) held_back: usize,
    /// Requests that clients took back.
    pub(super) taken_back: u64,
    /// ∫ number of replicas paid for dt; `None`: all are all the time.
    pub(super) replica_time: Option<u128>,
    /// Each replica at the end.
    pub(super) last: Vec<Sample>,
}

impl Outcome {
    /// The same run, watched until a later end at which nothing happens: requests that are here stay.
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

    /// Puts the outcome of another replica to this one, all but the rows of its requests and its timeline.
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
        self.goes_on |= part.goes_on;
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

    /// The results, with what a reader should know first. `arrived` requests came, unless that depends on the run.
    pub(super) fn results(mut self, options: &Options, arrived: Option<u64>) -> Result<Results> {
        let results = &mut self.results;
        let end = results.totals.end.0;
        results.totals.replica_time = self.replica_time.map_or_else(|| product(end, self.replicas as u128), Ok)?;
        if self.replicas > 1 && (options.iterations || options.batches) {
            sort_iterations(&mut results.iterations, &mut results.batches);
        }
        results.drained.sort_unstable();
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
            never_came: if self.goes_on { 0 } else { self.never_came },
            held_back: if self.goes_on { 0 } else { self.held_back },
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

/// Brings the rows of several replicas into the order of their starts, then of their replicas; batches go along.
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
    // Stable: the rows of a batch keep their order.
    batches.sort_by_key(|batch| batch.iteration);
}
