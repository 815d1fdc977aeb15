//! Dice for the random scenarios of the laws: policies, routers and timing models are drawn with them.
//!
//! Each kind says in its own file how its parameters are drawn, so a new one is under the laws from its first day. No run
//! needs any of this.

/// A kind whose parameters can be drawn: anything that is valid and small enough to meet its corners.
pub(crate) trait Sample {
    /// Parameters for a scenario.
    fn sample(dice: &mut Dice) -> Self;
}

/// Of a kind without parameters there is one.
impl<Kind: Default> Sample for Kind {
    fn sample(_dice: &mut Dice) -> Kind {
        Kind::default()
    }
}

/// How large the parameters of a scenario should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Tokens of an iteration.
    pub token_budget: u64,
    /// Requests admitted at once.
    pub max_seqs: u64,
    /// Tokens of the longest request, prompt and output.
    pub longest: u64,
    /// Tokens of a block.
    pub block: u64,
}

/// Numbers to draw with, used one after another and over again.
#[derive(Clone, Debug)]
pub struct Dice {
    words: Vec<u32>,
    next: usize,
    /// How large the parameters should be.
    pub scale: Scale,
}

impl Dice {
    /// Zeros draw the simplest parameters.
    pub fn new(words: Vec<u32>, scale: Scale) -> Dice {
        Dice { words, next: 0, scale }
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        let word = self.words.get(self.next).copied().unwrap_or(0);
        self.next = (self.next + 1) % self.words.len().max(1);
        u64::from(word) % count
    }

    /// Heads or tails.
    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) > 0
    }

    /// One of several, each alike.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// Seconds from `low` microseconds up to `high`, whole, so that iterations end on the grid of arrivals. Where 0 can come
    /// out it often does.
    pub fn seconds(&mut self, low: u64, high: u64) -> f64 {
        if low == 0 && self.below(5) == 0 {
            return 0.0;
        }
        (low + self.below(high - low)) as f64 / 1e6
    }
}
