//! Gates, which choose the class that is admitted to its prefill next.
//!
//! A gate is called when a request waits and a replica can begin a prefill. Within a class requests are served first
//! come, first served. One gate per file; each inspects every class once.

mod fcfs;
mod occupancy;
mod priority;
mod queue;

use serde::Deserialize;

use super::allocation::{Allocation, ONE};
use super::line::Line;
use crate::workload::Workload;

/// A gate before the prefills.
pub(super) trait Gate: Send {
    /// Returns the class to admit, or `None` if no request waits.
    fn class(&self, prefills: &Prefills) -> Option<usize>;
}

/// State visible to a gate: waiting and running requests by class.
#[derive(Debug)]
pub(super) struct Prefills {
    pub(super) waiting: Vec<Line>,
    /// X_i.
    pub(super) running: Vec<u64>,
}

impl Prefills {
    pub(super) fn new(classes: usize) -> Prefills {
        Prefills { waiting: (0..classes).map(|_| Line::default()).collect(), running: vec![0; classes] }
    }

    /// Classes with a waiting request.
    fn classes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.waiting.len()).filter(|&class| self.waiting[class].len() > 0)
    }
}

/// Token totals of a class over the whole workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassTokens {
    /// Requests.
    pub requests: u64,
    /// Σ P.
    pub prompt: u64,
    /// Σ D.
    pub output: u64,
}

impl ClassTokens {
    /// Totals of each class of a checked workload.
    pub(crate) fn of(workload: &Workload) -> Vec<ClassTokens> {
        let mut tokens = vec![ClassTokens::default(); workload.class_count];
        for row in 0..workload.len() {
            let of_class = &mut tokens[workload.class.get(row).map_or(0, |&class| class as usize)];
            of_class.requests += 1;
            of_class.prompt += workload.prompt_tokens[row] as u64;
            of_class.output += workload.output_tokens[row] as u64;
        }
        tokens
    }
}

/// Gates as described by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateKind {
    /// The class furthest below its planned number of prefills.
    Occupancy,
    /// The class whose queue exceeds its target by most.
    Queue,
    /// The class with the most output tokens per prompt token.
    Priority,
    /// The class whose first request has waited longest.
    Fcfs,
}

impl GateKind {
    /// Builds the gate; a table that the allocation lacks is all zeros.
    pub(super) fn build(self, replicas: u32, allocation: Option<&Allocation>, tokens: &[ClassTokens]) -> Box<dyn Gate> {
        let zeros = vec![0; tokens.len()];
        let shares = allocation.map_or(&zeros, |plan| &plan.prefill);
        let queues = allocation.and_then(|plan| plan.prefill_queue.as_ref()).unwrap_or(&zeros);
        let targets = QueueTargets::new(replicas, queues);
        match self {
            GateKind::Occupancy => Box::new(occupancy::OccupancyGate { shares: shares.clone(), targets }),
            GateKind::Queue => Box::new(queue::QueueGate { targets }),
            GateKind::Priority => Box::new(priority::PriorityGate::new(tokens)),
            GateKind::Fcfs => Box::new(fcfs::FcfsGate),
        }
    }
}

/// n · q_p,i*, the target of each queue, in units of the allocation.
#[derive(Debug)]
struct QueueTargets(Vec<i128>);

impl QueueTargets {
    fn new(replicas: u32, per_replica: &[u64]) -> QueueTargets {
        QueueTargets(per_replica.iter().map(|&queue| i128::from(replicas) * i128::from(queue)).collect())
    }

    /// δ_i = Q_i − n · q_p,i*.
    fn deviation(&self, class: usize, prefills: &Prefills) -> i128 {
        i128::from(prefills.waiting[class].len()) * i128::from(ONE) - self.0[class]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate_and_route::line::Waiting;

    /// Prefills with these numbers of waiting and running requests per class.
    fn prefills(waiting: &[u64], running: &[u64]) -> Prefills {
        let mut prefills = Prefills::new(waiting.len());
        prefills.running = running.to_vec();
        for (line, &count) in prefills.waiting.iter_mut().zip(waiting) {
            (0..count).for_each(|turn| _ = line.push(Waiting { request: 0, handle: 0, class: 0, from: 0, turn }));
        }
        prefills
    }

    #[test]
    fn a_class_without_planned_prefills_is_last() {
        let plan = Allocation { prefill: vec![0, ONE / 2, 0], mixed: None, solo: None, prefill_queue: None };
        let gate = GateKind::Occupancy.build(10, Some(&plan), &[ClassTokens::default(); 3]);
        assert_eq!(gate.class(&prefills(&[3, 1, 9], &[0, 9, 0])), Some(1));
        assert_eq!(gate.class(&prefills(&[3, 0, 9], &[0, 9, 0])), Some(2));
        assert_eq!(gate.class(&prefills(&[9, 0, 9], &[0, 9, 0])), Some(0));
    }

    #[test]
    fn the_priority_gate_admits_the_class_with_the_most_output_per_prompt_token() {
        // D / P = (400 / 3,000, 1,000 / 300, 2,000 / 600): the last two are equal, but not as doubles of means.
        let tokens = [(3, 9_000, 1_200), (3, 900, 3_000), (1, 600, 2_000)]
            .map(|(requests, prompt, output)| ClassTokens { requests, prompt, output });
        let gate = GateKind::Priority.build(10, None, &tokens);
        assert_eq!(gate.class(&prefills(&[1, 1, 1], &[0, 0, 0])), Some(1));
        assert_eq!(gate.class(&prefills(&[1, 0, 1], &[0, 0, 0])), Some(2));
        assert_eq!(gate.class(&prefills(&[1, 0, 0], &[0, 0, 0])), Some(0));
    }
}
