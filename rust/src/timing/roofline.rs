//! Roofline model: the larger of compute and memory time for each part.

use super::prelude::*;
use super::{ChunkShape, sum};
use crate::clock::{Span, attoseconds, product};

/// The linear layers, in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinearRoof {
    /// Compute time per token.
    pub flops_s_per_token: f64,
    /// Time to read the weights.
    pub weight_s: f64,
    /// Time to read and write the activations of a token.
    pub activation_s_per_token: f64,
}

/// The attention of chunks, in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkRoof {
    /// Compute time per pair of a token and a token that it attends to, itself included: c·(x + (c + 1)/2) pairs per
    /// chunk.
    pub compute_s_per_pair: f64,
    /// Time to read a token of the cache: x + c per chunk.
    pub memory_s_per_token: f64,
    /// Compute time per token of context, x per chunk: latent attention expands keys and values of earlier tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compute_s_per_context_token: f64,
}

/// The attention of decodes, in seconds per token that a decode attends to, itself included.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeRoof {
    /// Compute time.
    pub compute_s_per_token: f64,
    /// Time to read the cache.
    pub memory_s_per_token: f64,
}

/// Communication between GPUs, in seconds; zero for a single GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Total latency of all exchanges of an iteration.
    pub latency_s: f64,
    /// Time to send the activations of a token.
    pub s_per_token: f64,
}

/// Layers with routed experts, in seconds. A batch of n tokens reads the share 1 − (1 − active/experts)ⁿ of the
/// experts: the expected share if every token draws its experts uniformly.
///
/// Reading and computing are added: in a grouped matrix product few tiles have enough rows to overlap them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsRoof {
    /// Routed experts of a layer.
    pub experts: u64,
    /// Experts that a token uses.
    pub active: u64,
    /// Batches of equal size that these experts serve: the ranks of data-parallel attention. Default: 1.
    #[serde(default = "one_rank", skip_serializing_if = "is_one")]
    pub ranks: u64,
    /// Time to compute a token, and to read and write its activations.
    pub s_per_token: f64,
    /// Time to read all experts of these layers.
    pub weight_s: f64,
    /// Fixed time per iteration: routing, permutation, gaps between kernels.
    pub base_s: f64,
}

fn one_rank() -> u64 {
    1
}

fn is_one(ranks: &u64) -> bool {
    *ranks == 1
}

/// Layers whose attention is limited, in seconds: a token attends to `tokens` tokens, itself included.
///
/// Chunks are exact. Decodes share one limit of `tokens` per decode, at their mean context.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WindowRoof {
    /// Maximum number of tokens that a token attends to, itself included.
    pub tokens: u64,
    /// Whether attention restarts at every multiple of `tokens`. Default: the window slides.
    #[serde(default)]
    pub restarts: bool,
    /// Attention of chunks.
    pub chunk: ChunkRoof,
    /// Attention of decodes.
    pub decode: DecodeRoof,
}

/// Recurrent states, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StateRoof {
    /// Time to read and write the states of a decode.
    pub s_per_decode: f64,
    /// Time to read and write the states of the request of a chunk.
    pub s_per_chunk: f64,
    /// Time of the recurrence per token of a chunk.
    pub s_per_chunk_token: f64,
}

/// The larger of compute and memory time for each part.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Linear layers.
    pub linear: LinearRoof,
    /// Attention of chunks.
    pub chunk: ChunkRoof,
    /// Attention of decodes.
    pub decode: DecodeRoof,
    /// All-reduce of a tensor-parallel group.
    #[serde(default)]
    pub all_reduce: Exchange,
    /// Fixed time per iteration.
    pub base_s: f64,
    /// Layers with routed experts, one entry per pair of `experts` and `active`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertsRoof>,
    /// Layers with limited attention, one entry per limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowRoof>,
    /// Recurrent states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<StateRoof>,
    /// All-to-all exchange of tokens between experts on different GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
}

/// Whether an optional time is absent.
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// A time in attoseconds; errors name `part.field`.
fn whole(part: &str, field: &str, seconds: f64) -> Result<u128> {
    attoseconds(seconds, field).map_err(|error: Error| error.within(part))
}

