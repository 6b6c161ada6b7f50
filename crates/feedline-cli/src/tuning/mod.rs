//! Finds the fewest workers and the smallest memory that keep the trainer's wait under a goal.
//!
//! [`Search`] says what to run next and is given the result; it runs nothing itself. A first stretch
//! with all workers shows what a sample costs. The model says where to look, and a candidate is run
//! in turn with one that has more, a short stretch each (`contest`). Whether it keeps the wait under
//! the goal is decided by the interval of its stretches (`tried`). `choice` says what was found, and
//! why.

mod choice;
mod contest;
mod model;
mod tried;

pub(crate) use choice::Choice;
pub(crate) use model::{Cost, Demand};
pub(crate) use tried::{Stretch, Tried, Tunables};

use feedline::internals::spec::{counted, show_percent, show_rate, show_time};
use feedline::internals::tune::{LEAST_MEMORY, TrainStep};

use self::contest::Contest;

/// The share of its time that the trainer may wait.
pub(crate) const GOAL: f64 = 0.01;

/// Memory beyond what was used, for samples that take more.
const SPARE_MEMORY: f64 = 1.25;

/// The model's word is taken for a rate that is so many times what is wanted.
const PLENTY: f64 = 1.5;

/// How often more workers are taken because those that were chosen no longer do.
const MOST_RETURNS: u32 = 2;

/// What may be used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limits {
    /// Cores.
    pub(crate) cpus: u64,
    /// Bytes.
    pub(crate) memory: Option<u64>,
    /// Why the memory is left alone, if it is.
    pub(crate) memory_left: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// All workers, to see what a sample costs.
    Probe,
    /// The fewest workers.
    Workers,
    /// The fewest open batches for each worker.
    Prefetch(Prefetch),
    /// The least memory, so many times raised already.
    Memory(u32),
    Done,
}

/// What is known of open batches for each worker.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Prefetch {
    /// The most that were too few.
    short: u64,
    /// The fewest that did, of which the loader's own choice is the first.
    enough: u64,
}

impl Prefetch {
    /// Which to try next, between both: twice as many each time, as few mostly do, then half way.
    /// `None` when there is nothing between them.
    fn upcoming(self) -> Option<u64> {
        let Prefetch { short, enough } = self;
        let twice = (2 * short).max(1);
        let next = if twice < enough { twice } else { (short + enough) / 2 };
        (short < next && next < enough).then_some(next)
    }
}

/// The search. Ask [`Search::upcoming`] what to run, run it, [`Search::record`] it, until there is no
/// next; then [`Search::choice`] has the result.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    limits: Limits,
    step: TrainStep,
    demand: Demand,
    most: u64,
    cost: Option<Cost>,
    tried: Vec<Tried>,
    phase: Phase,
    /// Those that run in turn.
    contest: Contest,
    /// Pairs of stretches that were run again.
    again: usize,
    /// Fewer workers turned out to be too few, whatever their stretches say on the whole.
    at_least: u64,
    /// How often that happened.
    returns: u32,
    /// Fewer workers did where more did not, and one more than those was tried.
    raised: bool,
    chosen: usize,
    /// Cores that other programs used, stretch by stretch.
    others: Vec<f64>,
    remarks: Vec<String>,
}

impl Search {
    /// A search within `limits` for a trainer with this step over batches of so many samples. The
    /// first stretch shows how many a batch has.
    #[must_use]
    pub(crate) fn new(limits: Limits, step: TrainStep, batch_size: f64) -> Search {
        let most = limits.cpus.max(1);
        let mut search = Search {
            limits,
            step,
            demand: Demand::of(step, batch_size),
            most,
            cost: None,
            tried: Vec::new(),
            phase: Phase::Probe,
            contest: Contest::alone(0),
            again: 0,
            at_least: 1,
            returns: 0,
            raised: false,
            chosen: 0,
            others: Vec::new(),
            remarks: Vec::new(),
        };
        let all = search.place(search.with_workers(most));
        search.contest = Contest::alone(all);
        search
    }

    /// What a sample costs, once that is known.
    #[must_use]
    pub(crate) fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// What the trainer wants.
    #[must_use]
    pub(crate) fn demand(&self) -> Demand {
        self.demand
    }

