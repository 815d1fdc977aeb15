//! A live run equals the run over all of its rows, bit for bit, and reports each token at its instant.

use std::collections::BTreeMap;

use inferq_core::clock::{Instant, NANOSECOND};
use inferq_core::cluster::{Cluster, HandsTo, Pool};
use inferq_core::links::LinkDescription;
use inferq_core::results::{RequestRows, Results, Status};
use inferq_core::simulation::{Live, News, Options, simulate_cluster};
use inferq_core::workload::{Columns, Workload};
use proptest::prelude::*;

use crate::fleet::{built, router};
use crate::laws::Outcome;
use crate::scenario::{Scenario, any_scenario};
use crate::streamed::{Table, lines, rows, without_limit};
use crate::tier::cases;

/// How a run is fed: the number of rows at a time, and the queries between them.
type Feeding = Vec<(usize, Vec<u32>)>;

fn feeding() -> impl Strategy<Value = Feeding> {
    let queries = prop::collection::vec(prop_oneof![Just(0), Just(1000), 0_u32..=1000], 0..4);
    prop::collection::vec((1_usize..4, queries), 1..6)
}

/// The reported tokens, and the progress of the run at each report.
#[derive(Default)]
struct Log {
    tokens: BTreeMap<u32, Vec<Instant>>,
    finished: BTreeMap<u32, Instant>,
    left: BTreeMap<u32, Status>,
    cut: BTreeMap<u32, u32>,
    known: Instant,
}

impl Log {
    /// All reported events are between the previous and the present instant of the run.
    fn note(&mut self, news: News, until: Instant) -> Outcome {
        let mut last = self.known;
        for tokens in news.tokens {
            prop_assert!(last <= tokens.at && tokens.at < until, "{last:?} {:?} {until:?}", tokens.at);
            last = tokens.at;
            for &id in &tokens.requests {
                prop_assert!(!self.finished.contains_key(&id));
                self.tokens.entry(id).or_default().push(tokens.at);
            }
            self.finished.extend(tokens.finished.iter().map(|&id| (id, tokens.at)));
        }
        self.left.extend(news.left);
        self.cut.extend(news.cut);
        self.known = self.known.max(until);
        Ok(())
    }
}

/// Feeds the rows in order, each before its arrival.
fn fed(
    scenario: &Scenario,
    feeding: &Feeding,
    cluster: Cluster,
    options: &Options,
) -> Result<(Log, Table, Results), TestCaseError> {
    let mut live = Live::new(crate::scenario::CLASSES, cluster, options).expect("a run");
    let (mut log, mut table) = (Log::default(), Table::default());
    let count = scenario.columns.arrival_s.len();
    let mut feeding = feeding.iter().cycle();
    let mut taken = 0;
    let workload = scenario.columns.view();
    let mut cancels: Vec<(Instant, usize)> = (0..count)
        .filter_map(|row| {
            Some((workload.arrival_at(row).after(workload.canceled_after(row)?).expect("an instant"), row))
        })
        .collect();
    cancels.sort();
    cancels.reverse();
    // Clients cancel requests after their arrival, and before the run reaches that instant.
    let mut cancel_requests = |until: Instant, taken: usize, live: &mut Live| {
        cancels.retain(|&(at, row)| {
            let is_due = at < until && row < taken;
            if is_due {
                live.cancel(row as u32, at).expect("a run");
            }
            !is_due
        });
    };
    while taken < count {
        let (size, queries) = feeding.next().expect("a cycle");
        let arrives = scenario.columns.view().arrival_at(taken);
        for &query in queries {
            // An instant before the next arrival, or just after the next event.
            let next = Instant(
                (live.next_instant().expect("an instant").0 / NANOSECOND).saturating_add(1).saturating_mul(NANOSECOND),
            );
            let way = arrives.since(log.known).0 / 1000 * u128::from(query);
            let until = if query == 1000 { next.min(arrives) } else { Instant(log.known.0 + way) };
            cancel_requests(until, taken, &mut live);
            let news = live.advance(until, &mut table, &mut ()).expect("a run");
            log.note(news, until)?;
        }
        let end = (taken + size).min(count);
        let part = rows(&scenario.columns, &(taken..end).collect::<Vec<usize>>());
        let first = live.arrive(&Columns { cancel_s: Vec::new(), ..part }).expect("rows");
        prop_assert_eq!(first as usize, taken);
        taken = end;
    }
    cancel_requests(Instant::NEVER, count, &mut live);
    let (news, results) = live.finish(&mut table, &mut ()).expect("a run");
    if !results.drained.is_empty() {
        // Drained tokens were due at the last event; it was not known then that nothing followed.
        log.known = Instant::ZERO;
    }
    log.note(news, Instant::NEVER)?;
    Ok((log, table, results))
}

