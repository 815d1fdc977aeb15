//! Which replica has the least of something that changes as time goes by?
//!
//! To ask each costs in proportion to their number. Here they play a tournament instead, and each match is known to stay as
//! it is until some instant: the tokens ahead of a replica only become fewer inside a stretch, its blocks only more, so
//! that one iteration after the other must be over before the loser can have caught up. A match is played again when that
//! instant has come, or something has happened at one of its two.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Instant;
use crate::error::Result;
use crate::replica::Replica;

/// Of what a replica should have the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// See [`Fleet::tokens`](super::Fleet::tokens).
    Tokens,
    /// See [`Fleet::blocks`](super::Fleet::blocks).
    Blocks,
    /// The tokens that fit into those blocks.
    BlockTokens,
}

impl Measure {
    /// What a replica has of it.
    fn of(self, replica: &Replica, now: Instant) -> Result<u64> {
        match self {
            Measure::Tokens => replica.tokens_ahead(now),
            Measure::Blocks => replica.blocks_ahead(now),
            Measure::BlockTokens => Ok(replica.blocks_ahead(now)? * replica.block_tokens()),
        }
    }

    /// Before which instant the winner is sure to win, which is ahead by so much.
    fn is_sure_until(self, winner: &Replica, loser: &Replica, by: u64, now: Instant) -> Result<Instant> {
        match self {
            Measure::Tokens => loser.has_tokens_ahead_until(by, now),
            Measure::Blocks => winner.has_blocks_ahead_until(by, now),
            Measure::BlockTokens => winner.has_blocks_ahead_until(by.div_ceil(winner.block_tokens()), now),
        }
    }
}

/// The replicas of a pool by a measure.
#[derive(Debug)]
pub(crate) struct Ranking {
    measure: Measure,
    replicas: usize,
    /// Node i has the children 2i and 2i + 1, and the first is node 1. Those from `leaves` on are the replicas.
    matches: Vec<Match>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug)]
struct Match {
    winner: u32,
    /// Before this instant no match below is another one.
    until: Instant,
}

/// What wins below a node: what it has, and which one it is.
type Score = (u64, u32);

/// What is left of a ranking whose first places have been read: the best below each of some nodes.
pub(crate) type Rest = BinaryHeap<Reverse<(Score, usize)>>;

/// What a replica has that takes no requests.
pub(super) const CLOSED: u64 = u64::MAX;

/// The replicas of a pool at an instant.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) replicas: &'a [Replica],
    /// Of each, does it take requests? `None`: all do.
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

    /// Something has happened at a replica.
    pub(crate) fn touch(&mut self, replica: usize) {
        let mut node = (self.leaves + replica) / 2;
        while node > 0 && self.matches[node].until > Instant::ZERO {
            self.matches[node].until = Instant::ZERO;
            node /= 2;
        }
    }

    /// What the first has, and the lowest replica that has so little.
    pub(crate) fn first(&mut self, scene: Scene) -> Result<Score> {
        self.play(1, scene)
    }

    /// All places, the first of which has just been asked for.
    pub(crate) fn places(first: Score) -> Rest {
        Rest::from([Reverse((first, 1))])
    }

    /// The next place.
    pub(crate) fn next(&self, rest: &mut Rest, scene: Scene) -> Result<Option<Score>> {
        let Some(Reverse((score, mut node))) = rest.pop() else { return Ok(None) };
        while node < self.leaves {
            let (left, right) = (2 * node, 2 * node + 1);
            let winner = self.leaves + score.1 as usize;
            let is_right = winner >> (winner.ilog2() - right.ilog2()) == right;
            let (below, beside) = if is_right { (right, left) } else { (left, right) };
            if self.lowest(beside) < self.replicas {
                rest.push(Reverse((self.score(beside, scene)?, beside)));
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

    /// The best below a node whose matches are known.
    fn score(&self, node: usize, scene: Scene) -> Result<Score> {
        let place = self.matches.get(node).map_or_else(|| (node - self.leaves) as u32, |played| played.winner);
        if scene.is_closed(place) {
            return Ok((CLOSED, place));
        }
        Ok((self.measure.of(&scene.replicas[place as usize], scene.now)?, place))
    }

    /// The best below a node; plays the matches that are not known any more.
    fn play(&mut self, node: usize, scene: Scene) -> Result<Score> {
        if node >= self.leaves || self.matches[node].until > scene.now {
            return self.score(node, scene);
        }
        let (left, right) = (2 * node, 2 * node + 1);
        let first = self.play(left, scene)?;
        let (winner, sure_until) = if self.lowest(right) < self.replicas {
            let second = self.play(right, scene)?;
            // On the left are the lower replicas.
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
