//! How do replicas that know nothing of one another run, on as many threads as there are?
//!
//! Where the router looks at nothing, every request's replica is known before the run. So each replica replays its own
//! requests as a workload of its own, and the results are put together. The order in which threads finish reaches
//! nothing (law L6): rows are apart, everything else is a sum of whole numbers or is sorted.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::outcome::Outcome;
use super::run::Run;
use super::sampler::Sampler;
use super::{Options, Watch};
use crate::clock::Instant;
use crate::cluster::Cluster;
use crate::engine::EngineParts;
use crate::error::{Error, Kind, Result};
use crate::histogram::Histogram;
use crate::minima::Minima;
use crate::results::{RequestColumns, Sample};
use crate::router::{Fleet, Router};
use crate::workload::Workload;

/// Replays a workload through replicas behind a router that looks at nothing.
pub(super) fn simulate(
    workload: &Workload,
    engines: Vec<EngineParts>,
    router: &mut dyn Router,
    options: &Options,
    sampler: Sampler,
    watch: &mut dyn Watch,
) -> Result<crate::results::Results> {
    let shares = shares(workload, engines.len(), router)?;
    let mut whole = Outcome::default();
    let mut requests = RequestColumns::new(options.rows(workload));
    whole.results.tbt = vec![Histogram::default(); workload.class_count];
    let mut parts: Vec<Option<Outcome>> = Vec::new();
    parts.resize_with(engines.len(), || None);
    let job = |replica: usize, engine: EngineParts, watch: &mut dyn Watch| {
        run_share(workload, &shares[replica], replica, engine, options, sampler, watch)
    };
    let total = options.rows(workload) as u64;
    let done = |replica: usize, mut outcome: Outcome| {
        // The largest part of an outcome goes to its place at once, so that it is never there twice.
        requests.scatter(&std::mem::take(&mut outcome.results.requests), &shares[replica]);
        parts[replica] = Some(outcome);
    };
    run_all(engines, total, options.threads, watch, job, done)?;
    whole.results.requests = requests;
    let mut parts: Vec<Outcome> = parts.into_iter().flatten().collect();
    let end = parts.iter().map(|part| part.results.totals.end).max().unwrap_or(Instant::ZERO);
    let timelines: Vec<(Vec<Sample>, Sample)> =
        parts.iter_mut().map(|part| (std::mem::take(&mut part.results.timeline), part.last[0])).collect();
    for (mut part, rows) in parts.into_iter().zip(&shares) {
        part.extend(end)?;
        whole.merge(part, rows)?;
    }
    whole.results.totals.end = end;
    whole.results.timeline = sampler.merge(&timelines, end)?;
    whole.results(workload, options)
}

/// The rows of each replica.
fn shares(workload: &Workload, replicas: usize, router: &mut dyn Router) -> Result<Vec<Vec<u32>>> {
    let unseen = Minima::new(replicas, 0, u32::MAX);
    let mut shares = vec![Vec::new(); replicas];
    for row in 0..workload.len() {
        let at = workload.arrival_at(row);
        let fleet = Fleet { replicas: &[], requests: &unseen, now: at };
        shares[router.route(&workload.request(row, at), &fleet)?].push(row as u32);
    }
    Ok(shares)
}

/// Replays the rows of one replica as a workload of its own.
fn run_share(
    workload: &Workload,
    rows: &[u32],
    replica: usize,
    engine: EngineParts,
    options: &Options,
    sampler: Sampler,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let columns = Columns::of(workload, rows);
    let place = |id: u32| rows.partition_point(|&row| row < id) as u32;
    let measured = place(options.measured.start)..place(options.measured.end);
    let options = Options { measured, ..options.clone() };
    let cluster = Cluster::of_one(engine);
    Run::numbered(replica as u32, &columns.view(workload), cluster, &options, sampler)?.complete(watch)
}

/// A part of a workload's rows.
struct Columns {
    arrival_s: Vec<f64>,
    prompt_tokens: Vec<i32>,
    output_tokens: Vec<i32>,
    class: Vec<u32>,
    priority: Vec<i64>,
    patience_s: Vec<f64>,
    tbt_slo_s: Vec<f64>,
    queue_key: Vec<f64>,
}

