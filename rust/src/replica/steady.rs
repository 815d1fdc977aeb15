//! Steady decodes: requests that decode in every iteration.
//!
//! Steady decodes emit one token each in every iteration of their group. They are never iterated over: one tick
//! counter advances all of them. The completion of a member is a tick that is known when it joins. The sum of
//! contexts is n · tick + a constant. The blocks they take follow from residue counters. The longest gap of a member
//! is a maximum over the ticks since it joined.
//!
//! Each group has its own tick counter, so that a scheduler can exclude a whole group from an iteration in O(1).

use super::wheel::Wheel;
use crate::clock::{Instant, Span, Width};
use crate::features::Features;
use crate::kv::Residues;
use crate::request::Place;
use crate::results::Members;
use crate::timing::Shape;

/// A group of steady decodes of one replica.
#[derive(Debug)]
pub(crate) struct Decodes {
    /// Number of members.
    pub(crate) count: u64,
    /// Whether the present batch excludes the group.
    pub(crate) rests: bool,
    /// Σ (context − tick) over members, modulo 2^64; the sum of contexts itself fits.
    offset: u64,
    /// Members that take a block whenever their context fills one.
    pub(crate) growth: Residues,
    /// The tick at which each member changes: its last token, or the end of the blocks it took ahead.
    pub(crate) due: Wheel,
    /// Measured members by class whose last token came at `last_end`.
    pub(crate) measured: Members,
    /// Members whose last token came at another instant, or that have none yet: their next gap is their own.
    pub(crate) odd: Vec<Place>,
    /// End of the last iteration of the group.
    pub(crate) last_end: Instant,
    maxima: Maxima,
    /// One per modulus of the timing model.
    stairs: Vec<Stairs>,
}

/// Σ ⌈context / m⌉ over the members, and when it increases next.
#[derive(Debug)]
struct Stairs {
    residues: Residues,
    ceilings: u128,
}

impl Decodes {
    pub(crate) fn new(block: u64, measured: Members, moduli: &[u64]) -> Decodes {
        let stairs = |&modulus: &u64| Stairs { residues: Residues::new(modulus), ceilings: 0 };
        Decodes {
            count: 0,
            rests: false,
            offset: 0,
            growth: Residues::new(block),
            due: Wheel::new(),
            measured,
            odd: Vec::new(),
            last_end: Instant::ZERO,
            maxima: Maxima::default(),
            stairs: moduli.iter().map(stairs).collect(),
        }
    }

    /// Members in the present batch.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        if self.rests { 0 } else { self.count }
    }

    /// Blocks that the active members take in the next iteration.
    #[inline]
    pub(crate) fn next_growth(&self) -> u64 {
        if self.rests { 0 } else { self.growth.next_growth() }
    }

    /// Adds the active members to the shape of the batch.
    #[inline]
    pub(crate) fn add_to(&self, shape: &mut Shape, tick: u64) {
        if self.rests {
            return;
        }
        shape.add_decodes(self.count, self.context(tick));
        if !self.stairs.is_empty() {
            self.add_stairs_to(shape);
        }
    }

    fn add_stairs_to(&self, shape: &mut Shape) {
        for (ceiling, stairs) in shape.ceilings.iter_mut().zip(&self.stairs) {
            *ceiling += stairs.ceilings + u128::from(stairs.residues.next_growth());
            shape.steady = shape.steady.min(stairs.residues.quiet_ticks().saturating_add(1));
        }
    }

    /// Advances all members by `ticks` tokens.
    #[inline]
    pub(crate) fn advance<F: Features>(&mut self, ticks: u64) {
        self.growth.advance(ticks);
        if F::FULL && !self.stairs.is_empty() {
            self.advance_stairs(ticks);
        }
    }

    fn advance_stairs(&mut self, ticks: u64) {
        for stairs in &mut self.stairs {
            stairs.ceilings += u128::from(stairs.residues.growth(ticks));
            stairs.residues.advance(ticks);
        }
    }

    /// Σ contexts of the members.
    #[inline]
    pub(crate) fn context(&self, tick: u64) -> u64 {
        self.offset.wrapping_add(self.count.wrapping_mul(tick))
    }

    #[inline]
    pub(crate) fn join<F: Features>(&mut self, context: u64, tick: u64) {
        self.count += 1;
        self.offset = self.offset.wrapping_add(context).wrapping_sub(tick);
        if F::FULL && !self.stairs.is_empty() {
            self.join_stairs(context);
        }
    }

    fn join_stairs(&mut self, context: u64) {
        for stairs in &mut self.stairs {
            stairs.residues.join(context);
            stairs.ceilings += u128::from(stairs.residues.ceiling(context));
        }
    }

    #[inline]
    pub(crate) fn leave<F: Features>(&mut self, context: u64, tick: u64) {
        self.count -= 1;
        self.offset = self.offset.wrapping_sub(context).wrapping_add(tick);
        if self.count == 0 {
            self.maxima.clear();
        }
        if F::FULL && !self.stairs.is_empty() {
            self.leave_stairs(context);
        }
    }

    fn leave_stairs(&mut self, context: u64) {
        for stairs in &mut self.stairs {
            stairs.residues.leave(context);
            stairs.ceilings -= u128::from(stairs.residues.ceiling(context));
        }
    }

    /// Records that the gaps up to `tick` were at most `gap`, and one unrecorded gap was `gap`.
    #[inline]
    pub(crate) fn note_gap<W: Width>(&mut self, tick: u64, gap: Span) {
        self.maxima.note::<W>(tick, gap);
    }

    /// The longest gap after `tick`; zero if there was none.
    #[inline]
    pub(crate) fn longest_gap_since<W: Width>(&self, tick: u64) -> Span {
        self.maxima.since(tick).within::<W>()
    }
}

/// Number of recent maxima that are scanned in fours, then singly.
const NEAR: usize = 32;

/// Maxima over all suffixes of a sequence: a stack of decreasing values. Each is the maximum since the one below it.
#[derive(Debug, Default)]
struct Maxima {
    stack: Vec<(u64, Span)>,
}

impl Maxima {
    fn note<W: Width>(&mut self, tick: u64, value: Span) {
        while self.stack.pop_if(|&mut (_, other)| other.within::<W>() <= value).is_some() {}
        self.stack.push((tick, value));
    }

    fn since(&self, tick: u64) -> Span {
        // Most members joined recently.
        let far = self.stack.len().saturating_sub(NEAR);
        let mut before = &self.stack[far..];
        while let [earlier @ .., first, _, _, _] = before
            && first.0 > tick
        {
            before = earlier;
        }
        // The first of these four is not after `tick`. So the result is the second, third or fourth.
        if let [.., _, second, third, last] = before {
            for (tick_of, value) in [second, third, last] {
                if *tick_of > tick {
                    return *value;
                }
            }
            return self.value_at(far + before.len());
        }
        while let [earlier @ .., latest] = before
            && latest.0 > tick
        {
            before = earlier;
        }
        if before.is_empty() && far > 0 { self.since_long_ago(tick) } else { self.value_at(far + before.len()) }
    }

    fn since_long_ago(&self, tick: u64) -> Span {
        self.value_at(self.stack.partition_point(|&(noted, _)| noted <= tick))
    }

    fn value_at(&self, index: usize) -> Span {
        self.stack.get(index).map_or(Span::ZERO, |&(_, value)| value)
    }

    fn clear(&mut self) {
        self.stack.clear();
    }
}
