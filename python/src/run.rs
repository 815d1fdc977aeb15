//! One simulation: a scenario and columns in, columns out.

use inferq_core::autoscaler::{AutoscalerDescription, ScalingConfig};
use inferq_core::clock::{Instant, Span, attoseconds};
use inferq_core::cluster::{Capacity, Cluster, HandsTo, Pool};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::error::{Error, Result};
use inferq_core::failures::FailuresDescription;
use inferq_core::gate_and_route::GateAndRoute;
use inferq_core::links::LinkDescription;
use inferq_core::router::{Router, RouterConfig};
use inferq_core::simulation::{Options, Timeline, simulate_cluster};
use inferq_core::workload::Class;
use inferq_core::workload::{Accepted, Content, Flow, Workload};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde_json::value::RawValue;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::sync::Arc;

use crate::border::{Poller, Raised};
use crate::policy::{PythonPolicy, UserDefinedEngine};
use crate::requests::{PyRequestRows, WorkloadColumns};
use crate::router::PythonRouter;
use crate::scaler::PythonScaler;
use crate::tables::tables;
use crate::view::Objectives;

/// Options of `simulate` besides the workload.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pools: Vec<PoolDescription>,
    /// Control in front of the only pool, if any.
    pub(crate) gate_and_route: Option<GateAndRoute>,
    /// Seed of the routers. The workload has been drawn already.
    seed: u64,
    horizon_s: Option<f64>,
    pub(crate) warmup: Cut,
    pub(crate) cooldown: Cut,
    timeline_s: Option<f64>,
    /// Gaps in seconds for which the gaps at or below are counted exactly. Default: none.
    #[serde(default)]
    itl_limits_s: Vec<f64>,
    iterations: bool,
    batches: bool,
    stepping: bool,
    /// Limit of requests in flight, above which no request is sent. Default: none.
    pub(crate) max_in_flight: Option<NonZeroU64>,
}

/// Part excluded from measurement at one end of the workload.
#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cut {
    Requests(u64),
    Seconds(f64),
}

impl Scenario {
    /// Builds the options; `measured` is the range of measured ids.
    pub(crate) fn options(&self, measured: Range<u32>, threads: Option<NonZeroUsize>) -> Result<Options> {
        let timeline = match self.timeline_s {
            None => Timeline::Automatic,
            Some(0.0) => return Err(Error::config("timeline_s", "must be positive, got 0")),
            Some(seconds) => Timeline::Every(Span(attoseconds(seconds, "timeline_s")?)),
        };
        Ok(Options {
            horizon: self.horizon()?,
            measured,
            timeline,
            itl_limits: self.itl_limits()?,
            iterations: self.iterations,
            batches: self.batches,
            max_in_flight: self.max_in_flight,
            stepping: self.stepping,
            in_attoseconds: false,
            threads,
        })
    }

    fn itl_limits(&self) -> Result<Vec<Span>> {
        self.itl_limits_s.iter().map(|&s| attoseconds(s, "itl_limits_s").map(Span)).collect()
    }

    pub(crate) fn horizon(&self) -> Result<Option<Instant>> {
        self.horizon_s.map(|s| attoseconds(s, "horizon_s").map(Instant)).transpose()
    }

    /// Returns the measured ids. Arrivals are sorted, so they form a range.
    fn measured(&self, workload: &Workload) -> Result<Range<u32>> {
        let rows = workload.len();
        let first = match self.warmup {
            Cut::Requests(count) => rows.min(count as usize),
            Cut::Seconds(seconds) => {
                let until = attoseconds(seconds, "warmup")?;
                partition(rows, |row| workload.arrival_at(row).0 < until)
            }
        };
        let end = match self.cooldown {
            Cut::Requests(count) => rows.saturating_sub(count as usize),
            Cut::Seconds(seconds) => {
                let cut = attoseconds(seconds, "cooldown")?;
                let last = if rows > 0 { workload.arrival_at(rows - 1).0 } else { 0 };
                partition(rows, |row| workload.arrival_at(row).0 + cut <= last)
            }
        };
        Ok(first as u32..end.max(first) as u32)
    }
}

