//! The search on machines that are made up.

use feedline::internals::random::Draws;
use feedline::internals::tune::{Evidence, StageCost, WorkerTime};

use super::*;

const BATCH: u64 = 1_000_000;

/// A machine whose rate follows the model, with noise.
struct Machine {
    cost: Cost,
    cores: f64,
    demand: Demand,
    /// With fewer open batches the trainer waits.
    needs_open: u64,
    /// Open batches if nothing is set.
    usual_open: u64,
    batch: u64,
    noise: f64,
    /// Waits of candidates that do not follow the model, by their workers.
    odd: Vec<(u64, Vec<f64>)>,
    others: Option<f64>,
    /// Stretches, counted from 1, in which any setting waits.
    disturbed: std::ops::Range<u64>,
    runs: u64,
    /// What was run, in order.
    order: Vec<Tunables>,
}

impl Machine {
    fn new(cpu: f64, cores: f64) -> Machine {
        let cost = Cost { cpu, waiting: 0.0 };
        let demand = Demand { step: 0.1, batch_size: 64.0 };
        let (needs_open, usual_open) = (1, 8);
        Machine {
            cost,
            cores,
            demand,
            needs_open,
            usual_open,
            batch: BATCH,
            noise: 0.002,
            odd: Vec::new(),
            others: None,
            disturbed: 0..0,
            runs: 0,
            order: Vec::new(),
        }
    }

    fn run(&mut self, settings: Tunables) -> Stretch {
        self.runs += 1;
        let mut draws = Draws::new(1, self.runs, 0, 0);
        let open = settings.prefetch_factor;
        let open = open.map_or(self.usual_open, |factor| factor * settings.num_workers);
        let rate = self.cost.rate(settings.num_workers as f64, self.cores);
        let used = (open + 1) * self.batch + settings.num_workers * self.batch / 2;
        let squeezed = settings.memory.is_some_and(|memory| memory < used);
        let mut wait = self.demand.wait_share(rate) + draws.uniform(0.0, self.noise);
        if open < self.needs_open || squeezed {
            wait += 0.2;
        }
        let odd = self.odd.iter_mut().find(|(workers, _)| *workers == settings.num_workers);
        if let Some((_, waits)) = odd {
            // The last one stays.
            wait = if waits.len() > 1 { waits.remove(0) } else { waits[0] };
        }
        if self.disturbed.contains(&self.runs) {
            wait += 0.15;
        }
        self.order.push(settings);
        let wait_share = wait.min(1.0);
        let stage = |name: &str, seconds: f64, cpu_seconds: f64| StageCost {
            name: name.to_owned(),
            seconds,
            cpu_seconds,
        };
        let Cost { cpu, waiting } = self.cost;
        let busy =
            WorkerTime { busy: self.cost.wall(), cpu: self.cost.cpu, ..WorkerTime::default() };
        Stretch {
            wait_share,
            rate: self.demand.rate() * (1.0 - wait_share),
            rows: self.demand.batch_size,
            open,
            others: self.others,
            evidence: Evidence {
                stages: vec![stage("read", waiting, 0.0), stage("decode", cpu, cpu)],
                worker_time: busy,
                memory_used: used.min(settings.memory.unwrap_or(u64::MAX)),
                batches_remade: u64::from(squeezed),
                ..Evidence::default()
            },
        }
    }

    fn search(&mut self, limits: Limits) -> (Search, Choice) {
        let mut search =
            Search::new(limits, TrainStep::Fixed(self.demand.step), self.demand.batch_size);
        while let Some(settings) = search.upcoming() {
            let stretch = self.run(settings);
            search.record(settings, &stretch);
            assert!(self.runs < 300, "{:#?}", search.tried());
        }
        let choice = search.choice();
        (search, choice)
    }
}

fn cpus(cpus: u64) -> Limits {
    Limits { cpus, memory: None, memory_left: None }
}

