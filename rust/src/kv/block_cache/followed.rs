//! Requests whose output another request continues: their tokens must be cached while they are generated.

use super::super::content_tree::{OWN, Segment};
use super::{BlockCache, Holding};
use crate::request::Place;

impl BlockCache {
    /// Returns the request that generates a token of a chain as its own.
    pub(super) fn owner_of(&self, content: &[Segment], token: u64) -> Option<Place> {
        let mut end = 0;
        let segment = content.iter().find(|segment| {
            end += u64::from(segment.tokens);
            end > token
        })?;
        let owner = *self.owners.get(&segment.content).filter(|_| segment.content & OWN > 0)?;
        let step = self.chains.tree.steps(content).find(|step| u64::from(step.end) > token)?;
        Some(owner).filter(|&owner| self.chains.has(owner, token, step.node))
    }

    /// Returns the last current request whose own tokens a new request continues. Earlier ones are already marked as
    /// followed by that request.
    pub(super) fn last_before(&self, place: Place, content: &[Segment]) -> Option<Place> {
        if self.owners.len() < content.len() {
            let others = self.owners.values().filter(|&&other| self.chains.continues(place, other));
            return others.max_by_key(|&&other| self.chains.own(other).tokens).copied();
        }
        let owners = content.iter().rev().filter_map(|segment| self.owners.get(&segment.content));
        owners.copied().find(|&owner| self.chains.continues(place, owner))
    }

    /// Records that another request continues this one.
    pub(super) fn follow(&mut self, place: Place) {
        let holding = &mut self.used_blocks[place.index()];
        if holding.followed == 0 {
            self.followed_here += 1;
            self.ever_followed += 1;
            holding.followed = self.ever_followed;
            if holding.is_running {
                self.followed.push(place);
            }
        }
    }

    /// Adds a running followed request to the list.
    pub(super) fn list_followed(&mut self, place: Place) {
        let since = |place: Place| self.used_blocks[place.index()].followed;
        let at = self.followed.partition_point(|&other| since(other) < since(place));
        self.followed.insert(at, place);
    }

    /// Removes a request that no longer runs from the list.
    pub(super) fn stop(&mut self, place: Place) {
        let Holding { is_running, followed, .. } = &mut self.used_blocks[place.index()];
        let followed = *followed;
        if std::mem::take(is_running) && followed > 0 {
            let at = self.followed.partition_point(|&other| self.used_blocks[other.index()].followed < followed);
            self.followed.remove(at);
        }
    }
}