impl Roofline {
    fn timing(&self) -> Result<RooflineTiming> {
        let Roofline { linear, chunk, decode, all_reduce, base_s, experts, windows, states, exchange } = self;
        let all_to_all = exchange.clone().unwrap_or_default();
        let mut fixed = vec![
            (attoseconds(*base_s, "base_s")?, 1),
            (whole("all_reduce", "latency_s", all_reduce.latency_s)?, 1),
            (whole("exchange", "latency_s", all_to_all.latency_s)?, 1),
        ];
        let mut groups = Vec::with_capacity(experts.len());
        for (place, group) in experts.iter().enumerate() {
            let within = |error: Error| error.within(&format!("experts[{place}]"));
            groups.push(group.timing().map_err(within)?);
            fixed.push((attoseconds(group.base_s, "base_s").map_err(within)?, 1));
        }
        let limited = |(place, window): (usize, &WindowRoof)| {
            window.timing().map_err(|error: Error| error.within(&format!("windows[{place}]")))
        };
        let windows = windows.iter().enumerate().map(limited).collect::<Result<Vec<_>>>()?;
        let states = states.as_ref().map(StateRoof::timing).transpose()?;
        let more = More { experts: groups, windows, states };
        Ok(RooflineTiming {
            flops_per_token: whole("linear", "flops_s_per_token", linear.flops_s_per_token)?,
            weight: whole("linear", "weight_s", linear.weight_s)?,
            activation_per_token: whole("linear", "activation_s_per_token", linear.activation_s_per_token)?,
            chunk: chunk.timing()?,
            decode_per_token: decode.timing()?,
            base: sum_of(&fixed)?,
            exchange_per_token: sum(&[
                (whole("all_reduce", "s_per_token", all_reduce.s_per_token)?, 1),
                (whole("exchange", "s_per_token", all_to_all.s_per_token)?, 1),
            ])?,
            more: (!more.is_empty()).then(|| Box::new(more)),
        })
    }
}

impl ChunkRoof {
    fn timing(&self) -> Result<ChunkTiming> {
        Ok(ChunkTiming {
            compute_per_pair: whole("chunk", "compute_s_per_pair", self.compute_s_per_pair)?,
            memory_per_token: whole("chunk", "memory_s_per_token", self.memory_s_per_token)?,
            compute_per_context_token: whole("chunk", "compute_s_per_context_token", self.compute_s_per_context_token)?,
        })
    }
}

impl DecodeRoof {
    /// The larger of the two, which share one factor.
    fn timing(&self) -> Result<u128> {
        let compute = whole("decode", "compute_s_per_token", self.compute_s_per_token)?;
        Ok(compute.max(whole("decode", "memory_s_per_token", self.memory_s_per_token)?))
    }
}

impl ExpertsRoof {
    fn timing(&self) -> Result<ExpertsTiming> {
        let ExpertsRoof { experts, active, .. } = *self;
        if !(1..=LARGEST).contains(&experts) {
            return Err(Error::config("experts", format!("must be from 1 to {LARGEST}, got {experts}")));
        }
        if !(1..=experts).contains(&active) {
            return Err(Error::config("active", format!("must be from 1 to {experts} experts, got {active}")));
        }
        if !(1..=LARGEST).contains(&self.ranks) {
            return Err(Error::config("ranks", format!("must be from 1 to {LARGEST}, got {}", self.ranks)));
        }
        Ok(ExpertsTiming {
            unused: (u128::from(experts - active) << 64) / u128::from(experts),
            ranks: self.ranks,
            per_token: attoseconds(self.s_per_token, "s_per_token")?,
            weight: attoseconds(self.weight_s, "weight_s")?,
        })
    }
}

impl WindowRoof {
    fn timing(&self) -> Result<WindowTiming> {
        if !(1..=LARGEST).contains(&self.tokens) {
            return Err(Error::config("tokens", format!("must be from 1 to {LARGEST}, got {}", self.tokens)));
        }
        Ok(WindowTiming {
            tokens: self.tokens,
            restarts: self.restarts,
            chunk: self.chunk.timing()?,
            decode_per_token: self.decode.timing()?,
        })
    }
}

impl StateRoof {
    fn timing(&self) -> Result<StateTiming> {
        Ok(StateTiming {
            per_decode: whole("states", "s_per_decode", self.s_per_decode)?,
            per_chunk: whole("states", "s_per_chunk", self.s_per_chunk)?,
            per_chunk_token: whole("states", "s_per_chunk_token", self.s_per_chunk_token)?,
        })
    }
}

impl TimingParameters for Roofline {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(self.timing()?))
    }
}

impl Sample for Roofline {
    fn sample(dice: &mut Dice) -> Roofline {
        let base_s = dice.seconds(1000, 9000);
        let all_reduce = Exchange { latency_s: base_s, s_per_token: dice.seconds(0, 20) };
        let mut dense = Roofline {
            linear: LinearRoof {
                flops_s_per_token: dice.seconds(1, 100),
                weight_s: dice.seconds(0, 2000),
                activation_s_per_token: dice.seconds(0, 50),
            },
            chunk: sample_chunk(dice),
            decode: sample_decode(dice),
            all_reduce,
            base_s,
            experts: Vec::new(),
            windows: Vec::new(),
            states: None,
            exchange: None,
        };
        if dice.flip() {
            return dense;
        }
        dense.chunk.compute_s_per_context_token = dense.chunk.compute_s_per_pair * dice.below(100) as f64;
        dense.experts = (0..dice.below(3)).map(|_| ExpertsRoof::sample(dice)).collect();
        dense.windows = (0..dice.below(3)).map(|_| WindowRoof::sample(dice)).collect();
        dense.states = dice.flip().then(|| StateRoof {
            s_per_decode: dice.seconds(0, 50),
            s_per_chunk: dice.seconds(0, 50),
            s_per_chunk_token: dice.seconds(0, 5),
        });
        dense.exchange =
            dice.flip().then(|| Exchange { latency_s: dice.seconds(0, 50), s_per_token: dice.seconds(0, 5) });
        dense
    }
}

