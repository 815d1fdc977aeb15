//! A number for each replica, with the least of them at hand.

/// A tree of minima. To change one costs O(log n), to ask for the
/// least nothing, for the places of low ones O(log n) each.
#[derive(Debug, Default)]
pub(crate) struct Tournament<T> {
    /// Node i has the children 2i and 2i + 1; the leaves are the last half.
    tree: Vec<T>,
    leaves: usize,
}

impl<T: Copy + Ord> Tournament<T> {
    /// `count` times `value`. No number is above `most`.
    pub(crate) fn new(count: usize, value: T, most: T) -> Tournament<T> {
        let leaves = count.next_power_of_two();
        let mut tournament = Tournament { tree: vec![most; 2 * leaves], leaves };
        (0..count).for_each(|place| tournament.set(place, value));
        tournament
    }

    /// The least.
    #[inline]
    pub(crate) fn least(&self) -> T {
        self.tree[1]
    }

    /// The lowest place that has it.
    #[inline]
    pub(crate) fn place_of_least(&self) -> usize {
        self.first_up_to_below(1, self.least())
    }

    /// The lowest place whose number is at most `bound`, which is below `most`.
    #[inline]
    pub(crate) fn first_up_to(&self, bound: T) -> Option<usize> {
        (self.tree[1] <= bound).then(|| self.first_up_to_below(1, bound))
    }

    /// The lowest such place after another one.
    #[inline]
    pub(crate) fn next_up_to(&self, bound: T, after: usize) -> Option<usize> {
        let mut node = after + self.leaves;
        // Up to the first whose right neighbour has one, then down on that side.
        while node > 1 && (node % 2 == 1 || self.tree[node + 1] > bound) {
            node /= 2;
        }
        (node > 1).then(|| self.first_up_to_below(node + 1, bound))
    }

    #[inline]
    fn first_up_to_below(&self, mut node: usize, bound: T) -> usize {
        while node < self.leaves {
            node *= 2;
            node += usize::from(self.tree[node] > bound);
        }
        node - self.leaves
    }

    /// Sets the number at a place.
    #[inline]
    pub(crate) fn set(&mut self, place: usize, value: T) {
        let mut node = place + self.leaves;
        self.tree[node] = value;
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
        fn the_least_and_the_places_of_low_ones_are_found(
            count in 1_usize..20,
            changes in prop::collection::vec((0_usize..20, 0_u64..10), 1..60),
        ) {
            let mut tournament = Tournament::new(count, 9, u64::MAX);
            let mut plain = vec![9; count];
            for (place, value) in changes {
                let place = place % count;
                plain[place] = value;
                tournament.set(place, value);
                let least = plain.iter().min().copied().unwrap_or(0);
                prop_assert_eq!(tournament.least(), least);
                prop_assert_eq!(Some(tournament.place_of_least()), plain.iter().position(|&value| value == least));
                for bound in 0..9 {
                    let first = tournament.first_up_to(bound);
                    let places: Vec<usize> =
                        std::iter::successors(first, |&place| tournament.next_up_to(bound, place)).collect();
                    let all: Vec<usize> = (0..count).filter(|&place| plain[place] <= bound).collect();
                    prop_assert_eq!(places, all);
                }
            }
        }
    }
}
