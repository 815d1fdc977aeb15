//! One pool of blocks for several groups of layers (vLLM: `v1/core/kv_cache_coordinator.py`, `block_pool.py`).
//!
//! A request has a block table per group. All tables cover the same tokens; to hold t tokens, a group with blocks of b
//! tokens has ⌈t / b⌉ entries. Entries before a window, and entries without a state, are *null*: they hold no block.
//!
//! A row first frees the blocks that left its request's windows, then takes blocks. With a prefix cache, a block is
//! identified by its group and all tokens up to its end. It is named at most once, when the known tokens first pass
//! its end. Windows and states are named only before the boundaries of the retention interval, the last boundary of
//! the prompt, and the request's *junction*: the end of a longer prefix that only other groups still have.
//!
//! Freed blocks with a name are appended to a list, those without a name are used first; allocation evicts from the
//! front of the list.

mod blocks;
mod hits;
mod names;
mod stretch;

use self::blocks::Blocks;
pub(crate) use self::hits::GroupHit;
use super::content_tree::{Chains, NewRequest};
use super::layers::{Group, KvGroups, Reach};
use crate::request::Place;
use crate::results::BlockOperations;

/// An entry of a block table without a block.
const NULL: u32 = u32::MAX;

/// The settings of an engine that affect its groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLimits {
    /// Token budget of a batch.
    pub(crate) token_budget: u64,
    /// Whether a batch is planned while the one before it runs.
    pub(crate) plans_ahead: bool,
    /// Maximum length of a request.
    pub(crate) max_model_len: u64,
}

/// The blocks of all groups of layers, and their cached content.
#[derive(Debug)]
pub(crate) struct GroupPool {
    groups: Vec<Group>,
    /// Groups by kind, full attention first.
    kinds: Vec<Vec<usize>>,
    /// Hits and names end at multiples of it.
    alignment: u64,
    /// Tokens per state; `None`: rows need not end at a state.
    state_block: Option<u64>,
    retention_interval: Option<u64>,
    saves_states_in_rows: bool,
    has_names: bool,
    limits: RowLimits,
    blocks: Blocks,
    chains: Chains,
    tables: Vec<Table>,
    /// Rows of the batches that are not settled, in order.
    rows: Vec<Row>,
    /// Number of those rows in this plan.
    planned_rows: usize,
    /// Iterations of the running stretch whose rows have their blocks.
    applied: u64,
    /// Number of the plan. A state named in this plan, or since the last one, cannot be hit yet.
    plan: u64,
    /// Whether an admission failed because of such a state: of this plan, and of the last one.
    found_fresh_state: bool,
    hit_is_too_fresh: bool,
    /// The waiting request that this plan looked up.
    looked_up: Option<(Place, GroupHit)>,
    hit_blocks: u64,
}

/// The block tables of a request.
#[derive(Debug, Default)]
struct Table {
    /// Entries by group.
    entries: Vec<Vec<u32>>,
    /// By group, the entry before which all entries are null.
    kept_from: Vec<usize>,
    /// Tokens computed after the last planned row.
    computed: u64,
    /// Tokens whose blocks have been considered for a name.
    named: u64,
    prompt: u64,
    junction: u64,
    /// Tokens of its rows that are not settled.
    in_flight: u64,
    /// Number of those rows that emit.
    emitting: u64,
    /// Number of times that its blocks were freed.
    releases: u64,
}

/// A planned row.
#[derive(Clone, Copy, Debug)]
struct Row {
    place: Place,
    releases: u64,
    tokens: u64,
    emits: bool,
}

/// The row that a request is about to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRow {
    pub(crate) tokens: u64,
    /// Known tokens of the request: prompt and output, without output in flight.
    pub(crate) known: u64,
    pub(crate) emits: bool,
}

