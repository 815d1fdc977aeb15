//! Requests of one client whose rate, gaps and lengths were measured per window.
//!
//! A gap has the shape of the window in which it begins and runs in operational time (see [`super::varying`]). So
//! within a window this is the renewal process of that window, and over all windows the published rates hold.

use super::gaps::{Clock, UnitGamma, UnitWeibull};
use super::varying::{Piece, Rates, Walk, check_rate};
use super::{DrawnColumns, LONGEST, MAX_REQUESTS, check_tokens, column, within};
use crate::error::{Error, Kind, Result};
use crate::random::{Source, Stream};
use serde::Deserialize;

/// One client: windows of its arrivals, and tables of its lengths.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Starts of the windows in seconds, the first 0, ascending.
    pub times_s: Vec<f64>,
    /// Requests per second in each window; 0 for none.
    pub rates: Vec<f64>,
    /// Family of the gaps in each window; ignored if the rate is 0.
    pub families: Vec<Family>,
    /// Shape of the gaps in each window; ignored if the rate is 0.
    pub shapes: Vec<f64>,
    /// End of the last window, in seconds.
    pub end_s: f64,
    /// Length tables, by the time from which they apply.
    pub lengths: Vec<LengthTables>,
}

/// Gap distributions fitted to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Family {
    /// Gamma gaps.
    Gamma,
    /// Weibull gaps.
    Weibull,
}

/// Length tables that apply from an instant on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthTables {
    /// The instant, in seconds; may be negative.
    pub from_s: f64,
    /// Parts of a prompt, drawn independently and added.
    pub prompt: Vec<PromptPart>,
    /// The output.
    pub output: Frequencies,
}

/// One part of a prompt, such as its text or its images.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptPart {
    /// Number of pieces. Default: one.
    pub count: Option<Frequencies>,
    /// Tokens of each piece, drawn independently.
    pub tokens: Frequencies,
}

/// Integers and their frequencies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frequencies {
    /// Tokens or pieces, ascending; 0 is allowed in a part of a prompt.
    pub values: Vec<i64>,
    /// Frequencies, in any unit.
    pub weights: Vec<f64>,
}

/// Shapes of gamma gaps: their coefficient of variation is 1 / √shape.
const GAMMA_SHAPES: (f64, f64) = (1e-6, 1e12);
/// Shapes of Weibull gaps, as in a distribution of arrivals.
const WEIBULL_SHAPES: (f64, f64) = (0.1, 1e6);

enum Gap {
    Gamma(UnitGamma),
    Weibull(UnitWeibull),
}

impl Gap {
    fn draw(&self, stream: Stream, request: u64) -> f64 {
        match self {
            Gap::Gamma(gamma) => gamma.draw_one(stream, request),
            Gap::Weibull(weibull) => weibull.of(stream.uniform(request, 0)),
        }
    }
}

impl Client {
    /// Draws the requests of this client from 0 to `end_s`. Their number is random and may be 0.
    pub fn draw(&self, seed: u64) -> Result<DrawnColumns> {
        let (windows, gaps) = self.windows()?;
        let tables: Vec<_> =
            self.lengths.iter().enumerate().map(|(place, tables)| Drawer::new(place, tables)).collect::<Result<_>>()?;
        let mut columns = DrawnColumns { arrival_ns: Vec::new(), prompt_tokens: Vec::new(), output_tokens: Vec::new() };
        if windows.rates.iter().all(|&rate| rate == 0.0) {
            return Ok(columns);
        }
        if tables.is_empty() {
            return Err(Error::config("lengths", "must not be empty when the client sends requests"));
        }
        let expected: f64 = self.expected();
        // Expected count plus six standard deviations of a Poisson count, which is seldom exceeded.
        let room = expected + 6.0 * expected.sqrt() + 16.0;
        columns.arrival_ns = column(room as u64)?;
        let stream = Stream::new(seed, Source::Arrivals);
        let mut walk = Walk::new(windows);
        loop {
            let request = columns.arrival_ns.len() as u64;
            let arrival_ns = walk.after(gaps[walk.rates().present()].draw(stream, request));
            if walk.rates().is_over() {
                break;
            }
            if request == MAX_REQUESTS {
                return Err(Kind::TooMuch(format!("one client sends more than {MAX_REQUESTS} requests")).into());
            }
            columns.arrival_ns.push(arrival_ns);
        }
        let outputs = Stream::new(seed, Source::Output);
        columns.prompt_tokens = column(columns.arrival_ns.len() as u64)?;
        columns.output_tokens = column(columns.arrival_ns.len() as u64)?;
        let mut place = 0;
        for (request, &arrival_ns) in (0..).zip(&columns.arrival_ns) {
            while tables.get(place + 1).is_some_and(|next| next.from_ns <= arrival_ns) {
                place += 1;
            }
            columns.prompt_tokens.push(tables[place].prompt(seed, request)?);
            columns.output_tokens.push(tables[place].output.draw(outputs.uniform(request, 0)) as i32);
        }
        Ok(columns)
    }

