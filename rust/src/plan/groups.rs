//! Groups of steady decodes. A policy that runs all decodes or none needs only group 0.

use super::Plan;

impl Plan<'_> {
    /// Selects a group of steady decodes for the calls that follow: [`Plan::decode`] adds to it, [`Plan::decodes`]
    /// counts it, [`Plan::rest_decodes`] excludes it. A plan begins with group 0 and with no group excluded.
    #[inline]
    pub(crate) fn select_group(&mut self, group: usize) {
        if self.state.groups.len() <= group {
            self.add_groups(group);
        }
        self.group = group;
    }

    /// Excludes all groups from this iteration.
    #[inline]
    pub(crate) fn rest_all(&mut self) {
        self.state.groups.iter_mut().for_each(|group| group.rests = true);
        self.state.steady = 0;
        self.state.further_growth.take();
        self.state.is_resting = true;
    }

    fn add_groups(&mut self, last: usize) {
        while self.state.groups.len() <= last {
            self.state.add_group();
        }
    }

    /// Token budget for the decodes of the group, after chunks and other groups.
    #[inline]
    pub(crate) fn budget_for_decodes(&self) -> u64 {
        let others = self.state.steady - self.state.groups[self.group].active();
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + others)
    }

    /// Free blocks before the steady decodes of the group take theirs.
    #[inline]
    pub fn free_blocks_before_decodes(&self) -> u64 {
        let others = self.state.steady_growth() - self.state.groups[self.group].next_growth();
        self.state.blocks.free().saturating_sub(others)
    }
}
