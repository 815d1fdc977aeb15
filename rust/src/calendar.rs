//! Which replica is next, and when?

use crate::clock::Instant;

/// The next instant of each replica, the earliest of them at hand: a tree of minima. To change one costs O(log n); to ask
/// for the first costs nothing.
#[derive(Debug)]
pub(crate) struct Calendar {
    /// Node i has the children 2i and 2i + 1; the leaves are the last half.
    tree: Vec<Instant>,
    leaves: usize,
}

impl Calendar {
    /// Nothing happens to any of `replicas`.
    pub(crate) fn new(replicas: usize) -> Calendar {
        let leaves = replicas.next_power_of_two();
        Calendar { tree: vec![Instant::NEVER; 2 * leaves], leaves }
    }

    /// When the first of them has something to do.
    #[inline]
    pub(crate) fn first(&self) -> Instant {
        self.tree[1]
    }

    /// The lowest replica at the first instant.
    pub(crate) fn lowest(&self) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            node += usize::from(self.tree[node] > self.tree[node + 1]);
        }
        node - self.leaves
    }

    /// Sets the next instant of a replica.
    #[inline]
    pub(crate) fn set(&mut self, replica: usize, instant: Instant) {
        let mut node = replica + self.leaves;
        self.tree[node] = instant;
        while node > 1 {
            node /= 2;
            let least = self.tree[2 * node].min(self.tree[2 * node + 1]);
            if self.tree[node] == least {
                break;
            }
            self.tree[node] = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_the_least_and_the_lowest(
            replicas in 1_usize..20,
            changes in prop::collection::vec((0_usize..20, 0_u128..9), 1..60),
        ) {
            let mut calendar = Calendar::new(replicas);
            let mut plain = vec![Instant::NEVER; replicas];
            for (replica, at) in changes {
                let replica = replica % replicas;
                plain[replica] = Instant(at);
                calendar.set(replica, Instant(at));
                let least = plain.iter().min().copied().unwrap_or(Instant::NEVER);
                prop_assert_eq!(calendar.first(), least);
                prop_assert_eq!(Some(calendar.lowest()), plain.iter().position(|&at| at == least));
            }
        }
    }
}
