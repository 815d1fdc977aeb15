//! WAIT: a type joins the batch when enough of its requests wait (ao2025 Algorithm 1).

use std::collections::BTreeMap;

use super::parameters::ClassNames;
use super::prelude::*;

/// Number of waiting requests of a class before it joins the batch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Thresholds {
    /// The same for every class.
    Same(u64),
    /// By class name.
    ByClass(BTreeMap<String, u64>),
}

/// A type joins the batch when enough of its requests wait.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    pub thresholds: Thresholds,
    pub max_seqs: Option<u64>,
}

impl SchedulerParameters for Wait {
    fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let limits = limits(Limits::NONE, self.max_seqs.unwrap_or(Limits::NONE))?;
        let by_code = match &self.thresholds {
            Thresholds::Same(threshold) => {
                vec![count("thresholds", *threshold)?; classes.map_or(1, |classes| classes.len().max(1))]
            }
            Thresholds::ByClass(thresholds) if thresholds.is_empty() => {
                return Err(Error::config("thresholds", "must have one threshold per class of the workload, got none"));
            }
            Thresholds::ByClass(thresholds) => {
                let known = ClassNames::new(classes);
                for (name, &threshold) in thresholds {
                    let field = format!("thresholds.{name}");
                    count(&field, threshold)?;
                    known.check(&field, name)?;
                }
                let of_class = |class: &Class| match thresholds.get(&class.name) {
                    Some(&threshold) => Ok(threshold),
                    None if !class.reaches_engine => Ok(1),
                    None => {
                        let what =
                            format!("must have one threshold per class of the workload, {:?} is missing", class.name);
                        Err(Error::config("thresholds", what))
                    }
                };
                classes.unwrap_or_default().iter().map(of_class).collect::<Result<_>>()?
            }
        };
        let of_threshold = |threshold| Type { threshold, ..Type::default() };
        let types = by_code.into_iter().map(of_threshold).collect();
        Ok(Box::new(WaitScheduler { limits, types, seniority: Seniority::default() }))
    }
}

impl Sample for Wait {
    fn sample(dice: &mut Dice) -> Wait {
        let (same, of_a, of_b) = (1 + dice.below(3), 1 + dice.below(3), 1 + dice.below(3));
        let by_class = BTreeMap::from([("a".to_owned(), of_a), ("b".to_owned(), of_b)]);
        let thresholds = dice.one_of(&[Thresholds::Same(same), Thresholds::ByClass(by_class)]);
        let max_seqs = dice.scale.max_seqs;
        Wait { thresholds, max_seqs: dice.one_of(&[None, Some(max_seqs)]) }
    }
}

/// Each class is a type. If its queue reaches the threshold, all its requests advance by one stage, and up to the
/// threshold begin. The other types pause.
#[derive(Debug)]
pub(super) struct WaitScheduler {
    limits: Limits,
    /// By class code.
    types: Vec<Type>,
    seniority: Seniority,
}

/// The requests of one class. The number of the class is its group of steady decodes.
///
/// The paper takes at most n_j requests of each stage, which is all of them: an iteration of the type advances each
/// request by one stage and lets at most n_j begin. So no stage after the first ever holds more.
#[derive(Debug, Default)]
struct Type {
    /// n_j.
    threshold: u64,
    /// Stage 0, by arrival.
    queue: List,
    /// Requests that can decode and are not steady decodes yet.
    ready: Vec<Place>,
    is_eligible: bool,
}

impl WaitScheduler {
    /// Puts a victim at the head of its type's queue.
    fn requeue(&mut self, victim: Place, requests: &Requests) {
        let of_type = &mut self.types[requests.at(victim).class as usize];
        of_type.ready.retain(|&place| place != victim);
        of_type.queue.push_front(victim);
    }
}

impl Scheduler for WaitScheduler {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        let of_type = |place: Place| requests.at(place).class as usize;
        match notice {
            Notice::Arrived(place) => insert_by_arrival(&mut self.types[of_type(place)].queue, place, requests),
            Notice::Ready(place) => self.types[of_type(place)].ready.push(place),
            Notice::Preempted(place) => {
                self.seniority.remove(place);
                self.requeue(place, requests);
            }
            Notice::Left(place) => {
                if !self.seniority.remove(place) {
                    self.types[of_type(place)].queue.remove(place);
                }
            }
        }
    }

    fn admitted(&self) -> Option<&List> {
        Some(&self.seniority.admitted)
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let mut is_any_eligible = false;
        for (code, of_type) in self.types.iter_mut().enumerate() {
            of_type.is_eligible = plan.drain() || of_type.queue.len() as u64 >= of_type.threshold;
            plan.select_group(code);
            plan.rest_decodes(!of_type.is_eligible);
            if of_type.is_eligible {
                is_any_eligible = true;
                for index in 0..of_type.ready.len() {
                    plan.decode(of_type.ready[index])?;
                }
                of_type.ready.clear();
            }
        }
        if !is_any_eligible {
            return Ok(());
        }
        while let Some(victim) = self.seniority.send_back_if_short(plan)? {
            self.requeue(victim, plan.requests());
        }
        if plan.has_preempted() {
            return Ok(());
        }
        let mut admits = false;
        for of_type in self.types.iter_mut().filter(|of_type| of_type.is_eligible) {
            for _ in 0..of_type.threshold {
                if self.seniority.admit_head(&mut of_type.queue, plan)?.is_none() {
                    break;
                }
                admits = true;
            }
        }
        if !admits && !plan.drains_with_others() {
            // A request without room now has none while no request leaves. Only an arrival makes another type
            // eligible, unless all are.
            plan.hold(Hold::UNTIL_ARRIVAL);
        }
        Ok(())
    }
}

/// The admitted requests in order of admission. The latest one is preempted when blocks are short.
#[derive(Debug, Default)]
pub(super) struct Seniority {
    admitted: List,
}

impl Seniority {
    /// Removes a request. Returns whether it was admitted.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> bool {
        self.admitted.remove(place)
    }

    /// If the active decodes lack blocks, preempts the latest admitted request, active or not.
    pub(super) fn send_back_if_short(&mut self, plan: &mut Plan) -> Result<Option<Place>> {
        if plan.lacks_blocks() { self.send_back(plan) } else { Ok(None) }
    }

    fn send_back(&mut self, plan: &mut Plan) -> Result<Option<Place>> {
        let Some(latest) = self.admitted.last() else { return Ok(None) };
        plan.preempt(latest, Preemption::Recompute)?;
        self.admitted.remove(latest);
        Ok(Some(latest))
    }

    /// Admits the head of a queue if there is room. Its whole input is computed in this iteration.
    #[inline]
    pub(super) fn admit_head(&mut self, queue: &mut List, plan: &mut Plan) -> Result<Option<Place>> {
        let Some(place) = queue.first() else { return Ok(None) };
        plan.look_up(place);
        let request = plan.requests().at(place);
        let owed = request.owed();
        let (room, reserved) = (plan.requests().until_next_token(place), request.context_held() + owed);
        if !plan.try_admit(place, room, 0, reserved, owed)? {
            return Ok(None);
        }
        queue.remove(place);
        self.admitted.push_back(place);
        Ok(Some(place))
    }
}
