//! Runs of entries, and the list of unreferenced runs.

use super::super::content_tree::NONE;

/// Entries of consecutive blocks whose last tokens are in one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRun {
    pub(super) node: u32,
    /// First block, counted from the start of the prompt.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Number of requests that use it.
    pub(super) holders: u32,
    /// Whether all of its blocks have older entries.
    pub(super) is_duplicate: bool,
    /// The run that was split off its front.
    pub(super) front: u32,
    /// The run before it in its node; for duplicates the next newer one.
    pub(super) next: u32,
    /// While unreferenced: the neighbors in the list. Its last block is the oldest.
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl BlockRun {
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

/// All runs, and the list of unreferenced runs.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) all: Vec<BlockRun>,
    pub(super) vacant: Vec<u32>,
    pub(super) oldest: u32,
    pub(super) newest: u32,
    /// Blocks in the list.
    pub(super) unreferenced: u64,
}

impl Runs {
    #[inline]
    pub(super) fn at(&self, run: u32) -> &BlockRun {
        &self.all[run as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, run: u32) -> &mut BlockRun {
        &mut self.all[run as usize]
    }

    #[inline]
    pub(super) fn add(&mut self, run: BlockRun) -> u32 {
        if let Some(vacant) = self.vacant.pop() {
            *self.at_mut(vacant) = run;
            return vacant;
        }
        self.all.push(run);
        self.all.len() as u32 - 1
    }

    /// Inserts a run into the list after an older one.
    #[inline]
    pub(super) fn list(&mut self, run: u32, older: u32) {
        let newer = if older == NONE { self.oldest } else { self.at(older).newer };
        self.join(older, run);
        self.join(run, newer);
    }

    /// Removes a run from the list.
    #[inline]
    pub(super) fn unlist(&mut self, run: u32) {
        let BlockRun { older, newer, .. } = *self.at(run);
        self.join(older, newer);
    }

    /// Links two neighbors.
    #[inline]
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.at_mut(newer).older = older,
        }
    }
}
