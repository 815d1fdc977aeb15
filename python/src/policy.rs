//! User-defined schedulers, written in Python.
//!
//! [`PythonScheduler`] keeps the requests of its replica, shows them as a [`View`], calls `plan(view)`, and requests
//! the difference between the returned [`PyBatch`] and the running batch. The core checks this plan like any other
//! (rule R6). Only the rules that a Rust policy cannot break are checked here.

use inferq_core::clock::Instant;
use inferq_core::clock::{Span, attoseconds};
use inferq_core::engine::{EngineParts, longest_request};
use inferq_core::error::{Error, Kind, Result};
use inferq_core::kv::KvCache;
use inferq_core::plan::{Hold, Limits, Plan, Preemption};
use inferq_core::request::{FirstToken, Phase, Place, Requests};
use inferq_core::scheduler::{Notice, Scheduler};
use inferq_core::timing::Overhead;
use inferq_core::timing::TimingModel;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::batch::{PAIRS, PyBatch, ids, integer, pairs, seconds, shortened};
use crate::border::Raised;
use crate::view::{Objectives, Progress, PyRequests, Row, Table, View};

/// Description of an engine with a user-defined scheduler.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserDefinedEngine {
    timing: TimingModel,
    scheduler: UserDefinedScheduler,
    kv: KvCache,
    first_token: FirstToken,
    #[serde(default)]
    overhead: Overhead,
    #[serde(default)]
    max_model_len: Option<u32>,
    #[serde(default)]
    api_s: f64,
}

/// Description of a user-defined scheduler.
#[derive(Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
enum UserDefinedScheduler {
    Python { name: String, token_budget: Option<u64>, max_seqs: Option<u64>, lookahead: u64 },
}

impl UserDefinedEngine {
    /// Whether the description is of such an engine.
    pub(crate) fn is_described_by(json: &str) -> bool {
        #[derive(Deserialize)]
        struct Kinds {
            scheduler: KindOf,
        }
        #[derive(Deserialize)]
        struct KindOf {
            kind: String,
        }
        inferq_core::engine::parse::<Kinds>(json).is_ok_and(|kinds| kinds.scheduler.kind == "Python")
    }

    /// Checks the fields.
    pub(crate) fn check(&self) -> Result<()> {
        self.kv.check().map_err(|error| error.within("kv"))?;
        self.scheduler.limits().map_err(|error| error.within("scheduler"))?;
        self.overhead.build().map_err(|error| error.within("overhead"))?;
        longest_request(self.max_model_len)?;
        attoseconds(self.api_s, "api_s")?;
        self.timing.build().map(drop).map_err(|error| error.within("timing"))
    }

    /// Builds one replica whose batches `policy` plans.
    pub(crate) fn build(&self, policy: PythonPolicy) -> Result<EngineParts> {
        self.check()?;
        Ok(EngineParts {
            scheduler: Box::new(PythonScheduler::new(policy, &self.scheduler, &self.kv)?),
            timing: self.timing.build()?,
            kv: self.kv.clone(),
            first_token: self.first_token,
            host: self.overhead.build()?,
            max_model_len: longest_request(self.max_model_len)?,
            api: Span(attoseconds(self.api_s, "api_s")?),
        })
    }
}

impl UserDefinedScheduler {
    fn limits(&self) -> Result<Limits> {
        let UserDefinedScheduler::Python { token_budget, max_seqs, lookahead, .. } = self;
        for (field, value) in
            [("token_budget", *token_budget), ("max_seqs", *max_seqs), ("lookahead", Some(*lookahead))]
        {
            if let Some(value) = value.filter(|value| !(1..=Limits::NONE).contains(value)) {
                return Err(Error::config(field, format!("must be from 1 to 2^40, got {value}")));
            }
        }
        Ok(Limits {
            token_budget: token_budget.unwrap_or(Limits::NONE),
            max_seqs: max_seqs.unwrap_or(Limits::NONE),
            frees_with_batch: false,
        })
    }
}

/// The Python object that plans, and the part of the workload that it may see.
pub(crate) struct PythonPolicy {
    pub(crate) object: Py<PyAny>,
    pub(crate) classes: Py<PyTuple>,
    pub(crate) objectives: Arc<Objectives>,
    /// Stores an exception raised by its `plan`.
    pub(crate) raised: Raised,
}

