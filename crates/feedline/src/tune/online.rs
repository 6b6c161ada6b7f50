//! Tuning while a loader runs: `num_workers = "auto"`.
//!
//! [`Controller`] is given what happened so far and says what to change. It has no clock and no
//! thread: the loader asks it at the batches that it hands over, most of which are no reason to
//! look. It begins with all workers that the budget allows, so that nobody waits for it to learn,
//! and comes down to the fewest that keep the trainer busy. A step down that makes the trainer wait
//! is undone and remembered. What it changes never changes a batch.

use serde::{Deserialize, Serialize};

use crate::spec::read::show_bytes;
use crate::spec::show::show_percent;

/// The trainer may wait this share of its time.
const HUNGRY: f64 = 0.01;

/// Below this share it counts as not waiting at all. Between the two nothing is changed.
const CALM: f64 = 0.005;

/// A wait of this share needs no second look.
const STARVING: f64 = 0.1;

/// Windows in a row that must agree before something is changed.
const AGREEING: u32 = 2;

/// A window: so many seconds and batches at least, or, where steps are long, more seconds and fewer
/// batches.
const WINDOW: (f64, u64) = (0.5, 8);
const LONG_WINDOW: (f64, u64) = (3.0, 2);

/// Workers beyond the mean need, for samples that take longer than others.
const HEADROOM: f64 = 1.1;

/// Workers are the limit if they work this share of the time.
const BUSY: f64 = 0.75;

/// Workers that lack a core this share of the time that they work are slow for that reason.
const STARVED: f64 = 0.4;

/// A shorter wait for a batch, in seconds, while workers are idle half of the time is the hand-over
/// itself: neither workers nor open batches shorten it.
const HAND_OVER: f64 = 0.0005;

/// A number of workers that was too small is tried again after so many seconds, then after twice as
/// many, and so on.
const RETRY: f64 = 60.0;
const LONGEST_RETRY: f64 = 3600.0;

/// Decisions that are kept.
const MOST_DECISIONS: usize = 256;

/// What can be changed while a loader runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Knob {
    /// Workers that make batches.
    NumWorkers,
    /// Batches that may be open at once.
    Prefetch,
}

/// Something that was changed, or that was found not to help, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// Seconds since the loader's first batch.
    pub seconds: f64,
    /// What was changed.
    pub setting: Knob,
    /// The value before.
    pub from: u64,
    /// The value after; the same if the decision was to leave it.
    pub to: u64,
    /// Why, in words and figures.
    pub reason: String,
}

/// How a loader is set and what was changed so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tuning {
    /// The loader adjusts itself.
    pub auto: bool,
    /// Workers that make batches now; 0 if the program's own thread does.
    pub num_workers: u64,
    /// The most workers that there may be.
    pub most_workers: u64,
    /// Batches that may be open at once now.
    pub prefetch: u64,
    /// The last decisions, the oldest first.
    pub decisions: Vec<Decision>,
    /// Earlier decisions that are no longer kept.
    pub decisions_left_out: u64,
}

impl Tuning {
    /// Automatic tuning that begins with `workers`, which are also the most.
    #[doc(hidden)]
    #[must_use]
    pub fn begun(workers: u64, prefetch: u64) -> Tuning {
        let num_workers = workers;
        Tuning { auto: true, num_workers, most_workers: workers, prefetch, ..Tuning::default() }
    }

    /// Notes a decision.
    #[doc(hidden)]
    pub fn note(&mut self, decision: Decision) {
        if self.decisions.len() == MOST_DECISIONS {
            self.decisions.remove(0);
            self.decisions_left_out += 1;
        }
        self.decisions.push(decision);
    }

    /// The last change of this setting.
    #[must_use]
    pub fn last(&self, setting: Knob) -> Option<&Decision> {
        self.decisions.iter().rev().find(|decision| decision.setting == setting)
    }
}

/// What may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Workers.
    pub workers: u64,
    /// Open batches, which memory has room for.
    pub prefetch: u64,
    /// Bytes that the loader may hold, for messages.
    pub memory: u64,
}

/// What happened since the loader's start, all workers added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// Seconds since the first batch.
    pub seconds: f64,
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples made.
    pub made: u64,
    /// Seconds that the trainer waited, but for the first batches of epochs.
    pub wait: f64,
    /// Seconds that it used batches.
    pub step: f64,
    /// Seconds that workers worked.
    pub busy: f64,
    /// Of these, in line for memory.
    pub memory: f64,
    /// Of these, neither on a core nor waiting for memory or bytes: others had the cores. 0 if that
    /// is not known.
    pub off_core: f64,
}

