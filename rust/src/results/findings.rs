//! Findings: what a reader of the numbers should know first.

use std::collections::BTreeSet;

use crate::plan::Limits;
use crate::results::{Cut, Rejections, STATUSES, Status, Work};
use crate::timing::Beyond;

/// What findings are drawn from.
pub(crate) struct Facts<'a> {
    pub(crate) by_status: [u64; STATUSES],
    pub(crate) rejections: &'a [Rejections],
    pub(crate) cut: Cut,
    pub(crate) most_preempted: u32,
    pub(crate) beyond: Beyond,
    pub(crate) of_schedulers: &'a BTreeSet<&'static str>,
    pub(crate) waiting_at_last_arrival: u64,
    pub(crate) stalled: bool,
    pub(crate) stranded: u64,
    pub(crate) missed_deaths: usize,
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

/// Preemptions of one request from which on a run thrashes (rule 12).
const THRASH: u32 = 100;

/// The findings of a run, the gravest first.
pub(crate) fn of_run(facts: &Facts) -> Vec<String> {
    let mut findings = Vec::new();
    let total: u64 = facts.by_status.iter().sum();
    let unfinished = facts.by_status[Status::Unfinished as usize];
    if facts.stalled {
        findings.push(format!(
            "stalled: the scheduler left {unfinished} requests in the queue although nothing else was left to happen"
        ));
    }
    if facts.stranded > 0 {
        findings.push(format!(
            "stranded: {} of {total} requests wait for a replica: all are dead, and none is started again",
            facts.stranded
        ));
    }
    for Rejections { reason, first, count } in facts.rejections {
        findings.push(format!("rejected: {count} of {total} requests (the first is {first}): {reason}"));
    }
    if facts.cut.count > 0 {
        findings.push(format!(
            "cut: {} of {total} requests (the first is {}) have longer outputs than max_model_len leaves room for \
             beside their prompts; they end there",
            facts.cut.count, facts.cut.first
        ));
    }
    if facts.most_preempted >= THRASH {
        findings.push(format!(
            "thrash: one request was preempted {} times; the KV cache is too small for this load",
            facts.most_preempted
        ));
    }
    findings.extend(facts.of_schedulers.iter().map(|&finding| finding.to_owned()));
    // A queue that holds a twentieth of all requests when the last one comes has been growing all the time.
    let waiting = facts.waiting_at_last_arrival;
    if waiting >= 20 && waiting * 20 >= total {
        findings.push(format!(
            "overload: {waiting} of {total} requests were still waiting when the last one arrived; latencies depend on \
             the length of the run"
        ));
    }
    if facts.beyond != Beyond::default() {
        findings.push(format!(
            "beyond the table: some iterations had more than was measured ({}); their times follow the last slope",
            facts.beyond.axes().join(", ")
        ));
    }
    if facts.drained > 0 {
        findings.push(format!(
            "drained: {} of {total} requests were still waiting for company when nothing was left to come, and were then \
             served without it; `Result.drained` lists them",
            facts.drained
        ));
    }
    if facts.replicas > 1 && facts.unused > 0 {
        findings.push(format!("idle: {} of {} replicas served no request", facts.unused, facts.replicas));
    }
    let broken = if facts.token_budget < Limits::NONE { facts.work.broken(facts.token_budget) } else { 0 };
    if broken > 0 {
        findings.push(format!(
            "not work-conserving: {:.1} % of iterations ({broken} of {}) loaded fewer tokens than the budget of {} \
             although more could have been loaded",
            broken as f64 / facts.iterations as f64 * 100.0,
            facts.iterations,
            facts.token_budget
        ));
    }
    if facts.never_came > 0 {
        findings.push(format!(
            "never arrived: {} requests wait for others that did not finish, and are in no count",
            facts.never_came
        ));
    }
    if facts.held_back > 0 {
        findings.push(format!(
            "never sent: {} requests were due while as many as may be were in flight, and are in no count",
            facts.held_back
        ));
    }
    let abandoned = facts.by_status[Status::Abandoned as usize] - facts.taken_back;
    if abandoned > 0 {
        findings.push(format!("abandoned: {abandoned} of {total} requests ran out of patience in the queue"));
    }
    if facts.taken_back > 0 {
        let taken_back = facts.taken_back;
        findings.push(format!("abandoned: the clients of {taken_back} of {total} requests took them back"));
    }
    let lost = facts.by_status[Status::Lost as usize];
    if lost > 0 {
        findings.push(format!("lost: {lost} of {total} requests died with their replicas and were not sent again"));
    }
    if facts.missed_deaths > 0 {
        findings.push(format!(
            "told in vain: {} of the deaths, drains and starts named a replica that could not do that then",
            facts.missed_deaths
        ));
    }
    findings
}