/// Arrival at this replica, then id.
type Order = (Instant, u32);

/// Requests in order of arrival at this replica, and the table that views show.
#[derive(Default)]
struct Listed {
    entries: Vec<(Order, Place)>,
    table: Arc<Table>,
}

impl Listed {
    fn find(&self, order: Order) -> std::result::Result<usize, usize> {
        self.entries.binary_search_by_key(&order, |&(order, _)| order)
    }

    fn insert(&mut self, index: usize, entry: (Order, Place), row: Row) {
        self.entries.insert(index, entry);
        Arc::make_mut(&mut self.table).insert(index, row);
    }

    fn remove(&mut self, index: usize) {
        self.entries.remove(index);
        Arc::make_mut(&mut self.table).remove(index);
    }
}

/// A scheduler whose batches are planned in Python.
struct PythonScheduler {
    policy: PythonPolicy,
    name: String,
    limits: Limits,
    token_budget: Option<u64>,
    max_seqs: Option<u64>,
    lookahead: usize,
    block_tokens: u64,
    has_unlimited_cache: bool,
    /// All requests of this replica, by id.
    places: BTreeMap<u32, Place>,
    queue: BTreeMap<Order, Place>,
    /// The first `lookahead` requests of the queue.
    waiting: Listed,
    running: Listed,
    /// Number of iterations of the steady decodes when the table of running requests was made.
    table_ticks: u64,
    /// Whether a running request has done anything but emit since then.
    is_outdated: bool,
    /// Ids of the decodes of the last plan. If the number of steady decodes is unchanged, the steady decodes are
    /// these.
    decodes: Vec<i64>,
    /// For each place, the number of the last plan in which it decoded.
    decoded_by: Vec<u64>,
    plans: u64,
}

/// Reason why a plan stops.
pub(crate) enum PlanError {
    /// An exception raised by the policy.
    Raised(PyErr),
    /// A broken rule.
    Broken(Error),
}

impl From<PyErr> for PlanError {
    fn from(raised: PyErr) -> PlanError {
        PlanError::Raised(raised)
    }
}

impl From<Error> for PlanError {
    fn from(error: Error) -> PlanError {
        PlanError::Broken(error)
    }
}

pub(crate) type Planned<T> = std::result::Result<T, PlanError>;

const CHUNK: &str = "a chunk has from 1 token to all tokens that its request has still to compute";
const BLOCKS: &str = "a plan takes at most the free blocks";
const WAITING: &str = "only a waiting request can be admitted";

impl PythonScheduler {
    fn new(policy: PythonPolicy, description: &UserDefinedScheduler, kv: &KvCache) -> Result<PythonScheduler> {
        let UserDefinedScheduler::Python { name, token_budget, max_seqs, lookahead } = description;
        Ok(PythonScheduler {
            policy,
            name: name.clone(),
            limits: description.limits()?,
            token_budget: *token_budget,
            max_seqs: *max_seqs,
            lookahead: *lookahead as usize,
            block_tokens: u64::from(kv.block),
            has_unlimited_cache: kv.tokens.is_none(),
            places: BTreeMap::new(),
            queue: BTreeMap::new(),
            waiting: Listed::default(),
            running: Listed::default(),
            table_ticks: 0,
            is_outdated: false,
            decodes: Vec::new(),
            decoded_by: Vec::new(),
            plans: 0,
        })
    }

    fn row(&self, place: Place, table: &Requests) -> Row {
        let history = table.history(place);
        let arrival = history.arrival;
        let (ttft_slo_s, itl_slo_s) = self.policy.objectives.reader()(arrival.id);
        Row {
            id: arrival.id,
            prompt_tokens: arrival.prompt_tokens,
            class: arrival.class,
            preemptions: history.preemptions(),
            since_s: arrival.at.seconds(),
            priority: arrival.priority,
            ttft_slo_s,
            itl_slo_s,
            progress: progress(place, table),
        }
    }

