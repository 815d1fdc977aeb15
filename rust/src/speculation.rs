//! Speculative decoding: a cheap drafter proposes tokens, and the model verifies them in one iteration.
//!
//! A policy requests it with [`Scheduler::speculates`](crate::scheduler::Scheduler::speculates). Then every request
//! whose row emits is offered `tokens` drafts for its next row. The number of accepted drafts is a property of the
//! request, like its length. It is a list from the workload, or a draw that depends only on the seed, the request and
//! its number of earlier emitting rows. Whether an n-gram lookup proposes drafts is drawn in the same way.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{SECOND, Span, decimal};
use crate::dice::{Dice, Sample};
use crate::error::{Error, Result};
use crate::random::{Source, Stream};
use crate::timing::{Beyond, Shape, Timing, TimingModel};

/// Speculative decoding as a user describes it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    /// Drafts offered after an emitting row.
    pub tokens: u64,
    /// The draft method.
    pub method: DraftMethod,
    /// Distribution of accepted drafts. `None`: the workload's column `accepted`.
    pub acceptance: Option<Acceptance>,
    /// Seed of the draws.
    pub seed: u64,
    /// Time of the drafter per iteration. `None`: no extra time.
    pub drafter: Option<Drafter>,
    /// Share of rows for which an n-gram lookup proposes drafts. `None`: the workload's column `proposal_rate`; without
    /// the column, every row. Other methods always propose.
    #[serde(default)]
    pub proposal_rate: Option<f64>,
}

/// The draft method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DraftMethod {
    /// A model that reads the target's states one token ahead. It takes cache slots after every row. A cached block
    /// is shared only by requests that also agree on the token after it.
    Eagle,
    /// Lookup of the last tokens in the earlier text.
    Ngram,
}

/// The number of accepted drafts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Acceptance {
    /// Each draft is accepted with this probability if all drafts before it are.
    Each(f64),
    /// The probability that the first draft is accepted, that the first two are, and so on.
    ByPosition(Vec<f64>),
}

/// Time of the drafter.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Drafter {
    /// A share of the model's iteration time.
    Share(f64),
    /// The time of this model for the same batch.
    Model(Box<TimingModel>),
}

/// Maximum number of drafts per row.
const MOST_DRAFTS: u64 = 1 << 10;

impl Speculation {
    /// Checks the fields and builds the speculation.
    pub fn build(&self) -> Result<SpeculationParts> {
        if !(1..=MOST_DRAFTS).contains(&self.tokens) {
            return Err(Error::config("tokens", format!("must be from 1 to {MOST_DRAFTS}, got {}", self.tokens)));
        }
        let distribution = match &self.acceptance {
            None => None,
            Some(acceptance) => Some(acceptance.distribution(self.tokens, self.seed)?),
        };
        let (share, model) = match &self.drafter {
            None => (0, None),
            Some(Drafter::Share(share)) => (share_from(*share, "drafter")?, None),
            Some(Drafter::Model(model)) => {
                (0, Some(Arc::from(model.build().map_err(|error| error.within("drafter"))?)))
            }
        };
        if model.as_ref().is_some_and(|model: &Arc<dyn Timing>| !model.moduli().is_empty()) {
            return Err(Error::config("drafter", "must be a timing model without tiles"));
        }
        let proposals = self.proposals()?;
        Ok(SpeculationParts { drafts: self.tokens, method: self.method, distribution, proposals, share, model })
    }

    fn proposals(&self) -> Result<Option<Proposals>> {
        let stream = Stream::new(self.seed, Source::Proposed);
        match (self.method, self.proposal_rate) {
            (DraftMethod::Ngram, None) => Ok(Some(Proposals { stream, rate: None })),
            (DraftMethod::Ngram, Some(rate)) => {
                Ok(Some(Proposals { stream, rate: Some(ProposalRate::new(rate, "proposal_rate")?) }))
            }
            (DraftMethod::Eagle, None) => Ok(None),
            (DraftMethod::Eagle, Some(rate)) => Err(Error::config(
                "proposal_rate",
                format!("must be None for method \"eagle\", which proposes drafts for every row, got {rate}"),
            )),
        }
    }
}