    /// All candidates so far, in the order in which they were first run.
    #[must_use]
    pub(crate) fn tried(&self) -> &[Tried] {
        &self.tried
    }

    fn with_workers(&self, num_workers: u64) -> Tunables {
        Tunables { num_workers, prefetch_factor: None, memory: self.limits.memory }
    }

    /// The place of a candidate in the list.
    fn place(&mut self, settings: Tunables) -> usize {
        if let Some(at) = self.tried.iter().position(|tried| tried.settings == settings) {
            return at;
        }
        self.tried.push(Tried::new(settings));
        self.tried.len() - 1
    }

    /// What to run next; `None` when the search is over.
    pub(crate) fn upcoming(&mut self) -> Option<Tunables> {
        loop {
            let over = match self.phase {
                Phase::Done => return None,
                Phase::Probe => self.contest.turns().0 > 0,
                _ => self.contest.is_over(&self.tried),
            };
            if !over {
                return Some(self.tried[self.contest.upcoming()].settings);
            }
            self.again += self.contest.aside();
            self.go_on();
        }
    }

    /// What is being looked for, the number of the stretch that is next, and the most that there are
    /// for this question.
    #[must_use]
    pub(crate) fn turn(&self) -> (&'static str, usize, usize) {
        let (turns, most) = self.contest.turns();
        match self.phase {
            Phase::Probe => ("what a sample costs", 1, 1),
            Phase::Workers => ("the fewest workers", turns + 1, most),
            Phase::Prefetch(_) => ("the fewest open batches", turns + 1, most),
            Phase::Memory(_) | Phase::Done => ("the least memory", turns + 1, most),
        }
    }

    /// How the stretch with these settings went.
    pub(crate) fn record(&mut self, settings: Tunables, stretch: &Stretch) {
        let at = self.place(settings);
        if at == self.contest.upcoming() {
            let workers = settings.num_workers as f64;
            let cores = self.limits.cpus.max(1) as f64;
            let rate = self.cost.map_or(0.0, |cost| cost.rate(workers, cores));
            let enough = rate >= self.demand.rate() * PLENTY;
            self.contest.record(&mut self.tried, stretch, enough);
        } else {
            self.tried[at].record(stretch);
        }
        self.others.extend(stretch.others);
        if self.cost.is_none() && stretch.rows > 0.0 {
            // A small data set has smaller batches than were asked for.
            self.demand = Demand::of(self.step, stretch.rows);
        }
        if self.cost.is_none() {
            self.cost = Cost::of(&stretch.evidence);
            let cpus = self.limits.cpus.max(1);
            // Workers that wait for bytes share a core.
            self.most = self.cost.map_or(cpus, |cost| cost.useful_workers(cpus as f64)).max(cpus);
        }
    }

    fn keeps(&self, at: usize) -> bool {
        self.tried[at].keeps().unwrap_or(false)
    }

    fn go_on(&mut self) {
        match self.phase.clone() {
            Phase::Probe => {
                let cores = self.limits.cpus.max(1) as f64;
                let wanted = self.demand.rate() * (1.0 - GOAL);
                let first = self.cost.and_then(|cost| cost.workers_for(wanted, cores));
                self.phase = Phase::Workers;
                let first = first.unwrap_or(self.most).clamp(1, self.most);
                // The fewest there are have only more to be compared with.
                let more = first.max(2).min(self.most);
                self.contest_workers(more, (more - 1).max(1));
            }
            Phase::Workers => self.after_workers(),
            Phase::Prefetch(known) => self.after_prefetch(known),
            Phase::Memory(raised) => self.after_memory(raised),
            Phase::Done => {}
        }
    }

    fn contest_workers(&mut self, more: u64, fewer: u64) {
        let [more, fewer] = [more, fewer].map(|workers| self.with_workers(workers.max(1)));
        let more = self.place(more);
        self.contest = Contest::between(more, self.place(fewer));
    }

