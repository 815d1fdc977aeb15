//! The gate of prioritize-and-route, lin2026 section 4.2.1: the class with the most output per prompt token.

use super::{ClassTokens, Gate, Prefills};

/// The class with the largest D_i / P_i of the workload's class means, then the lower class.
#[derive(Debug)]
pub(super) struct PriorityGate {
    /// Rank of each class.
    ranks: Vec<usize>,
}

impl PriorityGate {
    pub(super) fn new(tokens: &[ClassTokens]) -> PriorityGate {
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        // Compares ΣD / ΣP of two classes by cross multiplication. The sort is stable: ties stay in class order.
        order.sort_by(|&left, &right| {
            // A class without requests has neither; 0 / 1 keeps the order total.
            let prompt = |class: usize| u128::from(tokens[class].prompt.max(1));
            let crossed = |class: usize, other: usize| u128::from(tokens[class].output) * prompt(other);
            crossed(right, left).cmp(&crossed(left, right))
        });
        let mut ranks = vec![0; tokens.len()];
        for (rank, class) in order.into_iter().enumerate() {
            ranks[class] = rank;
        }
        PriorityGate { ranks }
    }
}

impl Gate for PriorityGate {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by_key(|&class| self.ranks[class])
    }
}
