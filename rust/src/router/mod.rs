//! Routers, which choose the replica of a request.
//!
//! A router is called once per request, at its arrival, after all earlier events of that instant. One router per
//! file; ties go to the lowest replica.

mod beginnings;
mod ranking;

use std::ops::Range;

use crate::clock::{Instant, Span};
use crate::error::{Error, Result};
use crate::kinds::kinds;
use crate::kv::Segment;
use crate::replica::Replica;
use crate::tournament::Tournament;
use crate::workload::{Arrival, Beginning};
pub use ranking::Measure;
use ranking::{Ranking, Rest, Scene};

/// A routing policy.
pub trait Router: Send {
    /// Returns the replica of a request.
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize>;

    /// Whether it depends on the state of replicas. Otherwise replicas are independent of each other.
    fn uses_state(&self) -> bool {
        true
    }

    /// Whether it is independent of the clock. Only then may a run use a time unit other than the attosecond.
    fn is_timeless(&self) -> bool {
        false
    }

    /// Interval of the cache reports that it requires; `None`: it needs no reports.
    fn reports_every(&self) -> Option<Span> {
        None
    }

    /// The measure of which it requires the minimum (`Fleet::with_least`); `None`: no measure.
    fn ranks(&self) -> Option<Measure> {
        None
    }
}

/// The replicas of a run as seen by a router, together with the request to be routed. A router sees the replicas of
/// its pool, numbered from 0.
#[derive(Default)]
pub struct Fleet {
    /// Replicas of all pools.
    pub(crate) replicas: Vec<Replica>,
    /// The pool of each replica.
    pool_of: Vec<u32>,
    /// Requests at each replica, maintained if the router uses them.
    requests: Vec<u32>,
    is_counted: bool,
    is_ranked: bool,
    pub(crate) pools: Vec<Pool>,
    /// The pool whose router is called.
    pub(crate) pool: usize,
    pub(crate) now: Instant,
    /// The shared content at the start of the prompt, and the prompt's length.
    pub(crate) content: Beginning,
    pub(crate) prompt_tokens: u32,
    /// Whether it is handed off with its KV.
    pub(crate) is_handed_off: bool,
}

/// The replicas of one router.
pub(crate) struct Pool {
    pub(crate) replicas: Range<usize>,
    /// Open replicas, with autoscaling or failures; `None`: all replicas are always open.
    open: Option<Open>,
    /// Requests and place of each replica: the minimum identifies the lowest replica with the fewest requests.
    fewest: Tournament<u64>,
    /// The replicas by the measure that the router requires.
    ranking: Option<Ranking>,
}

/// The open replicas of a pool.
#[derive(Debug)]
struct Open {
    /// Their places in ascending order.
    places: Vec<usize>,
    /// Whether each place is open.
    is_open: Vec<bool>,
}

/// Sort key of a replica: its number of requests, then its place.
#[inline]
fn before_place(requests: u32, place: usize) -> u64 {
    u64::from(requests) << 32 | place as u64
}

impl Fleet {
    /// Builds a fleet of which only the size is visible.
    pub(crate) fn of_size(count: usize) -> Fleet {
        let pools = vec![Pool { replicas: 0..count, open: None, fewest: Tournament::default(), ranking: None }];
        Fleet { pools, requests: vec![0; count], ..Fleet::default() }
    }

    /// Adds a pool.
    pub(crate) fn add_pool(&mut self, replicas: Vec<Replica>, router: Option<&dyn Router>) {
        let (first, count) = (self.replicas.len(), replicas.len());
        self.replicas.extend(replicas);
        self.pool_of.resize(first + count, self.pools.len() as u32);
        self.requests.resize(first + count, 0);
        self.is_counted |= router.is_some();
        let ranking = router.and_then(Router::ranks).map(|measure| Ranking::new(measure, count));
        self.is_ranked |= ranking.is_some();
        let mut fewest = Tournament::new(count, u64::MAX, u64::MAX);
        (0..count).for_each(|place| fewest.set(place, before_place(0, place)));
        self.pools.push(Pool { replicas: first..first + count, open: None, fewest, ranking });
    }

    /// Closes all replicas of a pool, which opens and closes replicas from now on.
    pub(crate) fn close_all(&mut self, pool: usize) {
        let Pool { replicas, open, .. } = &mut self.pools[pool];
        *open = Some(Open { places: Vec::new(), is_open: vec![false; replicas.len()] });
        replicas.clone().for_each(|replica| self.hide(replica));
    }