    /// Expected number of requests.
    fn expected(&self) -> f64 {
        let ends = self.times_s[1..].iter().chain([&self.end_s]);
        self.times_s.iter().zip(ends).zip(&self.rates).map(|((start, end), rate)| (end - start) * rate).sum()
    }

    fn windows(&self) -> Result<(Windows<'_>, Vec<Gap>)> {
        let count = self.times_s.len();
        if count == 0 || self.times_s[0] != 0.0 {
            return Err(Error::config("times_s", "must begin with 0"));
        }
        if [self.rates.len(), self.families.len(), self.shapes.len()] != [count; 3] {
            return Err(Error::config("times_s", "must have the same length as rates, families and shapes"));
        }
        let mut edges: Vec<u128> = Vec::with_capacity(count + 1);
        for &time in self.times_s.iter().chain([&self.end_s]) {
            let edge = Clock::at(time).map(|clock| clock.now);
            match edge.filter(|&edge| edges.last().is_none_or(|&before| before < edge)) {
                Some(edge) => edges.push(edge),
                None => return Err(Error::config("times_s", format!("must ascend from 0 to end_s, got {time:?}"))),
            }
        }
        let mut gaps = Vec::with_capacity(count);
        for (place, ((&rate, family), &shape)) in self.rates.iter().zip(&self.families).zip(&self.shapes).enumerate() {
            check_rate(&format!("rates[{place}]"), rate)?;
            let shape = if rate == 0.0 { 1.0 } else { shape };
            let field = format!("shapes[{place}]");
            gaps.push(match family {
                Family::Gamma => {
                    within(&field, shape, GAMMA_SHAPES)?;
                    Gap::Gamma(UnitGamma::new(shape))
                }
                Family::Weibull => {
                    within(&field, shape, WEIBULL_SHAPES)?;
                    Gap::Weibull(UnitWeibull::new(shape))
                }
            });
        }
        Ok((Windows { edges, rates: &self.rates, next: 0 }, gaps))
    }
}

/// The windows of a client, followed by an endless window without requests.
struct Windows<'a> {
    edges: Vec<u128>,
    rates: &'a [f64],
    next: usize,
}

impl Windows<'_> {
    /// The window in which the next gap begins: the current window, or the next one with requests if the rate is 0.
    fn present(&self) -> usize {
        let present = self.next - 1;
        let busy = self.rates[present..].iter().position(|&rate| rate > 0.0);
        present + busy.unwrap_or(0)
    }

    fn is_over(&self) -> bool {
        self.next > self.rates.len()
    }
}

impl Rates for Windows<'_> {
    fn next(&mut self, _gaps: &mut f64) -> Piece {
        let place = self.next;
        self.next += 1;
        match self.rates.get(place) {
            Some(&rate) => Piece { rate, start: self.edges[place], end: self.edges[place + 1] },
            None => Piece { rate: 0.0, start: self.edges[self.rates.len()], end: u128::MAX },
        }
    }
}

/// Length tables prepared for drawing.
struct Drawer {
    from_ns: i64,
    prompt: Vec<PartDrawer>,
    output: Cumulative,
}

struct PartDrawer {
    count: Option<Cumulative>,
    tokens: Cumulative,
}

impl Drawer {
    fn new(place: usize, tables: &LengthTables) -> Result<Drawer> {
        let path = format!("lengths[{place}]");
        if tables.prompt.is_empty() {
            return Err(Error::config(format!("{path}.prompt"), "must not be empty"));
        }
        let mut prompt = Vec::with_capacity(tables.prompt.len());
        for (number, part) in tables.prompt.iter().enumerate() {
            let named = |error: Error| error.within(&format!("{path}.prompt[{number}]"));
            prompt.push(PartDrawer {
                count: part.count.as_ref().map(|count| Cumulative::new(count, 0)).transpose().map_err(named)?,
                tokens: Cumulative::new(&part.tokens, 0).map_err(named)?,
            });
        }
        let output = Cumulative::new(&tables.output, 1).map_err(|error| error.within(&format!("{path}.output")))?;
        Ok(Drawer { from_ns: (tables.from_s * 1e9) as i64, prompt, output })
    }

