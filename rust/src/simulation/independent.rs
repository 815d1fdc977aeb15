//! Independent replicas on several threads.
//!
//! If the router does not read the state of replicas, every request's replica is known before the run. So each
//! replica replays its own requests as a separate workload, and the results are combined. The order in which threads
//! finish has no effect (invariant L6): rows are disjoint, everything else is a sum of whole numbers or is sorted.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::options::{Options, Watch};
use super::outcome::Outcome;
use super::run::Run;
use super::sampler::Sampler;
use crate::clock::Instant;
use crate::cluster::Cluster;
use crate::engine::EngineParts;
use crate::error::{Error, Kind, Result};
use crate::results::{Histogram, RequestRows, Results, Sample};
use crate::router::{Fleet, Router};
use crate::workload::{Columns, Content, Workload};

/// Replays a workload through replicas behind a router that does not read their state.
pub(super) fn simulate(
    workload: &Workload,
    engines: Vec<EngineParts>,
    router: &mut dyn Router,
    options: &Options,
    sampler: Sampler,
    watch: &mut dyn Watch,
) -> Result<Results> {
    let mut shares = vec![Vec::new(); engines.len()];
    share_out(workload, router, &mut shares)?;
    let mut requests = RequestRows::in_unit(sampler.unit);
    requests.extend_to(options.rows(workload));
    let mut parts: Vec<Option<Outcome>> = Vec::new();
    parts.resize_with(engines.len(), || None);
    let job = |replica: usize, engine: EngineParts, watch: &mut dyn Watch| {
        run_share(workload, &shares[replica], replica, engine, options, sampler, watch)
    };
    let total = options.rows(workload) as u64;
    let done = |replica: usize, mut outcome: Outcome| {
        // The rows are moved at once, so that they are never in memory twice.
        let part = std::mem::take(&mut outcome.results.requests);
        requests.scatter(&part, &shares[replica], 0);
        parts[replica] = Some(outcome);
        part.len() as u64
    };
    run_all(engines, total, options.threads, watch, job, done)?;
    let mut whole = combine(parts.into_iter().flatten().collect(), sampler, workload.class_count)?;
    whole.results.requests = requests;
    whole.results(options, Some(total))
}

/// Combines the outcomes of all replicas, except for the rows of their requests.
pub(super) fn combine(mut parts: Vec<Outcome>, sampler: Sampler, class_count: usize) -> Result<Outcome> {
    let mut whole = Outcome::default();
    whole.results.itl = vec![Histogram::default(); class_count];
    let end = parts.iter().map(|part| part.results.totals.end).max().unwrap_or(Instant::ZERO);
    let timelines: Vec<(Vec<Sample>, Sample)> =
        parts.iter_mut().map(|part| (std::mem::take(&mut part.results.timeline), part.last[0])).collect();
    for mut part in parts {
        part.extend(end)?;
        whole.merge(part)?;
    }
    whole.results.totals.end = end;
    whole.results.timeline = sampler.merge(&timelines, end)?;
    Ok(whole)
}

/// Assigns each row to the replica that serves it.
pub(super) fn share_out(workload: &Workload, router: &mut dyn Router, shares: &mut [Vec<u32>]) -> Result<()> {
    let mut fleet = Fleet::of_size(shares.len());
    for row in 0..workload.len() {
        fleet.now = workload.arrival_at(row);
        fleet.content.read(&workload.content, row);
        let arrival = workload.request(row, fleet.now);
        fleet.prompt_tokens = arrival.prompt_tokens;
        shares[router.route(&arrival, &mut fleet)?].push(row as u32);
    }
    Ok(())
}