fn sample_chunk(dice: &mut Dice) -> ChunkRoof {
    // Reading a token costs as much as `pairs` pairs, so that the two lines of a chunk often cross.
    let (pair, pairs) = ((1 + dice.below(49)) as f64 / 1e8, dice.below(100) as f64);
    ChunkRoof { compute_s_per_pair: pair, memory_s_per_token: pair * pairs, compute_s_per_context_token: 0.0 }
}

fn sample_decode(dice: &mut Dice) -> DecodeRoof {
    DecodeRoof { compute_s_per_token: dice.seconds(0, 10), memory_s_per_token: dice.seconds(0, 10) }
}

impl Sample for ExpertsRoof {
    fn sample(dice: &mut Dice) -> ExpertsRoof {
        let experts = 1 + dice.below(64);
        ExpertsRoof {
            experts,
            active: 1 + dice.below(experts),
            ranks: 1 + dice.below(3),
            s_per_token: dice.seconds(0, 50),
            weight_s: dice.seconds(0, 2000),
            base_s: dice.seconds(0, 100),
        }
    }
}

impl Sample for WindowRoof {
    fn sample(dice: &mut Dice) -> WindowRoof {
        WindowRoof {
            tokens: 1 + dice.below(dice.scale.longest.max(20)),
            restarts: dice.flip(),
            chunk: sample_chunk(dice),
            decode: sample_decode(dice),
        }
    }
}

/// Upper bound of experts and of the tokens of a window.
const LARGEST: u64 = 1 << 40;

/// base + all-reduce(τ) + max(flops·τ, weights + activations·τ) + max(compute·Σ c·(x + (c + 1)/2), memory·Σ (x + c))
/// over chunks + max(compute, memory)·Σ (context + 1) over decodes, for τ tokens in the batch, in attoseconds.
#[derive(Debug)]
struct RooflineTiming {
    flops_per_token: u128,
    weight: u128,
    activation_per_token: u128,
    chunk: ChunkTiming,
    decode_per_token: u128,
    /// Base plus latency of the exchanges.
    base: u128,
    exchange_per_token: u128,
    /// The parts that a dense model with full attention lacks.
    more: Option<Box<More>>,
}

impl Timing for RooflineTiming {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let tokens = u128::from(shape.tokens());
        let decodes = u128::from(shape.decodes);
        let linear =
            sum(&[(self.flops_per_token, tokens)])?.max(sum(&[(self.weight, 1), (self.activation_per_token, tokens)])?);
        let rest = sum(&[
            (self.base, 1),
            (linear, 1),
            (self.exchange_per_token, tokens),
            (self.decode_per_token, u128::from(shape.decode_context) + decodes + u128::from(shape.drafts)),
        ])?;
        let mut pace = Pace::line(rest, sum(&[(self.decode_per_token, decodes)])?)?;
        if !shape.chunks.is_empty() {
            pace = pace.plus(&self.chunk.unlimited(shape)?)?;
        }
        match &self.more {
            None => Ok(pace),
            Some(more) => more.add_to(pace, shape),
        }
    }
}

/// The sum of `amount · price` over any number of terms.
fn sum_of(terms: &[(u128, u128)]) -> Result<u128> {
    terms.iter().try_fold(0, |total, &term| sum(&[(total, 1), term]))
}

/// Attention of chunks.
#[derive(Clone, Copy, Debug)]
struct ChunkTiming {
    compute_per_pair: u128,
    memory_per_token: u128,
    compute_per_context_token: u128,
}

impl ChunkTiming {
    /// Every token attends to all earlier tokens of its request.
    #[inline(always)]
    fn unlimited(&self, shape: &Shape) -> Result<Pace> {
        let of_chunks = u128::from(shape.chunk_tokens);
        let context = u128::from(shape.chunk_context);
        // c² + c is even for every chunk.
        let pairs = shape.chunk_cross + (shape.chunk_squares + of_chunks) / 2;
        self.pace(
            &Attended { pairs, read: context + of_chunks, context },
            &Attended { pairs: shape.chunk_squares, read: of_chunks, context: of_chunks },
        )
    }