    fn enter_queue(&mut self, place: Place, table: &Requests) {
        let order = table.order(place);
        self.queue.insert(order, place);
        if let Err(index) = self.waiting.find(order)
            && index < self.lookahead
        {
            self.waiting.insert(index, (order, place), self.row(place, table));
            if self.waiting.entries.len() > self.lookahead {
                self.waiting.remove(self.lookahead);
            }
        }
    }

    fn leave_queue(&mut self, place: Place, table: &Requests) {
        let order = table.order(place);
        self.queue.remove(&order);
        let Ok(index) = self.waiting.find(order) else { return };
        self.waiting.remove(index);
        let shown = self.waiting.entries.len();
        let after = self.waiting.entries.last().map_or(Bound::Unbounded, |&(last, _)| Bound::Excluded(last));
        if let Some((&order, &place)) = self.queue.range((after, Bound::Unbounded)).next() {
            self.waiting.insert(shown, (order, place), self.row(place, table));
        }
    }

    /// Moves a running request back to the queue, or removes it. Returns whether it was running.
    fn stop_running(&mut self, place: Place, table: &Requests) -> bool {
        let index = self.running.find(table.order(place));
        if let Ok(index) = index {
            self.running.remove(index);
        }
        index.is_ok()
    }

    /// Moves a waiting request to the running ones.
    fn start_running(&mut self, place: Place, table: &Requests) {
        self.leave_queue(place, table);
        let order = table.order(place);
        if let Err(index) = self.running.find(order) {
            self.running.insert(index, (order, place), self.row(place, table));
        }
    }

    fn show(&mut self, py: Python, plan: &Plan) -> PyResult<View> {
        let requests = plan.requests();
        let ticks = requests.ticks(0);
        if self.is_outdated {
            let places = self.running.entries.iter().map(|&(_, place)| place);
            Arc::make_mut(&mut self.running.table).renew(places.map(|place| progress(place, requests)));
            self.table_ticks = ticks;
            self.is_outdated = false;
        }
        let iterations = ticks - self.table_ticks;
        debug_assert!(
            self.matches_replica(&self.running, iterations, plan),
            "the view's running requests match the replica"
        );
        debug_assert!(self.matches_replica(&self.waiting, 0, plan), "the view's waiting requests match the replica");
        let show = |listed: &Listed, iterations| {
            Py::new(py, PyRequests::new(Arc::clone(&listed.table), iterations, self.block_tokens))
        };
        Ok(View {
            now_s: plan.now().seconds(),
            drain: plan.drain(),
            token_budget: self.token_budget,
            max_seqs: self.max_seqs,
            free_blocks: (!self.has_unlimited_cache).then(|| plan.free_blocks_before_decodes()),
            block_tokens: self.block_tokens,
            classes: self.policy.classes.clone_ref(py),
            running: show(&self.running, iterations)?,
            waiting: show(&self.waiting, 0)?,
            queue_length: plan.waiting(),
        })
    }

    /// Whether a table matches the state of the replica.
    fn matches_replica(&self, listed: &Listed, iterations: u64, plan: &Plan) -> bool {
        let (iterations, block_tokens) = (iterations as i64, self.block_tokens as i64);
        let shown = listed.table.rows().iter().map(|row| row.progress.after(iterations, block_tokens));
        listed.table.rows().len() == listed.entries.len()
            && shown.zip(&listed.entries).all(|(shown, &(_, place))| {
                let blocks = used_blocks(plan, place) as i64;
                shown == Progress { blocks, ..progress(place, plan.requests()) }
            })
    }