impl GroupPool {
    pub(super) fn new(layers: &KvGroups, block: u32, capacity: u64, has_names: bool, limits: RowLimits) -> GroupPool {
        let groups = layers.groups(block, has_names);
        let kind_count = groups.iter().map(|group| group.kind + 1).max().unwrap_or(0);
        let of_kind = |kind| (0..groups.len()).filter(|&index| groups[index].kind == kind).collect::<Vec<_>>();
        let mut kinds: Vec<Vec<usize>> = (0..kind_count).map(of_kind).collect();
        kinds.sort_by_key(|kind| groups[kind[0]].reach != Reach::Full);
        let alignment =
            if has_names { groups.iter().map(|group| group.block).fold(1, least_common_multiple) } else { 1 };
        let state_block = groups.iter().find(|group| group.reach == Reach::State).map(|group| group.block);
        GroupPool {
            groups,
            kinds,
            alignment,
            state_block,
            retention_interval: layers.retention_interval.map(u64::from),
            saves_states_in_rows: layers.saves_states_in_rows,
            has_names,
            limits,
            blocks: Blocks::new(capacity),
            chains: Chains::default(),
            tables: Vec::new(),
            rows: Vec::new(),
            planned_rows: 0,
            applied: 1,
            plan: 1,
            found_fresh_state: false,
            hit_is_too_fresh: false,
            looked_up: None,
            hit_blocks: 0,
        }
    }

    /// Blocks used by requests.
    #[inline]
    pub(super) fn used(&self) -> u64 {
        self.blocks.used()
    }

    /// Operations of its prefix cache so far, if there is one.
    pub(super) fn operations(&self, replica: u32) -> Option<BlockOperations> {
        let (inserted, evicted) = (self.blocks.inserted(), self.blocks.evicted());
        self.has_names.then_some(BlockOperations { replica, hit: self.hit_blocks, inserted, evicted })
    }