#[test]
fn the_fewest_workers_and_the_least_memory() {
    // 640 samples/s of 5 ms: 3.2 workers.
    let mut machine = Machine::new(0.005, 16.0);
    let (search, choice) = machine.search(cpus(16));
    assert!(choice.kept, "{choice:#?}");
    assert_eq!(choice.settings.num_workers, 4);
    assert_eq!(choice.settings.prefetch_factor, Some(1));
    // What is held is far less: the rest is for samples that were not seen.
    assert_eq!(choice.settings.memory, Some(LEAST_MEMORY));
    assert!(choice.reasons[2].1.contains("room for larger samples"), "{:?}", choice.reasons[2]);
    assert!(choice.reasons[2].1.contains("256 MB is never advised"), "{:?}", choice.reasons[2]);
    assert!(choice.wait_share.mean < GOAL);
    let keys: Vec<&str> = choice.reasons.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["num_workers", "prefetch_factor", "memory"]);
    assert!(choice.reasons[0].1.contains("with 3 it waits 6."), "{:?}", choice.reasons[0]);
    assert!(machine.runs < 30, "{} runs: {:#?}", machine.runs, search.tried());
    // Both sides of each decision were run in turn, from its beginning to its end.
    let one =
        |num_workers, prefetch_factor, memory| Tunables { num_workers, prefetch_factor, memory };
    let (four, three, first) = (one(4, None, None), one(3, None, None), one(4, Some(1), None));
    let less = one(4, Some(1), Some(LEAST_MEMORY));
    let contests = [[four, three], [four, first], [first, less]];
    let order: Vec<Tunables> = contests.iter().flat_map(|pair| [*pair, *pair].concat()).collect();
    assert_eq!(machine.order, [vec![one(16, None, None)], order].concat());
}

#[test]
fn one_worker_is_compared_with_two() {
    // Two cores, of which the model wants one.
    let mut machine = Machine::new(0.001, 2.0);
    let (_, choice) = machine.search(cpus(2));
    let workers: Vec<u64> = machine.order.iter().map(|one| one.num_workers).collect();
    assert_eq!(workers[..6], [2, 2, 1, 2, 1, 1], "{:#?}", machine.order);
    assert_eq!(choice.settings.num_workers, 1);
    // Where there is one core there is nothing else.
    let mut machine = Machine::new(0.001, 1.0);
    let (_, choice) = machine.search(cpus(1));
    assert_eq!((choice.kept, choice.settings.num_workers), (true, 1));
}

#[test]
fn what_both_sides_wait_for_is_run_again_and_said() {
    // The first stretch is followed by two pairs of each contest; the second contest is of open
    // batches, and its first pair is disturbed.
    let mut machine = Machine { disturbed: 6..8, ..Machine::new(0.005, 16.0) };
    let (search, choice) = machine.search(cpus(16));
    assert!(choice.kept, "{choice:#?}");
    let settings = choice.settings;
    assert_eq!((settings.num_workers, settings.prefetch_factor), (4, Some(1)), "{choice:#?}");
    let factors = machine.order[5..11].iter().map(|one| one.prefetch_factor);
    assert!(factors.eq([None, Some(1)].into_iter().cycle().take(6)), "{:#?}", machine.order);
    let aside = search.tried().iter().map(|tried| tried.set_aside.len());
    assert_eq!(aside.sum::<usize>(), 2, "{:#?}", search.tried());
    let said = choice.remarks.join("\n");
    assert!(said.contains("a pair of stretches was run again"), "{said}");
}

