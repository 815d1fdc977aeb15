//! How many requests there are of each class.

/// Up to so many classes each has a number of its own; of more only those are listed of which there is a request.
const FEW: usize = 16;

/// Requests by class.
#[derive(Debug)]
pub(crate) struct Members {
    /// Of the first class, which nearly always is the only one.
    pub(super) first: u64,
    /// Of each further class, where they are few.
    pub(super) further: Vec<u64>,
    /// Further class and number, by class, where they are many.
    pub(super) listed: Vec<(u32, u64)>,
    are_many: bool,
}

impl Members {
    /// None of any of so many classes.
    pub(crate) fn new(classes: usize) -> Members {
        let are_many = classes > FEW;
        let further = if are_many { 0 } else { classes.saturating_sub(1) };
        Members { first: 0, further: vec![0; further], listed: Vec::new(), are_many }
    }

    /// None of any of as many classes.
    pub(crate) fn of_none(&self) -> Members {
        Members::new(if self.are_many { FEW + 1 } else { self.further.len() + 1 })
    }

    /// So many come.
    #[inline]
    pub(crate) fn add(&mut self, class: u32, requests: u64) {
        match class {
            0 => self.first += requests,
            _ => self.add_further(class, requests),
        }
    }

    /// So many go.
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

    #[cold]
    fn add_listed(&mut self, class: u32, requests: u64) {
        match self.listed.binary_search_by_key(&class, |&(listed, _)| listed) {
            Ok(at) => self.listed[at].1 += requests,
            Err(at) => self.listed.insert(at, (class, requests)),
        }
    }

    #[cold]
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
    fn few_and_many_classes_are_counted_alike() {
        for classes in [1, FEW, FEW + 1, 1000] {
            let mut members = Members::new(classes).of_none();
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