    /// The larger of compute and memory time of a batch whose sums grow by `growth` per iteration.
    #[inline(always)]
    fn pace(&self, first: &Attended, growth: &Attended) -> Result<Pace> {
        let compute = |sums: &Attended| sum(&[(self.compute_per_pair, sums.pairs)]);
        let memory = |sums: &Attended| sum(&[(self.memory_per_token, sums.read)]);
        let mut compute = Pace::line(compute(first)?, compute(growth)?)?;
        if self.compute_per_context_token > 0 {
            let expansion = |sums: &Attended| sum(&[(self.compute_per_context_token, sums.context)]);
            compute = compute.plus(&Pace::line(expansion(first)?, expansion(growth)?)?)?;
        }
        Ok(compute.larger(&Pace::line(memory(first)?, memory(growth)?)?))
    }
}

/// Sums over chunks: pairs of tokens, tokens read, and earlier tokens read.
#[derive(Clone, Copy, Debug, Default)]
struct Attended {
    pairs: u128,
    read: u128,
    context: u128,
}

impl Attended {
    /// A chunk whose tokens attend to all of `context` earlier tokens.
    fn of(tokens: u128, context: u128) -> Attended {
        Attended { pairs: tokens * context + tokens * (tokens + 1) / 2, read: tokens + context, context }
    }

    fn add(&mut self, other: Attended) {
        self.pairs += other.pairs;
        self.read += other.read;
        self.context += other.context;
    }
}

/// Experts, windows and recurrent states.
#[derive(Debug)]
struct More {
    experts: Vec<ExpertsTiming>,
    windows: Vec<WindowTiming>,
    states: Option<StateTiming>,
}

impl More {
    fn is_empty(&self) -> bool {
        self.experts.is_empty() && self.windows.is_empty() && self.states.is_none()
    }

    #[inline(never)]
    fn add_to(&self, mut pace: Pace, shape: &Shape) -> Result<Pace> {
        let tokens = shape.tokens();
        for experts in &self.experts {
            pace = pace.plus(&Pace::constant(Span(experts.time(tokens)?)))?;
        }
        for window in &self.windows {
            pace = pace.plus(&window.decodes(shape)?)?;
            if !shape.chunks.is_empty() {
                pace = pace.plus(&window.chunks(shape)?)?;
            }
        }
        let Some(StateTiming { per_decode, per_chunk, per_chunk_token }) = self.states else { return Ok(pace) };
        let states = sum(&[
            (per_decode, u128::from(shape.decodes)),
            (per_chunk, shape.chunks.len() as u128),
            (per_chunk_token, u128::from(shape.chunk_tokens)),
        ])?;
        pace.plus(&Pace::constant(Span(states)))
    }
}

/// Layers with routed experts: computing·n + share·weights for n tokens.
#[derive(Debug)]
struct ExpertsTiming {
    /// 1 − active/experts in units of 2⁻⁶⁴, rounded down.
    unused: u128,
    ranks: u64,
    per_token: u128,
    weight: u128,
}

impl ExpertsTiming {
    fn time(&self, tokens: u64) -> Result<u128> {
        let read = product(self.weight, self.share(tokens.saturating_mul(self.ranks)))? >> SHARE_BITS;
        sum(&[(self.per_token, tokens.into()), (read, 1)])
    }

    /// 1 − (1 − active/experts)ⁿ in units of 2⁻³², by repeated squaring of whole numbers.
    ///
    /// Every product is rounded down, by less than 2⁻⁶⁴. The errors add up to less than 2n · 2⁻⁶⁴, so that the result
    /// is nearly always the closed form, rounded to the nearest unit.
    fn share(&self, tokens: u64) -> u128 {
        const ONE: u128 = 1 << 64;
        // Both factors of a product fit 64 bits, except a factor of 1, which changes nothing.
        let times = |left: u128, right: u128| if left == ONE { right } else { (left * right) >> 64 };
        let (mut unused, mut square, mut left) = (ONE, self.unused, tokens);
        while left > 0 && unused > 0 {
            if left & 1 == 1 {
                unused = times(unused, square);
            }
            square = times(square, square);
            left >>= 1;
        }
        (ONE - unused + (1 << (63 - SHARE_BITS))) >> (64 - SHARE_BITS)
    }
}

/// Bits of the share of experts: a nanosecond of 4 s of weights.
const SHARE_BITS: u32 = 32;

/// Layers with limited attention.
#[derive(Debug)]
struct WindowTiming {
    tokens: u64,
    restarts: bool,
    chunk: ChunkTiming,
    decode_per_token: u128,
}