/// The instants of all tokens, from the batches of a run.
fn emitted(results: &Results) -> BTreeMap<u32, Vec<Instant>> {
    let mut tokens: BTreeMap<u32, Vec<Instant>> = BTreeMap::new();
    for row in results.batches.iter().filter(|row| row.emits) {
        let stretch = &results.iterations[row.iteration as usize];
        let end = |iteration| stretch.start.after(stretch.pace.total(iteration).expect("a span")).expect("an instant");
        let of_each = |iteration| std::iter::repeat_n(end(iteration), row.emitted as usize);
        tokens.entry(row.request).or_default().extend((1..=stretch.count).flat_map(of_each));
    }
    tokens.values_mut().for_each(|instants| instants.sort());
    tokens
}

fn same(scenario: &Scenario, feeding: &Feeding, cluster: impl Fn() -> Cluster) -> Outcome {
    let scenario = &Scenario { horizon_s: None, ..scenario.clone() };
    let options = scenario.options(false);
    let workload: Workload = scenario.columns.view();
    let whole = simulate_cluster(&workload, cluster(), &options, &mut ()).expect("a run");
    let (log, table, results) = fed(scenario, feeding, cluster(), &options)?;
    let columns = whole.requests.columns(&workload, None);
    prop_assert_eq!(table.lines, lines(&columns, workload.class, workload.prompt_tokens, workload.output_tokens));
    let in_batches = emitted(&whole);
    // Discarded tokens are emitted again, and rows run after the last token of a request.
    let may_drop = [r#""overlap":true"#, r#""async_scheduling":true"#, "Restart"]
        .iter()
        .any(|what| scenario.engine.contains(what));
    for row in 0..workload.len() {
        let id = row as u32;
        let reported = log.tokens.get(&id).map_or(&[][..], Vec::as_slice);
        let cut = log.cut.get(&id).map_or(0, |&tokens| tokens as usize);
        match columns.status[row] {
            status if status == Status::Finished as u8 => {
                prop_assert_eq!(reported.len() + cut, workload.output_tokens[row] as usize);
                prop_assert_eq!(log.finished.get(&id), reported.last());
                prop_assert_eq!(reported.last().map(|at| at.seconds()), columns.finish_s.get(row).copied());
                prop_assert_eq!(reported[0].seconds(), columns.first_token_s[row]);
                let emitted = in_batches.get(&id).map_or(&[][..], Vec::as_slice);
                prop_assert!(
                    emitted == reported || (may_drop && emitted.len() > reported.len()),
                    "{emitted:?} {reported:?}"
                );
            }
            status if status == Status::Unfinished as u8 => {
                prop_assert!(!log.left.contains_key(&id) && !log.finished.contains_key(&id));
            }
            status => {
                prop_assert_eq!(log.left.get(&id).map(|&left| left as u8), Some(status));
                prop_assert!(reported.is_empty() || !workload.cancel_s.is_empty());
            }
        }
    }
    prop_assert_eq!(results, Results { requests: RequestRows::default(), ..whole });
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_run_that_is_fed_is_the_whole_on_one_replica(scenario in any_scenario(), feeding in feeding()) {
        same(&scenario, &feeding, || Cluster::of_one(scenario.parts()))?;
    }

    #[test]
    fn a_run_that_is_fed_is_the_whole_with_arrivals_on_iteration_boundaries(
        scenario in any_scenario(), feeding in feeding(),
    ) {
        let scenario = scenario.on_boundaries(2);
        same(&scenario, &feeding, || Cluster::of_one(scenario.parts()))?;
    }

    #[test]
    fn a_run_that_is_fed_is_the_whole_under_every_router(
        scenario in any_scenario(), feeding in feeding(), replicas in 1_usize..4, router in router(), seed: u64,
    ) {
        let cluster = || {
            let engines = (0..replicas).map(|_| scenario.parts()).collect();
            Cluster::of_pools(vec![Pool { engines, router: Some(built(router.clone(), seed, 0)), hands_to: None, capacity: None }])
        };
        same(&scenario, &feeding, cluster)?;
    }

    #[test]
    fn a_run_that_is_fed_is_the_whole_over_hand_offs(
        scenario in any_scenario(), feeding in feeding(), decode in 1_usize..3, latency_ms in 0_u32..400, router in router(),
    ) {
        // An unlimited prefix cache without requests is an error of its own.
        let scenario = Scenario { engine: without_limit(&scenario.engine), kv_tokens: None, ..scenario };
        let link = LinkDescription {
            latency_s: f64::from(latency_ms) / 1000.0, bytes_per_s: 50.0, bytes_per_token: 1.0, concurrent: None,
        };
        let pool = |count: usize, place: u64, hands_to| Pool {
            engines: (0..count).map(|_| scenario.parts()).collect(), router: Some(built(router.clone(), 3, place)), hands_to,
            capacity: None,
        };
        let cluster = || {
            let hands_to = HandsTo { pool: 1, link: link.build().expect("a link") };
            Cluster::of_pools(vec![pool(2, 0, Some(hands_to)), pool(decode, 1, None)])
        };
        same(&scenario, &feeding, cluster)?;
    }
}
