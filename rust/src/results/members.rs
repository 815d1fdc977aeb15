//! How many requests there are of each class.

/// Up to so many classes each has a number of its own; of more only those are listed of which there is a request.
const FEW: usize = 16;

/// Requests by class.
#[derive(Debug)]
pub(crate) struct Members {
    /// Of each class, where they are few.
    pub(super) by_code: Vec<u64>,
    /// Class and number, by class, where they are many.
    pub(super) listed: Vec<(u32, u64)>,
}

impl Members {
    /// None of any of so many classes.
    pub(crate) fn new(classes: usize) -> Members {
        Members { by_code: vec![0; if classes > FEW { 0 } else { classes }], listed: Vec::new() }
    }

    /// None of any of as many classes.
    pub(crate) fn of_none(&self) -> Members {
        Members::new(if self.by_code.is_empty() { FEW + 1 } else { self.by_code.len() })
    }

    /// So many come.
    #[inline]
    pub(crate) fn add(&mut self, class: u32, requests: u64) {
        match self.by_code.get_mut(class as usize) {
            Some(members) => *members += requests,
            None => self.add_listed(class, requests),
        }
    }

    /// So many go.
    #[inline]
    pub(crate) fn take(&mut self, class: u32, requests: u64) {
        match self.by_code.get_mut(class as usize) {
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
            let mut counted = members.by_code.clone();
            counted.resize(classes, 0);
            members.listed.iter().for_each(|&(class, requests)| counted[class as usize] += requests);
            assert_eq!(counted, plain);
        }
    }
}
