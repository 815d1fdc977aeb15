//! Values per group of steady decodes. Nearly always there is one group.

use std::ops::{Index, IndexMut};

/// One value per group. The first group always exists and is stored inline.
#[derive(Debug)]
pub(crate) struct Groups<T> {
    first: T,
    further: Vec<T>,
}

impl<T> Groups<T> {
    pub(crate) fn new(first: T) -> Groups<T> {
        Groups { first, further: Vec::new() }
    }

    /// The first value, if it is the only one.
    pub(crate) fn only(&self) -> Option<&T> {
        self.further.is_empty().then_some(&self.first)
    }

    pub(crate) fn len(&self) -> usize {
        self.further.len() + 1
    }

    pub(crate) fn push(&mut self, value: T) {
        self.further.push(value);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.further)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.first).chain(&mut self.further)
    }
}

impl<T> Index<usize> for Groups<T> {
    type Output = T;

    fn index(&self, group: usize) -> &T {
        if group == 0 { &self.first } else { &self.further[group - 1] }
    }
}

impl<T> IndexMut<usize> for Groups<T> {
    fn index_mut(&mut self, group: usize) -> &mut T {
        if group == 0 { &mut self.first } else { &mut self.further[group - 1] }
    }
}