impl WindowTiming {
    /// Σ min(context + 1, tokens) over decodes, replaced by min(Σ (context + 1), decodes · tokens): exact if every
    /// context fills the window or none does, and too large otherwise. If attention restarts, decodes whose mean
    /// exceeds the first window attend to (tokens + 1)/2 tokens each, the mean of the saw-tooth.
    fn decodes(&self, shape: &Shape) -> Result<Pace> {
        let decodes = u128::from(shape.decodes);
        let drafts = u128::from(shape.drafts);
        let price = |tokens: u128| sum(&[(self.decode_per_token, tokens)]);
        let attended = u128::from(shape.decode_context) + decodes;
        let full = decodes * u128::from(self.tokens);
        if attended < full {
            // Iteration j is on the line while attended + j · decodes ≤ full.
            let holds = u64::try_from((full - attended) / decodes + 1).unwrap_or(u64::MAX);
            return Ok(Pace { holds, ..Pace::line(price(attended + drafts)?, price(decodes)?)? });
        }
        if !self.restarts || attended == full {
            let holds = if self.restarts && decodes > 0 { 1 } else { u64::MAX };
            return Ok(Pace { holds, ..Pace::constant(Span(price(full + drafts)?)) });
        }
        Ok(Pace::constant(Span(price((full + decodes) / 2 + drafts)?)))
    }

    /// Exact sums over chunks, up to the iteration in which a chunk reaches the end of its window.
    fn chunks(&self, shape: &Shape) -> Result<Pace> {
        let (mut first, mut growth, mut holds) = (Attended::default(), Attended::default(), u64::MAX);
        for chunk in shape.chunks {
            let window = if self.restarts { self.restarting(chunk) } else { self.sliding(chunk) };
            first.add(window.first);
            growth.add(window.growth);
            holds = holds.min(window.holds);
        }
        let pace = self.chunk.pace(&first, &growth)?;
        Ok(Pace { holds: pace.holds.min(holds), ..pace })
    }

    fn sliding(&self, chunk: &ChunkShape) -> Windowed {
        let (tokens, context) = (chunk.tokens, chunk.context);
        if context + tokens <= self.tokens {
            return Windowed::growing(tokens, context, self.tokens);
        }
        // No token attends to more earlier tokens than the first one reads.
        let earlier = u128::from(context.min(self.tokens - 1));
        // The first tokens fill the window, the rest have a full one.
        let filling = u128::from((self.tokens - 1).saturating_sub(context));
        let full = (u128::from(tokens) - filling) * u128::from(self.tokens);
        let pairs = Attended::of(filling, earlier).pairs + full;
        let first = Attended { pairs, read: earlier + u128::from(tokens), context: earlier };
        Windowed { first, growth: Attended::default(), holds: if filling == 0 { u64::MAX } else { 1 } }
    }

    fn restarting(&self, chunk: &ChunkShape) -> Windowed {
        let (tokens, context) = (chunk.tokens, chunk.context % self.tokens);
        if context + tokens <= self.tokens {
            return Windowed::growing(tokens, context, self.tokens);
        }
        // F(n) = Σ (p mod w + 1) over p < n.
        let window = u128::from(self.tokens);
        let up_to = |end: u64| {
            let (whole, rest) = (u128::from(end / self.tokens), u128::from(end % self.tokens));
            whole * (window * (window + 1) / 2) + rest * (rest + 1) / 2
        };
        let pairs = up_to(context + tokens) - up_to(context);
        let first = Attended { pairs, read: u128::from(context + tokens), context: context.into() };
        // Whole windows leave every later chunk at the same place in its first window.
        let holds = if tokens.is_multiple_of(self.tokens) { u64::MAX } else { 1 };
        Windowed { first, growth: Attended::default(), holds }
    }
}

/// A chunk in a window: its sums, their growth per iteration, and the number of iterations for which it is exact.
struct Windowed {
    first: Attended,
    growth: Attended,
    holds: u64,
}

impl Windowed {
    /// A chunk that ends within the window of its first token: the sums of full attention, until one does not fit.
    fn growing(tokens: u64, context: u64, window: u64) -> Windowed {
        let count = u128::from(tokens);
        Windowed {
            first: Attended::of(count, context.into()),
            growth: Attended { pairs: count * count, read: count, context: count },
            holds: (window - context - tokens) / tokens + 1,
        }
    }
}

/// Recurrent states.
#[derive(Clone, Copy, Debug)]
struct StateTiming {
    per_decode: u128,
    per_chunk: u128,
    per_chunk_token: u128,
}

#[cfg(test)]
mod tests {
    use super::super::tests::price;
    use super::*;

    /// Reading the weights takes as long as computing 100 tokens; reading a token of a chunk as long as computing 64
    /// pairs.
    fn roofline() -> RooflineTiming {
        let roofline = Roofline {
            linear: LinearRoof { flops_s_per_token: 10e-6, weight_s: 1e-3, activation_s_per_token: 0.0 },
            chunk: PAIRS,
            decode: DecodeRoof { compute_s_per_token: 10e-9, memory_s_per_token: 100e-9 },
            all_reduce: Exchange { latency_s: 20e-6, s_per_token: 1e-6 },
            base_s: 3e-3,
            ..NOTHING
        };
        roofline.timing().expect("a roofline")
    }