/// Returns the first of `rows` rows for which a monotonic test fails.
fn partition(rows: usize, test: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low + (high - low) / 2;
        if test(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

fn slice<'a, T: numpy::Element>(name: &str, array: &'a PyReadonlyArray1<T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| PyValueError::new_err(format!("{name} must be contiguous")))
}

pub(crate) fn optional<'a, T: numpy::Element>(name: &str, array: &'a Option<PyReadonlyArray1<T>>) -> PyResult<&'a [T]> {
    array.as_ref().map_or(Ok(&[][..]), |array| slice(name, array))
}

/// Returns a column of the workload by name.
pub(crate) fn column<'py, T: numpy::Element>(
    columns: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<Option<PyReadonlyArray1<'py, T>>> {
    columns.get_item(name)?.map(|array| array.extract()).transpose()
}

/// Returns the same column as an owned reference to its array.
fn owned<T: numpy::Element>(columns: &Bound<PyDict>, name: &str) -> PyResult<Py<PyArray1<T>>> {
    let array = columns.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("{name} is missing")))?;
    Ok(array.extract::<Bound<PyArray1<T>>>()?.unbind())
}

/// Reads columns of the workload into slices of the same names; a missing column is empty.
macro_rules! read_columns {
    ($columns:ident: $($name:ident),*) => {$(
        let $name = $crate::run::column($columns, stringify!($name))?;
        let $name = $crate::run::optional(stringify!($name), &$name)?;
    )*};
}

pub(crate) use read_columns;

/// User-defined objects: schedulers by pool and engine, one per replica; routers and autoscalers by pool.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct UserDefinedParts {
    schedulers: Vec<(usize, usize, Vec<Py<PyAny>>)>,
    routers: Vec<(usize, Py<PyAny>)>,
    /// Policies of autoscalers by pool.
    scalers: Vec<(usize, Py<PyAny>)>,
}

/// Description of a pool. An engine is parsed after it is known whether its scheduler is Python.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolDescription {
    engines: Vec<Box<RawValue>>,
    /// Paths of the engines in error messages.
    paths: Vec<String>,
    counts: Vec<usize>,
    router: Option<Box<RawValue>>,
    hands_to: Option<HandsToDescription>,
    capacity: Option<CapacityDescription>,
}

/// Autoscaling and failures of a pool.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CapacityDescription {
    /// Initial number of open replicas.
    open: usize,
    autoscaler: Option<AutoscalerDescription<Box<RawValue>>>,
    failures: Option<FailuresDescription>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HandsToDescription {
    pool: usize,
    link: LinkDescription,
}

impl UserDefinedParts {
    /// User-defined schedulers are serialized by the GIL; one thread makes the raised exception deterministic.
    pub(crate) fn threads(&self, threads: Option<NonZeroUsize>) -> Option<NonZeroUsize> {
        if self.schedulers.is_empty() { threads } else { NonZeroUsize::new(1) }
    }
}

/// Parts of a run that call Python: policies and routers, their exceptions, Ctrl-C and progress.
pub(crate) struct Border {
    names: Py<PyTuple>,
    pub(crate) objectives: Arc<Objectives>,
    pub(crate) raised: Raised,
    pub(crate) poller: Poller,
}

impl Border {
    pub(crate) fn new(py: Python, classes: &[String], progress: Option<Py<PyAny>>) -> PyResult<Border> {
        let raised = Raised::default();
        let poller = Poller::new(progress, raised.clone());
        Ok(Border { names: PyTuple::new(py, classes)?.unbind(), objectives: Arc::default(), raised, poller })
    }

