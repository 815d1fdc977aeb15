//! Dependencies between requests.

use super::span;
use crate::clock::Span;
use crate::error::{Error, Result};

/// Dependencies between requests: turns of a session wait for earlier answers, stages of a job for the stages that
/// they need. A dependent request arrives when the last of its parents has finished, plus a delay; its `arrival_s`
/// then only orders the rows. Empty slices: no dependencies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow<'a> {
    /// Number of parents of each row.
    pub parents: &'a [u32],
    /// `children[children_start[r]..children_start[r + 1]]` are the children of row r.
    pub children_start: &'a [u32],
    /// See `children_start`.
    pub children: &'a [u32],
    /// Seconds from the last finish of a row's parents to its arrival; without parents, from its `arrival_s`.
    pub delay_s: &'a [f64],
}

impl Flow<'_> {
    /// Whether there are no dependencies.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// Number of parents of a row.
    #[inline]
    pub(crate) fn parents(&self, row: usize) -> u32 {
        self.parents.get(row).copied().unwrap_or(0)
    }

    /// Whether the arrival of a row differs from its `arrival_s`.
    #[inline]
    pub(crate) fn is_delayed(&self, row: usize) -> bool {
        self.parents(row) > 0 || self.delay_s.get(row).is_some_and(|&delay| delay > 0.0)
    }

    /// Children of a row.
    #[inline]
    pub fn children(&self, row: usize) -> &[u32] {
        &self.children[self.children_start[row] as usize..self.children_start[row + 1] as usize]
    }

    /// Delay of a row's arrival. The rows have been checked.
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
            return Err(Error::config(
                "children",
                "parents, children_start, children and delay_s have inconsistent lengths",
            ));
        }
        let mut parents = vec![0_u32; rows];
        for &child in self.children {
            let Some(count) = parents.get_mut(child as usize) else {
                return Err(Error::config("children", format!("row numbers must be below {rows}, got {child}")));
            };
            *count += 1;
        }
        if let Some(row) = (0..rows).find(|&row| parents[row] != self.parents[row]) {
            let message = format!("has {} parents, but {} rows list it as a child", self.parents[row], parents[row]);
            return Err(Error::trace(row, message));
        }
        Ok(())
    }
}
