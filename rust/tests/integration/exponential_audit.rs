//! An audit of the exponential slot model from its request rows.
//!
//! The audit uses only the times and replicas of requests and derives everything else from them: running and waiting
//! requests, and the options of each gate and router. Draws are taken from the documented streams.

use std::collections::BTreeMap;

use inferq_core::gate_and_route::exponential::{ExponentialColumns, ExponentialResults};
use inferq_core::random::{Source, Stream, exponential_quantile};
use inferq_core::results::NO_REPLICA;

use crate::exponential::Scenario;

const FINISHED: u8 = 0;
const ABANDONED: u8 = 2;

/// The rows of a run, without its other results.
pub(super) struct Audit<'a> {
    scenario: &'a Scenario,
    rows: &'a ExponentialColumns,
    /// The instants of all rows, and the midpoints between them.
    instants: Vec<f64>,
    middles: Vec<f64>,
}

/// Instants closer than this are equal: the start of a decode is a sum of two doubles.
const SAME_S: f64 = 1e-9;

/// Replaces a missing instant by infinity.
fn or_never(instant: f64) -> f64 {
    if instant.is_nan() { f64::INFINITY } else { instant }
}

impl Audit<'_> {
    pub(super) fn new<'a>(scenario: &'a Scenario, results: &'a ExponentialResults) -> Audit<'a> {
        let rows = &results.requests;
        let mut audit = Audit { scenario, rows, instants: Vec::new(), middles: Vec::new() };
        let mut instants: Vec<f64> = audit
            .ids()
            .flat_map(|id| {
                [rows.arrival_s[id], rows.admitted_s[id], rows.first_token_s[id], rows.left_s[id], audit.start(id)]
            })
            .filter(|instant| !instant.is_nan())
            .collect();
        instants.push(results.end.seconds());
        instants.sort_by(f64::total_cmp);
        audit.middles = instants
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > SAME_S)
            .map(|pair| (pair[0] + pair[1]) / 2.0)
            .collect();
        audit.instants = instants;
        audit
    }

    fn ids(&self) -> std::ops::Range<usize> {
        0..self.rows.status.len()
    }

    fn class(&self, id: usize) -> usize {
        self.scenario.rows[id].1
    }

    /// Start of the decode.
    fn start(&self, id: usize) -> f64 {
        self.rows.first_token_s[id] + self.rows.handoff_s[id]
    }

    fn prefills_at(&self, id: usize, at: f64) -> bool {
        self.rows.admitted_s[id] < at && at < or_never(self.rows.first_token_s[id])
    }

    fn decodes_at(&self, id: usize, at: f64) -> bool {
        self.start(id) < at && at < or_never(self.rows.finish_s[id])
    }

    fn waits_at(&self, id: usize, at: f64) -> bool {
        let until = or_never(self.rows.admitted_s[id]).min(or_never(self.rows.left_s[id]));
        self.rows.arrival_s[id] < at && at <= until
    }

    fn waits_for_decode_at(&self, id: usize, at: f64) -> bool {
        let until = or_never(self.start(id)).min(or_never(self.rows.left_s[id]));
        self.rows.first_token_s[id] < at && at <= until
    }

    /// Prefills and decodes of every replica.
    fn load(&self, at: f64) -> Vec<(usize, usize)> {
        let mut load = vec![(0, 0); self.scenario.replicas];
        for id in self.ids() {
            if self.prefills_at(id, at) {
                load[self.rows.prefill_replica[id] as usize].0 += 1;
            }
            if self.decodes_at(id, at) {
                load[self.rows.replica[id] as usize].1 += 1;
            }
        }
        load
    }

    fn is_planned(&self) -> bool {
        self.scenario.router.1
    }

    /// Whether a replica can take a prefill, and a decode.
    fn open(&self, replica: usize, (prefills, decodes): (usize, usize)) -> (bool, bool) {
        let has_slot = prefills + decodes < self.scenario.slots;
        match self.is_planned() {
            false => (prefills == 0 && has_slot, has_slot),
            true if replica < self.scenario.mixed() => (prefills == 0, decodes + 1 < self.scenario.slots),
            true => (false, has_slot),
        }
    }

    /// No replica exceeds its slots, and no request waits while a suitable slot is free.
    fn slots(&self) {
        let mixed = self.scenario.mixed();
        for &at in &self.middles {
            let load = self.load(at);
            for (replica, &(prefills, decodes)) in load.iter().enumerate() {
                assert!(prefills <= 1 && prefills + decodes <= self.scenario.slots, "at {at}: {load:?}");
                if self.is_planned() {
                    let (most_prefills, most_decodes) =
                        if replica < mixed { (1, self.scenario.slots - 1) } else { (0, self.scenario.slots) };
                    assert!(prefills <= most_prefills && decodes <= most_decodes, "at {at}: {load:?}");
                }
            }
            let open: Vec<(bool, bool)> =
                load.iter().enumerate().map(|(replica, &load)| self.open(replica, load)).collect();
            let waits = self.ids().any(|id| self.waits_at(id, at));
            assert!(!(waits && open.iter().any(|open| open.0)), "a request waits at {at} despite {open:?}");
            for id in self.ids().filter(|&id| self.waits_for_decode_at(id, at)) {
                assert_ne!(self.scenario.router.0, "immediate");
                // The rows do not contain the pool of a request that abandoned in a pool's buffer.
                let pool = match self.scenario.router.0 {
                    "randomized" | "general" if self.start(id).is_nan() => continue,
                    "randomized" | "general" if (self.rows.replica[id] as usize) < mixed => 0..mixed,
                    "randomized" | "general" => mixed..self.scenario.replicas,
                    _ => 0..self.scenario.replicas,
                };
                assert!(pool.clone().all(|replica| !open[replica].1), "{id} waits to decode at {at} despite {open:?}");
            }
        }
    }

    /// Every service and every patience matches its draw.
    fn services(&self) {
        let scenario = self.scenario;
        let (tau_s, solo_s) = (scenario.tau_s(), scenario.solo_s());
        let draw = |source, id: usize, number| {
            exponential_quantile(Stream::new(scenario.seed, source).uniform(id as u64, number))
        };
        let is =
            |value: f64, drawn: f64| assert!((value - drawn).abs() <= 1e-9 * (1.0 + drawn), "{value}, not {drawn}");
        for id in self.ids() {
            let (_, class, prompt, output) = scenario.rows[id];
            let (admitted, first, finish) =
                (self.rows.admitted_s[id], self.rows.first_token_s[id], self.rows.finish_s[id]);
            if !first.is_nan() {
                is(
                    first - admitted,
                    draw(Source::Service, id, 0) * f64::from(prompt) / f64::from(scenario.chunk) * tau_s,
                );
            }
            if self.rows.status[id] == FINISHED {
                let start = self.start(id);
                let mixed_s: f64 = self
                    .ids()
                    .filter(|&other| self.rows.prefill_replica[other] == self.rows.replica[id])
                    .map(|other| {
                        let end = self.rows.first_token_s[other];
                        (if end.is_nan() { finish } else { end.min(finish) }) - self.rows.admitted_s[other].max(start)
                    })
                    .filter(|&overlap| overlap > 0.0)
                    .sum();
                is(
                    mixed_s / tau_s + (finish - start - mixed_s) / solo_s,
                    draw(Source::Service, id, 1) * f64::from(output),
                );
            }
            if self.rows.status[id] == ABANDONED {
                let (since, number) = if first.is_nan() { (self.rows.arrival_s[id], 0) } else { (first, 1) };
                is(self.rows.left_s[id] - since, draw(Source::Patience, id, number) / scenario.rate(class));
            }
        }
    }

    /// First come, first served, within a class and, for some policies, over all classes.
    fn order(&self) {
        for id in self.ids() {
            for later in id + 1..self.rows.status.len() {
                let same = self.scenario.gate == "fcfs" || self.class(id) == self.class(later);
                let (mine, yours) = (self.rows.admitted_s[id], self.rows.admitted_s[later]);
                let passed = yours < mine || (mine.is_nan() && yours < self.rows.left_s[id]);
                assert!(!(same && passed), "{later} passed {id} before the prefill");
            }
            if matches!(self.scenario.router.0, "greedy" | "fcfs") {
                for other in self.ids() {
                    let joined_first = self.rows.first_token_s[id] + SAME_S < self.rows.first_token_s[other];
                    let passed = self.start(other) + SAME_S < self.start(id);
                    assert!(!(joined_first && passed), "{other} passed {id} before the decode");
                }
            }
        }
    }

    /// Each admission that is the only one at its instant matches the gate.
    fn gate(&self) {
        let mut tokens: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for &(_, class, prompt, output) in &self.scenario.rows {
            let sums = tokens.entry(class).or_default();
            *sums = (sums.0 + prompt as u64, sums.1 + output as u64);
        }
        for id in self.ids().filter(|&id| !self.rows.admitted_s[id].is_nan()) {
            let at = self.rows.admitted_s[id];
            if self.ids().filter(|&other| self.rows.admitted_s[other] == at).count() > 1 {
                continue;
            }
            let classes = self.scenario.plan.len();
            let (mut queue, mut running) = (vec![0_i64; classes], vec![0_i64; classes]);
            for other in self.ids() {
                let class = self.class(other);
                let left = self.rows.left_s[other] <= at;
                let waits = self.rows.arrival_s[other] <= at && or_never(self.rows.admitted_s[other]) >= at && !left;
                queue[class] += i64::from(waits);
                running[class] += i64::from(self.prefills_at(other, at));
            }
            let plan = &self.scenario.plan;
            let deviation =
                |class: usize| 1000 * queue[class] - self.scenario.replicas as i64 * i64::from(plan[class][3]);
            // Less is better; all numbers are integers, or quotients of small integers whose order doubles preserve.
            let index = |class: usize| -> (f64, f64, usize) {
                match self.scenario.gate {
                    "occupancy" => {
                        let share = f64::from(plan[class][0]);
                        let xi = if share > 0.0 { running[class] as f64 / share } else { f64::INFINITY };
                        (xi, -deviation(class) as f64, class)
                    }
                    "queue" => (-deviation(class) as f64, 0.0, class),
                    "priority" => (-(tokens[&class].1 as f64) / tokens[&class].0 as f64, 0.0, class),
                    _ => (0.0, 0.0, 0),
                }
            };
            let best = (0..classes)
                .filter(|&class| queue[class] > 0)
                .map(index)
                .min_by(|a, b| a.partial_cmp(b).expect("numbers"));
            assert_eq!(Some(index(self.class(id))), best, "{id} at {at}: {queue:?} wait, {running:?} run");
        }
    }

    /// Decodes go to the replicas chosen by their router.
    fn router(&self) {
        let mixed = self.scenario.mixed();
        for id in self.ids().filter(|&id| !self.start(id).is_nan()) {
            let (replica, at) = (self.rows.replica[id] as usize, self.start(id));
            match self.scenario.router {
                ("immediate", _) => {
                    assert_eq!(self.rows.handoff_s[id], 0.0);
                    assert_eq!(self.rows.replica[id], self.rows.prefill_replica[id]);
                }
                ("greedy", true) if replica < mixed => {
                    // State just after the start of a decode: all solo replicas are full.
                    let load = self.load(at + SAME_S);
                    let more = self.instants.iter().any(|&other| other > at + 1e-12 && other < at + 2.0 * SAME_S);
                    assert!(more || load[mixed..].iter().all(|load| load.1 == self.scenario.slots), "{id}: {load:?}");
                }
                ("randomized" | "general", _) => {
                    let uniform = Stream::new(self.scenario.seed, Source::Router).uniform(id as u64, 1);
                    let [_, y_mixed, y_solo, ..] = self.scenario.plan[self.class(id)].map(f64::from);
                    let (solo_rate, mixed_rate) = (y_solo / self.scenario.solo_s(), y_mixed / self.scenario.tau_s());
                    let share = if solo_rate + mixed_rate > 0.0 { solo_rate / (solo_rate + mixed_rate) } else { 1.0 };
                    assert!((uniform - share).abs() < 1e-12 || (uniform <= share) == (replica >= mixed), "{id}");
                }
                _ => {}
            }
        }
    }

    /// L1 and L2.
    fn counts(&self, results: &ExponentialResults) {
        assert_eq!(results.by_status.iter().sum::<u64>(), self.rows.status.len() as u64);
        for id in self.ids() {
            let row = [
                self.rows.arrival_s[id],
                self.rows.admitted_s[id],
                self.rows.first_token_s[id],
                self.start(id) + SAME_S / 2.0,
                self.rows.finish_s[id] + SAME_S,
            ];
            let happened: Vec<f64> = row.into_iter().take_while(|instant| !instant.is_nan()).collect();
            assert!(happened.is_sorted(), "{row:?}");
            assert!(row[happened.len()..].iter().all(|instant| instant.is_nan()), "{row:?}");
            assert_eq!(happened.len() == 5, self.rows.status[id] == FINISHED);
            assert_eq!(self.rows.prefill_replica[id] == NO_REPLICA, happened.len() == 1);
            if self.rows.status[id] == FINISHED {
                assert_eq!(self.rows.finish_s[id], self.rows.left_s[id]);
            }
        }
    }

    /// ∫ number in each stage dt since the warm-up, and the revenue, computed from the rows.
    fn averages(&self, results: &ExponentialResults) {
        let (from, to) = (results.warmup.seconds(), results.end.seconds());
        let classes = self.scenario.plan.len();
        let mut areas = vec![[0.0; 5]; classes];
        let mut earned = (0.0, 0.0);
        for id in self.ids() {
            let until = |instant: f64| if instant.is_nan() { to } else { instant };
            let span =
                |start: f64, end: f64| if start.is_nan() { 0.0 } else { (until(end) - start.max(from)).max(0.0) };
            let left = until(self.rows.left_s[id]);
            let (admitted, first, start) = (self.rows.admitted_s[id], self.rows.first_token_s[id], self.start(id));
            let stages = &mut areas[self.class(id)];
            stages[0] += span(self.rows.arrival_s[id], if admitted.is_nan() { left } else { admitted });
            stages[1] += span(admitted, first);
            stages[2] += span(first, if start.is_nan() { left } else { start });
            let mixed_s: f64 = self
                .ids()
                .filter(|&other| !start.is_nan() && self.rows.prefill_replica[other] == self.rows.replica[id])
                .map(|other| {
                    let end = until(self.rows.first_token_s[other]).min(left);
                    end - self.rows.admitted_s[other].max(start).max(from)
                })
                .filter(|&overlap| overlap > 0.0)
                .sum();
            stages[3] += mixed_s;
            stages[4] += span(start, left) - mixed_s;
            let (_, _, prompt, output) = self.scenario.rows[id];
            let (prefill, decode) = (0.1 * f64::from(prompt), 0.2 * f64::from(output));
            let counts = |instant: f64| instant >= from && from <= to;
            earned.0 += if counts(self.rows.finish_s[id]) { prefill + decode } else { 0.0 };
            earned.1 +=
                if counts(first) { prefill } else { 0.0 } + if counts(self.rows.finish_s[id]) { decode } else { 0.0 };
        }
        for (area, expected) in results.areas.iter().flatten().zip(areas.iter().flatten()) {
            let area = *area as f64 / 1e18;
            assert!((area - expected).abs() < 1e-6, "{:?} {areas:?}", results.areas);
        }
        let last = results.samples.last().expect("the end");
        let since = |total: u128, before: u128| (total - before) as f64 / 1e18;
        assert!((since(last.bundled, results.revenue_before.0) - earned.0).abs() < 1e-6);
        assert!((since(last.separate, results.revenue_before.1) - earned.1).abs() < 1e-6);
    }

    /// All checks.
    pub(super) fn holds(&self, results: &ExponentialResults) {
        self.counts(results);
        self.slots();
        self.services();
        self.order();
        self.gate();
        self.router();
        self.averages(results);
    }
}
