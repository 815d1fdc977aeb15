//! Random numbers: the same seed gives the same bits on every platform.
//!
//! A draw is a pure function of *(seed, source, request, draw number)*: there is no generator state. So request 7
//! gets the same numbers regardless of other requests, the scheduler or the number of threads, and two compared
//! schedulers see identical requests.
//!
//! The function is Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
//! 2011). Its key is (seed, source), its counter (request / 4, draw number, stream number, 0), and the four output
//! words belong to four consecutive requests: a distribution with one draw per request costs a quarter of a block.
//! The stream number is 0 unless one source feeds several columns: the sessions of a workload, the stages of a
//! workflow.
//!
//! Only the logarithm needs more than IEEE 754 arithmetic; it comes from the pure-Rust `libm`, not from the platform,
//! so that x86 and ARM agree.

/// Purposes of draws. Each source has its own stream, so drawing more from one, or changing its distribution, does
/// not affect other sources. The numbers are part of every result: a new source gets a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Source {
    /// Gaps between arrivals: separate from lengths, so that a change of the rate keeps the requests.
    Arrivals = 1,
    /// Prompt lengths: separate from outputs, so that one can be replaced while the other stays.
    Prompt = 2,
    /// Output lengths: see [`Source::Prompt`].
    Output = 3,
    /// Rows of a table of requests: prompt and output stay together, so they share one draw.
    Rows = 4,
    /// Classes of requests: a change of the mix keeps arrivals and lengths.
    Class = 5,
    /// Patience: which request abandons first must not depend on routing.
    Patience = 6,
    /// Choices of a router: a change of the router keeps the workload.
    Router = 7,
    /// Random service times: a change of their distribution keeps the routing.
    Service = 8,
    /// The class served by a freed slot, numbered by earlier choices: the request is not known yet.
    DecodeClass = 9,
    /// Phases of an on-off arrival process: a change of the rates keeps the phases.
    Phase = 10,
    /// Turns of sessions: longer sessions keep the first turns.
    Turns = 11,
    /// Think times of sessions: slower users send the same requests.
    Think = 12,
    /// Further columns of lengths, numbered (see [`Stream::numbered`]): the stages of a workflow.
    Lengths = 13,
    /// Further columns of durations, numbered: the delays of a workflow.
    Durations = 14,
    /// Positions of replicas on a hash ring, by replica: the same for every seed.
    Ring = 15,
    /// Positions of prefixes on the ring.
    Prefix = 16,
    /// Accepted drafts, by the number of earlier emitting rows of the request: a change of the scheduler keeps them.
    Accepted = 17,
    /// Failures of replicas, by replica and number of its openings: a change of the workload keeps them.
    Failures = 18,
    /// Proposals of drafts, numbered like [`Source::Accepted`]: a change of the acceptance keeps them.
    Proposed = 19,
}

/// Maximum number of requests per batch of [`Stream::batches`]: small enough for the L1 cache.
pub(crate) const BATCH: usize = 256;

/// The draws of one source for one seed: four numbers, no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u64; 2],
    number: u64,
    /// Block of the request that is counted as request 0.
    first_group: u64,
}

impl Stream {
    /// Requests that share one Philox block.
    const LANES: u64 = 4;

    /// The stream of `source` for `seed`.
    pub fn new(seed: u64, source: Source) -> Self {
        Stream::numbered(seed, source, 0)
    }

    /// One of several streams of `source` with independent draws; number 0 is [`Stream::new`].
    pub fn numbered(seed: u64, source: Source, number: u64) -> Self {
        Stream { key: [seed, source as u64], number, first_group: 0 }
    }

    /// The same draws, with requests counted from `first`, a multiple of four.
    pub(crate) fn from(self, first: u64) -> Self {
        debug_assert!(first.is_multiple_of(Self::LANES), "a part begins at a block boundary");
        Stream { first_group: self.first_group + first / Self::LANES, ..self }
    }

    /// Returns draw number `draw` of `request`: 64 uniform bits.
    pub(crate) fn word(self, request: u64, draw: u64) -> u64 {
        self.block(request / Self::LANES, draw)[(request % Self::LANES) as usize]
    }

