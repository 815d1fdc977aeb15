//! Groups of standing decodes. A policy whose decodes all take part, or none, may ignore them: all its decodes are in group 0.

use super::Plan;

impl Plan<'_> {
    /// Selects another group of the standing decodes from here on: [`Plan::decode`] adds to it, [`Plan::decodes`]
    /// counts it, [`Plan::rest_decodes`] rests it. A plan begins with group 0 and with no group at rest.
    #[inline]
    pub(crate) fn select_group(&mut self, group: usize) {
        if self.state.groups.len() <= group {
            self.add_groups(group);
        }
        self.group = group;
    }

    /// Lets all groups sit this iteration out.
    #[inline]
    pub(crate) fn rest_all(&mut self) {
        self.state.groups.iter_mut().for_each(|group| group.rests = true);
        self.state.standing = 0;
        self.state.further_growth.take();
        self.state.is_resting = true;
    }

    #[cold]
    fn add_groups(&mut self, last: usize) {
        while self.state.groups.len() <= last {
            self.state.add_group();
        }
    }

    /// Tokens that the decodes of the group can load: what neither chunks nor other groups take.
    #[inline]
    pub(crate) fn budget_for_decodes(&self) -> u64 {
        let others = self.state.standing - self.state.groups[self.group].active();
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + others)
    }

    /// Free blocks before the standing decodes of the group take theirs.
    #[inline]
    pub fn free_blocks_before_decodes(&self) -> u64 {
        let others = self.state.standing_growth() - self.state.groups[self.group].next_growth();
        self.state.blocks.free().saturating_sub(others)
    }
}