#[test]
fn a_reference_that_fails_later_is_reported_and_more_are_taken() {
    // One worker does until open batches are compared, and never again; two always do.
    let mut machine = Machine::new(0.001, 2.0);
    let of_one = [vec![0.0; 2], vec![0.16; 40]].concat();
    machine.odd = vec![(1, of_one)];
    let (search, choice) = machine.search(cpus(2));
    assert_eq!((choice.kept, choice.settings.num_workers), (true, 2), "{:#?}", search.tried());
    let said = choice.remarks.join("\n");
    assert!(
        said.contains("1 worker with 8 open batches kept the wait under 1 % at first"),
        "{said}"
    );
    let why = &choice.reasons[0].1;
    assert!(why.starts_with("the fewest that keep") && why.contains("with 1 it waits 9."), "{why}");
    // Where there are no more, none of it is called kept.
    let mut machine = Machine::new(0.001, 1.0);
    machine.odd = vec![(1, [vec![0.0; 3], vec![0.16; 40]].concat())];
    let (search, choice) = machine.search(cpus(1));
    assert!(!choice.kept, "{:#?}", search.tried());
    assert!(choice.reasons[0].1.contains("for long"), "{choice:#?}");
    assert!(choice.remarks.join("\n").contains("not steady"), "{choice:#?}");
}

#[test]
fn reasons_agree_with_what_was_seen() {
    // The usual open batches wait now and then, fewer never do.
    let mut machine = Machine::new(0.001, 1.0);
    let good_then_bad = [0.0, 0.0, 0.0, 0.3, 0.0, 0.2, 0.0, 0.2, 0.0, 0.2, 0.0, 0.2, 0.0];
    machine.odd = vec![(1, good_then_bad.to_vec())];
    let (search, choice) = machine.search(cpus(1));
    assert_eq!((choice.kept, choice.settings.prefetch_factor), (true, Some(1)), "{choice:#?}");
    let usual = search.tried().iter().find(|one| one.open == 8).unwrap();
    assert_eq!(usual.keeps(), Some(false), "{usual:#?}");
    let why = &choice.reasons[1].1;
    assert!(why.contains("with 8 it was 1") && why.contains("not steady"), "{why}");
    let said = choice.remarks.join("\n");
    assert!(said.contains("with 1 worker and 8 open batches the trainer waited 1"), "{said}");
}

#[test]
fn open_batches_that_are_needed_stay() {
    let mut machine = Machine::new(0.0025, 8.0);
    machine.needs_open = 3;
    let (_, choice) = machine.search(cpus(8));
    assert_eq!(choice.settings.num_workers, 2);
    assert_eq!(choice.settings.prefetch_factor, Some(2));
    machine.needs_open = 8;
    let (_, choice) = machine.search(cpus(8));
    assert_eq!(choice.settings.prefetch_factor, None);
    assert!(choice.kept);
}

#[test]
fn few_trials_find_the_fewest_open_batches() {
    // One worker, so that each factor is as many open batches.
    let tried = |needs_open: u64| {
        let mut machine = Machine { needs_open, usual_open: 64, ..Machine::new(0.0008, 8.0) };
        let (search, choice) = machine.search(cpus(8));
        assert_eq!((choice.kept, choice.settings.num_workers), (true, 1), "{choice:#?}");
        let fewest = Some(needs_open).filter(|fewest| *fewest < 64);
        assert_eq!(choice.settings.prefetch_factor, fewest);
        let all = search.tried().iter().filter(|one| one.settings.memory.is_none());
        all.filter_map(|one| one.settings.prefetch_factor).collect::<Vec<u64>>()
    };
    assert_eq!(tried(1), [1]);
    assert_eq!(tried(2), [1, 2]);
    assert_eq!(tried(3), [1, 2, 4, 3]);
    assert_eq!(tried(21), [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]);
    assert_eq!(tried(64), [1, 2, 4, 8, 16, 32, 48, 56, 60, 62, 63]);
    assert!((1..=64).all(|needs| tried(needs).len() <= 11), "twice as many as a logarithm");
}

#[test]
fn too_few_cores_are_reported_with_figures() {
    let mut machine = Machine::new(0.005, 2.0);
    let (_, choice) = machine.search(cpus(2));
    assert!(!choice.kept);
    assert_eq!(choice.settings.num_workers, 2);
    assert!((choice.wait_share.mean - 0.375).abs() < 0.01, "{choice:#?}");
    assert!(choice.remarks[0].contains("2 cores cannot keep the wait under 1 %"), "{choice:#?}");
    assert!(choice.remarks[0].contains("wants 640 samples/s"), "{choice:#?}");
}

