//! Several iterations of steady decodes at once.
//!
//! In such a stretch every row has one token. So the iterations in which a request takes, frees or names a block are
//! known, and only they are visited, in the order in which single iterations would visit them.

use std::collections::HashMap;

use super::super::layers::{Group, Reach};
use super::{GroupPool, NULL, Row, Table};
use crate::request::Place;

impl GroupPool {
    /// Places with a row in the last batch, in order.
    fn places_of_rows(&self) -> impl Iterator<Item = Place> {
        let continues = |row: &&Row| self.tables[row.place.index()].releases == row.releases;
        self.rows.iter().filter(continues).map(|row| row.place)
    }

    /// Tokens in flight when a row of a stretch is planned.
    fn lag(&self) -> u64 {
        u64::from(self.limits.plans_ahead)
    }

    /// How many of `count` iterations leave a block free even if no block left a window.
    pub(crate) fn iterations_that_fit(&self, count: u64) -> u64 {
        let more = |count: u64| {
            let of_group = |table: &Table, (index, group): (usize, &Group)| {
                (table.computed + count - 1).div_ceil(group.block).saturating_sub(table.entries[index].len() as u64)
            };
            let of_place = |place: Place| {
                let table = &self.tables[place.index()];
                self.groups.iter().enumerate().map(|group| of_group(table, group)).sum::<u64>()
            };
            self.places_of_rows().map(of_place).sum::<u64>()
        };
        if more(count) < self.blocks.free() {
            return count;
        }
        let (mut least, mut most) = (1, count);
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            if more(middle) < self.blocks.free() { least = middle } else { most = middle }
        }
        least
    }

    /// Applies the first `count` iterations of the running stretch.
    pub(crate) fn advance(&mut self, count: u64) {
        let more = count.saturating_sub(self.applied);
        if more == 0 {
            return;
        }
        self.applied = count;
        let places: Vec<Place> = self.places_of_rows().collect();
        let mut changes: Vec<(u64, usize)> = Vec::new();
        for (row, place) in places.iter().enumerate() {
            self.list_changes(&self.tables[place.index()], more, |iteration| changes.push((iteration, row)));
        }
        changes.sort_unstable();
        changes.dedup();
        let lag = self.lag();
        let begun: Vec<(u64, u64)> = places
            .iter()
            .map(|place| &self.tables[place.index()])
            .map(|table| (table.computed, table.in_flight))
            .collect();
        for (iteration, row) in changes {
            let (place, before) = (places[row], begun[row].0 + iteration);
            let table = &mut self.tables[place.index()];
            (table.computed, table.in_flight) = (before, lag);
            self.free_unreachable(place);
            self.take_entries(place, before + 1, false);
            // The next plan may hit what this one names.
            self.name(place, before + 1 - lag, self.plan - 1);
        }
        for (place, (computed, in_flight)) in places.into_iter().zip(begun) {
            let table = &mut self.tables[place.index()];
            (table.computed, table.in_flight) = (computed + more, in_flight);
        }
    }

    /// Lists the next `count` iterations, from 0, in which a decode takes, frees or names a block.
    fn list_changes(&self, table: &Table, count: u64, mut change: impl FnMut(u64)) {
        let (computed, lag) = (table.computed, self.lag());
        if lag > 0 {
            // The first plan counted the row before it as in flight, which may have been a long one.
            change(0);
        }
        // In iteration i the request has `computed + i` tokens before its row.
        let mut at_multiples = |offset: u64, step: u64| {
            let first = (step - (computed + step - offset % step) % step) % step;
            (first..count).step_by(step as usize).for_each(&mut change);
        };
        for group in &self.groups {
            at_multiples(0, group.block);
            match group.reach {
                Reach::Full => {}
                Reach::Window { tokens } => at_multiples(tokens + lag - 1, group.block),
                Reach::State => at_multiples(1 + lag, group.block),
            }
        }
        if self.has_names && lag == 0 {
            at_multiples(self.alignment - 1, self.alignment);
        }
    }

    /// Blocks used after the first `count` iterations of the running stretch.
    pub(crate) fn used_after(&self, count: u64) -> u64 {
        let more = count.saturating_sub(self.applied);
        if more == 0 {
            return self.blocks.used();
        }
        let (mut taken, mut freed) = (0, 0);
        let mut drops: HashMap<u32, u32> = HashMap::new();
        for place in self.places_of_rows() {
            let table = &self.tables[place.index()];
            let before = table.computed + more - 1;
            for (index, group) in self.groups.iter().enumerate() {
                let entries = &table.entries[index];
                let end = ((before + 1).div_ceil(group.block) as usize).max(entries.len());
                taken += (end - entries.len()) as u64;
                let until = group.unreachable(before - self.lag()).min(end);
                freed += until.saturating_sub(entries.len()) as u64;
                let kept = entries.iter().take(until).skip(table.kept_from[index]);
                for &block in kept.filter(|&&block| block != NULL) {
                    *drops.entry(block).or_default() += 1;
                }
            }
        }
        freed += drops.iter().filter(|&(&block, &drops)| self.blocks.holders(block) == drops).count() as u64;
        self.blocks.used() + taken - freed
    }
}
