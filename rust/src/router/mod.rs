//! Which replica serves this request?
//!
//! A router is asked once for each request, at the instant of its arrival, after everything that happened at that instant
//! before it. One router, one file; ties go to the lowest replica.

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

/// A routing policy of a fleet.
pub trait Router: Send {
    /// The replica for a request.
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize>;

    /// Does it look at anything of the replicas but their number? Replicas behind a router that does not know nothing of
    /// one another.
    fn looks(&self) -> bool {
        true
    }

    /// Does it look at no clock? Only then a run may count time in another unit than attoseconds.
    fn is_timeless(&self) -> bool {
        false
    }

    /// How often the caches report to it what they know; `None`: it needs no reports.
    fn reports_every(&self) -> Option<Span> {
        None
    }

    /// By which measure it asks for the replica that has least (`Fleet::with_least`); `None`: by none.
    fn ranks(&self) -> Option<Measure> {
        None
    }
}

/// The replicas of a run as a router may look at them, and what only this request can be told of them. A router sees
/// those of its pool, counted from the first.
#[derive(Default)]
pub struct Fleet {
    /// Those of all pools.
    pub(crate) replicas: Vec<Replica>,
    /// The pool of each replica.
    pool_of: Vec<u32>,
    /// Requests at each replica, kept where a router looks.
    requests: Vec<u32>,
    is_counted: bool,
    is_ranked: bool,
    pub(crate) pools: Vec<Pool>,
    /// The pool whose router is asked now.
    pub(crate) pool: usize,
    pub(crate) now: Instant,
    /// With what the request's prompt begins, and its length.
    pub(crate) content: Beginning,
    pub(crate) prompt_tokens: u32,
    /// Does it bring its keys and values along?
    pub(crate) is_handed_off: bool,
}

/// Replicas that one router chooses from.
pub(crate) struct Pool {
    pub(crate) replicas: Range<usize>,
    /// Those that take requests, where they come and go; `None`: all, always.
    open: Option<Open>,
    /// The requests at each before its place here: the least names the lowest replica that has the fewest.
    fewest: Tournament<u64>,
    /// Those replicas by the measure that the router asks for.
    ranking: Option<Ranking>,
}

/// The replicas of a pool that take requests now.
#[derive(Debug)]
struct Open {
    /// Their places, in order.
    places: Vec<usize>,
    /// Of each place, is it one of them?
    are: Vec<bool>,
}

/// The number of requests at a replica, before its place.
#[inline]
fn before_place(requests: u32, place: usize) -> u64 {
    u64::from(requests) << 32 | place as u64
}

impl Fleet {
    /// Replicas of which nothing can be seen but their number.
    pub(crate) fn of_strangers(count: usize) -> Fleet {
        let pools = vec![Pool { replicas: 0..count, open: None, fewest: Tournament::default(), ranking: None }];
        Fleet { pools, requests: vec![0; count], ..Fleet::default() }
    }

    /// One more pool.
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

    /// From now on the replicas of a pool come and go; none takes requests as yet.
    pub(crate) fn close_all(&mut self, pool: usize) {
        let Pool { replicas, open, .. } = &mut self.pools[pool];
        *open = Some(Open { places: Vec::new(), are: vec![false; replicas.len()] });
        replicas.clone().for_each(|replica| self.hide(replica));
    }

    /// A replica among those of all pools takes requests from now on, or takes none any more.
    pub(crate) fn set_open(&mut self, replica: usize, is_open: bool) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        let place = replica - pool.replicas.start;
        let Some(open) = &mut pool.open else { return };
        open.are[place] = is_open;
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

    /// A router does not see what is at a replica that takes no requests.
    fn hide(&mut self, replica: usize) {
        self.requests[replica] = 0;
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        pool.fewest.set(replica - pool.replicas.start, u64::MAX);
    }

    /// Replicas of a pool that take requests.
    pub(crate) fn open_replicas(&self, pool: usize) -> usize {
        let Pool { replicas, open, .. } = &self.pools[pool];
        open.as_ref().map_or(replicas.len(), |open| open.places.len())
    }