    /// The longest request that always fits.
    pub(super) fn longest_request(&self) -> u64 {
        let (mut fits, mut too_long) = (0, 1 << 32);
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            if self.most_blocks(middle) <= self.blocks.capacity() { fits = middle } else { too_long = middle }
        }
        fits
    }

    /// The most blocks that a request of `tokens` tokens holds.
    fn most_blocks(&self, tokens: u64) -> u64 {
        let most = |group: &Group| match group.reach {
            // The state before the running one is freed with the next row.
            Reach::State => tokens.div_ceil(group.block).min(2 + u64::from(self.saves_states_in_rows)),
            _ => self.entries_for_input(group, tokens),
        };
        self.groups.iter().map(most).sum()
    }

    /// Adds a request.
    #[cold]
    pub(super) fn open(&mut self, place: Place, request: NewRequest) {
        if self.tables.len() <= place.index() {
            self.tables.resize_with(place.index() + 1, Table::default);
        }
        let table = &mut self.tables[place.index()];
        table.entries.resize_with(self.groups.len(), Vec::new);
        table.kept_from.resize(self.groups.len(), 0);
        table.prompt = u64::from(request.prompt);
        self.chains.open(place, request);
    }

    /// Removes a request without blocks.
    #[cold]
    pub(super) fn close(&mut self, place: Place) {
        self.chains.close(place);
    }

    /// Ends a plan. `settles`: the batch before it ran during the plan, and its rows are settled now. Returns the
    /// request that was looked up and not admitted.
    pub(crate) fn end_plan(&mut self, settles: bool) -> Option<Place> {
        self.plan += 1;
        self.applied = 1;
        self.hit_is_too_fresh = std::mem::take(&mut self.found_fresh_state);
        let planned = std::mem::take(&mut self.planned_rows);
        if settles {
            self.settle_rows(self.rows.len() - planned);
        }
        self.looked_up.take().map(|(place, _)| place)
    }

    /// Whether an admission failed only because a state was named too recently.
    pub(crate) fn hit_is_too_fresh(&self) -> bool {
        self.hit_is_too_fresh
    }

    /// Output tokens of a request in flight.
    pub(crate) fn outputs_in_flight(&self, place: Place) -> u64 {
        self.tables[place.index()].emitting
    }

    /// The tokens of a request's next row if it is cut to where states can be kept; 0: no row is possible now.
    /// `most`: the most tokens of any row.
    pub(crate) fn cut_row(&self, place: Place, row: NextRow, most: u64) -> u64 {
        let Some(block) = self.state_block else { return row.tokens };
        let (start, junction) = match &self.looked_up {
            Some((looked_up, hit)) if *looked_up == place => (hit.tokens, hit.junction),
            _ => (self.tables[place.index()].computed, self.tables[place.index()].junction),
        };
        let input = self.input(place, row.known);
        if start >= input {
            return row.tokens;
        }
        let mut end = start + row.tokens;
        let last_of_input = (input - 1) / block * block;
        let saves = self.saves_states_in_rows && end >= input && start.is_multiple_of(block) && last_of_input > start;
        if end < input {
            let whole = end / block * block;
            if whole > start {
                end = whole;
            } else if block <= most {
                return 0;
            }
        }
        let mut stops = [u64::MAX; 3];
        if !start.is_multiple_of(block) {
            stops[0] = start.next_multiple_of(block);
        }
        if !saves {
            stops[1] = (row.known - 1) / block * block;
        }
        if start < junction && junction < end {
            stops[2] = start + (junction - start) / block * block;
        }
        let stop = stops.into_iter().filter(|stop| (start + 1..end).contains(stop)).min();
        stop.unwrap_or(end) - start
    }

    /// The tokens up to which rows end where a state can be kept.
    fn input(&self, place: Place, known: u64) -> u64 {
        self.tables[place.index()].prompt.max(known - 1)
    }

    /// Whether a row from `start` to `end` also stores a state before its end.
    fn saves_state(&self, place: Place, start: u64, end: u64, known: u64) -> bool {
        let Some(block) = self.state_block.filter(|_| self.saves_states_in_rows) else { return false };
        start.is_multiple_of(block)
            && (end - 1) / block * block > start
            && (self.retention_interval != Some(0) || end >= self.input(place, known))
    }

    /// Frees the blocks that no settled row of a running request reads any more.
    pub(crate) fn free_unreachable(&mut self, place: Place) {
        let table = &mut self.tables[place.index()];
        let settled = table.computed - table.in_flight;
        for (index, group) in self.groups.iter().enumerate() {
            let entries = &mut table.entries[index];
            let until = group.unreachable(settled).min(entries.len());
            let from = table.kept_from[index];
            for entry in entries.iter_mut().take(until).skip(from).rev() {
                let block = std::mem::replace(entry, NULL);
                if block != NULL {
                    self.blocks.drop_holder(block);
                }
            }
            table.kept_from[index] = from.max(until);
        }
    }

    /// Blocks that a row takes.
    pub(crate) fn row_blocks(&self, place: Place, row: NextRow) -> u64 {
        let table = &self.tables[place.index()];
        let held = |index: usize| table.entries[index].len() as u64;
        self.new_blocks(place, table.computed, row, false, held)
    }

    /// Blocks that a row from `start` on takes. `is_input`: the row stands for a whole input, of which a window holds
    /// only a part at any time.
    fn new_blocks(&self, place: Place, start: u64, row: NextRow, is_input: bool, held: impl Fn(usize) -> u64) -> u64 {
        let end = start + row.tokens;
        let saved = u64::from(self.saves_state(place, start, end, row.known));
        let new_of = |(index, group): (usize, &Group)| {
            let needed = if is_input { self.entries_for_input(group, end) } else { end.div_ceil(group.block) };
            let more = needed.saturating_sub(held(index));
            if group.reach == Reach::State { more.min(1) + saved } else { more }
        };
        self.groups.iter().enumerate().map(new_of).sum()
    }

    /// Entries that a group needs for the whole input of a request: at most what one request can hold.
    fn entries_for_input(&self, group: &Group, tokens: u64) -> u64 {
        let entries = tokens.div_ceil(group.block);
        match group.reach {
            Reach::Window { tokens: window } => {
                let batches = 1 + u64::from(self.limits.plans_ahead);
                let most = (window - 1).saturating_add(batches.saturating_mul(self.limits.token_budget));
                let most = most.min(self.limits.max_model_len);
                entries.min(most.div_ceil(group.block) + 1)
            }
            _ => entries,
        }
    }

    /// Whether a waiting request that was just looked up can be admitted with this row; `checks_input`: and its whole
    /// input has room.
    pub(crate) fn has_room(&mut self, place: Place, row: NextRow, checks_input: bool) -> bool {
        let Some((_, hit)) = self.looked_up.as_ref().filter(|(looked_up, _)| *looked_up == place) else {
            return false;
        };
        let free = self.blocks.free();
        let unreferenced = hit.blocks.iter().filter(|&&(_, block)| self.blocks.holders(block) == 0).count() as u64;
        let held = |index: usize| hit.tokens / self.groups[index].block;
        if checks_input {
            let input = NextRow { tokens: row.known - hit.tokens, ..row };
            if self.new_blocks(place, hit.tokens, input, true, held) + unreferenced > free {
                return false;
            }
        }
        if self.new_blocks(place, hit.tokens, row, false, held) + unreferenced > free {
            return false;
        }
        if hit.blocks.iter().any(|&(group, block)| self.is_fresh_state(group, block)) {
            self.found_fresh_state = true;
            return false;
        }
        true
    }

    fn is_fresh_state(&self, group: usize, block: u32) -> bool {
        self.groups[group].reach == Reach::State && self.blocks.named_in(block) == self.plan
    }

    /// Gives a waiting request the blocks of its hit.
    pub(crate) fn take_hit(&mut self, place: Place) {
        let Some((_, hit)) = self.looked_up.take() else { return };
        let table = &mut self.tables[place.index()];
        for (index, group) in self.groups.iter().enumerate() {
            let entries = (hit.tokens / group.block) as usize;
            table.entries[index].resize(entries, NULL);
            table.kept_from[index] = entries;
        }
        self.hit_blocks += hit.blocks.len() as u64;
        for (group, block) in hit.blocks.into_iter().rev() {
            // The blocks of a group end at the end of the hit.
            table.kept_from[group] -= 1;
            table.entries[group][table.kept_from[group]] = block;
            self.blocks.add_holder(block);
        }
        (table.computed, table.named, table.junction) = (hit.tokens, hit.tokens, hit.junction);
    }

    /// Takes the blocks of a row, and names the blocks that it completes.
    pub(crate) fn take_row(&mut self, place: Place, row: NextRow) {
        let NextRow { tokens, known, emits } = row;
        let start = self.tables[place.index()].computed;
        let end = start + tokens;
        self.take_entries(place, end, self.saves_state(place, start, end, known));
        let table = &mut self.tables[place.index()];
        table.computed = end;
        table.in_flight += tokens;
        table.emitting += u64::from(emits);
        debug_assert!(table.in_flight <= tokens || self.limits.plans_ahead, "the rows of the last batch are settled");
        self.rows.push(Row { place, releases: table.releases, tokens, emits });
        self.planned_rows += 1;
        self.name(place, end.min(known), self.plan);
    }

    /// Extends the tables of a request to `end` tokens.
    fn take_entries(&mut self, place: Place, end: u64, saves_state: bool) {
        let table = &mut self.tables[place.index()];
        for (index, group) in self.groups.iter().enumerate() {
            let (entries, needed) = (&mut table.entries[index], end.div_ceil(group.block) as usize);
            let first = if group.reach == Reach::State { needed - 1 - usize::from(saves_state) } else { 0 };
            while entries.len() < needed {
                let is_null = entries.len() < first;
                entries.push(if is_null { NULL } else { self.blocks.take(&mut self.chains.tree) });
            }
        }
    }

    /// Starts the rows of a plan: settles those of the last batch, unless it runs during the plan.
    pub(crate) fn begin_rows(&mut self) {
        if !self.limits.plans_ahead {
            self.settle_rows(self.rows.len());
        }
    }

    /// Settles the first `count` rows.
    fn settle_rows(&mut self, count: usize) {
        for index in 0..count {
            let Row { place, releases, tokens, emits } = self.rows[index];
            let table = &mut self.tables[place.index()];
            if table.releases != releases {
                continue;
            }
            table.in_flight -= tokens;
            if emits {
                table.emitting -= 1;
                let known = table.computed - table.in_flight;
                self.name(place, known, self.plan);
            }
        }
        self.rows.drain(..count);
    }

    /// Frees all blocks of a request, the last entry of each group first.
    #[cold]
    pub(crate) fn release(&mut self, place: Place) {
        let table = &mut self.tables[place.index()];
        for entries in &mut table.entries {
            for block in entries.drain(..).rev().filter(|&block| block != NULL) {
                self.blocks.drop_holder(block);
            }
        }
        table.kept_from.fill(0);
        (table.computed, table.named, table.junction) = (0, 0, 0);
        (table.in_flight, table.emitting) = (0, 0);
        table.releases += 1;
    }

    /// Whether the entries of a request cover `tokens` tokens.
    pub(crate) fn covers(&self, place: Place, tokens: u64) -> bool {
        let table = &self.tables[place.index()];
        let mut groups = self.groups.iter().zip(&table.entries);
        groups.all(|(group, entries)| tokens.div_ceil(group.block) <= entries.len() as u64)
    }
}

fn least_common_multiple(first: u64, second: u64) -> u64 {
    first / greatest_common_divisor(first, second) * second
}

fn greatest_common_divisor(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { greatest_common_divisor(second, first % second) }
}