    fn call_policy(&mut self, py: Python, plan: &mut Plan) -> Planned<()> {
        let view = self.show(py, plan)?;
        let answer = self.policy.object.bind(py).call_method1(intern!(py, "plan"), (view,))?;
        if answer.is_none() {
            return self.decode(Vec::new(), plan);
        }
        let Ok(batch) = answer.cast::<PyBatch>() else {
            let detail = format!("{} returned {}", self.name, shortened(&answer));
            return Err(broken(plan, "plan(view) returns an iq.Batch or None", detail));
        };
        let PyBatch { decode, prefill, admit, preempt, repeat, wake_at_s } = batch.get();
        let preempt = ids("preempt", preempt, py, plan)?;
        let decode = ids("decode", decode, py, plan)?;
        let prefill = pairs("prefill", prefill, py, plan)?;
        let mut admissions = BTreeMap::new();
        for (id, tokens) in pairs("admit", admit, py, plan)? {
            let (id, _) = self.find(id, plan)?;
            if admissions.insert(id, tokens).is_some() {
                return Err(broken(plan, WAITING, request(id)));
            }
        }
        for &id in &preempt {
            let (_, place) = self.find(id, plan)?;
            plan.preempt(place, Preemption::Recompute)?;
            self.stop_running(place, plan.requests());
            self.enter_queue(place, plan.requests());
        }
        let is_empty = preempt.is_empty() && decode.is_empty() && prefill.is_empty();
        self.decode(decode, plan)?;
        for &(id, tokens) in &prefill {
            self.chunk(id, tokens, &mut admissions, plan)?;
        }
        if let Some(&id) = admissions.keys().next() {
            let (_, place) = self.find(id.into(), plan)?;
            let is_waiting = plan.requests().at(place).phase() == Phase::Waiting;
            let rule =
                if is_waiting { "a request is admitted by the batch that computes its first chunk" } else { WAITING };
            return Err(broken(plan, rule, request(id)));
        }
        self.set_validity(repeat, wake_at_s, is_empty, py, plan)
    }

    /// Looks up a request of this replica by id.
    fn find(&self, id: i64, plan: &Plan) -> Planned<(u32, Place)> {
        let find = |id: u32| self.places.get(&id).map(|&place| (id, place));
        let entry = u32::try_from(id).ok().and_then(find);
        entry.ok_or_else(|| broken(plan, "a plan names only requests of this replica", request(id)))
    }

    /// Sets the steady decodes to these ids.
    fn decode(&mut self, ids: Vec<i64>, plan: &mut Plan) -> Planned<()> {
        if plan.decodes() != ids.len() as u64 || ids != self.decodes {
            self.change_decodes(&ids, plan)?;
            self.decodes = ids;
        }
        if plan.free_blocks() < 0 {
            let mut left = plan.free_blocks_before_decodes();
            for &id in &self.decodes {
                let (id, place) = self.find(id, plan)?;
                let blocks = plan.new_blocks(place, 1);
                left = left.checked_sub(blocks).ok_or_else(|| broken(plan, BLOCKS, request(id)))?;
            }
        }
        Ok(())
    }

    fn change_decodes(&mut self, ids: &[i64], plan: &mut Plan) -> Planned<()> {
        self.plans += 1;
        self.is_outdated = true;
        let mut joining = Vec::new();
        let mut next = 0;
        for &id in ids {
            // Most policies list ids in order of arrival and leave few out.
            let few = self.running.entries.iter().enumerate().skip(next).take(4);
            let entry = few.into_iter().find(|(_, ((_, request), _))| i64::from(*request) == id);
            let (id, place) = match entry {
                Some((index, &((_, id), place))) => {
                    next = index + 1;
                    (id, place)
                }
                None => self.find(id, plan)?,
            };
            if self.decoded_by.len() <= place.index() {
                self.decoded_by.resize(place.index() + 1, 0);
            }
            if std::mem::replace(&mut self.decoded_by[place.index()], self.plans) == self.plans {
                return Err(broken(plan, "a request decodes once in an iteration", request(id)));
            }
            let request_row = plan.requests().at(place);
            match request_row.phase() {
                Phase::Decoding => {}
                Phase::Started if !request_row.is_ready() => {
                    return Err(broken(plan, "no decode before the prompt is complete", request(id)));
                }
                _ => joining.push(place),
            }
        }
        if plan.decodes() > (ids.len() - joining.len()) as u64 {
            for &(_, place) in &self.running.entries {
                let decodes = plan.requests().at(place).phase() == Phase::Decoding;
                if decodes && self.decoded_by[place.index()] != self.plans {
                    plan.pause(place)?;
                }
            }
        }
        for place in joining {
            plan.decode(place)?;
        }
        Ok(())
    }