impl Sample for Speculation {
    fn sample(dice: &mut Dice) -> Speculation {
        let acceptance = match dice.below(3) {
            0 => Acceptance::Each(dice.one_of(&[0.0, 0.6, 1.0])),
            1 => Acceptance::Each(dice.below(1000) as f64 / 1000.0),
            _ => Acceptance::ByPosition(vec![0.8, 0.5, 0.5, 0.1, 0.0]),
        };
        let drafter = match dice.below(3) {
            0 => None,
            1 => Some(Drafter::Share(0.125)),
            _ => Some(Drafter::Model(Box::new(crate::timing::Constant { seconds: dice.seconds(0, 50) }.into()))),
        };
        let method = dice.one_of(&[DraftMethod::Eagle, DraftMethod::Ngram]);
        let rates = [None, Some(0.0), Some(0.3), Some(0.8), Some(1.0)];
        Speculation {
            tokens: match &acceptance {
                Acceptance::Each(_) => 1 + dice.below(5),
                Acceptance::ByPosition(rates) => rates.len() as u64,
            },
            method,
            acceptance: Some(acceptance),
            seed: dice.below(3),
            drafter,
            proposal_rate: if method == DraftMethod::Ngram { dice.one_of(&rates) } else { None },
        }
    }
}

impl Acceptance {
    fn distribution(&self, drafts: u64, seed: u64) -> Result<AcceptanceDistribution> {
        let above = match self {
            Acceptance::Each(rate) => {
                let each = threshold(*rate, "acceptance")?;
                // P(first i drafts accepted) = rate^i.
                let next = |&all: &u128| Some((all * each) >> BITS);
                std::iter::successors(Some(each), next).take(drafts as usize).collect()
            }
            Acceptance::ByPosition(rates) => {
                if rates.len() as u64 != drafts {
                    let what = format!("must have one rate per draft ({drafts}), got {}", rates.len());
                    return Err(Error::config("acceptance", what));
                }
                let rate = |(place, &rate): (usize, &f64)| threshold(rate, &format!("acceptance[{place}]"));
                let above: Vec<u128> = rates.iter().enumerate().map(rate).collect::<Result<_>>()?;
                if let Some(place) = above.windows(2).position(|pair| pair[0] < pair[1]) {
                    let what = format!(
                        "must be at most the rate before it ({1}), got {0}: a draft is accepted only after all drafts before it",
                        rates[place + 1],
                        rates[place]
                    );
                    return Err(Error::config(format!("acceptance[{}]", place + 1), what));
                }
                above
            }
        };
        Ok(AcceptanceDistribution { stream: Stream::new(seed, Source::Accepted), above })
    }
}

/// Bits of a probability.
const BITS: u32 = 63;

/// A probability as a share of 2^63, rounded down. 1 is certain.
fn threshold(rate: f64, field: &str) -> Result<u128> {
    if !(0.0..=1.0).contains(&rate) {
        return Err(Error::config(field, format!("must be from 0 to 1, got {rate}")));
    }
    Ok((share_from(rate, field)? << BITS) / SECOND)
}

/// A share in units of 1e-18.
fn share_from(share: f64, field: &str) -> Result<u128> {
    let wrong = || Error::config(field, format!("must be from 0 to 1e9, got {share}"));
    if (0.0..=1e9).contains(&share) { decimal(share, 18).ok_or_else(wrong) } else { Err(wrong()) }
}

/// The distribution of accepted drafts of a row.
#[derive(Clone, Debug)]
pub(crate) struct AcceptanceDistribution {
    stream: Stream,
    /// Per number of drafts: the threshold of the 2^63 words below which at least that many are accepted.
    above: Vec<u128>,
}

impl AcceptanceDistribution {
    /// The number of accepted drafts of a request's `emission`-th emitting row.
    pub(crate) fn accepted(&self, request: u32, emission: u32) -> u32 {
        let word = self.stream.word(u64::from(request), u64::from(emission)) >> (64 - BITS);
        self.above.iter().take_while(|&&above| u128::from(word) < above).count() as u32
    }
}

/// A probability of proposals, as a share of the 2^63 words of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProposalRate(u64);

impl ProposalRate {
    pub(crate) fn new(rate: f64, field: &str) -> Result<ProposalRate> {
        Ok(ProposalRate(threshold(rate, field)? as u64))
    }
}

/// The rows for which an n-gram lookup proposes drafts.
#[derive(Clone, Debug)]
pub(crate) struct Proposals {
    stream: Stream,
    /// `None`: the rate of the request.
    rate: Option<ProposalRate>,
}

impl Proposals {
    /// Whether drafts are proposed for a request's `emission`-th emitting row. `of_request`: its own rate, if any.
    pub(crate) fn proposes(&self, of_request: Option<ProposalRate>, request: u32, emission: u32) -> bool {
        let word = || self.stream.word(u64::from(request), u64::from(emission)) >> (64 - BITS);
        self.rate.or(of_request).is_none_or(|ProposalRate(below)| word() < below)
    }
}

/// The drafts of a request as its workload describes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestDrafts {
    /// Accepted drafts of each emitting row. Empty: not given.
    pub(crate) accepted: Vec<u16>,
    /// `None`: not given.
    pub(crate) proposal_rate: Option<ProposalRate>,
}