/// Replays the rows of one replica as a separate workload. They keep their ids.
fn run_share(
    workload: &Workload,
    rows: &[u32],
    replica: usize,
    engine: EngineParts,
    options: &Options,
    sampler: Sampler,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let mut columns = Columns::default();
    // Content is shared, not copied. Only content that continues other requests is copied, to refer to the rows of
    // this share.
    let is_linked = !workload.content.after.is_empty();
    let content = if is_linked { workload.content } else { Content::default() };
    columns.append(&Workload { content, ..*workload }, rows);
    let own = columns.view(0, workload.class_count);
    let content = if is_linked { own.content } else { Content { rows, ..workload.content } };
    let share = Workload { ids: rows, content, ..own };
    let run = Run::new(replica as u32, workload.class_count, Cluster::of_one(engine), options, sampler);
    run.complete(&share, watch)
}

/// Runs one job per replica; `done` returns its number of requests that left. If several jobs fail, the error of the
/// lowest replica is returned.
pub(super) fn run_all<Own: Send, Done: Send>(
    replicas: Vec<Own>,
    total: u64,
    threads: Option<NonZeroUsize>,
    watch: &mut dyn Watch,
    job: impl Fn(usize, Own, &mut dyn Watch) -> Result<Done> + Sync,
    mut done: impl FnMut(usize, Done) -> u64,
) -> Result<()> {
    let threads = threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let count = replicas.len();
    if threads.min(count) == 1 {
        let mut left = 0;
        for (replica, own) in replicas.into_iter().enumerate() {
            let outcome = job(replica, own, &mut OffsetWatch { watch, left, total })?;
            left += done(replica, outcome);
        }
        return Ok(());
    }
    let replicas: Vec<Mutex<Option<Own>>> = replicas.into_iter().map(|own| Mutex::new(Some(own))).collect();
    let (next, left, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    // Replicas above a failed one are irrelevant.
    let lowest_failure = AtomicUsize::new(usize::MAX);
    let mut failure: Option<(usize, Error)> = None;
    let work = || {
        let replica = next.fetch_add(1, Ordering::Relaxed);
        let own = replicas.get(replica)?.lock().ok()?.take()?;
        let mut tally = SharedWatch { seen: 0, left: &left, stop: &stop, replica, lowest_failure: &lowest_failure };
        let outcome = job(replica, own, &mut tally);
        if outcome.is_err() {
            lowest_failure.fetch_min(replica, Ordering::Relaxed);
        }
        Some((replica, outcome))
    };
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        for _ in 0..threads.min(count) {
            let (sender, work) = (sender.clone(), &work);
            scope.spawn(move || {
                while let Some(outcome) = work() {
                    if sender.send(outcome).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(POLL_EVERY) {
                Ok((replica, Ok(outcome))) => drop(done(replica, outcome)),
                Ok((replica, Err(error))) => {
                    if failure.as_ref().is_none_or(|&(lowest, _)| replica < lowest) {
                        failure = Some((replica, error));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Err(stopped) = watch.poll(left.load(Ordering::Relaxed).min(total), total) {
                stop.store(true, Ordering::Relaxed);
                return Err(stopped);
            }
        }
        failure.take().map_or(Ok(()), |(_, error)| Err(error))
    })
}

/// Interval between two polls of the caller's watch while threads work.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A watch for a sequence of replicas, with the number of requests that left before.
pub(super) struct OffsetWatch<'a> {
    pub(super) watch: &'a mut dyn Watch,
    pub(super) left: u64,
    pub(super) total: u64,
}

impl Watch for OffsetWatch<'_> {
    fn poll(&mut self, left: u64, _requests: u64) -> Result<()> {
        self.watch.poll(self.left + left, self.total)
    }
}

/// The watch of one thread: it updates the shared count, and stops when its result is not needed any more.
struct SharedWatch<'a> {
    seen: u64,
    left: &'a AtomicU64,
    stop: &'a AtomicBool,
    replica: usize,
    lowest_failure: &'a AtomicUsize,
}

impl Watch for SharedWatch<'_> {
    fn poll(&mut self, left: u64, _requests: u64) -> Result<()> {
        self.left.fetch_add(left - self.seen, Ordering::Relaxed);
        self.seen = left;
        if self.stop.load(Ordering::Relaxed) || self.lowest_failure.load(Ordering::Relaxed) < self.replica {
            return Err(Kind::Stopped.into());
        }
        Ok(())
    }
}
