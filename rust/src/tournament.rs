//! A number for each replica, with the low ones at hand.

/// A tree of minima. To change a number, to find the least and to find a place that has a low one cost O(log n) each.
///
/// A node has eight children, so that its numbers lie side by side and are compared without a branch: a few replicas
/// have no tree to speak of, and 64 have two levels.
#[derive(Debug, Default)]
pub(crate) struct Tournament<T> {
    /// From the numbers themselves up to one node. Number i of a level is the least of node i of the level below.
    levels: Vec<Vec<Node<T>>>,
}

/// The children of a node.
type Node<T> = [T; CHILDREN];

const CHILDREN: usize = 8;

impl<T: Copy + Ord> Tournament<T> {
    /// `count` times `value`. No number is above `most`.
    pub(crate) fn new(count: usize, value: T, most: T) -> Tournament<T> {
        let mut levels: Vec<Vec<Node<T>>> = Vec::new();
        let mut numbers = vec![value; count];
        loop {
            let nodes = numbers.len().div_ceil(CHILDREN).max(1);
            numbers.resize(nodes * CHILDREN, most);
            levels.push(numbers.as_chunks().0.to_vec());
            if nodes == 1 {
                return Tournament { levels };
            }
            numbers = levels.last().into_iter().flatten().map(least_of).collect();
        }
    }

    /// The least.
    #[inline]
    pub(crate) fn least(&self) -> T {
        least_of(&self.levels[self.levels.len() - 1][0])
    }

    /// The lowest place that has it.
    #[inline]
    pub(crate) fn place_of_least(&self) -> usize {
        self.first_up_to(self.least(), 0).unwrap_or(0)
    }

    /// The lowest place from one on that has a number up to `bound`, which is below `most`.
    #[inline]
    pub(crate) fn first_up_to(&self, bound: T, from: usize) -> Option<usize> {
        let mut from = from;
        for (level, nodes) in self.levels.iter().enumerate() {
            let (node, child) = (from / CHILDREN, from % CHILDREN);
            let found = nodes.get(node).map_or(0, |node| those_up_to(node, bound) >> child);
            if found != 0 {
                let below = self.levels[..level].iter().rev();
                let first = |place: usize, nodes: &Vec<Node<T>>| {
                    place * CHILDREN + those_up_to(&nodes[place], bound).trailing_zeros() as usize
                };
                return Some(below.fold(from + found.trailing_zeros() as usize, first));
            }
            from = node + 1;
        }
        None
    }

    /// Sets the number at a place.
    #[inline]
    pub(crate) fn set(&mut self, place: usize, value: T) {
        let (mut place, mut value) = (place, value);
        let top = self.levels.len() - 1;
        for level in 0..top {
            let node = &mut self.levels[level][place / CHILDREN];
            let before = std::mem::replace(&mut node[place % CHILDREN], value);
            place /= CHILDREN;
            let least = self.levels[level + 1][place / CHILDREN][place % CHILDREN];
            if value >= least {
                if before > least {
                    return;
                }
                value = least_of(&self.levels[level][place]);
            }
        }
        self.levels[top][0][place] = value;
    }

    /// Replaces every number up to `bound`, which is below `most`, from the lowest place to the highest.
    #[inline]
    pub(crate) fn replace_up_to<E>(&mut self, bound: T, mut new: impl FnMut(usize) -> Result<T, E>) -> Result<(), E> {
        if self.least() > bound {
            return Ok(());
        }
        replace(&mut self.levels, 0, bound, &mut new).map(drop)
    }
}

/// Replaces the numbers up to `bound` below a node of the last of some levels. Says what is the least there then.
fn replace<T: Copy + Ord, E>(
    levels: &mut [Vec<Node<T>>],
    node: usize,
    bound: T,
    new: &mut impl FnMut(usize) -> Result<T, E>,
) -> Result<T, E> {
    let Some((nodes, below)) = levels.split_last_mut() else { return new(node) };
    let children = &mut nodes[node];
    let mut due = those_up_to(children, bound);
    while due != 0 {
        let child = due.trailing_zeros() as usize % CHILDREN;
        due &= due - 1;
        let place = node * CHILDREN + child;
        children[child] = if below.is_empty() { new(place)? } else { replace(below, place, bound, new)? };
    }
    Ok(least_of(children))
}

#[inline]
fn least_of<T: Copy + Ord>(node: &Node<T>) -> T {
    node.iter().fold(node[0], |least, &number| least.min(number))
}

/// A bit for each child whose number is at most `bound`.
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
        fn the_least_and_the_places_of_low_ones_are_found(
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