    /// The pool of a replica among those of all pools.
    #[inline]
    pub(crate) fn pool_of(&self, replica: usize) -> usize {
        self.pool_of[replica] as usize
    }

    /// Something has happened at a replica among those of all pools.
    #[inline]
    pub(crate) fn touch(&mut self, replica: usize) {
        if self.is_ranked {
            self.touch_ranked(replica);
        }
    }

    #[inline(never)]
    fn touch_ranked(&mut self, replica: usize) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        if let Some(ranking) = &mut pool.ranking {
            ranking.touch(replica - pool.replicas.start);
        }
    }

    /// The same, and keeps the number of requests there where a router looks at it.
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

    #[inline(never)]
    fn set_requests(&mut self, replica: usize, requests: u32) {
        let pool = &mut self.pools[self.pool_of[replica] as usize];
        let place = replica - pool.replicas.start;
        if pool.open.as_ref().is_some_and(|open| !open.are[place]) {
            return;
        }
        self.requests[replica] = requests;
        pool.fewest.set(place, before_place(requests, place));
    }

    /// When something happens at one of all replicas next.
    pub(crate) fn next_instant(&self) -> Instant {
        self.replicas.iter().map(Replica::next_instant).min().unwrap_or(Instant::NEVER)
    }

    /// Number of replicas that take requests: where none comes or goes, all.
    #[inline]
    pub fn len(&self) -> usize {
        self.open_replicas(self.pool)
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of replicas, open or not: each has a place below it, at which it is named.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.pools[self.pool].replicas.len()
    }

    /// Is there a replica at this place that takes requests?
    #[inline]
    pub(crate) fn is_open(&self, place: usize) -> bool {
        let Pool { replicas, open, .. } = &self.pools[self.pool];
        open.as_ref().map_or(place < replicas.len(), |open| open.are.get(place) == Some(&true))
    }

    /// The place of an open replica by its number among them.
    #[inline]
    pub fn nth_open(&self, number: usize) -> usize {
        self.pools[self.pool].open.as_ref().map_or(number, |open| open.places[number])
    }

    /// The place of the first open replica from one on, and around.
    #[inline]
    pub(crate) fn next_open(&self, from: usize) -> usize {
        match &self.pools[self.pool].open {
            None => from % self.places(),
            Some(open) => open.places[open.places.partition_point(|&place| place < from) % open.places.len()],
        }
    }

    /// The instant at which the router is asked.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Requests at each replica, waiting and running, by its place; none where it is not open.
    #[inline]
    pub fn requests(&self) -> &[u32] {
        &self.requests[self.pools[self.pool].replicas.clone()]
    }

    /// The lowest replica with the fewest requests.
    #[inline]
    pub(crate) fn with_fewest_requests(&self) -> usize {
        self.pools[self.pool].fewest.least() as u32 as usize
    }

    /// The number of a replica among those of all pools.
    pub fn number(&self, replica: usize) -> u32 {
        self.replica(replica).number()
    }

    /// Requests in the queue of a replica.
    pub fn waiting(&self, replica: usize) -> u64 {
        self.replica(replica).waiting()
    }

    /// Blocks that no request holds at a replica, and those that requests hold.
    pub fn free_and_used_blocks(&self, replica: usize) -> Result<(u64, u64)> {
        self.replica(replica).free_and_used_blocks(self.now)
    }

    /// Prompt tokens that a replica has not computed and output tokens that it has not emitted: this knows lengths.
    pub fn tokens(&self, replica: usize) -> Result<u64> {
        self.replica(replica).tokens_ahead(self.now)
    }

    /// Blocks in use at a replica, and those that its waiting prompts will take.
    pub fn blocks(&self, replica: usize) -> Result<u64> {
        self.replica(replica).blocks_ahead(self.now)
    }

    /// Tokens in a block of a replica.
    pub(crate) fn block_tokens(&self, replica: usize) -> u64 {
        self.replica(replica).block_tokens()
    }

    /// With what the request's prompt begins, before what is its own.
    pub(crate) fn content(&self) -> &[Segment] {
        &self.content
    }

    /// Tokens of the request's prompt that lie in the cache of a replica now: whole blocks, at most all tokens but one. All
    /// of them for a request that is handed off, since it brings them along.
    pub fn cached_tokens(&mut self, replica: usize) -> Result<u64> {
        match self.most_cached() {
            Ok(most) => {
                let replica = self.place(replica);
                self.replicas[replica].cached_tokens(&self.content, most, self.now)
            }
            Err(all) => Ok(all),
        }
    }

    /// The same as the replica reported last (see [`Router::reports_every`]).
    pub fn reported_tokens(&mut self, replica: usize) -> Result<u64> {
        match self.most_cached() {
            Ok(most) => {
                let replica = self.place(replica);
                self.replicas[replica].reported_tokens(&self.content, most, self.now)
            }
            Err(all) => Ok(all),
        }
    }

    /// The tokens that can be found in a cache; `Err`: those that none has to compute.
    fn most_cached(&self) -> std::result::Result<u64, u64> {
        let prompt = u64::from(self.prompt_tokens);
        if self.is_handed_off { Err(prompt) } else { Ok(prompt - 1) }
    }

    #[inline]
    fn replica(&self, replica: usize) -> &Replica {
        &self.replicas[self.place(replica)]
    }

    /// The place of a replica among those of all pools.
    #[inline]
    fn place(&self, replica: usize) -> usize {
        self.pools[self.pool].replicas.start + replica
    }

    /// Does a request bring its keys and values along?
    fn brings_its_context(&self) -> bool {
        self.is_handed_off
    }

    /// Has a prefix cache anything that begins with this content, or had it at its last report; or a request there?
    fn knows(&self, replica: usize, content: u64) -> bool {
        self.replica(replica).knows(content)
    }

    /// The lowest replica that has least of what the router ranks replicas by (see [`Router::ranks`]).
    pub(crate) fn with_least(&mut self) -> Result<usize> {
        let (ranking, scene) = self.ranking()?;
        Ok(ranking.first(scene)?.1 as usize)
    }

    /// All replicas in that order, to be read by `next_ranked`.
    fn ranked(&mut self) -> Result<Rest> {
        let (ranking, scene) = self.ranking()?;
        Ok(Ranking::places(ranking.first(scene)?))
    }

    /// What the next one has, and which it is.
    fn next_ranked(&mut self, rest: &mut Rest) -> Result<Option<(u64, u32)>> {
        let (ranking, scene) = self.ranking()?;
        Ok(ranking.next(rest, scene)?.filter(|&(score, _)| score < ranking::CLOSED))
    }

    fn ranking(&mut self) -> Result<(&mut Ranking, Scene<'_>)> {
        let Pool { replicas, open, ranking, .. } = &mut self.pools[self.pool];
        let open = open.as_ref().map(|open| &open.are[..]);
        let scene = Scene { replicas: &self.replicas[replicas.clone()], open, now: self.now };
        match ranking {
            Some(ranking) => Ok((ranking, scene)),
            None => Err(Error::config("router", "asks for the least of a measure that it does not name")),
        }
    }

    /// The lowest replica for which a number that has to be worked out is least.
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

/// The parameters of a router, as a user describes them: each router's file implements this for its own.
trait RouterParameters {
    /// The router itself; `seed` is the run's. Each `pool` of a cluster draws apart from the others.
    fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>>;
}

/// What a router's file speaks of.
mod prelude {
    pub(super) use super::{Fleet, Router, RouterParameters};
    pub(super) use crate::kinds::prelude::*;
    pub(super) use crate::workload::Arrival;
}

kinds! {
    /// A router and its parameters.
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
    /// The router itself; `seed` is the run's. Each `pool` of a cluster draws apart from the others.
    pub fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>> {
        self.parameters().build(seed, pool)
    }
}

/// Tests an optional number.
fn in_range(field: &str, number: Option<f64>, fits: impl Fn(f64) -> bool, what: &str) -> Result<()> {
    match number {
        Some(number) if !(number.is_finite() && fits(number)) => {
            Err(Error::config(field, format!("{number}: must be {what}")))
        }
        _ => Ok(()),
    }
}
