//! Random parameters of policies, routers and timing models for the invariant tests.
//!
//! Each kind defines its random parameters in its own file, so a new kind is tested at once. No run uses this module.

/// A kind with random parameters: valid, and small enough to reach corner cases.
pub(crate) trait Sample {
    /// Random parameters.
    fn sample(dice: &mut Dice) -> Self;
}

/// A kind without parameters has one value.
impl<Kind: Default> Sample for Kind {
    fn sample(_dice: &mut Dice) -> Kind {
        Kind::default()
    }
}

/// The scale of a scenario's parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Token budget of an iteration.
    pub token_budget: u64,
    /// Sequence limit.
    pub max_seqs: u64,
    /// Tokens of the longest request, prompt and output.
    pub longest: u64,
    /// Tokens of a block.
    pub block: u64,
}

/// A sequence of numbers to draw from. It restarts at its end.
#[derive(Clone, Debug)]
pub struct Dice {
    words: Vec<u32>,
    next: usize,
    /// The scale of the parameters.
    pub scale: Scale,
}

impl Dice {
    /// Dice over these numbers. Zeros draw the simplest parameters.
    pub fn new(words: Vec<u32>, scale: Scale) -> Dice {
        Dice { words, next: 0, scale }
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        let word = self.words.get(self.next).copied().unwrap_or(0);
        self.next = (self.next + 1) % self.words.len().max(1);
        u64::from(word) % count
    }

    /// A random bool.
    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) > 0
    }

    /// A uniform choice.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// Whole microseconds in `low..high`, in seconds, so that iterations end on the arrival grid. If `low` is 0, the
    /// result is often 0.
    pub fn seconds(&mut self, low: u64, high: u64) -> f64 {
        if low == 0 && self.below(5) == 0 {
            return 0.0;
        }
        (low + self.below(high - low)) as f64 / 1e6
    }
}
