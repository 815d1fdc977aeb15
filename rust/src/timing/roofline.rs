//! Roofline model: the larger of compute and memory time for each part.

use super::prelude::*;
use super::sum;
use crate::clock::attoseconds;

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

/// Communication between the GPUs of a tensor-parallel group, in seconds; zero for a single GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AllReduce {
    /// Total latency of all exchanges of an iteration.
    pub latency_s: f64,
    /// Time to send the activations of a token.
    pub s_per_token: f64,
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
    /// Communication between GPUs.
    #[serde(default)]
    pub all_reduce: AllReduce,
    /// Fixed time per iteration.
    pub base_s: f64,
}

impl Roofline {
    fn timing(&self) -> Result<RooflineTiming> {
        let Roofline { linear, chunk, decode, all_reduce, base_s } = self;
        let whole = |part: &str, field: &str, seconds: f64| {
            attoseconds(seconds, field).map_err(|error: Error| error.within(part))
        };
        let latency = whole("all_reduce", "latency_s", all_reduce.latency_s)?;
        Ok(RooflineTiming {
            flops_per_token: whole("linear", "flops_s_per_token", linear.flops_s_per_token)?,
            weight: whole("linear", "weight_s", linear.weight_s)?,
            activation_per_token: whole("linear", "activation_s_per_token", linear.activation_s_per_token)?,
            chunk_compute_per_pair: whole("chunk", "compute_s_per_pair", chunk.compute_s_per_pair)?,
            chunk_memory_per_token: whole("chunk", "memory_s_per_token", chunk.memory_s_per_token)?,
            decode_per_token: whole("decode", "compute_s_per_token", decode.compute_s_per_token)?.max(whole(
                "decode",
                "memory_s_per_token",
                decode.memory_s_per_token,
            )?),
            base: sum(&[(attoseconds(*base_s, "base_s")?, 1), (latency, 1)])?,
            exchange_per_token: whole("all_reduce", "s_per_token", all_reduce.s_per_token)?,
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
        // Reading a token costs as much as `pairs` pairs, so that the two lines of a chunk often cross.
        let (pair, pairs) = ((1 + dice.below(49)) as f64 / 1e8, dice.below(100) as f64);
        let base_s = dice.seconds(1000, 9000);
        Roofline {
            linear: LinearRoof {
                flops_s_per_token: dice.seconds(1, 100),
                weight_s: dice.seconds(0, 2000),
                activation_s_per_token: dice.seconds(0, 50),
            },
            chunk: ChunkRoof { compute_s_per_pair: pair, memory_s_per_token: pair * pairs },
            decode: DecodeRoof { compute_s_per_token: dice.seconds(0, 10), memory_s_per_token: dice.seconds(0, 10) },
            all_reduce: AllReduce { latency_s: base_s, s_per_token: dice.seconds(0, 20) },
            base_s,
        }
    }
}

/// base + all-reduce(τ) + max(flops·τ, weights + activations·τ) + max(compute·Σ c·(x + (c + 1)/2), memory·Σ (x + c))
/// over chunks + max(compute, memory)·Σ (context + 1) over decodes, for τ tokens in the batch, in attoseconds.
#[derive(Debug)]
struct RooflineTiming {
    flops_per_token: u128,
    weight: u128,
    activation_per_token: u128,
    chunk_compute_per_pair: u128,
    chunk_memory_per_token: u128,
    /// The larger of the two, which share one factor.
    decode_per_token: u128,
    /// Base plus latency of the exchanges.
    base: u128,
    exchange_per_token: u128,
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
        let pace = Pace::line(rest, sum(&[(self.decode_per_token, decodes)])?)?;
        if shape.chunks.is_empty() {
            return Ok(pace);
        }
        let of_chunks = u128::from(shape.chunk_tokens);
        // c² + c is even for every chunk.
        let pairs = shape.chunk_cross + (shape.chunk_squares + of_chunks) / 2;
        let compute = Pace::line(
            sum(&[(self.chunk_compute_per_pair, pairs)])?,
            sum(&[(self.chunk_compute_per_pair, shape.chunk_squares)])?,
        )?;
        let memory = Pace::line(
            sum(&[(self.chunk_memory_per_token, u128::from(shape.chunk_context) + of_chunks)])?,
            sum(&[(self.chunk_memory_per_token, of_chunks)])?,
        )?;
        pace.plus(&compute.larger(&memory))
    }
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
            chunk: ChunkRoof { compute_s_per_pair: 1e-9, memory_s_per_token: 64e-9 },
            decode: DecodeRoof { compute_s_per_token: 10e-9, memory_s_per_token: 100e-9 },
            all_reduce: AllReduce { latency_s: 20e-6, s_per_token: 1e-6 },
            base_s: 3e-3,
        };
        roofline.timing().expect("a roofline")
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
}
