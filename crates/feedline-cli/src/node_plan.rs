//! What a machine with GPUs needs to keep them busy: cores, workers, memory, from what a few hundred
//! samples cost.

use feedline::internals::spec::show_bytes;
use feedline::internals::spec::{counted, show_percent, show_rate, show_time};
use feedline::internals::tune::LEAST_MEMORY;
use serde::{Deserialize, Serialize};

use crate::tuning::{Cost, Demand, GOAL};

/// Cores and workers beyond the mean need: samples, steps and machines vary.
const HEADROOM: f64 = 1.25;

/// Cores that a training process takes for itself: it starts kernels all the time.
const OWN_CORES: u64 = 1;

/// Open batches that even out unequal steps, and fewer where batches are large.
const OPEN: u64 = 4;
const LARGE_BATCH: u64 = 256_000_000;

/// Packing is worth its time if it saves so many cores of a node, or this share.
const WORTH_CORES: u64 = 2;
const WORTH_SHARE: f64 = 0.1;

/// The machine and what it is to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// GPUs, each with a process of its own.
    pub(crate) gpus: u64,
    /// Cores.
    pub(crate) cpus: u64,
    /// Bytes of memory, if that is known.
    pub(crate) memory: Option<u64>,
    /// What each trainer wants.
    pub(crate) demand: Demand,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// What a sample costs.
    pub(crate) cost: Cost,
    /// Samples that were made for it.
    pub(crate) samples: u64,
    /// How much of its rate a core keeps when all are used; 1 if they do not disturb each other.
    pub(crate) efficiency: f64,
    /// Cores of the machine that it was measured on.
    pub(crate) cores: u64,
    /// Bytes of a batch of the size that is planned for.
    pub(crate) batch_bytes: u64,
    /// Bytes of scratch for each worker.
    pub(crate) scratch_bytes: u64,
    /// Bytes read for a sample.
    pub(crate) read_bytes: f64,
    /// How many times as fast packed data is made, if that was measured.
    pub(crate) packed: Option<f64>,
}

/// What packing would change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PackedPlan {
    /// How many times as fast.
    pub(crate) speedup: f64,
    /// Cores for each GPU process then.
    pub(crate) cores_per_gpu: u64,
    /// Workers of each then.
    pub(crate) workers_per_rank: u64,
    /// The share that each trainer waits then.
    pub(crate) wait_share: f64,
    /// It is worth it.
    pub(crate) advised: bool,
}

/// What to set and what is needed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodePlan {
    /// Samples a second that each GPU wants.
    pub(crate) samples_per_second: f64,
    /// Cores to reserve for each GPU process.
    pub(crate) cores_per_gpu: u64,
    /// Workers of each.
    pub(crate) workers_per_rank: u64,
    /// Open batches for each worker.
    pub(crate) prefetch_factor: u64,
    /// Bytes that each loader needs.
    pub(crate) memory_per_rank: u64,
    /// The share of the time that each trainer waits on this node.
    pub(crate) wait_share: f64,
    /// Bytes a second that all together read.
    pub(crate) read_bytes_per_second: f64,
    /// The node has cores and memory enough, and the trainers hardly wait.
    pub(crate) suffices: bool,
    /// A node that would do: cores and bytes for loading.
    pub(crate) node_cores: u64,
    /// Its bytes.
    pub(crate) node_memory: u64,
    /// What packing would change, if it was measured.
    pub(crate) packed: Option<PackedPlan>,
    /// The same in words.
    pub(crate) sentences: Vec<String>,
}

/// What each process needs when a sample costs that much.
struct Need {
    cores: u64,
    workers: u64,
    wait_share: f64,
}

fn need(node: &Node, cost: Cost, efficiency: f64) -> Need {
    let wanted = node.demand.rate();
    let efficiency = efficiency.clamp(0.05, 1.0);
    let on_core = wanted * cost.cpu / efficiency;
    let whole = |amount: f64| if amount.is_finite() { amount.ceil().max(1.0) as u64 } else { 1 };
    let cores = whole(on_core * HEADROOM) + OWN_CORES;
    // On this node each process has its share of the cores, of which training takes no more than
    // half.
    let share = node.cpus as f64 / node.gpus.max(1) as f64;
    let share = (share - OWN_CORES as f64).max(share / 2.0);
    let workers = whole(wanted * cost.wall() / efficiency * HEADROOM);
    let workers = workers.min(cost.useful_workers(share)).max(1);
    let rate = cost.rate(workers as f64, share) * efficiency;
    Need { cores, workers, wait_share: node.demand.wait_share(rate) }
}