    /// Returns draw number `draw` of `request` as a number strictly between 0 and 1 (see `unit`).
    pub fn uniform(self, request: u64, draw: u64) -> f64 {
        unit(self.word(request, draw))
    }

    /// Appends `value` of draw number 0 for each of the requests `0..requests`: the same as [`Stream::word`] for
    /// each, at a quarter of the cost.
    pub(crate) fn extend<T>(self, column: &mut Vec<T>, requests: u64, mut value: impl FnMut(u64) -> T) {
        for group in 0..requests / Self::LANES {
            column.extend(self.block(group, 0).map(&mut value));
        }
        let rest = (requests % Self::LANES) as usize;
        column.extend(self.block(requests / Self::LANES, 0).into_iter().take(rest).map(value));
    }

    /// Fills `uniforms` with draw number `draw` of the requests from `first` on, a multiple of four.
    pub(crate) fn fill(self, first: u64, draw: u64, uniforms: &mut [f64]) {
        debug_assert!(first.is_multiple_of(Self::LANES), "a batch begins at a block boundary");
        for (group, lanes) in (first / Self::LANES..).zip(uniforms.chunks_mut(Self::LANES as usize)) {
            for (lane, word) in lanes.iter_mut().zip(self.block(group, draw)) {
                *lane = unit(word);
            }
        }
    }

    /// Passes draw number `draw` of the requests `0..requests` to `work`, at most [`BATCH`] at a time: the first
    /// request of the batch, and numbers strictly between 0 and 1 that `work` may overwrite. A multi-step
    /// distribution performs each step for the whole batch; performing all steps per request takes 3 times as long
    /// because of data dependencies.
    pub(crate) fn batches(self, requests: u64, draw: u64, mut work: impl FnMut(u64, &mut [f64])) {
        let mut uniforms = [0.0; BATCH];
        for first in (0..requests).step_by(BATCH) {
            let batch = &mut uniforms[..(requests - first).min(BATCH as u64) as usize];
            self.fill(first, draw, batch);
            work(first, batch);
        }
    }

    fn block(self, group: u64, draw: u64) -> [u64; 4] {
        philox4x64([self.first_group + group, draw, self.number, 0], self.key)
    }
}

/// Philox4x64 with 10 rounds: the four words of `counter` under `key`.
#[inline]
pub(crate) fn philox4x64(counter: [u64; 4], key: [u64; 2]) -> [u64; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
    // Weyl increments: the golden ratio and √3 − 1.
    const INCREMENTS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut left, mut right] = key;
    for _ in 0..10 {
        let first = u128::from(MULTIPLIERS[0]) * u128::from(a);
        let second = u128::from(MULTIPLIERS[1]) * u128::from(c);
        (a, c) = ((second >> 64) as u64 ^ b ^ left, (first >> 64) as u64 ^ d ^ right);
        (b, d) = (second as u64, first as u64);
        left = left.wrapping_add(INCREMENTS[0]);
        right = right.wrapping_add(INCREMENTS[1]);
    }
    [a, b, c, d]
}

/// Converts the upper 52 bits of `word` to a number strictly between 0 and 1, the midpoint of one of 2⁵² equal cells:
/// exact, symmetric about ½, with finite logarithms of itself and its complement.
#[inline]
pub(crate) fn unit(word: u64) -> f64 {
    const CELL: f64 = 1.0 / (1_u64 << 52) as f64;
    ((word >> 12) as i64 as f64 + 0.5) * CELL
}

/// Returns an integer in `0..bound`: the upper 64 bits of `word × bound`. Probabilities of values differ by at most
/// `bound` / 2⁶⁴, which is negligible.
#[inline]
pub(crate) fn below(word: u64, bound: u64) -> u64 {
    ((u128::from(word) * u128::from(bound)) >> 64) as u64
}

/// Returns the standard exponential of `probability` (strictly between 0 and 1) by inversion: −ln u.
#[inline]
pub fn exponential_quantile(probability: f64) -> f64 {
    -libm::log(probability)
}