/// What happened between two readings.
struct Window {
    /// The share of the trainer's time that it waited.
    share: f64,
    /// Workers that the trainer needs, from what a sample takes.
    needed: f64,
    /// The share of the time that workers worked.
    load: f64,
    /// The share of their work that was waiting for memory.
    memory: f64,
    /// The share of the rest without a core.
    off_core: f64,
}

impl Window {
    /// `None` if nothing can be said.
    fn between(before: &Reading, now: &Reading, workers: u64) -> Option<Window> {
        let (wait, step) = (now.wait - before.wait, now.step - before.step);
        let made = now.made.saturating_sub(before.made);
        let (busy, memory) = (now.busy - before.busy, now.memory - before.memory);
        let work = (busy - memory).max(0.0);
        if wait + step <= 0.0 || made == 0 || busy <= 0.0 {
            return None;
        }
        let samples = now.samples.saturating_sub(before.samples) as f64;
        let batches = now.batches.saturating_sub(before.batches).max(1) as f64;
        let load = work / (workers as f64 * (wait + step));
        let handed_over = wait / batches < HAND_OVER && load < 0.5;
        Some(Window {
            share: if handed_over { 0.0 } else { wait / (wait + step) },
            needed: work / made as f64 * samples / step.max(1e-9),
            load,
            memory: (memory / busy).clamp(0.0, 1.0),
            off_core: ((now.off_core - before.off_core) / work.max(1e-9)).clamp(0.0, 1.0),
        })
    }
}

/// A number of workers that was too small.
#[derive(Debug, Clone, Copy)]
struct TooFew {
    workers: u64,
    /// Workers that the trainer needed then.
    needed: f64,
    /// Tried again after this time.
    until: f64,
}

/// Decides what to change.
#[derive(Debug, Clone)]
pub struct Controller {
    budget: Budget,
    workers: u64,
    prefetch: u64,
    before: Reading,
    calm: u32,
    hungry: u32,
    /// Windows that are not looked at, as a change has only just been made.
    settling: u32,
    /// The number of workers before the last step down.
    came_from: Option<u64>,
    too_few: Option<TooFew>,
    retry: f64,
    /// The number of open batches before the last step up, and the share that was waited then.
    trial: Option<(u64, f64)>,
    /// More open batches did not help.
    futile: bool,
    /// What cannot be helped was reported.
    reported: bool,
}

impl Controller {
    /// For a loader that begins with so many workers and open batches, after its first batch.
    #[must_use]
    pub fn new(workers: u64, prefetch: u64, budget: Budget, first: Reading) -> Controller {
        Controller {
            budget,
            workers,
            prefetch,
            before: first,
            calm: 0,
            hungry: 0,
            settling: 0,
            came_from: None,
            too_few: None,
            retry: RETRY,
            trial: None,
            futile: false,
            reported: false,
        }
    }

    /// Workers that are wanted now.
    #[must_use]
    pub fn workers(&self) -> u64 {
        self.workers
    }

    /// Open batches that are wanted now.
    #[must_use]
    pub fn prefetch(&self) -> u64 {
        self.prefetch
    }

    /// Seconds since the first batch before which there is nothing to decide.
    #[must_use]
    pub fn due(&self) -> f64 {
        self.before.seconds + WINDOW.0
    }

    /// Looks at what happened. A decision has been made when there is one: [`Controller::workers`]
    /// and [`Controller::prefetch`] are what to set.
    pub fn decide(&mut self, now: &Reading) -> Option<Decision> {
        let (seconds, batches) = (now.seconds - self.before.seconds, now.batches);
        let batches = batches.saturating_sub(self.before.batches);
        let whole = |(time, count): (f64, u64)| seconds >= time && batches >= count;
        if !whole(WINDOW) && !whole(LONG_WINDOW) {
            return None;
        }
        let window = Window::between(&self.before, now, self.workers);
        self.before = *now;
        let window = window?;
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        if let Some((from, share)) = self.trial.take()
            && window.share > HUNGRY
            && window.share > share * 0.7
        {
            self.futile = true;
            let reason = format!(
                "undone: with {} open batches the trainer waited {} as before",
                self.prefetch,
                show_percent(window.share)
            );
            return Some(self.change(now.seconds, Knob::Prefetch, from, reason));
        }
        if window.share > HUNGRY {
            self.calm = 0;
            self.hungry += 1;
            if self.hungry < AGREEING && window.share < STARVING {
                return None;
            }
            return self.feed(now.seconds, &window);
        }
        self.hungry = 0;
        self.calm = if window.share < CALM { self.calm + 1 } else { 0 };
        if self.calm >= AGREEING { self.save(now.seconds, &window) } else { None }
    }