#[test]
fn a_model_that_is_wrong_is_corrected_by_the_runs() {
    // Beyond four workers the machine makes no more than half of what the model says.
    let mut machine = Machine::new(0.005, 16.0);
    let mut search = Search::new(cpus(16), TrainStep::Fixed(0.1), 64.0);
    while let Some(settings) = search.upcoming() {
        let honest = machine.cost;
        machine.cost.cpu *= 2.0;
        let mut stretch = machine.run(settings);
        machine.cost = honest;
        stretch.evidence = machine.run(settings).evidence;
        search.record(settings, &stretch);
    }
    assert_eq!(search.choice().settings.num_workers, 7, "{:#?}", search.tried());
    assert!(search.choice().kept);
}

#[test]
fn workers_that_wait_for_bytes_may_be_more_than_cores() {
    let mut machine = Machine::new(0.001, 2.0);
    machine.cost.waiting = 0.004;
    let (_, choice) = machine.search(cpus(2));
    assert!(choice.kept, "{choice:#?}");
    assert_eq!(choice.settings.num_workers, 4);
}

#[test]
fn memory_is_what_is_held_and_a_quarter_or_the_least_or_the_budget() {
    let tuned = |batch: u64, memory: Option<u64>| {
        let mut machine = Machine { batch, ..Machine::new(0.005, 16.0) };
        let (search, choice) = machine.search(Limits { memory, ..cpus(16) });
        assert!(choice.kept, "{choice:#?}");
        let seen = search.tried().iter().filter_map(|tried| tried.settings.memory);
        let least = memory.unwrap_or(LEAST_MEMORY).min(LEAST_MEMORY);
        assert!(seen.min().is_none_or(|seen| seen >= least), "{:#?}", search.tried());
        choice.settings.memory
    };
    // Five batches and the scratch of four workers, and a quarter.
    assert_eq!(tuned(100_000_000, None), Some(880_000_000));
    assert_eq!(tuned(1_000, None), Some(LEAST_MEMORY));
    assert_eq!(tuned(1_000_000, Some(2_000_000_000)), Some(LEAST_MEMORY));
    // A budget that is less is used as it is.
    assert_eq!(tuned(1_000_000, Some(100_000_000)), Some(100_000_000));
}

#[test]
fn limits_are_kept() {
    let mut machine = Machine::new(0.005, 16.0);
    let limits = Limits { cpus: 16, memory: Some(6_000_000), memory_left: None };
    let (search, _) = machine.search(limits);
    assert!(search.tried().iter().all(|tried| {
        tried.settings.memory.is_some_and(|memory| memory <= 6_000_000)
            && tried.settings.num_workers <= 16
    }));
    let left = Limits { memory_left: Some("a cache is in it".to_owned()), ..cpus(16) };
    let (_, choice) = machine.search(left);
    assert_eq!(choice.settings.memory, None);
    assert_eq!(choice.remarks, ["memory is left as it is: a cache is in it"]);
}

#[test]
fn a_noisy_machine_ends_the_search_too() {
    for noise in [0.02, 0.05, 0.5] {
        let mut machine = Machine::new(0.005, 16.0);
        machine.noise = noise;
        let (search, _) = machine.search(cpus(16));
        assert!(machine.runs < 200, "{} {:#?}", machine.runs, search.tried());
    }
}

/// One worker does, and a second and third make it worse.
fn unsteady() -> Machine {
    let mut machine = Machine::new(0.001, 2.0);
    machine.demand = Demand { step: 0.005, batch_size: 1.0 };
    machine
}