/// Returns the standard normal quantile of `probability` (strictly between 0 and 1), to about 1 part in 10¹⁶:
/// algorithm AS 241, `PPND16` (Wichura, "The percentage points of the normal distribution", Applied Statistics 37,
/// 1988). One uniform yields one normal without rejection, so a draw number never depends on earlier draws.
#[inline]
pub(crate) fn normal_quantile(probability: f64) -> f64 {
    let q = probability - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * polynomial(&CENTER[0], r) / polynomial(&CENTER[1], r);
    }
    normal_tail(probability, q)
}

/// The outer 15 % of [`normal_quantile`], out of line to keep the common case short.
fn normal_tail(probability: f64, q: f64) -> f64 {
    let outer = if q < 0.0 { probability } else { 1.0 - probability };
    let r = (-libm::log(outer)).sqrt();
    let magnitude = if r <= 5.0 {
        polynomial(&NEAR_TAIL[0], r - 1.6) / polynomial(&NEAR_TAIL[1], r - 1.6)
    } else {
        polynomial(&FAR_TAIL[0], r - 5.0) / polynomial(&FAR_TAIL[1], r - 5.0)
    };
    if q < 0.0 { -magnitude } else { magnitude }
}

/// Horner's rule, lowest power first in `coefficients`. Products and sums are rounded individually (no fused
/// multiply-add), so every machine gets the same bits.
#[inline]
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    let [lower @ .., highest] = coefficients;
    lower.iter().rev().fold(*highest, |sum, coefficient| sum * x + coefficient)
}

/// Numerator and denominator of AS 241 for |p − ½| ≤ 0.425: a and b in the paper.
#[expect(clippy::excessive_precision, reason = "the digits printed in the paper")]
const CENTER: [[f64; 8]; 2] = [
    [
        3.387_132_872_796_366_608,
        1.331_416_678_917_843_774_5e2,
        1.971_590_950_306_551_442_7e3,
        1.373_169_376_550_946_112_5e4,
        4.592_195_393_154_987_145_7e4,
        6.726_577_092_700_870_085_3e4,
        3.343_057_558_358_812_810_5e4,
        2.509_080_928_730_122_672_7e3,
    ],
    [
        1.0,
        4.231_333_070_160_091_125_2e1,
        6.871_870_074_920_579_083_0e2,
        5.394_196_021_424_751_107_7e3,
        2.121_379_430_158_659_586_7e4,
        3.930_789_580_009_271_061_0e4,
        2.872_908_573_572_194_267_4e4,
        5.226_495_278_852_854_561_0e3,
    ],
];

/// The same for √(−ln p) up to 5: c and d in the paper.
#[expect(clippy::excessive_precision, reason = "the digits printed in the paper")]
const NEAR_TAIL: [[f64; 8]; 2] = [
    [
        1.423_437_110_749_683_577_34,
        4.630_337_846_156_545_295_90,
        5.769_497_221_460_691_405_50,
        3.647_848_324_763_204_605_04,
        1.270_458_252_452_368_382_58,
        2.417_807_251_774_506_117_70e-1,
        2.272_384_498_926_918_458_33e-2,
        7.745_450_142_783_414_076_40e-4,
    ],
    [
        1.0,
        2.053_191_626_637_758_821_87,
        1.676_384_830_183_803_849_40,
        6.897_673_349_851_000_045_50e-1,
        1.481_039_764_274_800_745_90e-1,
        1.519_866_656_361_645_719_66e-2,
        5.475_938_084_995_344_946_00e-4,
        1.050_750_071_644_416_843_24e-9,
    ],
];

