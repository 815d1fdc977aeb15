//! User-defined schedulers, written in Python.
//!
//! [`PythonScheduler`] keeps the requests that are here, shows them as a [`View`], calls `plan(view)`, and asks the core
//! for the difference between the [`PyBatch`] that comes back and what runs already. The core checks it as any other
//! (rule 6); here are only the rules that a Rust policy cannot break.

use inferq_core::clock::Instant;
use inferq_core::engine::EngineParts;
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
use std::sync::Arc;

use crate::batch::{PAIRS, PyBatch, ids, pairs, seconds, shortened, whole};
use crate::border::Raised;
use crate::view::{Member, Members, Objectives, Progress, PyRequests, View};

/// An engine with a user-defined scheduler, as its description says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserDefinedEngine {
    timing: TimingModel,
    scheduler: UserDefinedScheduler,
    kv: KvCache,
    first_token: FirstToken,
    #[serde(default)]
    overhead: Overhead,
}

/// What the core must know of a user-defined scheduler.
#[derive(Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
enum UserDefinedScheduler {
    Python { name: String, token_budget: Option<u64>, max_seqs: Option<u64>, lookahead: u64 },
}

impl UserDefinedEngine {
    /// Is this the description of such an engine?
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

    /// Tests the fields.
    pub(crate) fn check(&self) -> Result<()> {
        self.kv.check().map_err(|error| error.within("kv"))?;
        self.scheduler.limits().map_err(|error| error.within("scheduler"))?;
        self.overhead.build().map_err(|error| error.within("overhead"))?;
        self.timing.build().map(drop).map_err(|error| error.within("timing"))
    }

    /// The parts of one replica whose batches `policy` plans.
    pub(crate) fn build(&self, policy: PythonPolicy) -> Result<EngineParts> {
        self.check()?;
        Ok(EngineParts {
            scheduler: Box::new(PythonScheduler::new(policy, &self.scheduler, &self.kv)?),
            timing: self.timing.build()?,
            kv: self.kv.clone(),
            first_token: self.first_token,
            host: self.overhead.build()?,
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
                return Err(Error::config(field, format!("{value}: it must be at least 1 and at most 2^40")));
            }
        }
        Ok(Limits {
            token_budget: token_budget.unwrap_or(Limits::NONE),
            max_seqs: max_seqs.unwrap_or(Limits::NONE),
            frees_with_batch: false,
        })
    }
}

/// The Python object that plans, and what of the workload it may see.
pub(crate) struct PythonPolicy {
    pub(crate) object: Py<PyAny>,
    pub(crate) classes: Py<PyTuple>,
    pub(crate) objectives: Arc<Objectives>,
    /// Where an exception goes that its `plan` raises.
    pub(crate) raised: Raised,
}

/// A request that was admitted.
#[derive(Clone, Copy)]
struct Running {
    place: Place,
    /// Everything that it owed is computed: its next row is a decode.
    is_ready: bool,
}

/// Requests in the order of their arrival here, found by their ids.
struct ByArrival<T> {
    in_order: BTreeMap<(Instant, u32), T>,
    arrivals: BTreeMap<u32, Instant>,
}

impl<T> ByArrival<T> {
    fn new() -> ByArrival<T> {
        ByArrival { in_order: BTreeMap::new(), arrivals: BTreeMap::new() }
    }

    fn insert(&mut self, (at, id): (Instant, u32), value: T) {
        self.arrivals.insert(id, at);
        self.in_order.insert((at, id), value);
    }

    fn get(&self, id: u32) -> Option<&T> {
        self.in_order.get(&(*self.arrivals.get(&id)?, id))
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.in_order.get_mut(&(*self.arrivals.get(&id)?, id))
    }

    fn remove(&mut self, id: u32) -> Option<(Instant, T)> {
        let at = self.arrivals.remove(&id)?;
        self.in_order.remove(&(at, id)).map(|value| (at, value))
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.in_order.values()
    }