    /// Builds the replicas of a scenario. `pool` and `class` map classes to pools. Default: all classes enter the
    /// first pool.
    pub(crate) fn cluster(
        &self,
        scenario: &Scenario,
        classes: &[String],
        pool: &[u32],
        class: &[u32],
        user_defined: UserDefinedParts,
    ) -> Result<Cluster> {
        let (names, objectives) = (Python::attach(|py| self.names.clone_ref(py)), self.objectives.clone());
        let raised = self.raised.clone();
        let policy: Arc<PolicyOf> = Arc::new(move |object| PythonPolicy {
            object,
            classes: Python::attach(|py| names.clone_ref(py)),
            objectives: objectives.clone(),
            raised: raised.clone(),
        });
        let scaler = |object| PythonScaler { object, raised: self.raised.clone() };
        let router = |object| -> Box<dyn Router> {
            let names = Python::attach(|py| self.names.clone_ref(py));
            Box::new(PythonRouter::new(object, names, self.raised.clone()))
        };
        let seed = scenario.seed;
        let mut builder = Builder {
            classes,
            entered: (pool, class),
            seed,
            user_defined,
            policy,
            router: &router,
            scaler: &scaler,
            raised: self.raised.clone(),
        };
        builder.cluster(&scenario.pools)
    }
}

/// Builder of the replicas of a cluster.
struct Builder<'a> {
    classes: &'a [String],
    /// The pool that each request enters, and its class. No pools: all requests enter the first.
    entered: (&'a [u32], &'a [u32]),
    seed: u64,
    user_defined: UserDefinedParts,
    policy: Arc<PolicyOf>,
    router: &'a dyn Fn(Py<PyAny>) -> Box<dyn Router>,
    scaler: &'a dyn Fn(Py<PyAny>) -> PythonScaler,
    raised: Raised,
}

/// Builds a policy from a Python object.
type PolicyOf = dyn Fn(Py<PyAny>) -> PythonPolicy + Send + Sync;

/// Recipe for another engine of the same kind.
enum EngineRecipe {
    Described(Box<Engine>, Vec<Class>),
    /// From a copy of its scheduler made before the run.
    UserDefined(Box<UserDefinedEngine>, Py<PyAny>, Arc<PolicyOf>, Raised),
}

impl EngineRecipe {
    fn build(&self) -> Result<EngineParts> {
        match self {
            EngineRecipe::Described(engine, classes) => engine.build(Some(classes)),
            EngineRecipe::UserDefined(engine, object, policy, raised) => {
                let copied = Python::attach(|py| Ok(py.import("copy")?.call_method1("deepcopy", (object,))?.unbind()));
                engine.build(policy(copied.map_err(|error| raised.keep(error))?))
            }
        }
    }
}