    /// Opens or closes a replica, numbered among all pools.
    pub(crate) fn set_open(&mut self, replica: usize, is_open: bool) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        let place = replica - pool.replicas.start;
        let Some(open) = &mut pool.open else { return };
        open.is_open[place] = is_open;
        match (open.places.binary_search(&place), is_open) {
            (Err(at), true) => open.places.insert(at, place),
            (Ok(at), false) => drop(open.places.remove(at)),
            _ => {}
        }
        if is_open {
            self.set_requests(replica, self.replicas[replica].requests() as u32);
        } else {
            self.hide(replica);
        }
        self.touch(replica);
    }

    /// Hides the state of a closed replica from its router.
    fn hide(&mut self, replica: usize) {
        self.requests[replica] = 0;
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        pool.fewest.set(replica - pool.replicas.start, u64::MAX);
    }

    /// Number of open replicas of a pool.
    pub(crate) fn open_replicas(&self, pool: usize) -> usize {
        let Pool { replicas, open, .. } = &self.pools[pool];
        open.as_ref().map_or(replicas.len(), |open| open.places.len())
    }

    /// Pool of a replica, numbered among all pools.
    #[inline]
    pub(crate) fn pool_of(&self, replica: usize) -> usize {
        self.pool_of[replica] as usize
    }

    /// Records a change of a replica, numbered among all pools.
    #[inline]
    pub(crate) fn touch(&mut self, replica: usize) {
        if self.is_ranked {
            self.touch_ranked(replica);
        }
    }

    fn touch_ranked(&mut self, replica: usize) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        if let Some(ranking) = &mut pool.ranking {
            ranking.touch(replica - pool.replicas.start);
        }
    }

    /// Like `touch`, and updates the number of requests if the router uses it.
    #[inline]
    pub(crate) fn count_requests(&mut self, replica: usize) {
        self.touch(replica);
        if self.is_counted {
            let requests = self.replicas[replica].requests() as u32;
            if self.requests[replica] != requests {
                self.set_requests(replica, requests);
            }
        }
    }

    fn set_requests(&mut self, replica: usize, requests: u32) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        let place = replica - pool.replicas.start;
        if pool.open.as_ref().is_some_and(|open| !open.is_open[place]) {
            return;
        }
        self.requests[replica] = requests;
        pool.fewest.set(place, before_place(requests, place));
    }

    /// Next event of any replica.
    pub(crate) fn next_instant(&self) -> Instant {
        self.replicas.iter().map(Replica::next_instant).min().unwrap_or(Instant::NEVER)
    }

    /// Number of open replicas.
    #[inline]
    pub fn len(&self) -> usize {
        self.open_replicas(self.pool)
    }

    /// Whether no replica is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of replicas, open or not; places are below it.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.pools[self.pool].replicas.len()
    }

    /// Whether the replica at this place exists and is open.
    #[inline]
    pub(crate) fn is_open(&self, place: usize) -> bool {
        let Pool { replicas, open, .. } = &self.pools[self.pool];
        open.as_ref().map_or(place < replicas.len(), |open| open.is_open.get(place) == Some(&true))
    }

    /// Place of the nth open replica.
    #[inline]
    pub fn nth_open(&self, number: usize) -> usize {
        self.pools[self.pool].open.as_ref().map_or(number, |open| open.places[number])
    }

    /// Place of the first open replica from place `from` on, with wraparound.
    #[inline]
    pub(crate) fn next_open(&self, from: usize) -> usize {
        match &self.pools[self.pool].open {
            None => from % self.places(),
            Some(open) => open.places[open.places.partition_point(|&place| place < from) % open.places.len()],
        }
    }

    /// The current instant.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Waiting and running requests by place; 0 for closed replicas.
    #[inline]
    pub fn requests(&self) -> &[u32] {
        &self.requests[self.pools[self.pool].replicas.clone()]
    }

    /// The lowest replica with the fewest requests.
    #[inline]
    pub(crate) fn with_fewest_requests(&self) -> usize {
        self.pools[self.pool].fewest.least() as u32 as usize
    }

    /// Number of a replica among all pools.
    pub fn number(&self, replica: usize) -> u32 {
        self.replica(replica).number()
    }

    /// Waiting requests of a replica.
    pub fn waiting(&self, replica: usize) -> u64 {
        self.replica(replica).waiting()
    }

    /// Free and used blocks of a replica.
    pub fn free_and_used_blocks(&self, replica: usize) -> Result<(u64, u64)> {
        self.replica(replica).free_and_used_blocks(self.now)
    }

    /// Prompt tokens not yet computed plus output tokens not yet emitted at a replica. This uses true output lengths.
    pub fn tokens(&self, replica: usize) -> Result<u64> {
        self.replica(replica).tokens_ahead(self.now)
    }

    /// Blocks used at a replica, plus those required by its waiting prompts.
    pub fn blocks(&self, replica: usize) -> Result<u64> {
        self.replica(replica).blocks_ahead(self.now)
    }

    /// Tokens per block of a replica.
    pub(crate) fn block_tokens(&self, replica: usize) -> u64 {
        self.replica(replica).block_tokens()
    }

    /// Shared content at the start of the prompt.
    pub(crate) fn content(&self) -> &[Segment] {
        &self.content
    }

    /// Tokens of the request's prompt that are cached at a replica now: whole blocks, at most all tokens but one. All
    /// tokens if the request is handed off, since its KV moves with it.
    pub fn cached_tokens(&mut self, replica: usize) -> Result<u64> {
        match self.max_cached() {
            Ok(limit) => {
                let replica = self.place(replica);
                self.replicas[replica].cached_tokens(&self.content, limit, self.now)
            }
            Err(all) => Ok(all),
        }
    }

    /// Like `cached_tokens`, as of the replica's last report (see [`Router::reports_every`]).
    pub fn reported_tokens(&mut self, replica: usize) -> Result<u64> {
        match self.max_cached() {
            Ok(limit) => {
                let replica = self.place(replica);
                self.replicas[replica].reported_tokens(&self.content, limit, self.now)
            }
            Err(all) => Ok(all),
        }
    }

    /// Maximum tokens that a lookup may return; `Err`: the tokens that no replica has to compute.
    fn max_cached(&self) -> std::result::Result<u64, u64> {
        let prompt = u64::from(self.prompt_tokens);
        if self.is_handed_off { Err(prompt) } else { Ok(prompt - 1) }
    }

    #[inline]
    fn replica(&self, replica: usize) -> &Replica {
        &self.replicas[self.place(replica)]
    }

    /// Place of a replica among all pools.
    #[inline]
    fn place(&self, replica: usize) -> usize {
        self.pools[self.pool].replicas.start + replica
    }

    /// Whether the request is handed off with its KV.
    fn moves_with_kv(&self) -> bool {
        self.is_handed_off
    }

    /// Whether cached, reported or current content of a replica begins with this content.
    fn has_content(&self, replica: usize, content: u64) -> bool {
        self.replica(replica).has_content(content)
    }

    /// The lowest replica with the minimum of the router's measure (see [`Router::ranks`]).
    pub(crate) fn with_least(&mut self) -> Result<usize> {
        let (ranking, scene) = self.ranking()?;
        Ok(ranking.first(scene)?.1 as usize)
    }

    /// All replicas in the order of the measure, to be read with `next_ranked`.
    fn ranked(&mut self) -> Result<Rest> {
        let (ranking, scene) = self.ranking()?;
        Ok(Ranking::places(ranking.first(scene)?))
    }

    /// Returns the measure of the next replica, and the replica.
    fn next_ranked(&mut self, rest: &mut Rest) -> Result<Option<(u64, u32)>> {
        let (ranking, scene) = self.ranking()?;
        Ok(ranking.next(rest, scene)?.filter(|&(score, _)| score < ranking::CLOSED))
    }

    fn ranking(&mut self) -> Result<(&mut Ranking, Scene<'_>)> {
        let Pool { replicas, open, ranking, .. } = &mut self.pools[self.pool];
        let open = open.as_ref().map(|open| &open.is_open[..]);
        let scene = Scene { replicas: &self.replicas[replicas.clone()], open, now: self.now };
        match ranking {
            Some(ranking) => Ok((ranking, scene)),
            None => Err(Error::config("router", "calls with_least without a measure (see Router::ranks)")),
        }
    }

    /// The lowest replica with the minimum of a computed number.
    fn least<T: PartialOrd>(&mut self, mut number: impl FnMut(&mut Self, usize) -> Result<T>) -> Result<usize> {
        let first = self.nth_open(0);
        let mut least = (number(self, first)?, first);
        for open in 1..self.len() {
            let replica = self.nth_open(open);
            let of_this = number(self, replica)?;
            if of_this < least.0 {
                least = (of_this, replica);
            }
        }
        Ok(least.1)
    }
}

