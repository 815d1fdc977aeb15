//! The general SLI-aware router of lin2026 EC.6, for plans in which decodes wait: a freed slot draws a class.

use super::{Allocation, BufferPlace, ClassTokens, DecodeRouter, Line, MIXED, Pools, SOLO, Slots, Stream, Waiting};
use crate::random::Source;

/// Pools are drawn as by the randomized router. Each pool has one buffer per class; a free slot takes the head of
/// class i with probability π_i / Σ π_j over the waiting classes, where π_s,i ∝ μ_s,i y_s,i* and π_m,i ∝ μ_m,i
/// y_m,i*. Classes without weight are served only if no other class waits, the earliest head first: EC.6 leaves 0/0
/// open, and a slot left idle while a decode waits would serve no request.
#[derive(Debug)]
pub(super) struct GeneralRouter {
    pools: Pools,
    /// Draws of classes, numbered by earlier choices.
    choices: Stream,
    chosen: u64,
    classes: usize,
    /// Buffers by pool, then class.
    lines: Vec<Line>,
    weights: Vec<f64>,
    waiting: [u64; 2],
}

impl GeneralRouter {
    pub(super) fn new(
        pools: Pools,
        seed: u64,
        allocation: Option<&Allocation>,
        tokens: &[ClassTokens],
    ) -> GeneralRouter {
        let classes = tokens.len();
        let mut weights = vec![0.0; 2 * classes];
        let column = |column: fn(&Allocation) -> &Option<Vec<u64>>| {
            allocation.and_then(|allocation| column(allocation).as_deref()).unwrap_or_default()
        };
        for (pool, decodes) in [(SOLO, column(|plan| &plan.solo)), (MIXED, column(|plan| &plan.mixed))] {
            for (class, (&decodes, of_class)) in decodes.iter().zip(tokens).enumerate() {
                // μ y* is proportional to y* / D_i with the class's mean output.
                let per_token = of_class.requests as f64 / of_class.output.max(1) as f64;
                weights[pool * classes + class] = decodes as f64 * per_token;
            }
        }
        let lines = (0..2 * classes).map(|_| Line::default()).collect();
        let choices = Stream::new(seed, Source::DecodeClass);
        GeneralRouter { pools, choices, chosen: 0, classes, lines, weights, waiting: [0; 2] }
    }

    /// Returns the line that serves a free slot of a pool.
    fn choose(&mut self, pool: usize) -> Option<usize> {
        let lines = pool * self.classes..(pool + 1) * self.classes;
        let waits = |&line: &usize| self.lines[line].len() > 0;
        let total: f64 = lines.clone().filter(waits).map(|line| self.weights[line]).sum();
        if total <= 0.0 {
            return lines.filter(waits).min_by_key(|&line| self.lines[line].first().map(|first| first.turn));
        }
        let mut rest = self.choices.uniform(self.chosen, 0) * total;
        self.chosen += 1;
        let mut last = None;
        for line in lines.filter(waits).filter(|&line| self.weights[line] > 0.0) {
            last = Some(line);
            rest -= self.weights[line];
            if rest <= 0.0 {
                break;
            }
        }
        last
    }
}

impl DecodeRouter for GeneralRouter {
    fn join(&mut self, decode: Waiting) -> BufferPlace {
        let pool = self.pools.draw(&decode);
        let line = pool * self.classes + decode.class as usize;
        self.waiting[pool] += 1;
        BufferPlace { line: line as u32, place: self.lines[line].push(decode) }
    }

    fn leave(&mut self, place: BufferPlace) {
        self.waiting[place.line as usize / self.classes] -= 1;
        self.lines[place.line as usize].leave(place.place);
    }

    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)> {
        for pool in [SOLO, MIXED] {
            if self.waiting[pool] > 0 && Pools::is_open(pool, slots) {
                let line = self.choose(pool)?;
                let decode = self.lines[line].pop()?;
                self.waiting[pool] -= 1;
                return self.pools.replica(pool, &decode, slots).map(|replica| (decode, replica));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of 3 to 1 in the solo pool: y* of 3 and 2, mean outputs of 10 and 20.
    #[test]
    fn a_freed_slot_draws_classes_by_their_weights() {
        let plan =
            Allocation { prefill: vec![1; 3], mixed: Some(vec![0; 3]), solo: Some(vec![3, 2, 0]), prefill_queue: None };
        let tokens = [(1, 10), (2, 40), (1, 5)].map(|(requests, output)| ClassTokens { requests, prompt: 1, output });
        let pools = Pools { draws: Stream::new(7, Source::Router), solo_shares: vec![1.0; 3] };
        let mut router = GeneralRouter::new(pools, 7, Some(&plan), &tokens);
        let waiting = |class, turn| Waiting { request: 0, handle: 0, class, from: 0, turn };
        let places = [2, 1, 0].map(|class| router.join(waiting(class, 3 - u64::from(class))));
        let draws = 40_000;
        let first = (0..draws).filter(|_| router.choose(SOLO) == Some(0)).count();
        // 3.29 standard deviations of a share of 3/4: 99.9 %.
        let half = 3.29 * (0.75 * 0.25 / f64::from(draws)).sqrt();
        assert!((first as f64 / f64::from(draws) - 0.75).abs() < half, "{first}");
        router.leave(places[2]);
        assert!((0..100).all(|_| router.choose(SOLO) == Some(1)), "only waiting classes are chosen");
        router.leave(places[1]);
        assert_eq!(router.choose(SOLO), Some(2), "a class without weight is chosen if it is the only one");
        router.leave(places[0]);
        assert_eq!(router.choose(SOLO), None);
    }
}
