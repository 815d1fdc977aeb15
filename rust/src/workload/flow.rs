//! Requests that wait for others.

use super::span;
use crate::clock::Span;
use crate::error::{Error, Result};

/// Requests that wait for others: the turns of a session for the answers before them, the stages of a job for the stages
/// that they need. They arrive when the last of those has finished, and a delay later; their `arrival_s` then only
/// orders the rows. Empty slices: no request waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow<'a> {
    /// For how many others each row waits.
    pub parents: &'a [u32],
    /// `children[children_start[r]..children_start[r + 1]]` are the rows that wait for row r.
    pub children_start: &'a [u32],
    /// See `children_start`.
    pub children: &'a [u32],
    /// Seconds from the last finish of those that a row waits for to its own arrival; from its `arrival_s`, if it waits
    /// for no other.
    pub delay_s: &'a [f64],
}

impl Flow<'_> {
    /// Does no request wait?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// For how many others a row waits.
    #[inline]
    pub(crate) fn parents(&self, row: usize) -> u32 {
        self.parents.get(row).copied().unwrap_or(0)
    }

    /// Does a row arrive at another instant than its `arrival_s`?
    #[inline]
    pub(crate) fn is_delayed(&self, row: usize) -> bool {
        self.parents(row) > 0 || self.delay_s.get(row).is_some_and(|&delay| delay > 0.0)
    }

    /// The rows that wait for a row.
    #[inline]
    pub fn children(&self, row: usize) -> &[u32] {
        &self.children[self.children_start[row] as usize..self.children_start[row + 1] as usize]
    }

    /// The delay of a row's arrival. The rows have been checked.
    pub(crate) fn delay(&self, row: usize) -> Span {
        span(self.delay_s, row).unwrap_or(Span::ZERO)
    }

    pub(super) fn check(&self, rows: usize) -> Result<()> {
        if self.is_empty() && self.children.is_empty() && self.children_start.is_empty() && self.delay_s.is_empty() {
            return Ok(());
        }
        let starts = self.children_start;
        let is_whole = self.parents.len() == rows
            && self.delay_s.len() == rows
            && starts.len() == rows + 1
            && starts[0] == 0
            && starts.is_sorted()
            && starts[rows] as usize == self.children.len();
        if !is_whole {
            return Err(Error::config("children", "parents, children_start, children and delay_s do not go together"));
        }
        let mut parents = vec![0_u32; rows];
        for &child in self.children {
            let Some(count) = parents.get_mut(child as usize) else {
                return Err(Error::config("children", format!("row {child} of {rows}")));
            };
            *count += 1;
        }
        if let Some(row) = (0..rows).find(|&row| parents[row] != self.parents[row]) {
            let message = format!("waits for {} rows where {} name it", self.parents[row], parents[row]);
            return Err(Error::trace(row, message));
        }
        Ok(())
    }
}