impl Builder<'_> {
    fn cluster(&mut self, descriptions: &[PoolDescription]) -> Result<Cluster> {
        let classes = self.classes_of(descriptions);
        let pools = descriptions.iter().zip(&classes).enumerate();
        let pools = pools.map(|(place, (description, classes))| self.pool(place, description, classes));
        Ok(Cluster::of_pools(pools.collect::<Result<_>>()?))
    }

    /// Returns the classes of the workload for each pool, with whether their requests enter it.
    fn classes_of(&self, descriptions: &[PoolDescription]) -> Vec<Vec<Class>> {
        let class = |name: &String| Class { name: name.clone(), reaches_engine: self.entered.0.is_empty() };
        let mut classes = vec![self.classes.iter().map(class).collect::<Vec<Class>>(); descriptions.len()];
        for (&pool, &class) in self.entered.0.iter().zip(self.entered.1) {
            if let Some(class) = classes.get_mut(pool as usize).and_then(|pool| pool.get_mut(class as usize)) {
                class.reaches_engine = true;
            }
        }
        for (place, description) in descriptions.iter().enumerate() {
            if let Some(to) = description.hands_to.as_ref().filter(|to| to.pool < classes.len()) {
                for class in 0..self.classes.len() {
                    classes[to.pool][class].reaches_engine |= classes[place][class].reaches_engine;
                }
            }
        }
        classes
    }

    fn pool(&mut self, place: usize, description: &PoolDescription, classes: &[Class]) -> Result<Pool> {
        let recipes = match &description.capacity {
            Some(_) => self.recipes(place, description, classes)?,
            None => Vec::new(),
        };
        let mut engines = Vec::new();
        for (which, (engine, &count)) in description.engines.iter().zip(&description.counts).enumerate() {
            let path = description.paths.get(which).map_or("", String::as_str);
            let path = if path.is_empty() { "engine" } else { path };
            let built =
                self.engines((place, which), engine.get(), count, classes).map_err(|error| error.within(path))?;
            engines.extend(built);
        }
        let object = self.user_defined.routers.iter().position(|router| router.0 == place);
        let router = match (object, &description.router) {
            (Some(object), _) => Some((self.router)(self.user_defined.routers.swap_remove(object).1)),
            (None, Some(router)) => Some(parse::<RouterConfig>(router.get())?.build(self.seed, place as u64)?),
            (None, None) => None,
        };
        let hands_to = match &description.hands_to {
            Some(to) => Some(HandsTo { pool: to.pool, link: to.link.build().map_err(|error| error.within("link"))? }),
            None => None,
        };
        let capacity = match &description.capacity {
            Some(capacity) => Some(self.capacity(place, capacity, engines.len(), recipes)?),
            None => None,
        };
        Ok(Pool { engines, router, hands_to, capacity })
    }

    fn capacity(
        &mut self,
        pool: usize,
        description: &CapacityDescription,
        places: usize,
        recipes: Vec<Arc<EngineRecipe>>,
    ) -> Result<Capacity> {
        let object = self.user_defined.scalers.iter().position(|scaler| scaler.0 == pool);
        let autoscaler = match (&description.autoscaler, object) {
            (None, _) => None,
            (Some(autoscaler), Some(object)) => {
                let policy = (self.scaler)(self.user_defined.scalers.swap_remove(object).1);
                Some(autoscaler.build(Box::new(policy)))
            }
            (Some(autoscaler), None) => {
                let policy = parse::<ScalingConfig>(autoscaler.policy.get()).and_then(|policy| policy.build());
                Some(policy.map_err(|error| error.within("policy")).and_then(|policy| autoscaler.build(policy)))
            }
        };
        let autoscaler = autoscaler.transpose().map_err(|error| error.within("autoscaler"))?;
        let failures = description.failures.as_ref().map(|failures| failures.build(self.seed, places));
        let failures = failures.transpose().map_err(|error| error.within("failures"))?;
        let spare = Box::new(move |place: usize| recipes[place].build());
        Ok(Capacity { open: description.open, autoscaler, failures, spare })
    }

    /// Returns recipes for the replacements of each replica of a pool.
    fn recipes(&self, pool: usize, description: &PoolDescription, classes: &[Class]) -> Result<Vec<Arc<EngineRecipe>>> {
        let mut all = Vec::new();
        for (which, (engine, &count)) in description.engines.iter().zip(&description.counts).enumerate() {
            let objects = self.user_defined.schedulers.iter().find(|objects| (objects.0, objects.1) == (pool, which));
            let recipes = match objects {
                None => EngineRecipe::Described(Box::new(parse(engine.get())?), classes.to_vec()),
                Some((_, _, objects)) => {
                    // The copy for the first replica has not been called yet.
                    let copied =
                        Python::attach(|py| Ok(py.import("copy")?.call_method1("deepcopy", (&objects[0],))?.unbind()));
                    let copied = copied.map_err(|error| self.raised.keep(error))?;
                    EngineRecipe::UserDefined(
                        Box::new(parse(engine.get())?),
                        copied,
                        self.policy.clone(),
                        self.raised.clone(),
                    )
                }
            };
            all.extend(std::iter::repeat_n(Arc::new(recipes), count));
        }
        Ok(all)
    }

    fn engines(
        &mut self,
        (pool, which): (usize, usize),
        description: &str,
        count: usize,
        classes: &[Class],
    ) -> Result<Vec<EngineParts>> {
        let schedulers = &mut self.user_defined.schedulers;
        let Some(place) = schedulers.iter().position(|objects| (objects.0, objects.1) == (pool, which)) else {
            let engine: Engine = parse(description)?;
            return (0..count).map(|_| engine.build(Some(classes))).collect();
        };
        let objects = schedulers.swap_remove(place).2;
        if objects.len() != count {
            return Err(Error::config(
                "scheduler",
                format!("must be one object per replica ({count}), got {}", objects.len()),
            ));
        }
        let engine: UserDefinedEngine = parse(description)?;
        objects.into_iter().map(|object| engine.build((self.policy)(object))).collect()
    }
}