    /// Computes a chunk, and admits the request first if it waits.
    fn chunk(&mut self, id: i64, tokens: i64, admissions: &mut BTreeMap<u32, i64>, plan: &mut Plan) -> Planned<()> {
        let (id, place) = self.find(id, plan)?;
        let request_row = plan.requests().at(place);
        let owed = if request_row.is_ready() { 0 } else { request_row.owed() };
        let tokens = u64::try_from(tokens).ok().filter(|tokens| (1..=owed).contains(tokens));
        let tokens = tokens.ok_or_else(|| broken(plan, CHUNK, request(id)))?;
        self.is_outdated = true;
        if plan.requests().at(place).phase() == Phase::Waiting {
            let block_tokens = match admissions.remove(&id) {
                None => tokens,
                Some(block_tokens) if block_tokens > Limits::NONE as i64 => {
                    return Err(broken(plan, BLOCKS, request(id)));
                }
                Some(block_tokens) => u64::try_from(block_tokens)
                    .map_err(|_| broken(plan, PAIRS, format!("admit: ({id}, {block_tokens})")))?,
            };
            plan.admit(place, block_tokens)?;
            self.start_running(place, plan.requests());
        }
        // Tokens in the prefix cache need not be computed; a policy does not see this before admission.
        let owed = plan.requests().owed(place);
        Ok(plan.chunk(place, tokens.min(owed))?)
    }

    /// Reads for how long the plan holds, and when to call the policy again.
    fn set_validity(
        &self,
        repeat: &Py<PyAny>,
        wake_at_s: &Option<Py<PyAny>>,
        is_empty: bool,
        py: Python,
        plan: &mut Plan,
    ) -> Planned<()> {
        let repeat = repeat.bind(py);
        let times = integer(repeat).and_then(|times| u64::try_from(times).ok()).filter(|&times| times > 0);
        let Some(iterations) = times else {
            let detail = format!("repeat={}", shortened(repeat));
            return Err(broken(plan, "repeat is a positive integer", detail));
        };
        plan.hold(Hold { iterations, through_arrivals: false });
        if let Some(wake_at_s) = wake_at_s {
            let wake_at_s = wake_at_s.bind(py);
            let at = seconds(wake_at_s).filter(|&at| !is_empty || at > plan.now());
            let Some(at) = at else {
                let detail = format!("wake_at_s={}", shortened(wake_at_s));
                return Err(broken(plan, "wake_at_s is a time in seconds, after now_s if the batch is empty", detail));
            };
            plan.wake_at(at);
        }
        Ok(())
    }
}

impl Scheduler for PythonScheduler {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn notice(&mut self, notice: Notice, table: &Requests) {
        match notice {
            Notice::Arrived(place) => {
                self.places.insert(table.at(place).id, place);
                self.enter_queue(place, table);
            }
            Notice::Ready(_) => self.is_outdated = true,
            Notice::Preempted(place) => {
                self.stop_running(place, table);
                self.enter_queue(place, table);
            }
            Notice::Left(place) => {
                self.places.remove(&table.at(place).id);
                if !self.stop_running(place, table) {
                    self.leave_queue(place, table);
                }
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        Python::attach(|py| self.call_policy(py, plan)).map_err(|error| match error {
            PlanError::Broken(error) => error,
            PlanError::Raised(raised) => self.policy.raised.keep(raised),
        })
    }
}

/// Progress of a request.
fn progress(place: Place, table: &Requests) -> Progress {
    let request = table.at(place);
    Progress {
        context: table.context(place) as i64,
        emitted: table.emitted(place) as i64,
        blocks: request.blocks() as i64,
        emits: request.phase() == Phase::Decoding,
        decodes: request.is_ready(),
    }
}

/// Blocks of a request: `MANY` minus the blocks that it lacks for `MANY` tokens.
fn used_blocks(plan: &Plan, place: Place) -> u64 {
    const MANY: u64 = Limits::NONE;
    plan.blocks(plan.requests().context(place) + MANY) - plan.new_blocks(place, MANY)
}

pub(crate) fn broken(plan: &Plan, rule: &'static str, detail: String) -> PlanError {
    Error::from(Kind::Rule { at_s: plan.now().seconds().to_string(), rule, what: detail }).into()
}

fn request(id: impl std::fmt::Display) -> String {
    format!("request {id}")
}
