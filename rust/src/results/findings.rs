//! Findings of a run, from its totals.

use std::collections::BTreeSet;

use crate::finding::Value::{Count, Text};
use crate::finding::{Finding, Kind};
use crate::plan::Limits;
use crate::results::{Cut, Rejections, STATUSES, Status, Work};
use crate::timing::Beyond;

/// The totals from which findings are computed.
pub(crate) struct Facts<'a> {
    pub(crate) by_status: [u64; STATUSES],
    pub(crate) rejections: &'a [Rejections],
    pub(crate) cut: Cut,
    pub(crate) most_preempted: u32,
    pub(crate) beyond: Beyond,
    pub(crate) of_schedulers: &'a BTreeSet<Finding>,
    pub(crate) waiting_at_last_arrival: u64,
    pub(crate) stalled: bool,
    pub(crate) stranded: u64,
    pub(crate) ignored_events: usize,
    pub(crate) drained: usize,
    pub(crate) work: &'a Work,
    pub(crate) token_budget: u64,
    pub(crate) iterations: u64,
    pub(crate) replicas: usize,
    pub(crate) unused: usize,
    pub(crate) never_came: usize,
    pub(crate) held_back: usize,
    pub(crate) taken_back: u64,
}

/// Preemptions of one request from which a run counts as thrashing (R12).
const THRASHING: u32 = 100;

/// The findings of a run.
pub(crate) fn of_run(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let total: u64 = facts.by_status.iter().sum();
    not_served(facts, total, &mut findings);
    if facts.most_preempted >= THRASHING {
        let times = facts.most_preempted;
        findings.push(Finding::new(
            Kind::Thrashing,
            format!("one request was preempted {times} times; the KV cache is too small for this load"),
            [("preemptions", Count(times.into()))],
        ));
    }
    findings.extend(facts.of_schedulers.iter().cloned());
    // A queue that holds a twentieth of all requests at the last arrival has been growing all the time.
    let waiting = facts.waiting_at_last_arrival;
    if waiting >= 20 && waiting * 20 >= total {
        findings.push(Finding::new(
            Kind::Overload,
            format!(
                "{waiting} of {total} requests were still waiting at the last arrival; latencies depend on the length of \
                 the run"
            ),
            counts(waiting, total),
        ));
    }
    if facts.beyond != Beyond::default() {
        let axes = facts.beyond.axes().join(", ");
        findings.push(Finding::new(
            Kind::BeyondTable,
            format!("some iterations exceed the measured range ({axes}); their times are extrapolated linearly"),
            [("axes", Text(axes))],
        ));
    }
    if facts.drained > 0 {
        findings.push(Finding::new(
            Kind::Drained,
            format!(
                "{} of {total} requests were served below the policy's thresholds because no further request could arrive; \
                 `Result.drained` lists them",
                facts.drained
            ),
            counts(facts.drained as u64, total),
        ));
    }
    if facts.replicas > 1 && facts.unused > 0 {
        findings.push(Finding::new(
            Kind::IdleReplicas,
            format!("{} of {} replicas served no request", facts.unused, facts.replicas),
            counts(facts.unused as u64, facts.replicas as u64),
        ));
    }
    work_conservation(facts, &mut findings);
    left_or_absent(facts, total, &mut findings);
    findings
}

/// Requests that the system could not serve or served in part.
fn not_served(facts: &Facts, total: u64, findings: &mut Vec<Finding>) {
    let unfinished = facts.by_status[Status::Unfinished as usize];
    if facts.stalled {
        findings.push(Finding::new(
            Kind::Stalled,
            format!("the scheduler left {unfinished} requests in the queue although no event was left"),
            counts(unfinished, total),
        ));
    }
    if facts.stranded > 0 {
        findings.push(Finding::new(
            Kind::Stranded,
            format!("{} of {total} requests wait for a replica: all replicas failed and none restarts", facts.stranded),
            counts(facts.stranded, total),
        ));
    }
    for Rejections { reason, first, count } in facts.rejections {
        findings.push(Finding::new(
            Kind::Rejected,
            format!("{count} of {total} requests (the first is {first}): {reason}"),
            [
                ("count", Count(*count)),
                ("total", Count(total)),
                ("first_request", Count((*first).into())),
                ("reason", Text((*reason).to_owned())),
            ],
        ));
    }
    if facts.cut.count > 0 {
        let Cut { count, first, .. } = facts.cut;
        findings.push(Finding::new(
            Kind::Truncated,
            format!(
                "the outputs of {count} of {total} requests (the first is {first}) end at max_model_len, which prompt and \
                 output together would exceed"
            ),
            [("count", Count(count)), ("total", Count(total)), ("first_request", Count(first.into()))],
        ));
    }
}

fn work_conservation(facts: &Facts, findings: &mut Vec<Finding>) {
    let broken = if facts.token_budget < Limits::NONE { facts.work.broken(facts.token_budget) } else { 0 };
    if broken > 0 {
        findings.push(Finding::new(
            Kind::NotWorkConserving,
            format!(
                "{:.1} % of iterations ({broken} of {}) loaded fewer tokens than the budget of {} although more work was \
                 available",
                broken as f64 / facts.iterations as f64 * 100.0,
                facts.iterations,
                facts.token_budget
            ),
            [
                ("count", Count(broken)),
                ("total", Count(facts.iterations)),
                ("token_budget", Count(facts.token_budget)),
            ],
        ));
    }
}

/// Requests that never arrived, and requests that left early.
fn left_or_absent(facts: &Facts, total: u64, findings: &mut Vec<Finding>) {
    if facts.never_came > 0 {
        findings.push(Finding::new(
            Kind::NeverArrived,
            format!(
                "{} requests depend on requests that did not finish; they are excluded from all metrics",
                facts.never_came
            ),
            [("count", Count(facts.never_came as u64))],
        ));
    }
    if facts.held_back > 0 {
        findings.push(Finding::new(
            Kind::NeverSent,
            format!(
                "{} requests were never sent (max_in_flight reached); they are excluded from all metrics",
                facts.held_back
            ),
            [("count", Count(facts.held_back as u64))],
        ));
    }
    let abandoned = facts.by_status[Status::Abandoned as usize] - facts.taken_back;
    if abandoned > 0 {
        findings.push(Finding::new(
            Kind::Abandoned,
            format!("{abandoned} of {total} requests ran out of patience in the queue"),
            counts(abandoned, total),
        ));
    }
    if facts.taken_back > 0 {
        findings.push(Finding::new(
            Kind::Canceled,
            format!("clients canceled {} of {total} requests", facts.taken_back),
            counts(facts.taken_back, total),
        ));
    }
    let lost = facts.by_status[Status::Lost as usize];
    if lost > 0 {
        findings.push(Finding::new(
            Kind::Lost,
            format!("{lost} of {total} requests failed with their replicas and were not retried"),
            counts(lost, total),
        ));
    }
    if facts.ignored_events > 0 {
        findings.push(Finding::new(
            Kind::EventsIgnored,
            format!(
                "{} scheduled failure, drain or start events were not applicable and were ignored",
                facts.ignored_events
            ),
            [("count", Count(facts.ignored_events as u64))],
        ));
    }
}

fn counts(count: u64, total: u64) -> [(&'static str, crate::finding::Value); 2] {
    [("count", Count(count)), ("total", Count(total))]
}
