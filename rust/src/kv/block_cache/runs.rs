//! Runs of entries, and the list of those that no request holds.

use super::super::content_tree::NONE;

/// Entries for blocks that follow one another, whose last tokens lie in one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRun {
    pub(super) node: u32,
    /// Its blocks, counted from the beginning of the prompt.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Requests that hold it.
    pub(super) holders: u32,
    /// There are older entries for all of its blocks.
    pub(super) is_twin: bool,
    /// The run that was cut off its front.
    pub(super) front: u32,
    /// In its node the run in front of it; of twins the next younger one.
    pub(super) next: u32,
    /// While it is unreferenced: the neighbors in the list. Its last block is the oldest.
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl BlockRun {
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

/// All runs, and the list of those that no request holds.
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

    /// Puts a run into the list, behind an older one.
    #[inline]
    pub(super) fn list(&mut self, run: u32, older: u32) {
        let newer = if older == NONE { self.oldest } else { self.at(older).newer };
        self.join(older, run);
        self.join(run, newer);
    }

    /// Takes a run out of the list.
    #[inline]
    pub(super) fn unlist(&mut self, run: u32) {
        let BlockRun { older, newer, .. } = *self.at(run);
        self.join(older, newer);
    }

    /// Makes two neighbors.
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