    /// Part j of a prompt uses stream j: draw 0 is its number of pieces, draw i (from 1) the tokens of piece i.
    fn prompt(&self, seed: u64, request: u64) -> Result<i32> {
        let mut tokens = 0_i64;
        for (number, part) in (0..).zip(&self.prompt) {
            let stream = Stream::numbered(seed, Source::Prompt, number);
            let count = part.count.as_ref().map_or(1, |count| count.draw(stream.uniform(request, 0)));
            for piece in 1..=count.unsigned_abs() {
                tokens += part.tokens.draw(stream.uniform(request, piece));
            }
        }
        // A prompt has at least one token.
        check_tokens("prompt", tokens.max(1)).map(|()| tokens.max(1) as i32)
    }
}

/// Values with their cumulative weights.
struct Cumulative {
    values: Vec<i64>,
    sums: Vec<f64>,
}

impl Cumulative {
    fn new(frequencies: &Frequencies, least: i64) -> Result<Cumulative> {
        let Frequencies { values, weights } = frequencies;
        if values.is_empty() || values.len() != weights.len() {
            return Err(Error::config("values", "must be non-empty and have the same length as weights"));
        }
        if values.iter().any(|value| !(least..=LONGEST).contains(value)) {
            return Err(Error::config("values", format!("must be from {least} to {LONGEST}")));
        }
        if weights.iter().any(|weight| !(0.0..=1e18).contains(weight)) {
            return Err(Error::config("weights", "must be from 0 to 1e18"));
        }
        let mut sum = 0.0;
        let mut sums = Vec::with_capacity(weights.len());
        for weight in weights {
            sum += weight;
            sums.push(sum);
        }
        if sum <= 0.0 {
            return Err(Error::config("weights", "must not all be 0"));
        }
        Ok(Cumulative { values: values.clone(), sums })
    }

    fn draw(&self, uniform: f64) -> i64 {
        let last = self.sums.len() - 1;
        let aim = uniform * self.sums[last];
        self.values[self.sums.partition_point(|&sum| sum <= aim).min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(values: &[i64], weights: &[f64]) -> Frequencies {
        Frequencies { values: values.to_vec(), weights: weights.to_vec() }
    }

    fn tables(from_s: f64, prompt: i64) -> LengthTables {
        let part = PromptPart { count: None, tokens: frequencies(&[prompt], &[1.0]) };
        LengthTables { from_s, prompt: vec![part], output: frequencies(&[1, 5], &[1.0, 3.0]) }
    }

    /// Busy, silent, busy again.
    fn client(families: [Family; 3], shapes: [f64; 3]) -> Client {
        Client {
            times_s: vec![0.0, 20_000.0, 30_000.0],
            rates: vec![2.0, 0.0, 6.0],
            families: families.to_vec(),
            shapes: shapes.to_vec(),
            end_s: 40_000.0,
            lengths: vec![tables(-5.0, 10), tables(30_000.0, 700)],
        }
    }

    /// Shape 1 is a Poisson process: counts in disjoint windows are independent Poisson variables; tolerance 5
    /// standard deviations.
    #[test]
    fn windows_have_their_rates_and_lengths() {
        for family in [Family::Gamma, Family::Weibull] {
            let drawn = client([family; 3], [1.0; 3]).draw(3).expect("a client");
            let count = |from: i64, to: i64| {
                drawn.arrival_ns.iter().filter(|&&at| (from..to).contains(&(at / 1_000_000_000))).count() as f64
            };
            assert!((count(0, 20_000) - 40_000.0).abs() < 5.0 * 200.0);
            assert_eq!(count(20_000, 30_000), 0.0);
            assert!((count(30_000, 40_000) - 60_000.0).abs() < 5.0 * 245.0);
            assert!(drawn.arrival_ns.is_sorted());
            let late = |at: i64| at >= 30_000_000_000_000;
            assert!(
                drawn.arrival_ns.iter().zip(&drawn.prompt_tokens).all(|(&at, &p)| p == if late(at) { 700 } else { 10 })
            );
            let share = drawn.output_tokens.iter().filter(|&&tokens| tokens == 5).count() as f64
                / drawn.output_tokens.len() as f64;
            assert!((share - 0.75).abs() < 5.0 * (0.1875_f64 / 1e5).sqrt());
        }
    }

    /// Gaps have the shape of their window: the squared coefficient of variation is 1/4 for gamma 4. The standard
    /// error of the sample's squared coefficient follows from the moments of the distribution.
    #[test]
    fn gaps_have_the_shape_of_their_window() {
        let drawn = client([Family::Gamma; 3], [4.0, 1.0, 0.25]).draw(5).expect("a client");
        for (from, to, rate, expected) in [(0, 20_000, 2.0, 0.25), (30_000, 40_000, 6.0, 4.0)] {
            let inside: Vec<f64> = drawn
                .arrival_ns
                .iter()
                .map(|&at| at as f64 / 1e9)
                .filter(|&at| (f64::from(from)..f64::from(to)).contains(&at))
                .collect();
            let gaps: Vec<f64> = inside.windows(2).map(|pair| (pair[1] - pair[0]) * rate).collect();
            let n = gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - 1.0).powi(2)).sum::<f64>() / n;
            // The variance of a squared deviation of a gamma of mean 1 is (2 + 6 v) v².
            let error = ((2.0 + 6.0 * expected) * expected * expected / n).sqrt();
            assert!((variance - expected).abs() < 5.0 * error, "{variance} against {expected} ± {error}");
        }
    }