impl Columns {
    fn of(workload: &Workload, rows: &[u32]) -> Columns {
        fn pick<T: Copy>(column: &[T], rows: &[u32]) -> Vec<T> {
            if column.is_empty() { Vec::new() } else { rows.iter().map(|&row| column[row as usize]).collect() }
        }
        Columns {
            arrival_s: pick(workload.arrival_s, rows),
            prompt_tokens: pick(workload.prompt_tokens, rows),
            output_tokens: pick(workload.output_tokens, rows),
            class: pick(workload.class, rows),
            priority: pick(workload.priority, rows),
            patience_s: pick(workload.patience_s, rows),
            tbt_slo_s: pick(workload.tbt_slo_s, rows),
            queue_key: pick(workload.queue_key, rows),
        }
    }

    /// Sessions and pools have done their part: the router has decided.
    fn view<'a>(&'a self, workload: &Workload) -> Workload<'a> {
        Workload {
            arrival_s: &self.arrival_s,
            prompt_tokens: &self.prompt_tokens,
            output_tokens: &self.output_tokens,
            class: &self.class,
            class_count: workload.class_count,
            priority: &self.priority,
            patience_s: &self.patience_s,
            tbt_slo_s: &self.tbt_slo_s,
            queue_key: &self.queue_key,
            ..Workload::default()
        }
    }
}

/// Runs one job for each engine. If several fail, the error is that of the lowest replica.
fn run_all(
    engines: Vec<EngineParts>,
    total: u64,
    threads: Option<NonZeroUsize>,
    watch: &mut dyn Watch,
    job: impl Fn(usize, EngineParts, &mut dyn Watch) -> Result<Outcome> + Sync,
    mut done: impl FnMut(usize, Outcome),
) -> Result<()> {
    let threads = threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let count = engines.len();
    if threads.min(count) == 1 {
        let mut left = 0;
        for (replica, engine) in engines.into_iter().enumerate() {
            let outcome = job(replica, engine, &mut Offset { watch, left, total })?;
            left += outcome.results.requests.status.len() as u64;
            done(replica, outcome);
        }
        return Ok(());
    }
    let engines: Vec<Mutex<Option<EngineParts>>> = engines.into_iter().map(|engine| Mutex::new(Some(engine))).collect();
    let (next, left, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    // No replica above one that failed matters any more.
    let lowest_failure = AtomicUsize::new(usize::MAX);
    let mut failure: Option<(usize, Error)> = None;
    let work = || {
        let replica = next.fetch_add(1, Ordering::Relaxed);
        let engine = engines.get(replica)?.lock().ok()?.take()?;
        let mut tally = Tally { seen: 0, left: &left, stop: &stop, replica, lowest_failure: &lowest_failure };
        let outcome = job(replica, engine, &mut tally);
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
                Ok((replica, Ok(outcome))) => done(replica, outcome),
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

/// How often the caller's watch is asked while threads work.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The watch of one replica after another: so many have left before.
struct Offset<'a> {
    watch: &'a mut dyn Watch,
    left: u64,
    total: u64,
}

impl Watch for Offset<'_> {
    fn poll(&mut self, left: u64, _requests: u64) -> Result<()> {
        self.watch.poll(self.left + left, self.total)
    }
}

/// The watch of one thread: adds to the common count, and stops when nobody needs it any more.
struct Tally<'a> {
    seen: u64,
    left: &'a AtomicU64,
    stop: &'a AtomicBool,
    replica: usize,
    lowest_failure: &'a AtomicUsize,
}

impl Watch for Tally<'_> {
    fn poll(&mut self, left: u64, _requests: u64) -> Result<()> {
        self.left.fetch_add(left - self.seen, Ordering::Relaxed);
        self.seen = left;
        if self.stop.load(Ordering::Relaxed) || self.lowest_failure.load(Ordering::Relaxed) < self.replica {
            return Err(Kind::Stopped.into());
        }
        Ok(())
    }
}