    /// The trainer waits: more of what is short.
    fn feed(&mut self, seconds: f64, window: &Window) -> Option<Decision> {
        let waited = show_percent(window.share);
        if window.memory > 0.3 {
            let reason = format!(
                "left: the trainer waited {waited}, and workers stood in line for memory {} of their time: raise memory, which is {}",
                show_percent(window.memory),
                show_bytes(self.budget.memory)
            );
            return self.report(seconds, Knob::NumWorkers, reason);
        }
        if window.load >= BUSY {
            if self.workers >= self.budget.workers {
                let reason = format!(
                    "left: the trainer waited {waited} and all {} workers that the cores allow were busy {} of the time",
                    self.workers,
                    show_percent(window.load)
                );
                return self.report(seconds, Knob::NumWorkers, reason);
            }
            let enough = (window.needed * HEADROOM).ceil() as u64;
            let (from, mut reason) = (self.workers, String::new());
            let to = match self.came_from.take() {
                Some(before) if before > from => {
                    reason += "undone: ";
                    before
                }
                _ => enough.clamp(from + 1, self.budget.workers),
            };
            self.retry = match self.too_few {
                Some(earlier) if earlier.workers == from => (self.retry * 2.0).min(LONGEST_RETRY),
                _ => RETRY,
            };
            let until = seconds + self.retry;
            self.too_few = Some(TooFew { workers: from, needed: window.needed, until });
            reason += &format!(
                "the trainer waited {waited} with {from} workers, which were busy {} of the time",
                show_percent(window.load)
            );
            return Some(self.change(
                seconds,
                Knob::NumWorkers,
                to.min(self.budget.workers),
                reason,
            ));
        }
        if window.off_core > STARVED {
            let reason = format!(
                "left: the trainer waited {waited}, and workers had no core {} of the time that they worked: the training step or other programs use them",
                show_percent(window.off_core)
            );
            return self.report(seconds, Knob::Prefetch, reason);
        }
        if self.prefetch < self.budget.prefetch && !self.futile {
            let to = (self.prefetch + self.prefetch.div_ceil(2)).min(self.budget.prefetch);
            let reason = format!(
                "the trainer waited {waited} while workers were busy only {} of the time: batches take unequally long",
                show_percent(window.load)
            );
            let from = self.prefetch;
            let decision = self.change(seconds, Knob::Prefetch, to, reason);
            self.trial = Some((from, window.share));
            return Some(decision);
        }
        let reason = format!(
            "left: the trainer waited {waited}, though workers were busy only {} of the time and {} batches may be open",
            show_percent(window.load),
            self.prefetch
        );
        self.report(seconds, Knob::Prefetch, reason)
    }

    /// The trainer does not wait: fewer workers, if fewer will do.
    fn save(&mut self, seconds: f64, window: &Window) -> Option<Decision> {
        self.reported = false;
        let fewest = match self.too_few {
            // The same work meets the same end; less of it, or some time later, may not.
            Some(TooFew { workers, needed, until })
                if seconds < until && window.needed > needed * 0.8 =>
            {
                workers + 1
            }
            _ => 1,
        };
        let enough = (window.needed * HEADROOM).ceil() as u64;
        // At most half of them at once: what a sample takes may change with their number.
        let to = enough.max(fewest).max(self.workers.div_ceil(2)).max(1);
        if to >= self.workers {
            return None;
        }
        let reason = format!(
            "the trainer waited {}, and {:.2} workers do what it needs",
            show_percent(window.share),
            window.needed
        );
        let from = self.workers;
        let decision = self.change(seconds, Knob::NumWorkers, to, reason);
        self.came_from = Some(from);
        Some(decision)
    }

    fn change(&mut self, seconds: f64, setting: Knob, to: u64, reason: String) -> Decision {
        let value = match setting {
            Knob::NumWorkers => {
                (self.futile, self.came_from, self.trial) = (false, None, None);
                &mut self.workers
            }
            Knob::Prefetch => &mut self.prefetch,
        };
        let from = std::mem::replace(value, to);
        (self.calm, self.hungry, self.settling, self.reported) = (0, 0, 1, false);
        Decision { seconds, setting, from, to, reason }
    }