/// A [`Speculation`] ready to run.
#[derive(Clone)]
pub struct SpeculationParts {
    /// Drafts offered after an emitting row.
    pub(crate) drafts: u64,
    pub(crate) method: DraftMethod,
    /// `None`: the workload's column `accepted`.
    pub(crate) distribution: Option<AcceptanceDistribution>,
    /// `None`: drafts are proposed for every row.
    pub(crate) proposals: Option<Proposals>,
    /// The drafter's time as a share of the model's, in units of 1e-18.
    share: u128,
    model: Option<Arc<dyn Timing>>,
}

impl SpeculationParts {
    /// Tokens of lookahead: cache slots that every row takes after its own.
    pub(crate) fn lookahead(&self) -> u64 {
        if self.method == DraftMethod::Eagle { self.drafts } else { 0 }
    }

    /// Tokens after a block that must agree too for requests to share it.
    pub(crate) fn beyond_block(&self) -> u32 {
        u32::from(self.method == DraftMethod::Eagle)
    }

    /// Time of the drafter for an iteration of this shape and length.
    pub(crate) fn drafting(&self, length: Span, shape: &Shape) -> Result<Span> {
        let share = length.times(self.share / SECOND)?.plus(Span(share_of(length.0, self.share % SECOND)))?;
        match &self.model {
            Some(model) => share.plus(model.pace(shape)?.first),
            None => Ok(share),
        }
    }

    /// Batches beyond the measured range of the drafter's model.
    pub(crate) fn beyond(&self) -> Beyond {
        self.model.as_ref().map_or(Beyond::default(), |model| model.beyond())
    }
}

/// A share below 1, in units of 1e-18, of `number`, rounded down.
fn share_of(number: u128, share: u128) -> u128 {
    number / SECOND * share + number % SECOND * share / SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(acceptance: Acceptance, tokens: u64) -> AcceptanceDistribution {
        let speculation = Speculation {
            tokens,
            method: DraftMethod::Eagle,
            acceptance: Some(acceptance),
            seed: 7,
            drafter: Some(Drafter::Share(1.25)),
            proposal_rate: None,
        };
        speculation.build().expect("a speculation").distribution.expect("a distribution")
    }

    #[test]
    fn accepted_drafts_follow_the_rates() {
        // 40,000 draws: at least i drafts are accepted with frequency p_i, within 4 standard deviations of at most 1
        // / 400.
        for (acceptance, shares) in [
            (Acceptance::Each(0.5), [0.5, 0.25, 0.125]),
            (Acceptance::Each(0.0), [0.0; 3]),
            (Acceptance::Each(1.0), [1.0; 3]),
            (Acceptance::ByPosition(vec![0.9, 0.3, 0.3]), [0.9, 0.3, 0.3]),
        ] {
            let distribution = distribution(acceptance, 3);
            let drawn: Vec<u32> = (0..40_000).map(|draw| distribution.accepted(draw % 100, draw / 100)).collect();
            for (least, share) in (1..).zip(shares) {
                let got = drawn.iter().filter(|&&accepted| accepted >= least).count() as f64 / 40_000.0;
                assert!((got - share).abs() <= if share % 1.0 == 0.0 { 0.0 } else { 0.01 }, "{least}: {got}, {share}");
            }
        }
    }

    #[test]
    fn proposals_follow_the_rate() {
        // 40,000 draws: within 4 standard deviations of at most 1 / 400. Rates of 0 and 1 are exact.
        for rate in [0.0, 0.25, 0.7, 1.0] {
            let of_request = ProposalRate::new(rate, "rate").expect("a rate");
            let stream = Stream::new(7, Source::Proposed);
            for proposals in [Proposals { stream, rate: Some(of_request) }, Proposals { stream, rate: None }] {
                let proposes = |draw: u32| proposals.proposes(Some(of_request), draw % 100, draw / 100);
                let got = (0..40_000).filter(|&draw| proposes(draw)).count() as f64 / 40_000.0;
                assert!((got - rate).abs() <= if rate % 1.0 == 0.0 { 0.0 } else { 0.01 }, "{got}, {rate}");
            }
        }
        assert!(Proposals { stream: Stream::new(7, Source::Proposed), rate: None }.proposes(None, 3, 5));
    }

    #[test]
    fn a_share_is_exact() {
        assert_eq!(share_of(7 * SECOND + 4, SECOND / 4), 7 * SECOND / 4 + 1);
        assert_eq!(share_of(u128::MAX, SECOND - 1) >> 100, u128::MAX >> 100);
    }
}
