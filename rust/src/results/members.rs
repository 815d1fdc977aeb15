//! Number of requests by class.

/// Up to this number of classes each has its own counter; beyond it, only nonempty classes are listed.
const MAX_COUNTERS: usize = 16;

/// Requests by class.
#[derive(Debug)]
pub(crate) struct Members {
    /// Requests of the first class, which is usually the only one.
    pub(super) first: u64,
    /// Requests of each further class, if there are few classes.
    pub(super) further: Vec<u64>,
    /// Nonempty further classes in ascending order, if there are many classes.
    pub(super) listed: Vec<(u32, u64)>,
    are_many: bool,
}

impl Members {
    /// Builds empty counts for `classes` classes.
    pub(crate) fn new(classes: usize) -> Members {
        let are_many = classes > MAX_COUNTERS;
        let further = if are_many { 0 } else { classes.saturating_sub(1) };
        Members { first: 0, further: vec![0; further], listed: Vec::new(), are_many }
    }

    /// Builds empty counts for the same number of classes.
    pub(crate) fn empty_like(&self) -> Members {
        Members::new(if self.are_many { MAX_COUNTERS + 1 } else { self.further.len() + 1 })
    }

    /// Adds requests of a class.
    #[inline]
    pub(crate) fn add(&mut self, class: u32, requests: u64) {
        match class {
            0 => self.first += requests,
            _ => self.add_further(class, requests),
        }
    }

    /// Removes requests of a class.
    #[inline]
    pub(crate) fn take(&mut self, class: u32, requests: u64) {
        match class {
            0 => self.first -= requests,
            _ => self.take_further(class, requests),
        }
    }

    fn add_further(&mut self, class: u32, requests: u64) {
        match self.further.get_mut(class as usize - 1) {
            Some(members) => *members += requests,
            None => self.add_listed(class, requests),
        }
    }

    fn take_further(&mut self, class: u32, requests: u64) {
        match self.further.get_mut(class as usize - 1) {
            Some(members) => *members -= requests,
            None => self.take_listed(class, requests),
        }
    }

    fn add_listed(&mut self, class: u32, requests: u64) {
        match self.listed.binary_search_by_key(&class, |&(listed, _)| listed) {
            Ok(at) => self.listed[at].1 += requests,
            Err(at) => self.listed.insert(at, (class, requests)),
        }
    }

    fn take_listed(&mut self, class: u32, requests: u64) {
        if let Ok(at) = self.listed.binary_search_by_key(&class, |&(listed, _)| listed) {
            self.listed[at].1 -= requests;
            if self.listed[at].1 == 0 {
                self.listed.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_classes_have_equal_counts() {
        for classes in [1, MAX_COUNTERS, MAX_COUNTERS + 1, 1000] {
            let mut members = Members::new(classes).empty_like();
            let mut plain = vec![0; classes];
            for step in 0..5000_u64 {
                let class = (step * 7919 % 4093) as usize % classes;
                if step % 3 < 2 {
                    members.add(class as u32, step % 2);
                    plain[class] += step % 2;
                } else if plain[class] > 0 {
                    members.take(class as u32, 1);
                    plain[class] -= 1;
                }
            }
            let mut counted = vec![members.first];
            counted.extend(&members.further);
            counted.resize(classes, 0);
            members.listed.iter().for_each(|&(class, requests)| counted[class as usize] += requests);
            assert_eq!(counted, plain);
        }
    }
}