/// The same for larger values: e and f in the paper.
#[expect(clippy::excessive_precision, reason = "the digits printed in the paper")]
const FAR_TAIL: [[f64; 8]; 2] = [
    [
        6.657_904_643_501_103_777_20,
        5.463_784_911_164_114_369_90,
        1.784_826_539_917_291_335_80,
        2.965_605_718_285_048_912_30e-1,
        2.653_218_952_657_612_309_30e-2,
        1.242_660_947_388_078_438_60e-3,
        2.711_555_568_743_487_578_15e-5,
        2.010_334_399_292_288_132_65e-7,
    ],
    [
        1.0,
        5.998_322_065_558_879_376_90e-1,
        1.369_298_809_227_358_053_10e-1,
        1.487_536_129_085_061_485_25e-2,
        7.868_691_311_456_132_591_00e-4,
        1.846_318_317_510_054_681_80e-5,
        1.421_511_758_316_445_888_70e-7,
        2.044_263_103_389_939_785_64e-15,
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (`kat_vectors`, philox4x64 with 10 rounds).
    #[test]
    fn philox_matches_published_words() {
        let all = u64::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b]),
            ([all; 4], [all; 2], [0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0]),
            // The digits of π.
            (
                [0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89],
                [0x452821e638d01377, 0xbe5466cf34e90c6c],
                [0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(philox4x64(counter, key), words);
        }
    }

    #[test]
    fn a_draw_depends_on_seed_source_request_and_number() {
        let stream = Stream::new(7, Source::Prompt);
        let word = stream.word(12, 0);
        assert_eq!(word, Stream::new(7, Source::Prompt).word(12, 0));
        assert_ne!(word, Stream::new(8, Source::Prompt).word(12, 0));
        assert_ne!(word, Stream::new(7, Source::Output).word(12, 0));
        assert_ne!(word, stream.word(13, 0));
        assert_ne!(word, stream.word(16, 0));
        assert_ne!(word, stream.word(12, 1));
        assert_eq!(word, Stream::numbered(7, Source::Prompt, 0).word(12, 0));
        assert_ne!(word, Stream::numbered(7, Source::Prompt, 1).word(12, 0));
    }

    /// Neither the number of requests nor the grouping by four affects a draw.
    #[test]
    fn a_column_equals_single_draws() {
        let stream = Stream::new(u64::MAX, Source::Rows);
        for requests in [0, 1, 3, 4, 5, 8, 1001] {
            let mut column = Vec::new();
            stream.extend(&mut column, requests, |word| word);
            let single: Vec<u64> = (0..requests).map(|request| stream.word(request, 0)).collect();
            assert_eq!(column, single);
        }
    }

    #[test]
    fn unit_is_open_and_symmetric() {
        assert_eq!(unit(0), f64::EPSILON / 2.0);
        assert_eq!(unit(u64::MAX), 1.0 - f64::EPSILON / 2.0);
        for word in [0, 1 << 12, 0x0123_4567_89ab_cdef, u64::MAX / 3] {
            assert_eq!(unit(word) + unit(!word), 1.0);
        }
    }

    #[test]
    fn below_covers_its_range() {
        assert_eq!(below(0, 10), 0);
        assert_eq!(below(u64::MAX, 10), 9);
        assert_eq!(below(u64::MAX, 1), 0);
        assert_eq!(below(1 << 63, 10), 5);
        assert_eq!(below(u64::MAX, u64::MAX), u64::MAX - 1);
    }

    /// The three values printed in the paper, and others from tables of the normal distribution (rounded from 30
    /// digits).
    #[test]
    fn normal_quantile_matches_published_values() {
        let cases = [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_813_5),
            (1e-20, -9.262_340_089_798_408),
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (0.9, 1.281_551_565_544_600_5),
            (0.99, 2.326_347_874_040_841),
            (1e-9, -5.997_807_015_007_686_9),
        ];
        for (probability, quantile) in cases {
            let error = (normal_quantile(probability) - quantile).abs();
            assert!(error <= 1e-15 * quantile.abs(), "{probability}: {error}");
        }
    }

    /// The three pieces are continuous: a sorted grid of probabilities yields sorted quantiles, mirrored about ½.
    #[test]
    fn normal_quantile_rises_and_mirrors() {
        let mut last = f64::NEG_INFINITY;
        for step in 1..40_000_u64 {
            let probability = step as f64 / 40_000.0;
            let quantile = normal_quantile(probability);
            assert!(quantile > last);
            last = quantile;
        }
        for word in [0, 1 << 30, 1 << 50, 1 << 60] {
            assert_eq!(normal_quantile(unit(word)), -normal_quantile(unit(!word)));
        }
    }
}