    /// 1 ns per pair and 64 ns per token.
    const PAIRS: ChunkRoof =
        ChunkRoof { compute_s_per_pair: 1e-9, memory_s_per_token: 64e-9, compute_s_per_context_token: 0.0 };

    /// Every iteration takes no time.
    const NOTHING: Roofline = Roofline {
        linear: LinearRoof { flops_s_per_token: 0.0, weight_s: 0.0, activation_s_per_token: 0.0 },
        chunk: ChunkRoof { compute_s_per_pair: 0.0, memory_s_per_token: 0.0, compute_s_per_context_token: 0.0 },
        decode: DecodeRoof { compute_s_per_token: 0.0, memory_s_per_token: 0.0 },
        all_reduce: Exchange { latency_s: 0.0, s_per_token: 0.0 },
        base_s: 0.0,
        experts: Vec::new(),
        windows: Vec::new(),
        states: None,
        exchange: None,
    };

    const EXPERTS: ExpertsRoof =
        ExpertsRoof { experts: 4, active: 1, ranks: 1, s_per_token: 1e-9, weight_s: 64e-6, base_s: 100e-6 };

    /// A window of 10 tokens. A pair costs 1 ns, a decode 1 ns per token.
    fn window(restarts: bool) -> Roofline {
        let chunk = ChunkRoof { memory_s_per_token: 0.0, ..PAIRS };
        let decode = DecodeRoof { compute_s_per_token: 1e-9, memory_s_per_token: 0.0 };
        Roofline { windows: vec![WindowRoof { tokens: 10, restarts, chunk, decode }], ..NOTHING }
    }

    /// Nanoseconds of the first iteration, their growth, and its validity.
    fn nanoseconds(roofline: &Roofline, chunks: &[(u64, u64)], decodes: &[u64]) -> (u128, i128, u64) {
        let pace = price(&roofline.timing().expect("a roofline"), chunks, decodes, 0);
        (pace.first.0 / NANOSECONDS, pace.growth / NANOSECONDS as i128, pace.holds)
    }

    const NANOSECONDS: u128 = 1_000_000_000;

    #[test]
    fn a_small_batch_is_memory_bound_and_a_large_one_compute_bound() {
        // 3 ms + 20 µs + τ µs of exchanges, and 1 ms of weights up to 100 tokens; attention of contexts of 999 tokens.
        let of_decodes = |count: usize| price(&roofline(), &[], &vec![999; count], 0);
        for (count, linear) in [(1, 1_000_000), (100, 1_000_000), (101, 1_010_000), (200, 2_000_000)] {
            let exact = 3_020_000 + 1_000 * count + linear + 100 * 1000 * count;
            let pace = of_decodes(count as usize);
            assert_eq!(pace.first.0, exact * NANOSECONDS);
            assert_eq!((pace.growth, pace.holds), ((100 * count * NANOSECONDS) as i128, u64::MAX));
        }
    }

    #[test]
    fn the_attention_of_a_chunk_crosses_from_memory_to_computing_once() {
        // c = 48: compute 48·x + 48·49/2 = 48·x + 1176 ns, memory 64·x + 3072 ns: always memory bound.
        let short = price(&roofline(), &[(48, 0)], &[], 0);
        assert_eq!((short.growth, short.holds), ((64 * 48 * NANOSECONDS) as i128, u64::MAX));
        // c = 96: 96·x + 4656 and 64·x + 6144: memory bound while 32·x ≤ 1488, i.e. x ≤ 46: the first iteration.
        let long = price(&roofline(), &[(96, 0)], &[], 0);
        assert_eq!((long.growth, long.holds), ((64 * 96 * NANOSECONDS) as i128, 1));
        let later = price(&roofline(), &[(96, 0)], &[], 1);
        assert_eq!((later.growth, later.holds), ((96 * 96 * NANOSECONDS) as i128, u64::MAX));
        assert_eq!(later.first.0 - long.first.0, (96 * 96 + 4656 - 6144) * NANOSECONDS);
    }

