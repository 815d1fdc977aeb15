//! What does gate and route earn when services are exponential? The stochastic model of lin2026 section 2.3.
//!
//! n replicas with B slots each; a prefill of P tokens takes an exponential time of mean (P / C)·τ, a decode of D tokens one
//! of mean D·τ while its replica runs a prefill and D/γ while it runs none. A request that waits gives up after an
//! exponential patience. Everything that is decided is decided by [`crate::gate_and_route`].
//!
//! **One draw a request.** Each request draws one unit exponential for its prefill and one for its decode, by its id; the
//! decode's is the work that it still has, which a switch of the mode neither adds to nor draws anew. As an exponential has
//! no memory, what is left of it is as good as a new draw: the distribution of the whole is that of the paper's model, where
//! a switch changes the rate of a Poisson clock. So two policies meet the very same requests with the same work.
//!
//! **Patience** is drawn when a request has to wait: anew for each of the two queues. A request that is admitted at the
//! instant of its arrival cannot lose it.
//!
//! **At one instant** (rule 4): services end, lower replica first, its prefill before its decodes; then patience runs out, by
//! id; then requests arrive; then the control is asked what begins. Law L9 holds in whole attoseconds. The cost of an event
//! grows with the logarithm of n.

mod results;
mod run;
mod server;
mod tally;

pub use results::{ExponentialColumns, ExponentialResults, StageSample};
pub use run::{ExponentialOptions, simulate};
pub use tally::{STAGES, Stage};
