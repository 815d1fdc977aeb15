//! The minimum over one number per replica.

/// A tree of minima. Setting a number, finding the least number and finding a place with a low number cost O(log n)
/// each.
///
/// A node has eight children in contiguous memory, which are compared without a branch. Up to eight replicas need one
/// node, 64 need two levels.
#[derive(Debug, Default)]
pub(crate) struct Tournament<T> {
    /// The minima below each node. The children of node i are 8i + 1 to 8i + 8. The last level holds the numbers.
    nodes: Vec<Node<T>>,
    /// The first node of the last level.
    first_leaf: usize,
}

/// The minimum below each child of a node.
type Node<T> = [T; CHILDREN];

const CHILDREN: usize = 8;

/// More than the levels above the last one of any tree: 8^11 > 2^32, and replica numbers have 32 bits.
const LEVELS: usize = 11;

impl<T: Copy + Ord> Tournament<T> {
    /// A tree of `count` copies of `value`. No number may be above `most`.
    pub(crate) fn new(count: usize, value: T, most: T) -> Tournament<T> {
        let (mut first_leaf, mut leaves) = (0, 1);
        while leaves * CHILDREN < count {
            first_leaf += leaves;
            leaves *= CHILDREN;
        }
        let mut tournament = Tournament { nodes: vec![[most; CHILDREN]; first_leaf + leaves], first_leaf };
        (0..count).for_each(|place| tournament.set(place, value));
        tournament
    }

    /// The least number.
    #[inline]
    pub(crate) fn least(&self) -> T {
        least_of(&self.nodes[0])
    }

    /// The lowest place with the least number.
    #[inline]
    pub(crate) fn place_of_least(&self) -> usize {
        self.first_up_to(self.least(), 0).unwrap_or(0)
    }

    /// The lowest place from `from` on whose number is at most `bound`, which is below `most`.
    #[inline]
    pub(crate) fn first_up_to(&self, bound: T, from: usize) -> Option<usize> {
        let (mut node, mut child) = (self.first_leaf + from / CHILDREN, from % CHILDREN);
        // Ascend to the first node that has such a child.
        let mut children = those_up_to(self.nodes.get(node)?, bound) >> child;
        while children == 0 {
            (node, child) = (node.checked_sub(1)? / CHILDREN, (node - 1) % CHILDREN + 1);
            children = those_up_to(&self.nodes[node], bound) >> child;
        }
        child += children.trailing_zeros() as usize;
        while node < self.first_leaf {
            node = CHILDREN * node + 1 + child;
            child = those_up_to(&self.nodes[node], bound).trailing_zeros() as usize;
        }
        Some((node - self.first_leaf) * CHILDREN + child)
    }

    /// Sets the number at a place.
    #[inline]
    pub(crate) fn set(&mut self, place: usize, value: T) {
        let (mut node, mut child, mut value) = (self.first_leaf + place / CHILDREN, place % CHILDREN, value);
        loop {
            let before = std::mem::replace(&mut self.nodes[node][child], value);
            let Some(above) = node.checked_sub(1) else { return };
            let (parent, least_below) = (above / CHILDREN, above % CHILDREN);
            let least = self.nodes[parent][least_below];
            if value >= least {
                if before > least {
                    return;
                }
                value = least_of(&self.nodes[node]);
            }
            (node, child) = (parent, least_below);
        }
    }

    /// Replaces every number of at most `bound`, in order of places; `bound` is below `most`.
    #[inline]
    pub(crate) fn replace_up_to<E>(&mut self, bound: T, mut new: impl FnMut(usize) -> Result<T, E>) -> Result<(), E> {
        // Children still to visit: of the current node, and of the nodes above it.
        let (mut node, mut due) = (0_usize, those_up_to(&self.nodes[0], bound));
        let (mut due_above, mut level) = ([0; LEVELS], 0);
        loop {
            if due == 0 {
                let Some(above) = node.checked_sub(1) else { return Ok(()) };
                let least = least_of(&self.nodes[node]);
                node = above / CHILDREN;
                self.nodes[node][above % CHILDREN] = least;
                level -= 1;
                due = due_above[level];
                continue;
            }
            let child = due.trailing_zeros() as usize % CHILDREN;
            due &= due - 1;
            if let Some(leaf) = node.checked_sub(self.first_leaf) {
                self.nodes[node][child] = new(leaf * CHILDREN + child)?;
            } else {
                due_above[level] = due;
                level += 1;
                node = CHILDREN * node + 1 + child;
                due = those_up_to(&self.nodes[node], bound);
            }
        }
    }
}

#[inline]
fn least_of<T: Copy + Ord>(node: &Node<T>) -> T {
    node.iter().fold(node[0], |least, &number| least.min(number))
}

/// A bit mask of the children whose number is at most `bound`.
#[inline]
fn those_up_to<T: Copy + Ord>(node: &Node<T>, bound: T) -> u32 {
    (0..CHILDREN).fold(0, |those, child| those | u32::from(node[child] <= bound) << child)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_least_number_and_places_of_low_numbers(
            count in prop_oneof![1_usize..20, 60_usize..70, 500_usize..530],
            changes in prop::collection::vec((0_usize..530, 0_u64..10), 1..60),
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
                for bound in [0, least, value, 9] {
                    let next = |from| tournament.first_up_to(bound, from);
                    let places: Vec<usize> = std::iter::successors(next(0), |&place| next(place + 1)).collect();
                    let all: Vec<usize> = (0..count).filter(|&place| plain[place] <= bound).collect();
                    prop_assert_eq!(&places, &all);
                    if bound == value {
                        let mut seen = Vec::new();
                        let replaced = tournament.replace_up_to(bound, |place| {
                            seen.push(place);
                            plain[place] = (plain[place] + place as u64) % 10;
                            Ok::<u64, ()>(plain[place])
                        });
                        prop_assert_eq!(replaced, Ok(()));
                        prop_assert_eq!(seen, all);
                    }
                }
            }
        }
    }
}