    #[test]
    fn a_batch_reads_the_experts_that_its_tokens_use() {
        let roofline = Roofline { experts: vec![EXPERTS], ..NOTHING };
        // One of four: 1/4, 1 − 9/16 = 7/16, 1 − 27/64 = 37/64 of 64 µs, and 1 ns per token; 100 µs for routing.
        for (tokens, reads) in [(1, 16_000), (2, 28_000), (3, 37_000)] {
            let expected = (100_000 + reads + tokens as u128, 0, u64::MAX);
            assert_eq!(nanoseconds(&roofline, &[], &vec![5; tokens]), expected);
            assert_eq!(nanoseconds(&roofline, &[(tokens as u64, 5)], &[]), expected);
        }
        // 200 tokens read all but 64 µs · (3/4)^200 < 1e-22 s, rounded to 0, and compute for 200 ns.
        assert_eq!(nanoseconds(&roofline, &[(200, 0)], &[]), (164_200, 0, u64::MAX));
        // Two ranks with one token each read the experts of two tokens; every rank computes its own share of tokens.
        let ranks = Roofline { experts: vec![ExpertsRoof { ranks: 2, ..EXPERTS }], ..NOTHING };
        assert_eq!(nanoseconds(&ranks, &[], &[5]), (100_000 + 28_000 + 1, 0, u64::MAX));
        // A second group adds its own time: each token uses both of its experts.
        let second = ExpertsRoof { experts: 2, active: 2, ..EXPERTS };
        let both = Roofline { experts: vec![EXPERTS, second], ..NOTHING };
        assert_eq!(nanoseconds(&both, &[], &[5]), (200_000 + 16_000 + 64_000 + 2, 0, u64::MAX));
    }

    #[test]
    fn the_share_of_experts_is_the_closed_form() {
        let share = |experts: u64, active: u64, tokens: u64| {
            let group = ExpertsRoof { experts, active, ..EXPERTS };
            group.timing().expect("experts").share(tokens)
        };
        let one = 1_u128 << SHARE_BITS;
        // Exact fractions, rounded: (Eⁿ − (E − k)ⁿ)/Eⁿ, while Eⁿ and its product with 2³² fit 128 bits.
        for (experts, active, most) in [(8, 2, 28), (128, 8, 12), (256, 8, 11), (3, 1, 55), (7, 7, 20), (1, 1, 99)] {
            for tokens in 0..=most {
                let (all, unused) = (u128::from(experts).pow(tokens), u128::from(experts - active).pow(tokens));
                let exact = (2 * (all - unused) * one + all) / (2 * all);
                let share = share(experts, active, tokens.into());
                assert!(share == exact, "{share} for {exact}: {active} of {experts}, {tokens} tokens");
            }
        }
        // 1/2 and 3/4, exactly; a large batch uses all; no token uses none.
        assert_eq!([share(2, 1, 1), share(2, 1, 2), share(2, 1, 32)], [one / 2, one / 4 * 3, one - 1]);
        assert_eq!(
            [share(256, 8, 1 << 40), share(256, 8, u64::MAX), share(9, 9, 1), share(9, 2, 0)],
            [one, one, one, 0]
        );
        // 1 − (31/32)^512 = 1 − 8.7e-8: the double is exact to 53 bits.
        let exact = (1.0 - (31.0_f64 / 32.0).powi(512)) * one as f64;
        assert!((share(256, 8, 512) as f64 - exact).abs() < 2.0);
        assert!((1..3000).all(|tokens| share(256, 8, tokens) <= share(256, 8, tokens + 1)));
    }

    #[test]
    fn a_sliding_window_limits_every_token_of_a_chunk() {
        let sliding = window(false);
        // Tokens at positions 3 to 6 attend to 4 + 5 + 6 + 7; in the next iteration 10 is exceeded: 8 + 9 + 10 + 10.
        assert_eq!(nanoseconds(&sliding, &[(4, 3)], &[]), (22, 16, 1));
        assert_eq!(nanoseconds(&sliding, &[(4, 7)], &[]).0, 8 + 9 + 10 + 10);
        // Three chunks of two fit: up to positions 8 and 9, with windows of 9 and 10.
        assert_eq!(nanoseconds(&sliding, &[(2, 4)], &[]), (5 + 6, 4, 3));
        // From position 9 on, all windows are full.
        assert_eq!(nanoseconds(&sliding, &[(4, 9)], &[]), (40, 0, u64::MAX));
        assert_eq!(nanoseconds(&sliding, &[(100, 1000)], &[]), (1000, 0, u64::MAX));
        // A whole prompt: 1 + … + 9, and 91 full windows.
        assert_eq!(nanoseconds(&sliding, &[(100, 0)], &[]), (45 + 910, 0, 1));
        // It reads its own tokens and nine earlier ones: 64·(100 + 9) ns exceed 1,000 pairs.
        let mut read = sliding;
        read.windows[0].chunk = PAIRS;
        assert_eq!(nanoseconds(&read, &[(100, 1000)], &[]).0, 64 * 109);
        assert_eq!(nanoseconds(&read, &[(100, 3)], &[]).0, 64 * 103);
    }