/// What to set on `node` and what it needs.
#[must_use]
pub(crate) fn advise(node: &Node, measured: &Measured) -> NodePlan {
    let now = need(node, measured.cost, measured.efficiency);
    let open = if measured.batch_bytes > LARGE_BATCH { OPEN / 2 } else { OPEN };
    let prefetch_factor = open.div_ceil(now.workers).max(1);
    // Those that are open, one with the program, and one that it has just let go of.
    let batches = prefetch_factor * now.workers.max(1) + 2;
    let scratch = now.workers * measured.scratch_bytes;
    let memory = (batches * measured.batch_bytes + scratch) as f64 * HEADROOM;
    // The limit is a hard one, so there is room for larger samples, unless the node has none.
    let share = node.memory.map_or(u64::MAX, |memory| memory / node.gpus.max(1));
    let memory_per_rank = (memory as u64).saturating_add(1_000_000).max(LEAST_MEMORY.min(share));
    let node_cores = now.cores * node.gpus;
    let node_memory = memory_per_rank.saturating_mul(node.gpus);
    let fits = node.memory.is_none_or(|memory| node_memory <= memory);
    let packed = measured.packed.map(|speedup| {
        let cost = Cost { cpu: measured.cost.cpu / speedup.max(0.01), ..measured.cost };
        let then = need(node, cost, measured.efficiency);
        let saved = now.cores.saturating_sub(then.cores) * node.gpus;
        let matters = saved >= WORTH_CORES && saved as f64 >= node_cores as f64 * WORTH_SHARE;
        let rescues = now.wait_share > GOAL && then.wait_share < now.wait_share;
        PackedPlan {
            speedup,
            cores_per_gpu: then.cores,
            workers_per_rank: then.workers,
            wait_share: then.wait_share,
            advised: speedup > 1.0 + WORTH_SHARE / 2.0 && (matters || rescues),
        }
    });
    let mut plan = NodePlan {
        samples_per_second: node.demand.rate(),
        cores_per_gpu: now.cores,
        workers_per_rank: now.workers,
        prefetch_factor,
        memory_per_rank,
        wait_share: now.wait_share,
        read_bytes_per_second: measured.read_bytes * node.demand.rate() * node.gpus as f64,
        suffices: node_cores <= node.cpus && fits && now.wait_share <= GOAL,
        node_cores,
        node_memory,
        packed,
        sentences: Vec::new(),
    };
    plan.sentences = sentences(node, measured, &plan);
    plan
}