    fn len(&self) -> usize {
        self.in_order.len()
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
    waiting: ByArrival<Place>,
    running: ByArrival<Running>,
    /// What was shown last, as long as it is still true.
    shown_waiting: Option<Py<PyRequests>>,
    shown_running: Option<Arc<Members>>,
    /// For each place, the number of the last plan that let it decode.
    decoded_by: Vec<u64>,
    plans: u64,
}

/// What stops a plan.
pub(crate) enum Trouble {
    /// An exception of the policy's own.
    Raised(PyErr),
    /// A broken rule.
    Broken(Error),
}

impl From<PyErr> for Trouble {
    fn from(raised: PyErr) -> Trouble {
        Trouble::Raised(raised)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Broken(error)
    }
}

pub(crate) type Planned<T> = std::result::Result<T, Trouble>;

const OWED: &str = "a chunk holds at least 1 token and at most those that its request owes";
const BLOCKS: &str = "no more blocks are taken than are free";
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
            waiting: ByArrival::new(),
            running: ByArrival::new(),
            shown_waiting: None,
            shown_running: None,
            decoded_by: Vec::new(),
            plans: 0,
        })
    }

    /// A running request waits again.
    fn stops(&mut self, id: u32) {
        self.shown_running = None;
        self.shown_waiting = None;
        if let Some((at, Running { place, .. })) = self.running.remove(id) {
            self.waiting.insert((at, id), place);
        }
    }

    /// A waiting request runs.
    fn starts(&mut self, id: u32) {
        self.shown_running = None;
        self.shown_waiting = None;
        if let Some((at, place)) = self.waiting.remove(id) {
            self.running.insert((at, id), Running { place, is_ready: false });
        }
    }

    fn members(&self, places: impl Iterator<Item = Place>, table: &Requests) -> Arc<Members> {
        let objectives = self.policy.objectives.reader();
        let member = |place: Place| {
            let history = table.history(place);
            let arrival = history.arrival;
            let (ttft_slo_s, tbt_slo_s) = objectives(arrival.id);
            Member {
                id: arrival.id,
                at: arrival.at,
                prompt_tokens: arrival.prompt_tokens,
                class: arrival.class,
                priority: arrival.priority,
                preemptions: history.preemptions(),
                ttft_slo_s,
                tbt_slo_s,
            }
        };
        Arc::new(Members::new(places.map(member).collect()))
    }

    fn show(&mut self, py: Python, plan: &Plan) -> PyResult<View> {
        let table = plan.requests();
        let progress = |Running { place, is_ready }| Progress {
            context: table.context(place) as i64,
            emitted: table.emitted(place) as i64,
            blocks: held(plan, place) as i64,
            decodes: is_ready,
        };
        let waiting = match &self.shown_waiting {
            Some(waiting) => waiting.clone_ref(py),
            None => {
                let first = || self.waiting.values().take(self.lookahead).copied();
                let waits = |place| progress(Running { place, is_ready: false });
                let waiting = PyRequests::new(self.members(first(), table), first().map(waits).collect());
                self.shown_waiting.insert(Py::new(py, waiting)?).clone_ref(py)
            }
        };
        let members = match &self.shown_running {
            Some(members) => Arc::clone(members),
            None => {
                let members = self.members(self.running.values().map(|running| running.place), table);
                Arc::clone(self.shown_running.insert(members))
            }
        };
        Ok(View {
            now_s: plan.now().seconds(),
            drain: plan.drain(),
            token_budget: self.token_budget,
            max_seqs: self.max_seqs,
            free_blocks: (!self.has_unlimited_cache).then(|| plan.free_blocks_before_decodes()),
            block_tokens: self.block_tokens,
            classes: self.policy.classes.clone_ref(py),
            running: Py::new(py, PyRequests::new(members, self.running.values().copied().map(progress).collect()))?,
            waiting,
            queue_length: plan.waiting(),
        })
    }

    fn ask(&mut self, py: Python, plan: &mut Plan) -> Planned<()> {
        let view = self.show(py, plan)?;
        let answer = self.policy.object.bind(py).call_method1(intern!(py, "plan"), (view,))?;
        if answer.is_none() {
            return self.decode(&[], plan);
        }
        let Ok(batch) = answer.cast::<PyBatch>() else {
            let what = format!("{} returned {}", self.name, shortened(&answer));
            return Err(broken(plan, "plan(view) returns an iq.Batch or None", what));
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
            let (id, Running { place, .. }) = self.find(id, plan)?;
            plan.preempt(place, Preemption::Recompute)?;
            self.stops(id);
        }
        self.decode(&decode, plan)?;
        for &(id, tokens) in &prefill {
            self.chunk(id, tokens, &mut admissions, plan)?;
        }
        if let Some(&id) = admissions.keys().next() {
            let is_waiting = self.waiting.get(id).is_some();
            let rule = if is_waiting { "a request is admitted by the batch that it is in" } else { WAITING };
            return Err(broken(plan, rule, request(id)));
        }
        let is_empty = preempt.is_empty() && decode.is_empty() && prefill.is_empty();
        self.say_when(repeat, wake_at_s, is_empty, py, plan)
    }

    /// The request that is here under an id; one that waits is not ready.
    fn find(&self, id: i64, plan: &Plan) -> Planned<(u32, Running)> {
        let find = |id: u32| {
            let waits = || self.waiting.get(id).map(|&place| Running { place, is_ready: false });
            self.running.get(id).copied().or_else(waits).map(|here| (id, here))
        };
        let here = u32::try_from(id).ok().and_then(find);
        here.ok_or_else(|| broken(plan, "a plan names only requests that are here", request(id)))
    }

    /// Makes the standing decodes those with these ids.
    fn decode(&mut self, ids: &[i64], plan: &mut Plan) -> Planned<()> {
        self.plans += 1;
        let mut joining = Vec::new();
        for &id in ids {
            let (id, Running { place, is_ready }) = self.find(id, plan)?;
            if self.decoded_by.len() <= place.index() {
                self.decoded_by.resize(place.index() + 1, 0);
            }
            if std::mem::replace(&mut self.decoded_by[place.index()], self.plans) == self.plans {
                return Err(broken(plan, "a request decodes once in an iteration", request(id)));
            }
            match plan.requests().at(place).phase() {
                Phase::Decoding => {}
                Phase::Started if !is_ready => {
                    return Err(broken(plan, "no decode before the prompt is complete", request(id)));
                }
                _ => joining.push(place),
            }
        }
        if plan.decodes() > (ids.len() - joining.len()) as u64 {
            for &Running { place, .. } in self.running.values() {
                let decodes = plan.requests().at(place).phase() == Phase::Decoding;
                if decodes && self.decoded_by[place.index()] != self.plans {
                    plan.pause(place)?;
                }
            }
        }
        for place in joining {
            plan.decode(place)?;
        }
        if plan.free_blocks() < 0 {
            let mut left = plan.free_blocks_before_decodes();
            for &id in ids {
                let (id, Running { place, .. }) = self.find(id, plan)?;
                let blocks = plan.new_blocks(place, 1);
                left = left.checked_sub(blocks).ok_or_else(|| broken(plan, BLOCKS, request(id)))?;
            }
        }
        Ok(())
    }

    /// Computes a chunk, of a request that waits after admitting it.
    fn chunk(&mut self, id: i64, tokens: i64, admissions: &mut BTreeMap<u32, i64>, plan: &mut Plan) -> Planned<()> {
        let (id, Running { place, is_ready }) = self.find(id, plan)?;
        let owed = if is_ready { 0 } else { plan.requests().owed(place) };
        let tokens = u64::try_from(tokens).ok().filter(|tokens| (1..=owed).contains(tokens));
        let tokens = tokens.ok_or_else(|| broken(plan, OWED, request(id)))?;
        if plan.requests().at(place).phase() == Phase::Waiting {
            let taken = match admissions.remove(&id) {
                None => tokens,
                Some(taken) if taken > Limits::NONE as i64 => return Err(broken(plan, BLOCKS, request(id))),
                Some(taken) => {
                    u64::try_from(taken).map_err(|_| broken(plan, PAIRS, format!("admit: ({id}, {taken})")))?
                }
            };
            plan.admit(place, taken)?;
            self.starts(id);
        }
        // What the prefix cache has of it is no longer owed; a policy does not see that before.
        let owed = plan.requests().owed(place);
        Ok(plan.chunk(place, tokens.min(owed))?)
    }

    /// For how long the plan holds, and when the policy wants to be asked again.
    fn say_when(
        &self,
        repeat: &Py<PyAny>,
        wake_at_s: &Option<Py<PyAny>>,
        is_empty: bool,
        py: Python,
        plan: &mut Plan,
    ) -> Planned<()> {
        let repeat = repeat.bind(py);
        let times = whole(repeat).and_then(|times| u64::try_from(times).ok()).filter(|&times| times > 0);
        let Some(iterations) = times else {
            let what = format!("repeat={}", shortened(repeat));
            return Err(broken(plan, "repeat is a whole number, at least 1", what));
        };
        plan.hold(Hold { iterations, through_arrivals: false });
        if let Some(wake_at_s) = wake_at_s {
            let wake_at_s = wake_at_s.bind(py);
            let at = seconds(wake_at_s).filter(|&at| !is_empty || at > plan.now());
            let Some(at) = at else {
                let what = format!("wake_at_s={}", shortened(wake_at_s));
                return Err(broken(plan, "wake_at_s is a time in seconds, after now_s if the batch is empty", what));
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
                // It is the last one: behind those that are shown, it changes nothing.
                if self.waiting.len() < self.lookahead {
                    self.shown_waiting = None;
                }
                self.waiting.insert(table.order(place), place);
            }
            Notice::Ready(place) => {
                if let Some(running) = self.running.get_mut(table.at(place).id) {
                    running.is_ready = true;
                }
            }
            Notice::Preempted(place) => self.stops(table.at(place).id),
            Notice::Left(place) => {
                let id = table.at(place).id;
                if self.running.remove(id).is_some() {
                    self.shown_running = None;
                } else {
                    self.waiting.remove(id);
                    self.shown_waiting = None;
                }
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        Python::attach(|py| self.ask(py, plan)).map_err(|trouble| match trouble {
            Trouble::Broken(error) => error,
            Trouble::Raised(raised) => self.policy.raised.keep(raised),
        })
    }
}

/// Blocks that a request holds: those that it does not lack of many.
fn held(plan: &Plan, place: Place) -> u64 {
    const MANY: u64 = Limits::NONE;
    plan.blocks(plan.requests().context(place) + MANY) - plan.new_blocks(place, MANY)
}

#[cold]
pub(crate) fn broken(plan: &Plan, rule: &'static str, what: String) -> Trouble {
    Error::from(Kind::Rule { at_s: plan.now().seconds().to_string(), rule, what }).into()
}

fn request(id: impl std::fmt::Display) -> String {
    format!("request {id}")
}