    #[test]
    fn a_chunked_window_restarts_at_its_multiples() {
        let restarting = window(true);
        // Positions 8, 9, 10, 11 attend to 9, 10, 1 and 2 tokens.
        assert_eq!(nanoseconds(&restarting, &[(4, 8)], &[]), (22, 0, 1));
        assert_eq!(nanoseconds(&restarting, &[(4, 10)], &[]), (1 + 2 + 3 + 4, 16, 2));
        // Two whole windows from position 5 on: 6 + … + 10, 1 + … + 10, 1 + … + 5.
        assert_eq!(nanoseconds(&restarting, &[(20, 5)], &[]), (40 + 55 + 15, 0, u64::MAX));
    }

    #[test]
    fn a_window_limits_decodes_at_their_mean_context() {
        // Contexts 3 and 7: 4 + 8 tokens of at most 20. Five iterations later both have 10 on average.
        assert_eq!(nanoseconds(&window(false), &[], &[3, 7]), (12, 2, 5));
        assert_eq!(nanoseconds(&window(false), &[], &[7, 11]), (20, 0, u64::MAX));
        assert_eq!(nanoseconds(&window(true), &[], &[3, 7]), (12, 2, 5));
        // At the end of the first window 10 each, then (10 + 1)/2 on average.
        assert_eq!(nanoseconds(&window(true), &[], &[7, 11]), (20, 0, 1));
        assert_eq!(nanoseconds(&window(true), &[], &[8, 12]), (11, 0, u64::MAX));
    }

    #[test]
    fn states_and_exchanges_cost_a_time_per_sequence_and_token() {
        let states = Some(StateRoof { s_per_decode: 3e-9, s_per_chunk: 50e-9, s_per_chunk_token: 7e-9 });
        let exchange = Some(Exchange { latency_s: 1e-6, s_per_token: 100e-9 });
        let roofline = Roofline { states, exchange, ..NOTHING };
        // 1 µs + 14 tokens; two chunks of 11 tokens in total; three decodes.
        let expected = 1000 + 14 * 100 + 2 * 50 + 11 * 7 + 3 * 3;
        assert_eq!(nanoseconds(&roofline, &[(5, 9), (6, 0)], &[4, 5, 6]), (expected, 0, u64::MAX));
    }

    #[test]
    fn latent_attention_expands_the_context_of_a_chunk() {
        let chunk = ChunkRoof { compute_s_per_context_token: 1e-6, ..PAIRS };
        // 10·100 + 55 pairs, and 100 tokens to expand; ten more of each in the next iteration.
        let expected = (1055 + 100_000, 100 + 10_000, u64::MAX);
        assert_eq!(nanoseconds(&Roofline { chunk, ..NOTHING }, &[(10, 100)], &[]), expected);
    }

    #[test]
    fn invalid_optional_parts_are_errors_that_name_the_field() {
        let refused = |roofline: Roofline| roofline.timing().expect_err("an invalid field").to_string();
        let experts = |group: ExpertsRoof| refused(Roofline { experts: vec![EXPERTS, group], ..NOTHING });
        assert_eq!(
            experts(ExpertsRoof { experts: 0, ..EXPERTS }),
            format!("experts[1].experts: must be from 1 to {LARGEST}, got 0")
        );
        assert_eq!(
            experts(ExpertsRoof { active: 5, ..EXPERTS }),
            "experts[1].active: must be from 1 to 4 experts, got 5"
        );
        assert_eq!(
            experts(ExpertsRoof { active: 0, ..EXPERTS }),
            "experts[1].active: must be from 1 to 4 experts, got 0"
        );
        assert!(experts(ExpertsRoof { ranks: 0, ..EXPERTS }).starts_with("experts[1].ranks: must be from 1 to "));
        assert!(experts(ExpertsRoof { base_s: -1.0, ..EXPERTS }).starts_with("experts[1].base_s: must be "));
        let mut narrow = window(false);
        narrow.windows[0].tokens = 0;
        assert_eq!(refused(narrow), format!("windows[0].tokens: must be from 1 to {LARGEST}, got 0"));
        let mut negative = window(false);
        negative.windows[0].decode.memory_s_per_token = -1.0;
        assert!(refused(negative).starts_with("windows[0].decode.memory_s_per_token: must be "));
        let states = Some(StateRoof { s_per_decode: -1.0, ..StateRoof::default() });
        assert!(refused(Roofline { states, ..NOTHING }).starts_with("states.s_per_decode: must be "));
        let exchange = Some(Exchange { s_per_token: -1.0, ..Exchange::default() });
        assert!(refused(Roofline { exchange, ..NOTHING }).starts_with("exchange.s_per_token: must be "));
    }

    #[test]
    fn optional_parts_are_absent_from_the_description_of_a_dense_model() {
        let written = serde_json::to_string(&NOTHING).expect("JSON");
        assert!(["experts", "windows", "states", "exchange", "context"].iter().all(|part| !written.contains(part)));
        assert_eq!(serde_json::from_str::<Roofline>(&written).expect("a roofline"), NOTHING);
    }
}
