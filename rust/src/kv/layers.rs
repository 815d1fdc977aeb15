//! Layers of a model that keep different amounts, and their groups (vLLM: `v1/core/kv_cache_utils.py`).
//!
//! A group is a set of equal layers that share block tables. All groups take blocks of equal size from one pool, so a
//! request has a block table per group. Full attention keeps every token, a sliding window the last ones, and a
//! recurrent layer one state per request.

use serde::Deserialize;

use crate::error::{Error, Result};

/// Equal layers of a model, as described by the user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachedLayers {
    /// Number of layers.
    pub layers: u32,
    /// Tokens of the sliding window; `None`: every token is kept.
    pub window: Option<u32>,
    /// Whether the layers keep one state per request instead of keys and values.
    pub state: bool,
    /// Bytes of one token in one layer, in any unit.
    pub token_bytes: u32,
}

/// The layers of a model whose layers keep different amounts, as described by the user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvGroups {
    /// The layers, in order of the first layer of each kind.
    pub kinds: Vec<CachedLayers>,
    /// Distance in tokens of the ends of cached windows and states; `None`: every hit alignment; 0: only the last one
    /// of each prompt.
    pub retention_interval: Option<u32>,
    /// Whether the kernels of state layers can also store a state inside a row.
    pub saves_states_in_rows: bool,
}

/// The part of a context that a group keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All tokens.
    Full,
    /// The last `tokens` tokens.
    Window { tokens: u64 },
    /// A state at the end of some rows.
    State,
}

/// A group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) reach: Reach,
    /// Tokens per block.
    pub(super) block: u64,
    /// Groups with equal numbers are of one kind.
    pub(super) kind: usize,
}

impl Group {
    /// Entries that no row after `settled` tokens reads.
    pub(super) fn unreachable(&self, settled: u64) -> usize {
        let blocks = match self.reach {
            Reach::Full => 0,
            Reach::Window { tokens } => (settled + 1).saturating_sub(tokens) / self.block,
            Reach::State => settled.saturating_sub(1) / self.block,
        };
        blocks as usize
    }

    /// Blocks before the end of a hit that the group must have.
    pub(super) fn blocks_of_hit(&self) -> u64 {
        match self.reach {
            Reach::Full => 0,
            Reach::Window { tokens } => (tokens - 1).div_ceil(self.block),
            Reach::State => 1,
        }
    }
}

/// A kind of layers: equal reach and block.
#[derive(Clone, Copy, Debug)]
struct Kind {
    reach: Reach,
    block: u64,
    layers: u64,
}

/// Block size of state layers without a prefix cache: one block holds the state of any request.
const ONE_BLOCK: u64 = 1 << 40;

impl KvGroups {
    /// Checks the fields for blocks of `block` tokens.
    pub(super) fn check(&self, block: u32, has_prefix_cache: bool) -> Result<()> {
        for (index, layers) in self.kinds.iter().enumerate() {
            layers.check().map_err(|error| error.within(&format!("kinds[{index}]")))?;
        }
        let widest = self.widest();
        for (index, layers) in self.kinds.iter().enumerate() {
            if !widest.is_multiple_of(layers.token_bytes) {
                let what = "must divide the most of all kinds, so that all groups share a page size";
                let what = format!("{what}: {widest}; got {}", layers.token_bytes);
                return Err(Error::config("token_bytes", what).within(&format!("kinds[{index}]")));
            }
        }
        let kinds = self.kinds(block, has_prefix_cache);
        if !kinds.iter().any(|kind| kind.reach == Reach::Full && kind.block < ONE_BLOCK) {
            return Err(Error::config("kinds", "must contain layers with full attention"));
        }
        let has = |is_such: fn(&CachedLayers) -> bool| self.kinds.iter().any(is_such);
        if has(|layers| layers.state) && has(|layers| layers.window.is_some()) {
            return Err(Error::config("kinds", "must not contain both windows and states"));
        }
        if has(|layers| layers.state) && self.kinds.iter().any(|layers| layers.token_bytes != widest) {
            return Err(Error::config("kinds", "must have equal token_bytes next to layers with a state"));
        }
        Ok(())
    }

    /// The groups of the layers. Kinds with several groups take turns, so that all groups have as many layers.
    pub(super) fn groups(&self, block: u32, has_prefix_cache: bool) -> Vec<Group> {
        let kinds = self.kinds(block, has_prefix_cache);
        let counts = || kinds.iter().map(|kind| kind.layers);
        let (fewest, most) = (counts().min().unwrap_or(1), counts().max().unwrap_or(1));
        // One group more than needed costs less than padding every group by half.
        let layers_each = if 2 * most < 3 * fewest { most } else { fewest };
        let groups = kinds.iter().enumerate().flat_map(|(index, kind)| {
            let group = Group { reach: kind.reach, block: kind.block, kind: index };
            std::iter::repeat_n(group, kind.layers.div_ceil(layers_each) as usize)
        });
        groups.collect()
    }

    fn widest(&self) -> u32 {
        self.kinds.iter().map(|layers| layers.token_bytes).max().unwrap_or(1)
    }

    /// The kinds of layers. A layer with fewer bytes per token has a longer block, so that all pages are equal.
    fn kinds(&self, block: u32, has_prefix_cache: bool) -> Vec<Kind> {
        let widest = self.widest();
        let mut kinds: Vec<Kind> = Vec::new();
        for layers in &self.kinds {
            let block = u64::from(block) * u64::from(widest / layers.token_bytes);
            let (reach, block) = match layers.window {
                _ if layers.state && has_prefix_cache => (Reach::State, block),
                _ if layers.state => (Reach::Full, ONE_BLOCK),
                Some(tokens) => (Reach::Window { tokens: u64::from(tokens) }, block),
                None => (Reach::Full, block),
            };
            match kinds.iter_mut().find(|kind| (kind.reach, kind.block) == (reach, block)) {
                Some(kind) => kind.layers += u64::from(layers.layers),
                None => kinds.push(Kind { reach, block, layers: u64::from(layers.layers) }),
            }
        }
        kinds
    }
}

impl CachedLayers {
    fn check(&self) -> Result<()> {
        for (name, number) in [("layers", self.layers), ("token_bytes", self.token_bytes)] {
            if number == 0 {
                return Err(Error::config(name, "must be at least 1, got 0"));
            }
        }
        if let Some(window) = self.window.filter(|&window| window < 2) {
            return Err(Error::config("window", format!("must be at least 2 tokens, got {window}")));
        }
        if self.state && self.window.is_some() {
            return Err(Error::config("window", "must be None for layers with a state"));
        }
        Ok(())
    }
}