#[test]
fn what_failed_is_never_taken_over_what_did() {
    // Three workers are of use to two cores, and are what the model asks for.
    let mut machine = unsteady();
    machine.cost = Cost { cpu: 0.009, waiting: 0.0035 };
    machine.odd = vec![(2, vec![0.004, 0.006, 0.005]), (3, vec![0.077, 0.011, 0.044])];
    let (search, choice) = machine.search(cpus(2));
    assert!(choice.kept, "{choice:#?} {:#?}", search.tried());
    assert_eq!(choice.settings.num_workers, 2, "{:#?}", search.tried());
    assert!(choice.reasons[0].1.starts_with("the fewest that keep"), "{choice:#?}");
    let said = choice.remarks.join("\n");
    assert!(said.contains("with 3 workers the trainer waited 4."), "{said}");
    assert!(said.contains("not steady"), "{said}");
}

#[test]
fn still_more_are_taken_only_if_they_do() {
    let tuned = |of_four: f64| {
        let mut machine = unsteady();
        machine.cost = Cost { cpu: 0.004, waiting: 0.004 };
        machine.odd = vec![(1, vec![0.9]), (2, vec![0.001]), (3, vec![0.5]), (4, vec![of_four])];
        // As it would be if three were tried first.
        let mut search = Search::new(cpus(2), TrainStep::Fixed(0.005), 1.0);
        search.most = 4;
        search.phase = Phase::Workers;
        search.contest_workers(3, 2);
        while let Some(settings) = search.upcoming() {
            search.record(settings, &machine.run(settings));
        }
        search.choice()
    };
    let choice = tuned(0.002);
    assert_eq!((choice.kept, choice.settings.num_workers), (true, 4), "{choice:#?}");
    assert!(choice.reasons[0].1.starts_with("so many keep"), "{choice:#?}");
    let choice = tuned(0.3);
    assert_eq!((choice.kept, choice.settings.num_workers), (true, 2), "{choice:#?}");
}

#[test]
fn one_that_turns_out_to_fail_is_not_kept() {
    // Four did at first; while fewer open batches were tried they no longer did, five always do.
    let mut machine = Machine::new(0.005, 16.0);
    let of_four = [0.002, 0.002, 0.002, 0.018, 0.012, 0.4, 0.012, 0.4, 0.012, 0.4];
    machine.odd = vec![(4, of_four.to_vec()), (5, vec![0.001])];
    let mut search = Search::new(cpus(16), TrainStep::Fixed(0.1), 64.0);
    search.phase = Phase::Workers;
    search.contest_workers(5, 4);
    while let Some(settings) = search.upcoming() {
        search.record(settings, &machine.run(settings));
    }
    let choice = search.choice();
    assert!(choice.kept, "{choice:#?} {:#?}", search.tried());
    assert_eq!(choice.settings.num_workers, 5);
}

#[test]
fn the_first_stretch_tells_how_large_batches_are() {
    // Batches of 64 were asked for, and the data set has one sample.
    let mut search = Search::new(cpus(2), TrainStep::Fixed(0.005), 64.0);
    assert_eq!(search.demand().rate(), 12_800.0);
    let mut machine = unsteady();
    let settings = search.upcoming().unwrap();
    search.record(settings, &machine.run(settings));
    assert_eq!(search.demand().rate(), 200.0);
    while let Some(settings) = search.upcoming() {
        search.record(settings, &machine.run(settings));
    }
    let choice = search.choice();
    assert_eq!((choice.kept, choice.settings.num_workers), (true, 1), "{choice:#?}");
    // A step that takes its time for each sample takes less.
    let mut search = Search::new(cpus(2), TrainStep::PerSample(0.01), 64.0);
    search.record(settings, &machine.run(settings));
    assert_eq!(search.demand(), Demand { step: 0.01, batch_size: 1.0 });
}

#[test]
fn others_who_used_the_cores_are_reported() {
    let said = |others: Option<f64>| {
        let mut machine = Machine { others, ..Machine::new(0.005, 16.0) };
        machine.search(cpus(16)).1.remarks.join("\n")
    };
    assert!(said(Some(1.3)).contains("other programs kept 1.3 cores busy"));
    assert_eq!((said(Some(0.1)), said(None)), (String::new(), String::new()));
}
