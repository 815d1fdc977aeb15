//! The replica with the minimum of a time-dependent measure.
//!
//! Inspecting all replicas costs time in proportion to their number. Instead, replicas are in a tournament tree, and
//! each match is known to be valid until some instant: within a stretch the remaining tokens of a replica only
//! decrease and its blocks only increase, so the loser needs several iterations to catch up. A match is replayed when
//! that instant has come or one of its two replicas has changed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Fleet, Router};
use crate::clock::Instant;
use crate::error::Result;
use crate::replica::Replica;
use crate::workload::Arrival;

/// Measures of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// See [`Fleet::tokens`](super::Fleet::tokens).
    Tokens,
    /// See [`Fleet::blocks`](super::Fleet::blocks).
    Blocks,
    /// The tokens of these blocks.
    BlockTokens,
}

impl Measure {
    /// Returns the measure of a replica.
    fn of(self, replica: &Replica, now: Instant) -> Result<u64> {
        match self {
            Measure::Tokens => replica.tokens_ahead(now),
            Measure::Blocks => replica.blocks_ahead(now),
            Measure::BlockTokens => Ok(replica.blocks_ahead(now)? * replica.block_tokens()),
        }
    }

    /// Returns the instant before which a winner with lead `by` cannot lose.
    fn is_sure_until(self, winner: &Replica, loser: &Replica, by: u64, now: Instant) -> Result<Instant> {
        match self {
            Measure::Tokens => loser.has_tokens_ahead_until(by, now),
            Measure::Blocks => winner.has_blocks_ahead_until(by, now),
            Measure::BlockTokens => winner.has_blocks_ahead_until(by.div_ceil(winner.block_tokens()), now),
        }
    }
}

/// A router to the lowest replica with the minimum of a measure.
#[derive(Debug)]
pub(super) struct LeastOf(pub(super) Measure);

impl Router for LeastOf {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = fleet.with_least()?;
        debug_assert_eq!(
            Some(replica),
            fleet.least(|fleet, replica| self.0.of(fleet.replica(replica), fleet.now)).ok(),
            "equal to comparing all replicas"
        );
        Ok(replica)
    }

    fn ranks(&self) -> Option<Measure> {
        Some(self.0)
    }
}

/// The replicas of a pool, ranked by a measure.
#[derive(Debug)]
pub(crate) struct Ranking {
    measure: Measure,
    replicas: usize,
    /// Node i has the children 2i and 2i + 1; the root is node 1. Nodes from `leaves` on are replicas.
    matches: Vec<Match>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug)]
struct Match {
    winner: u32,
    /// All matches below are valid before this instant.
    until: Instant,
}

/// The winner below a node: its measure and its place.
type Score = (u64, u32);

/// The remaining places of a ranking whose first places have been read: the winners below some nodes.
pub(crate) type Rest = BinaryHeap<Reverse<(Score, usize)>>;

/// Measure of closed replicas.
pub(super) const CLOSED: u64 = u64::MAX;

/// State of the replicas of a pool at an instant.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) replicas: &'a [Replica],
    /// Whether each replica is open; `None`: all are open.
    pub(crate) open: Option<&'a [bool]>,
    pub(crate) now: Instant,
}

impl Scene<'_> {
    fn is_closed(&self, place: u32) -> bool {
        self.open.is_some_and(|open| !open[place as usize])
    }
}

impl Ranking {
    pub(crate) fn new(measure: Measure, replicas: usize) -> Ranking {
        let leaves = replicas.next_power_of_two();
        let unknown = Match { winner: 0, until: Instant::ZERO };
        Ranking { measure, replicas, matches: vec![unknown; leaves], leaves }
    }

    /// Records a change of a replica.
    pub(crate) fn touch(&mut self, replica: usize) {
        let mut node = (self.leaves + replica) / 2;
        while node > 0 && self.matches[node].until > Instant::ZERO {
            self.matches[node].until = Instant::ZERO;
            node /= 2;
        }
    }

    /// Returns the minimum and the lowest replica that has it.
    pub(crate) fn first(&mut self, scene: Scene) -> Result<Score> {
        self.play(1, scene)
    }

    /// Starts reading all places after `first` has been called.
    pub(crate) fn places(first: Score) -> Rest {
        Rest::from([Reverse((first, 1))])
    }

    /// Returns the next place.
    pub(crate) fn next(&self, rest: &mut Rest, scene: Scene) -> Result<Option<Score>> {
        let Some(Reverse((score, mut node))) = rest.pop() else { return Ok(None) };
        while node < self.leaves {
            let (left, right) = (2 * node, 2 * node + 1);
            let winner = self.leaves + score.1 as usize;
            let is_right = winner >> (winner.ilog2() - right.ilog2()) == right;
            let (below, sibling) = if is_right { (right, left) } else { (left, right) };
            if self.lowest(sibling) < self.replicas {
                rest.push(Reverse((self.score(sibling, scene)?, sibling)));
            }
            node = below;
        }
        Ok(Some(score))
    }

    /// The lowest replica below a node.
    fn lowest(&self, node: usize) -> usize {
        (node << (self.leaves.ilog2() - node.ilog2())) - self.leaves
    }

    fn until(&self, node: usize) -> Instant {
        self.matches.get(node).map_or(Instant::NEVER, |played| played.until)
    }

    /// The winner below a node whose matches are valid.
    fn score(&self, node: usize, scene: Scene) -> Result<Score> {
        let place = self.matches.get(node).map_or_else(|| (node - self.leaves) as u32, |played| played.winner);
        if scene.is_closed(place) {
            return Ok((CLOSED, place));
        }
        Ok((self.measure.of(&scene.replicas[place as usize], scene.now)?, place))
    }

    /// The winner below a node; replays matches that are not valid.
    fn play(&mut self, node: usize, scene: Scene) -> Result<Score> {
        if node >= self.leaves || self.matches[node].until > scene.now {
            return self.score(node, scene);
        }
        let (left, right) = (2 * node, 2 * node + 1);
        let first = self.play(left, scene)?;
        let (winner, sure_until) = if self.lowest(right) < self.replicas {
            let second = self.play(right, scene)?;
            // Lower replicas are on the left.
            let (winner, loser) = if second.0 < first.0 { (second, first) } else { (first, second) };
            let of = |score: Score| &scene.replicas[score.1 as usize];
            let sure_until = if loser.0 == CLOSED {
                Instant::NEVER
            } else {
                let by = loser.0 - winner.0 + u64::from(winner.1 < loser.1);
                self.measure.is_sure_until(of(winner), of(loser), by, scene.now)?
            };
            (winner, sure_until.min(self.until(right)))
        } else {
            (first, Instant::NEVER)
        };
        self.matches[node] = Match { winner: winner.1, until: sure_until.min(self.until(left)) };
        Ok(winner)
    }
}