    /// The most workers that were too few, and the fewest that did.
    fn bounds(&self) -> (u64, Option<u64>) {
        let plain =
            |tried: &&Tried| tried.settings == self.with_workers(tried.settings.num_workers);
        let that = |kept: bool| {
            let decided = self.tried.iter().filter(plain);
            decided.filter(move |tried| tried.keeps() == Some(kept))
        };
        let workers = |tried: &Tried| tried.settings.num_workers;
        let short = that(false).map(workers).max().unwrap_or(0).max(self.at_least - 1);
        (short, that(true).map(workers).filter(|enough| *enough >= self.at_least).min())
    }

    fn after_workers(&mut self) {
        let (short, enough) = self.bounds();
        match enough {
            Some(enough) if enough <= short + 1 => {
                // Fewer did and more did not: the machine was not itself. Still more are safer, if
                // they do.
                let safer = short + 1;
                if enough <= short && safer <= self.most && !self.raised {
                    self.raised = true;
                    return self.contest_workers(safer, enough);
                }
                let above = if self.raised { self.keeping_above(short) } else { None };
                self.chosen = above.unwrap_or_else(|| self.place(self.with_workers(enough)));
                self.begin_prefetch();
            }
            Some(enough) => {
                // Half way between too few and enough, in turn with what is enough.
                let middle = (short + enough) / 2;
                self.contest_workers(enough, middle.max(short + 1));
            }
            None if short >= self.most => self.give_up(),
            None => {
                let at = self.tried.iter().position(|t| t.settings.num_workers == short);
                let rate = at.map_or(0.0, |at| self.tried[at].rate().mean);
                // As many more as the rate is short of.
                let more = short as f64 * (self.demand.rate() / rate.max(1e-9)).min(1e6);
                let more = (more.ceil() as u64).clamp(short + 1, self.most);
                self.contest_workers(more, short);
            }
        }
    }

    /// The candidate with the fewest workers above so many that keeps the wait under the goal.
    fn keeping_above(&self, workers: u64) -> Option<usize> {
        let all = self.tried.iter().enumerate();
        let keeping = all.filter(|(_, tried)| {
            tried.settings.num_workers > workers && tried.keeps() == Some(true)
        });
        keeping.min_by_key(|(_, tried)| tried.settings.num_workers).map(|(at, _)| at)
    }

    /// The chosen one kept the wait under the goal, and does so no more.
    fn has_collapsed(&self) -> bool {
        let kept = |at: usize| self.tried[at].keeps();
        self.contest.reference.is_some_and(|at| kept(at) == Some(false))
            && kept(self.contest.candidate) != Some(true)
    }

    /// More workers than the chosen one has, as it has collapsed.
    fn return_to_workers(&mut self) {
        self.returns += 1;
        let chosen = &self.tried[self.chosen];
        let workers = chosen.settings.num_workers;
        self.remarks.push(format!(
            "{} with {} kept the wait under {:.0} % at first and then no more ({} on the whole): the machine was not steady, so tune again when it is quiet",
            counted(workers, "worker"),
            counted(chosen.open, "open batch"),
            GOAL * 100.0,
            show_percent(chosen.wait_share().mean)
        ));
        if workers >= self.most || self.returns > MOST_RETURNS {
            return self.end();
        }
        self.at_least = workers + 1;
        self.phase = Phase::Workers;
        self.after_workers();
    }

    /// No number of workers keeps the wait under the goal: the fewest that are as fast as any.
    fn give_up(&mut self) {
        // Unless one did whose number of workers failed otherwise.
        if self.keeping_above(0).is_some() {
            return self.end();
        }
        let best = self.tried.iter().map(|tried| tried.rate().mean).fold(0.0, f64::max);
        let fewest = self
            .tried
            .iter()
            .enumerate()
            .filter(|(_, tried)| tried.rate().mean >= best * 0.97)
            .min_by_key(|(_, tried)| tried.settings.num_workers);
        self.chosen = fewest.map_or(0, |(at, _)| at);
        let tried = &self.tried[self.chosen];
        let cpu = self.cost.map_or(0.0, |cost| cost.cpu);
        self.remarks.push(format!(
            "{} cannot keep the wait under {:.0} %: the trainer wants {} samples/s and gets {}, at {} of processor time a sample",
            counted(self.limits.cpus, "core"),
            GOAL * 100.0,
            show_rate(self.demand.rate()),
            show_rate(tried.rate().mean),
            show_time(cpu),
        ));
        self.phase = Phase::Done;
    }