fn sentences(node: &Node, measured: &Measured, plan: &NodePlan) -> Vec<String> {
    let mut said = vec![format!(
        "Each GPU wants {} samples/s. A sample takes {} of a core{}, so {:.1} cores do it; with a quarter more and one core for training itself, reserve {} for each GPU process.",
        show_rate(plan.samples_per_second),
        show_time(measured.cost.cpu),
        if measured.efficiency < 0.95 {
            let crowded = measured.cost.cpu / measured.efficiency.max(0.05);
            format!(" ({} when all cores are used)", show_time(crowded))
        } else {
            String::new()
        },
        plan.samples_per_second * measured.cost.cpu / measured.efficiency.max(0.05),
        counted(plan.cores_per_gpu, "core"),
    )];
    said.push(format!(
        "Set num_workers = {}, prefetch_factor = {} and memory = \"{}\" on each rank, which leaves room for larger samples; all loaders together read {} a second.",
        plan.workers_per_rank,
        plan.prefetch_factor,
        show_bytes(plan.memory_per_rank),
        show_bytes(plan.read_bytes_per_second as u64),
    ));
    let waits = if plan.wait_share > GOAL {
        format!("each trainer waits about {} of the time", show_percent(plan.wait_share))
    } else {
        "trainers should wait less than 1 %".to_owned()
    };
    let lacks_memory = node.memory.is_some_and(|memory| plan.node_memory > memory);
    let here = format!(
        "{} and {}",
        counted(node.cpus, "core"),
        node.memory.map_or_else(|| "an unknown amount of memory".to_owned(), show_bytes)
    );
    let enough = format!(
        "{} and {} for loading",
        counted(plan.node_cores, "core"),
        show_bytes(plan.node_memory)
    );
    said.push(match (plan.suffices, lacks_memory) {
        (true, _) => format!("A node with {here} suffices: {waits}. {enough} would do."),
        // Nobody waits for long where nothing starts.
        (_, true) => format!(
            "A node with {here} has too little memory: the loaders would not start, or wait for memory. It takes {enough}."
        ),
        _ if plan.node_cores <= node.cpus => format!(
            "A node with {here} has cores enough, and yet {waits}: a sample waits {} for its bytes, so that {} read too little at a time. Nearer or larger reads help, not cores: local disks, shards, a cache.",
            show_time(measured.cost.waiting),
            counted(plan.workers_per_rank, "worker")
        ),
        _ => format!(
            "A node with {here} does not suffice with this reserve: {waits}. It takes {enough}."
        ),
    });
    if let Some(packed) = plan.packed {
        let figures = format!(
            "packing with a crop index was measured at {:.2} times the speed: {} for each GPU process instead of {}",
            packed.speedup,
            counted(packed.cores_per_gpu, "core"),
            plan.cores_per_gpu
        );
        said.push(if packed.advised {
            let waits = if plan.wait_share > GOAL {
                format!(
                    ", and a wait of {} instead of {}",
                    show_percent(packed.wait_share),
                    show_percent(plan.wait_share)
                )
            } else {
                String::new()
            };
            format!("Pack the data: {figures}{waits}.")
        } else {
            format!("Packing is not worth it here: {figures}.")
        });
    }
    if node.cpus > measured.cores {
        said.push(format!(
            "This plan is for another machine: costs were measured on {} of this one and are taken to be the same there.",
            counted(measured.cores, "core")
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cpus: u64) -> Node {
        let demand = Demand { step: 0.12, batch_size: 256.0 };
        Node { gpus: 8, cpus, memory: Some(1_000_000_000_000), demand }
    }

    fn measured() -> Measured {
        Measured {
            cost: Cost { cpu: 0.005, waiting: 0.0 },
            samples: 400,
            efficiency: 1.0,
            cores: 4,
            batch_bytes: 154_000_000,
            scratch_bytes: 4_000_000,
            read_bytes: 110_000.0,
            packed: None,
        }
    }

    #[test]
    fn a_node_that_suffices() {
        let plan = advise(&node(160), &measured());
        // 2,133 samples/s of 5 ms are 10.7 cores; 14 with a quarter more, and one.
        assert_eq!((plan.cores_per_gpu, plan.workers_per_rank), (15, 14));
        assert_eq!((plan.node_cores, plan.suffices), (120, true));
        assert_eq!(plan.prefetch_factor, 1);
        assert_eq!(plan.wait_share, 0.0);
        let batches = 16.0 * 154e6 * 1.25;
        assert!((plan.memory_per_rank as f64 - batches - 70e6).abs() < 10e6, "{plan:#?}");
        let text = plan.sentences.join("\n");
        assert!(text.contains("reserve 15 cores for each GPU process"), "{text}");
        assert!(text.contains("suffices"), "{text}");
        assert!(text.contains("measured on 4 cores of this one"), "{text}");
    }

    #[test]
    fn a_node_that_does_not() {
        let plan = advise(&node(48), &measured());
        // Five cores for loading of the 10.7.
        assert!(!plan.suffices);
        assert!((plan.wait_share - (1.0 - 1000.0 / 2133.3)).abs() < 0.01, "{plan:#?}");
        assert!(plan.sentences.join("\n").contains("It takes 120 cores"), "{plan:#?}");
        let mut small = node(160);
        small.memory = Some(8_000_000_000);
        let plan = advise(&small, &measured());
        assert!(!plan.suffices);
        let text = plan.sentences.join("\n");
        assert!(text.contains("160 cores and 8.0 GB has too little memory"), "{text}");
        assert!(!text.contains("should wait less"), "{text}");
    }

    #[test]
    fn however_few_cores_there_are_they_are_shared_out() {
        let few = |cpus: u64| {
            let plan = advise(&Node { gpus: 64, ..node(cpus) }, &measured());
            assert!(!plan.suffices && plan.workers_per_rank >= 1, "{plan:#?}");
            1.0 - plan.wait_share
        };
        // Half of a 64th of a core makes 1.6 of the 2,133 samples/s.
        assert!((few(1) - 1.5625 / 2133.3).abs() < 1e-5, "{}", few(1));
        let twice = few(64) / few(32);
        assert!((twice - 2.0).abs() < 1e-6, "{twice}");
        // From two cores on, training has one for itself.
        assert!((few(192) / few(128) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn small_figures_are_no_zeros() {
        let mut one = Node { gpus: 1, cpus: 1, ..node(1) };
        one.demand = Demand { step: 0.5, batch_size: 1.0 };
        let tiny = Measured { cost: Cost { cpu: 2e-6, waiting: 0.0 }, ..measured() };
        let text = advise(&one, &tiny).sentences.join("\n");
        assert!(text.contains("wants 2.0 samples/s. A sample takes 2 µs of a core"), "{text}");
    }

    #[test]
    fn packing_is_advised_where_it_saves_cores() {
        let packed = |speedup: f64| Measured { packed: Some(speedup), ..measured() };
        let plan = advise(&node(160), &packed(1.8));
        let then = plan.packed.unwrap();
        assert!(then.advised && then.cores_per_gpu < plan.cores_per_gpu, "{plan:#?}");
        // Where it still waits, the wait is given beside what it is without packing.
        let plan = advise(&node(48), &packed(1.8));
        let text = plan.sentences.join("\n");
        assert!(text.contains("and a wait of 16 % instead of 53 %"), "{text}");
        let plan = advise(&node(160), &packed(1.02));
        assert!(!plan.packed.unwrap().advised);
        assert!(plan.sentences.join("\n").contains("not worth it"), "{plan:#?}");
        // A light load that one core does anyway.
        let light = Measured { cost: Cost { cpu: 1e-5, waiting: 0.0 }, ..packed(2.0) };
        assert!(!advise(&node(160), &light).packed.unwrap().advised);
    }

    #[test]
    fn waiting_for_bytes_takes_workers_and_no_cores() {
        let slow = Measured { cost: Cost { cpu: 0.005, waiting: 0.005 }, ..measured() };
        let plan = advise(&node(160), &slow);
        assert_eq!(plan.cores_per_gpu, 15);
        assert_eq!(plan.workers_per_rank, 27);
        // However many cores there are, they do not read sooner.
        let late = Measured { cost: Cost { cpu: 0.001, waiting: 0.2 }, ..measured() };
        let plan = advise(&node(160), &late);
        assert!(plan.wait_share > 0.5 && plan.node_cores <= 160 && !plan.suffices, "{plan:#?}");
        let text = plan.sentences.join("\n");
        assert!(text.contains("a sample waits 200 ms for its bytes"), "{text}");
        assert!(!text.contains("suffices"), "{text}");
        // Cores that disturb each other are less than they seem.
        let crowded = Measured { efficiency: 0.5, ..measured() };
        assert_eq!(advise(&node(160), &crowded).cores_per_gpu, 28);
    }

    #[test]
    fn memory_has_room_for_larger_samples() {
        let small = Measured { batch_bytes: 1000, scratch_bytes: 1000, ..measured() };
        let plan = advise(&node(160), &small);
        assert_eq!((plan.memory_per_rank, plan.node_memory), (LEAST_MEMORY, 8 * LEAST_MEMORY));
        assert!(plan.suffices);
        assert!(plan.sentences[1].contains("room for larger samples"), "{plan:#?}");
        // A budget that is less is shared out.
        let mut poor = node(160);
        poor.memory = Some(800_000_000);
        let plan = advise(&poor, &small);
        assert_eq!(plan.memory_per_rank, 100_000_000);
        assert!(plan.suffices);
        poor.memory = None;
        assert_eq!(advise(&poor, &small).memory_per_rank, LEAST_MEMORY);
    }

    #[test]
    fn odd_requests_have_an_answer() {
        let mut odd = node(1);
        odd.demand = Demand { step: 0.0, batch_size: 1.0 };
        let plan = advise(&odd, &Measured { cost: Cost::default(), ..measured() });
        assert!(plan.workers_per_rank >= 1 && !plan.sentences.is_empty());
    }
}