/// Parameters of a router as described by the user; implemented in each router's file.
trait RouterParameters {
    /// Builds the router; `seed` is the seed of the run. Each `pool` of a cluster has its own draws.
    fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>>;
}

/// Imports of a router's file.
mod prelude {
    pub(super) use super::{Fleet, Router, RouterParameters};
    pub(super) use crate::kinds::prelude::*;
    pub(super) use crate::workload::Arrival;
}

kinds! {
    /// Routers and their parameters.
    RouterConfig: RouterParameters {
        round_robin::RoundRobin,
        random::Random,
        least_requests::LeastRequests,
        least_tokens::LeastTokens,
        power_of_two::PowerOfTwo,
        least_kv::LeastKv,
        by_session::BySession,
        prefix_affinity::PrefixAffinity,
        prefix_hash::PrefixHash,
    }
}

impl RouterConfig {
    /// Builds the router; `seed` is the seed of the run. Each `pool` of a cluster has its own draws.
    pub fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>> {
        self.parameters().build(seed, pool)
    }
}

/// Checks an optional number.
fn in_range(field: &str, number: Option<f64>, fits: impl Fn(f64) -> bool, what: &str) -> Result<()> {
    match number {
        Some(number) if !(number.is_finite() && fits(number)) => {
            Err(Error::config(field, format!("must be {what}, got {number}")))
        }
        _ => Ok(()),
    }
}