    /// The search is over. While the last ones were compared, the chosen one may have turned out to
    /// fail: then one that did not is taken.
    fn end(&mut self) {
        self.phase = Phase::Done;
        if !self.keeps(self.chosen) {
            self.chosen = self.keeping_above(0).unwrap_or(self.chosen);
        }
        let chosen = &self.tried[self.chosen];
        let waited = self.tried.iter().find(|tried| {
            tried.has_more_than(chosen)
                && chosen.keeps() == Some(true)
                && tried.keeps() == Some(false)
        });
        if let Some(waited) = waited {
            let workers = counted(waited.settings.num_workers, "worker");
            let with = if waited.settings.num_workers > chosen.settings.num_workers {
                workers
            } else {
                format!("{workers} and {}", counted(waited.open, "open batch"))
            };
            self.remarks.push(format!(
                "with {with} the trainer waited {}, longer than with fewer: the machine was not steady, so tune again when it is quiet",
                show_percent(waited.wait_share().mean)
            ));
        }
    }

    fn begin_prefetch(&mut self) {
        let usual = &self.tried[self.chosen];
        // The fewest for each worker that are no fewer than the loader's own choice.
        let enough = usual.open.div_ceil(usual.settings.num_workers.max(1));
        self.contest_prefetch(Prefetch { short: 0, enough });
    }

    fn contest_prefetch(&mut self, known: Prefetch) {
        let Some(factor) = known.upcoming() else { return self.begin_memory() };
        self.phase = Phase::Prefetch(known);
        let reference = self.tried[self.chosen].settings;
        let fewer = self.place(Tunables { prefetch_factor: Some(factor), ..reference });
        self.contest = Contest::between(self.chosen, fewer);
    }

    fn after_prefetch(&mut self, known: Prefetch) {
        if self.has_collapsed() {
            return self.return_to_workers();
        }
        let fewer = self.contest.candidate;
        let factor = self.tried[fewer].settings.prefetch_factor.unwrap_or(1);
        let known = match self.keeps(fewer) {
            true => Prefetch { enough: factor, ..known },
            false => Prefetch { short: factor, ..known },
        };
        if known.enough == factor {
            self.chosen = fewer;
        }
        self.contest_prefetch(known);
    }

    fn begin_memory(&mut self) {
        self.phase = Phase::Memory(0);
        if let Some(reason) = &self.limits.memory_left {
            self.remarks.push(format!("memory is left as it is: {reason}"));
            return self.end();
        }
        let used = self.tried[self.chosen].memory as f64;
        self.contest_memory((used * SPARE_MEMORY) as u64);
    }

    fn contest_memory(&mut self, bytes: u64) {
        // Two digits are enough to read.
        let digit = 10u64.pow((bytes.max(10).ilog10()).saturating_sub(1));
        // What was seen in a short stretch says little of the largest sample, and one that does not
        // fit ends the run.
        let bytes = (bytes.div_ceil(digit) * digit).max(LEAST_MEMORY);
        if self.limits.memory.is_some_and(|limit| bytes >= limit) {
            return self.end();
        }
        let settings = Tunables { memory: Some(bytes), ..self.tried[self.chosen].settings };
        let less = self.place(settings);
        self.contest = Contest::between(self.chosen, less);
    }

    fn after_memory(&mut self, raised: u32) {
        if self.has_collapsed() {
            return self.return_to_workers();
        }
        let less = self.contest.candidate;
        if self.keeps(less) && self.tried[less].remade == 0 {
            self.chosen = less;
            self.end();
        } else if raised < 3 {
            self.phase = Phase::Memory(raised + 1);
            let bytes = self.tried[less].settings.memory.unwrap_or(0);
            self.contest_memory(bytes + bytes / 2);
        } else {
            self.remarks
                .push("memory is left as it is: less of it made the trainer wait".to_owned());
            self.end();
        }
    }
}

#[cfg(test)]
mod tests;