/// Runs a scenario over the columns of a workload. Shapes and units are in the stub.
#[pyfunction]
#[pyo3(signature = (scenario, columns, classes, user_defined, threads, progress))]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    scenario: &str,
    columns: &Bound<'py, PyDict>,
    classes: Vec<String>,
    user_defined: UserDefinedParts,
    threads: Option<NonZeroUsize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    read_columns! { columns:
        arrival_s, prompt_tokens, output_tokens, class, priority, max_output_tokens, patience_s, cancel_s,
        ttft_slo_s, itl_slo_s,
        queue_key, session, pool, accepted_start, accepted_drafts, proposal_rate, content_after, content_start,
        content_id, content_tokens, content_continued, parents, children_start,
        children, delay_s
    }
    let workload = Workload {
        arrival_s,
        prompt_tokens,
        output_tokens,
        class,
        class_count: classes.len().max(1),
        priority,
        max_output_tokens,
        patience_s,
        cancel_s,
        itl_slo_s,
        queue_key,
        session,
        pool,
        accepted: Accepted { start: accepted_start, drafts: accepted_drafts },
        proposal_rate,
        content: Content {
            after: content_after,
            start: content_start,
            id: content_id,
            tokens: content_tokens,
            continued: content_continued,
            ..Content::default()
        },
        flow: Flow { parents, children_start, children, delay_s },
        ..Workload::default()
    };
    let mut border = Border::new(py, &classes, progress)?;
    border.objectives.append(workload.len(), ttft_slo_s, workload.itl_slo_s);
    let threads = user_defined.threads(threads);
    let outcome = py.detach(|| {
        let scenario: Scenario = parse(scenario)?;
        let options = scenario.options(scenario.measured(&workload)?, threads)?;
        let mut cluster = border.cluster(&scenario, &classes, workload.pool, workload.class, user_defined)?;
        if let Some(description) = &scenario.gate_and_route {
            let setup = description.build(&classes).map_err(|error| error.within("gate_and_route"))?;
            let control = setup.control(&workload, scenario.seed)?;
            cluster.control = Some((control, setup.patience(scenario.seed)));
        }
        let results = simulate_cluster(&workload, cluster, &options, &mut border.poller)?;
        Ok((options, results))
    });
    let (options, results) = outcome.map_err(|error| border.raised.explain(error))?;
    let dict = tables(py, &results, &options)?;
    let workload_columns = WorkloadColumns {
        arrival_s: owned(columns, "arrival_s")?,
        prompt_tokens: owned(columns, "prompt_tokens")?,
        output_tokens: owned(columns, "output_tokens")?,
        class: (!workload.class.is_empty()).then(|| owned(columns, "class")).transpose()?,
    };
    let requests = PyRequestRows::new(results.requests, workload_columns, 0, options.measured, threads);
    let as_given = workload.flow.is_empty() && options.max_in_flight.is_none();
    let requests = if as_given { requests } else { requests.that_arrived() };
    dict.set_item("requests", Bound::new(py, requests)?)?;
    Ok(dict)
}