    /// Says once that something is left as it is.
    fn report(&mut self, seconds: f64, setting: Knob, reason: String) -> Option<Decision> {
        let value = match setting {
            Knob::NumWorkers => self.workers,
            Knob::Prefetch => self.prefetch,
        };
        let reported = std::mem::replace(&mut self.reported, true);
        (!reported).then_some(Decision { seconds, setting, from: value, to: value, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loader and a trainer: batches of 32, made at the workers' rate into a queue.
    struct Machine {
        reading: Reading,
        /// Seconds of a sample.
        cost: f64,
        step: f64,
        queue: f64,
        /// Seconds that handing a batch over takes, whoever made it.
        hand_over: f64,
        /// Every eighth batch takes so many times as long to make.
        uneven: f64,
        memory: f64,
        /// The share of its work that a worker has no core.
        off_core: f64,
    }

    impl Machine {
        fn new(cost: f64, step: f64) -> Machine {
            Machine {
                reading: Reading::default(),
                cost,
                step,
                queue: 0.0,
                hand_over: 0.0,
                uneven: 1.0,
                memory: 0.0,
                off_core: 0.0,
            }
        }

        fn controller(&self, workers: u64) -> Controller {
            let budget = Budget { workers, prefetch: 32, memory: 1 << 30 };
            Controller::new(workers, 4, budget, self.reading)
        }

        /// One batch with the present settings.
        fn batch(&mut self, workers: u64, prefetch: u64) {
            let number = self.reading.batches;
            let factor = if number.is_multiple_of(8) { self.uneven } else { 1.0 };
            let noise = 1.0 + 0.04 * (number as f64 * 2.399).sin();
            let making = 32.0 * self.cost * factor * noise / workers as f64;
            // What is made while the trainer computes, as far as the queue has room.
            let room = (prefetch as f64 - self.queue).max(0.0);
            let made = (self.step / making).min(room);
            self.queue += made;
            let missing = (1.0 - self.queue).max(0.0);
            let wait = missing * making + self.hand_over;
            self.queue = (self.queue - 1.0).max(0.0);
            let work = (made + missing) * 32.0 * self.cost * factor * noise;
            let reading = &mut self.reading;
            reading.batches += 1;
            reading.samples += 32;
            reading.made += ((made + missing) * 32.0).round() as u64;
            reading.wait += wait;
            reading.step += self.step;
            reading.busy += work + self.memory * work;
            reading.memory += self.memory * work;
            reading.off_core += self.off_core * work;
            reading.seconds += wait + self.step;
        }

        /// Runs for so many seconds; the decisions.
        fn run(&mut self, controller: &mut Controller, seconds: f64) -> Vec<Decision> {
            let end = self.reading.seconds + seconds;
            let mut decisions = Vec::new();
            while self.reading.seconds < end {
                self.batch(controller.workers(), controller.prefetch());
                if self.reading.seconds >= controller.due() {
                    decisions.extend(controller.decide(&self.reading));
                }
            }
            decisions
        }
    }

    #[test]
    fn comes_down_to_the_fewest_that_do() {
        // 32 samples of 10 ms in steps of 100 ms: 3.2 workers.
        let mut machine = Machine::new(0.010, 0.1);
        let mut controller = machine.controller(64);
        let decisions = machine.run(&mut controller, 120.0);
        assert_eq!(controller.workers(), 4, "{decisions:#?}");
        assert!(decisions.len() <= 8, "{decisions:#?}");
        assert!(decisions.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
        assert!(machine.reading.wait < 0.01 * machine.reading.step);
        // And it stays there.
        assert_eq!(machine.run(&mut controller, 300.0), []);
    }

    #[test]
    fn stays_at_the_budget_when_all_are_needed_and_says_so_once() {
        let mut machine = Machine::new(0.010, 0.02);
        let mut controller = machine.controller(4);
        let decisions = machine.run(&mut controller, 60.0);
        assert_eq!((controller.workers(), decisions.len()), (4, 1), "{decisions:#?}");
        assert_eq!(decisions[0].from, decisions[0].to);
        assert!(decisions[0].reason.contains("all 4 workers"), "{}", decisions[0].reason);
    }

    #[test]
    fn goes_up_again_when_samples_get_dearer_and_remembers_what_was_too_few() {
        let mut machine = Machine::new(0.003, 0.1);
        let mut controller = machine.controller(16);
        machine.run(&mut controller, 60.0);
        assert_eq!(controller.workers(), 2);
        machine.cost = 0.015;
        let decisions = machine.run(&mut controller, 60.0);
        assert!((5..=7).contains(&controller.workers()), "{decisions:#?}");
        let waited = machine.reading.wait;
        machine.run(&mut controller, 50.0);
        assert!(machine.reading.wait - waited < 0.5, "{}", machine.reading.wait - waited);
        // Cheaper again: what was too few then is enough now.
        machine.cost = 0.003;
        machine.run(&mut controller, 60.0);
        assert_eq!(controller.workers(), 2);
    }

    #[test]
    fn a_step_down_that_makes_the_trainer_wait_is_undone() {
        let mut machine = Machine::new(0.010, 0.1);
        let mut controller = machine.controller(8);
        machine.run(&mut controller, 20.0);
        assert_eq!(controller.workers(), 4);
        // As if four had been one too many for a while, and then one too few.
        controller.workers = 3;
        controller.came_from = Some(4);
        let decisions = machine.run(&mut controller, 40.0);
        assert_eq!(controller.workers(), 4, "{decisions:#?}");
        assert!(decisions[0].reason.starts_with("undone"), "{decisions:#?}");
        assert_eq!(decisions.len(), 1, "{decisions:#?}");
    }

    #[test]
    fn uneven_batches_get_a_longer_queue_within_memory() {
        let mut machine = Machine::new(0.010, 0.1);
        machine.uneven = 9.0;
        let mut controller = machine.controller(8);
        let decisions = machine.run(&mut controller, 120.0);
        assert!(controller.prefetch() > 4, "{decisions:#?}");
        assert!(controller.prefetch() <= 32);
        assert!(decisions.iter().any(|decision| decision.setting == Knob::Prefetch));
    }

    #[test]
    fn want_of_cores_is_reported_and_changes_nothing() {
        let mut machine = Machine::new(0.010, 0.1);
        (machine.uneven, machine.off_core) = (9.0, 0.6);
        let mut controller = machine.controller(8);
        let decisions = machine.run(&mut controller, 120.0);
        let of_queue = decisions.iter().filter(|decision| decision.setting == Knob::Prefetch);
        assert!(of_queue.clone().count() > 0, "{decisions:#?}");
        assert_eq!(controller.prefetch(), 4, "{decisions:#?}");
        for decision in of_queue {
            assert!(decision.reason.contains("no core 60 %"), "{}", decision.reason);
        }
    }

    #[test]
    fn want_of_memory_is_reported_and_changes_nothing() {
        let mut machine = Machine::new(0.010, 0.02);
        machine.memory = 2.0;
        let mut controller = machine.controller(8);
        let decisions = machine.run(&mut controller, 60.0);
        assert_eq!((controller.workers(), decisions.len()), (8, 1), "{decisions:#?}");
        assert!(decisions[0].reason.contains("raise memory"), "{}", decisions[0].reason);
    }

    #[test]
    fn a_program_that_only_takes_batches_keeps_all_workers() {
        let mut machine = Machine::new(0.010, 0.0);
        let mut controller = machine.controller(8);
        machine.run(&mut controller, 30.0);
        assert_eq!(controller.workers(), 8);
    }

    #[test]
    fn long_steps_and_few_batches_are_enough_to_decide() {
        let mut machine = Machine::new(0.010, 2.0);
        let mut controller = machine.controller(8);
        machine.run(&mut controller, 60.0);
        assert_eq!(controller.workers(), 1);
    }

    #[test]
    fn the_hand_over_itself_keeps_no_worker() {
        // 1 % of a step of 20 ms, whatever is done.
        let mut machine = Machine::new(0.0001, 0.02);
        machine.hand_over = 0.0003;
        let mut controller = machine.controller(8);
        let decisions = machine.run(&mut controller, 30.0);
        assert_eq!((controller.workers(), controller.prefetch()), (1, 4), "{decisions:#?}");
    }

    #[test]
    fn decisions_are_bounded() {
        let mut tuning = Tuning::default();
        let decision = |from: u64| Decision {
            seconds: from as f64,
            setting: Knob::NumWorkers,
            from,
            to: from + 1,
            reason: String::new(),
        };
        (0..300).for_each(|number| tuning.note(decision(number)));
        assert_eq!((tuning.decisions.len(), tuning.decisions_left_out), (256, 44));
        assert_eq!(tuning.last(Knob::NumWorkers).unwrap().from, 299);
        assert_eq!(tuning.last(Knob::Prefetch), None);
    }
}
