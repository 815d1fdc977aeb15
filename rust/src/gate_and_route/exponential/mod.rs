//! Gate and route with exponential services: the stochastic model of lin2026 section 2.3.
//!
//! n replicas have B slots each. A prefill of P tokens takes an exponential time of mean (P / C)·τ. A decode of D
//! tokens takes an exponential time of mean D·τ while its replica runs a prefill, and D/γ otherwise. A waiting
//! request abandons after an exponential patience. [`crate::gate_and_route`] makes all decisions.
//!
//! **One draw per request.** Each request draws one unit exponential for its prefill and one for its decode, by its
//! id. The decode's draw is its remaining work, which a switch of the mode does not change. As an exponential is
//! memoryless, the distribution is that of the paper's model, where a switch changes the rate of a Poisson clock. So
//! all policies see the same requests with the same work.
//!
//! **Patience** is drawn when a request must wait, separately for each of the two queues. A request admitted at its
//! arrival cannot abandon.
//!
//! **At one instant** (rule R4): services end, lower replica first, its prefill before its decodes; then patience
//! runs out, by id; then requests arrive; then the control starts services. L9 holds in whole attoseconds. The cost
//! of an event grows with the logarithm of n.

mod results;
mod run;
mod server;
mod tally;

pub use results::{ExponentialColumns, ExponentialResults, StageSample};
pub use run::{ExponentialOptions, simulate};
pub use tally::{STAGES, Stage};