    /// Pieces of a prompt are drawn independently: with a mean of 1.5 images of 100 or 200 tokens the variance of the
    /// sum is E[N] Var(X) + Var(N) E[X]².
    #[test]
    fn images_are_drawn_piece_by_piece() {
        let images = PromptPart {
            count: Some(frequencies(&[0, 3], &[0.5, 0.5])),
            tokens: frequencies(&[100, 200], &[0.5, 0.5]),
        };
        let mut sender = client([Family::Gamma; 3], [1.0; 3]);
        sender.lengths = vec![tables(0.0, 7)];
        sender.lengths[0].prompt.push(images);
        let drawn = sender.draw(1).expect("a client");
        let n = drawn.prompt_tokens.len() as f64;
        let extra: Vec<f64> = drawn.prompt_tokens.iter().map(|&tokens| f64::from(tokens - 7)).collect();
        let mean = extra.iter().sum::<f64>() / n;
        let variance = 1.5 * 2_500.0 + 2.25 * 22_500.0;
        assert!((mean - 225.0).abs() < 5.0 * (variance / n).sqrt(), "{mean}");
        let sample = extra.iter().map(|extra| (extra - 225.0).powi(2)).sum::<f64>() / n;
        // No squared deviation is above 375².
        assert!(
            (sample - variance).abs() < 5.0 * (variance * 375_f64.powi(2) / n).sqrt(),
            "{sample} against {variance}"
        );
        assert!(extra.iter().all(|&extra| [0.0, 300.0, 400.0, 500.0, 600.0].contains(&extra)));
    }

    #[test]
    fn a_client_without_traffic_sends_nothing() {
        let mut silent = client([Family::Gamma; 3], [0.0; 3]);
        silent.rates = vec![0.0; 3];
        assert_eq!(silent.draw(1).map(|columns| columns.arrival_ns.len()), Ok(0));
    }

    #[test]
    fn bad_clients_are_named() {
        let good = || client([Family::Weibull; 3], [1.0; 3]);
        type Change = fn(&mut Client);
        let cases: [(Change, &str); 8] = [
            (|client| client.times_s[0] = 1.0, "times_s"),
            (|client| client.times_s[1] = 30_000.0, "times_s"),
            (|client| client.end_s = 30_000.0, "times_s"),
            (|client| client.rates[2] = -1.0, "rates[2]"),
            (|client| client.shapes[0] = 0.0, "shapes[0]"),
            (|client| client.lengths.clear(), "lengths"),
            (|client| client.lengths[1].output.values[0] = 0, "lengths[1].output.values"),
            (|client| client.lengths[0].prompt[0].tokens.weights[0] = f64::NAN, "lengths[0].prompt[0].weights"),
        ];
        for (change, field) in cases {
            let mut bad = good();
            change(&mut bad);
            let error = bad.draw(1).expect_err("a bad client").to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
