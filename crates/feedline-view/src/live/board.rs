//! What can be watched in this process.
//!
//! Loaders put themselves here and go when they are dropped. Nothing happens as long as nobody
//! looks; while somebody does, a thread looks at every loader once a second.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use feedline::internals::observe::Usage;
use feedline::stats::{Monitor, Stats};
use serde_json::{Value, json};

use super::quarantine;
use super::snapshot::{Quarantined, Snapshot};
use super::track::{Second, Track};

/// Loaders that are followed at the same time; more of them are not shown.
pub const MOST_LOADERS: usize = 16;

/// Closed loaders whose history is kept, for the next ones of their names.
const MOST_CLOSED: usize = 4;

/// The next one may be so many seconds late: a program that makes a loader for each epoch may
/// validate in between.
const LATE: u64 = 600;

/// The thread goes on for so long after the last look.
const INTEREST: Duration = Duration::from_secs(20);

const EVERY: Duration = Duration::from_secs(1);

/// What a loader says about itself.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// What it reads.
    pub name: String,
    /// Samples of a batch.
    pub batch_size: u64,
    /// The file that lists samples which failed.
    pub quarantine: Option<PathBuf>,
}

/// A loader on the board, for as long as this is kept.
#[derive(Clone)]
pub struct Watched(Arc<Entry>);

struct Entry {
    id: u64,
    about: About,
    since: Instant,
    figures: StatsSource,
    /// Of a loader that pushes its figures: since when the program waits for a batch, in
    /// nanoseconds after `since`, plus one; 0 if it does not.
    asked: AtomicU64,
    /// Its batches at the last look, and the second in which there were more.
    used: Mutex<(u64, u64)>,
}

enum StatsSource {
    Engine(Monitor),
    Pushed(Mutex<Value>),
}

/// What one look at a loader showed.
pub(super) enum Look {
    Engine(Monitor, Box<Stats>),
    /// What was pushed last, and for how many seconds the program has been waiting since.
    Pushed(Value, Option<f64>),
}

impl Watched {
    /// The newest figures of a loader that is not the engine's: the keys of `Loader.stats()`.
    pub fn push(&self, stats: Value) {
        if let StatsSource::Pushed(newest) = &self.0.figures {
            *lock(newest) = stats;
        }
    }

    /// Whether the program waits for a batch from now on, for a loader that pushes its figures: a
    /// wait that goes on is in none of them.
    pub fn waits(&self, waits: bool) {
        let now = u64::try_from(self.0.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.asked.store(if waits { now.saturating_add(1) } else { 0 }, Ordering::Relaxed);
    }

    /// Its number in the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }
}

/// The loaders of this process, and what was seen of them.
pub struct Board {
    session: String,
    begun: Instant,
    next: AtomicU64,
    entries: Mutex<Vec<Weak<Entry>>>,
    seen: Mutex<Seen>,
    interest: Mutex<Interest>,
    /// The address of the page, if it is served.
    pub(super) page: Mutex<Option<String>>,
}

#[derive(Default)]
struct Seen {
    tick: u64,
    second: Second,
    cores_busy: Option<f64>,
    usage: Option<(Instant, Usage)>,
    tracks: Vec<Track>,
    /// Loaders that are closed, each with the second in which that was seen, the latest last.
    closed: VecDeque<(u64, Track)>,
    hidden: u64,
}

struct Interest {
    until: Instant,
    /// A page is served: somebody may come back at any time and wants the hour.
    lasting: bool,
    running: bool,
}

static BOARD: Mutex<Option<Arc<Board>>> = Mutex::new(None);
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The board of this process. None in a child that was forked while another thread held it.
#[must_use]
pub fn board() -> Option<Arc<Board>> {
    let here = std::process::id();
    let known = PROCESS.load(Ordering::Acquire);
    let mut board = if known == here || known == 0 {
        lock(&BOARD)
    } else {
        match BOARD.try_lock() {
            Ok(board) => board,
            Err(TryLockError::Poisoned(board)) => board.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        }
    };
    if PROCESS.swap(here, Ordering::AcqRel) != here {
        // The parent's board is watched by threads that do not exist here, and its locks may be
        // held for ever, so that it is not even dropped.
        std::mem::forget(board.take());
    }
    Some(board.get_or_insert_with(|| Arc::new(Board::new())).clone())
}

impl Board {
    /// One that is nobody else's.
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        let session = super::token::random().unwrap_or_else(|_| format!("{:?}", SystemTime::now()));
        Board {
            session,
            begun: now,
            next: AtomicU64::new(0),
            entries: Mutex::default(),
            seen: Mutex::default(),
            interest: Mutex::new(Interest { until: now, lasting: false, running: false }),
            page: Mutex::default(),
        }
    }

    /// A loader of the engine.
    #[must_use]
    pub fn watch(&self, about: About, monitor: Monitor) -> Watched {
        self.put(about, StatsSource::Engine(monitor))
    }

    /// A loader that pushes its figures.
    #[must_use]
    pub fn watch_pushed(&self, about: About) -> Watched {
        self.put(about, StatsSource::Pushed(Mutex::new(Value::Null)))
    }

    fn put(&self, about: About, figures: StatsSource) -> Watched {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (asked, used) = (AtomicU64::new(0), Mutex::default());
        let entry = Arc::new(Entry { id, about, since: Instant::now(), figures, asked, used });
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.strong_count() > 0);
        entries.push(Arc::downgrade(&entry));
        Watched(entry)
    }

    /// Somebody looks: figures are taken once a second from now on, for a while.
    pub fn look(self: &Arc<Self>) {
        self.sample_until(Instant::now() + INTEREST, false);
    }

    /// Figures are taken once a second as long as the process runs.
    pub fn look_always(self: &Arc<Self>) {
        self.sample_until(Instant::now() + INTEREST, true);
    }

    fn sample_until(self: &Arc<Self>, until: Instant, lasting: bool) {
        {
            let mut interest = lock(&self.interest);
            interest.until = interest.until.max(until);
            interest.lasting |= lasting;
            if interest.running {
                return;
            }
            interest.running = true;
        }
        self.sample();
        let board = self.clone();
        let named = thread::Builder::new().name("feedline-live".to_owned());
        if named.spawn(move || board.go_on()).is_err() {
            // The next look tries again.
            lock(&self.interest).running = false;
        }
    }

    /// The thread: a look a second until nobody is interested any more.
    fn go_on(&self) {
        let mut next = Instant::now() + EVERY;
        loop {
            let now = Instant::now();
            thread::sleep(next.saturating_duration_since(now));
            // A process that was stopped does not catch up.
            next = (next + EVERY).max(Instant::now());
            {
                let mut interest = lock(&self.interest);
                if !interest.lasting && Instant::now() > interest.until {
                    // Before the next thread may begin: what it sees is not wiped.
                    *lock(&self.seen) = Seen::default();
                    interest.running = false;
                    break;
                }
            }
            self.sample();
        }
    }

    /// Looks at every loader once.
    fn sample(&self) {
        let open: Vec<Arc<Entry>> = {
            let mut entries = lock(&self.entries);
            entries.retain(|entry| entry.strong_count() > 0);
            entries.iter().filter_map(Weak::upgrade).collect()
        };
        let (tick, followed): (u64, Vec<u64>) = {
            let seen = lock(&self.seen);
            (seen.tick, seen.tracks.iter().map(|track| track.id).collect())
        };
        // All that may take a moment happens before the lock. Without a loader, nobody asks what
        // the process uses.
        let usage = if open.is_empty() { Usage::default() } else { Usage::now() };
        let all = open.len();
        let living: Vec<u64> = open.iter().map(|entry| entry.id).collect();
        let open = chosen(open, tick, &followed);
        let looks: Vec<(Look, Vec<Quarantined>)> = open.iter().map(|entry| entry.look()).collect();
        let now = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut seen = lock(&self.seen);
        seen.hidden = (all - open.len()) as u64;
        seen.cores_busy = seen.usage.filter(|_| all > 0).and_then(|(before, old)| {
            let passed = now.duration_since(before).as_secs_f64();
            (passed > 0.1).then(|| (usage.cpu_seconds - old.cpu_seconds).max(0.0) / passed)
        });
        seen.usage = (all > 0).then_some((now, usage));
        let at = now.duration_since(self.begun).as_secs_f64();
        // A clock that is set back must not turn the page's lines back.
        let time = wall.max(seen.second.time + (at - seen.second.at));
        let second = Second { tick: seen.tick, at, time, process_memory: usage.memory };
        (seen.tick, seen.second) = (seen.tick + 1, second);
        let followed = |track: &Track| open.iter().any(|entry| entry.id == track.id);
        let (followed, gone) = std::mem::take(&mut seen.tracks).into_iter().partition(followed);
        seen.tracks = followed;
        seen.close(gone, &living);
        for (entry, (look, bad)) in open.iter().zip(looks) {
            let at = seen.tracks.iter().position(|track| track.id == entry.id);
            let at = at.unwrap_or_else(|| {
                seen.tracks.push(Track::new(entry.id, entry.about.clone()));
                seen.tracks.len() - 1
            });
            seen.hand_on(at, &entry.about);
            let age = now.duration_since(entry.since).as_secs_f64();
            seen.tracks[at].add(second, look, age, bad);
        }
        seen.tracks.sort_by_key(|track| track.id);
    }

    /// What was seen last.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let seen = lock(&self.seen);
        Snapshot {
            pid: std::process::id(),
            program: program(),
            session: self.session.clone(),
            tick: seen.second.tick,
            time: seen.second.time,
            memory: seen.second.process_memory,
            cores_busy: seen.cores_busy,
            cores: feedline::internals::tune::cores() as u64,
            loaders: seen.tracks.iter().filter_map(Track::now).cloned().collect(),
            hidden: seen.hidden,
        }
    }

    /// The same, with the history of one loader after `since`; of the one used most lately if none
    /// is named. If there is no such loader any more, of the one that came after it or else of the
    /// one used most: then from its beginning.
    #[must_use]
    pub fn data(&self, loader: Option<u64>, since: Option<u64>) -> Value {
        let snapshot = self.snapshot();
        let named = loader.and_then(|id| snapshot.successor(id));
        let chosen = named.or_else(|| snapshot.busiest()).map(|now| now.id);
        let mut data = json!(snapshot);
        let seen = lock(&self.seen);
        if let Some(track) = seen.tracks.iter().find(|track| Some(track.id) == chosen) {
            data["loader"] = track.id.into();
            // Another loader than was asked for is sent from its beginning.
            let since = since.filter(|_| loader.is_none_or(|loader| loader == track.id));
            data["history"] = track.history.columns(since, &track.stage_names);
        }
        data
    }
}

impl Seen {
    /// Keeps what is known of loaders that are closed, for a while. One that is still open, and
    /// only not followed any more, is forgotten.
    fn close(&mut self, gone: Vec<Track>, living: &[u64]) {
        let tick = self.tick;
        let closed = gone.into_iter().filter(|track| !living.contains(&track.id));
        // Who saw nothing leaves nothing.
        self.closed.extend(closed.filter(|track| !track.is_unused()).map(|track| (tick, track)));
        self.closed.retain(|(since, _)| tick.saturating_sub(*since) < LATE);
        self.closed.drain(..self.closed.len().saturating_sub(MOST_CLOSED));
    }

    /// A loader that was not used yet goes on with the history of a closed one of its name: many
    /// programs make a new loader for each epoch.
    fn hand_on(&mut self, at: usize, about: &About) {
        let Some(track) = self.tracks.get_mut(at).filter(|track| track.is_unused()) else { return };
        let closed = self.closed.iter().enumerate();
        let like = closed.filter_map(|(place, (_, old))| Some((old.distance(about)?, place)));
        let nearest = like.min().and_then(|(_, place)| self.closed.remove(place));
        if let Some((_, old)) = nearest {
            track.inherit(old);
        }
    }
}

impl Default for Board {
    fn default() -> Self {
        Board::new()
    }
}

/// Used within so many seconds of each other: none of them is preferred for that.
const LATELY: u64 = 60;

/// Those that are followed if there are too many: the ones used last, and among these the ones that
/// are followed already.
fn chosen(mut open: Vec<Arc<Entry>>, tick: u64, followed: &[u64]) -> Vec<Arc<Entry>> {
    if open.len() > MOST_LOADERS {
        open.sort_by_cached_key(|entry| {
            let unused = tick.saturating_sub(entry.last_used(tick)) / LATELY;
            (unused, !followed.contains(&entry.id), std::cmp::Reverse(entry.id))
        });
        open.truncate(MOST_LOADERS);
        open.sort_by_key(|entry| entry.id);
    }
    open
}

impl Entry {
    /// The second in which it was last seen to have handed over more batches.
    fn last_used(&self, tick: u64) -> u64 {
        let batches = match &self.figures {
            StatsSource::Engine(monitor) => monitor.stats().work.batches,
            StatsSource::Pushed(newest) => lock(newest)["batches"].as_u64().unwrap_or(0),
        };
        let mut used = lock(&self.used);
        if used.0 != batches {
            *used = (batches, tick);
        }
        used.1
    }

    /// For how many seconds the program has been waiting, if that is long.
    fn waiting(&self) -> Option<f64> {
        let asked = self.asked.load(Ordering::Relaxed).checked_sub(1)?;
        let waiting = self.since.elapsed().saturating_sub(Duration::from_nanos(asked));
        // Shorter ones are soon in what is pushed.
        (waiting >= EVERY).then_some(waiting.as_secs_f64())
    }

    fn look(&self) -> (Look, Vec<Quarantined>) {
        let (look, failed) = match &self.figures {
            StatsSource::Engine(monitor) => {
                let stats = monitor.stats();
                let failed = stats.work.failed;
                (Look::Engine(monitor.clone(), Box::new(stats)), failed)
            }
            StatsSource::Pushed(newest) => {
                let value = lock(newest).clone();
                let failed = value["failed_samples"].as_u64().unwrap_or(0);
                (Look::Pushed(value, self.waiting()), failed)
            }
        };
        let file = self.about.quarantine.as_deref().filter(|_| failed > 0);
        (look, file.map_or_else(Vec::new, quarantine::latest))
    }
}

/// What was started, shortened.
fn program() -> String {
    let words: Vec<String> =
        std::env::args_os().take(20).map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> About {
        About { name: name.to_owned(), batch_size: 4, quarantine: None }
    }

    #[test]
    fn a_loader_goes_when_it_is_dropped() {
        let board = Arc::new(Board::new());
        let (first, second) = (board.watch_pushed(about("a")), board.watch_pushed(about("b")));
        first.push(json!({"batches": 2, "samples": 8}));
        board.sample();
        let names = |board: &Board| {
            let loaders = board.snapshot().loaders;
            loaders.into_iter().map(|now| (now.id, now.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&board), [(0, "a".to_owned()), (1, "b".to_owned())]);
        assert_eq!(board.snapshot().loaders[0].samples, 8);
        drop(first);
        board.sample();
        assert_eq!(names(&board), [(1, "b".to_owned())]);
        drop(second);
        board.sample();
        assert!(names(&board).is_empty() && lock(&board.entries).is_empty());
    }

    #[test]
    fn the_number_of_followed_loaders_is_bounded() {
        let board = Board::new();
        let many: Vec<_> = (0..100).map(|_| board.watch_pushed(about("x"))).collect();
        board.sample();
        assert_eq!(board.snapshot().loaders.len(), MOST_LOADERS);
        assert_eq!(board.snapshot().hidden, 100 - MOST_LOADERS as u64);
        let shown = || board.snapshot().loaders.iter().map(|now| now.id).collect::<Vec<_>>();
        // Nothing was used for long: then one of those that were hidden is.
        lock(&board.seen).tick += 10 * LATELY;
        many[3].push(json!({"batches": 1}));
        board.sample();
        assert!(shown().contains(&3) && shown().is_sorted(), "{:?}", shown());
        drop(many);
        board.sample();
        assert_eq!((shown().len(), board.snapshot().hidden, board.snapshot().memory), (0, 0, 0));
    }

    #[test]
    fn data_holds_the_history_that_is_new() {
        let board = Board::new();
        let _kept = (board.watch_pushed(about("a")), board.watch_pushed(about("b")));
        (0..5).for_each(|_| board.sample());
        let ticks = |loader, since| board.data(loader, since)["history"]["tick"].clone();
        assert_eq!(ticks(Some(1), Some(2)), json!([3, 4]));
        assert_eq!(ticks(Some(1), None), json!([0, 1, 2, 3, 4]));
        assert_eq!(ticks(None, Some(3)), json!([4]));
        assert_eq!(ticks(None, Some(u64::MAX)), json!([]));
        // A loader that is gone: the first one, from its beginning.
        assert_eq!(board.data(Some(9), Some(3))["loader"], 0);
        assert_eq!(ticks(Some(9), Some(3)), json!([0, 1, 2, 3, 4]));
        assert_eq!(Board::new().data(None, None)["loaders"], json!([]));
    }

    #[test]
    fn a_clock_that_is_set_back_turns_no_line_back() {
        let board = Board::new();
        let _kept = board.watch_pushed(about("a"));
        board.sample();
        // Until now the clock was an hour ahead.
        lock(&board.seen).second.time += 3600.0;
        let before = board.snapshot().time;
        board.sample();
        let passed = board.snapshot().time - before;
        assert!((0.0..60.0).contains(&passed), "{passed}");
    }

    #[test]
    fn the_loader_used_most_is_shown_first() {
        let board = Board::new();
        let (idle, busy) = (board.watch_pushed(about("valid")), board.watch_pushed(about("train")));
        board.sample();
        assert_eq!(board.data(None, None)["loader"], 0, "none is used: the first");
        busy.push(json!({"batches": 5, "samples": 20}));
        board.sample();
        assert_eq!(board.data(None, None)["loader"], 1);
        assert_eq!(board.data(Some(0), None)["loader"], 0, "what was asked for is given");
        drop((idle, busy));
    }

    #[test]
    fn a_loader_for_each_epoch_has_one_history() {
        let board = Board::new();
        let valid = board.watch_pushed(about("valid"));
        let ticks = |loader| board.data(Some(loader), None)["history"]["tick"].clone();
        let epoch = |batches: u64| {
            let train = board.watch_pushed(about("train"));
            train.push(json!({"batches": batches, "samples": 4 * batches}));
            board.sample();
            train
        };
        let first = epoch(3);
        drop(first);
        // In between, only the other one is open.
        board.sample();
        assert_eq!(board.snapshot().loaders.len(), 1);
        let second = epoch(2);
        assert_eq!(ticks(2), json!([0, 2]));
        assert_eq!(board.data(Some(1), Some(0))["loader"], 2, "who asks for the old one");
        assert_eq!(board.snapshot().loaders[1].earlier, [1]);
        // The next one may be there before the last one has gone.
        let third = board.watch_pushed(about("train"));
        board.sample();
        drop(second);
        third.push(json!({"batches": 1, "samples": 4}));
        board.sample();
        assert_eq!(ticks(3), json!([0, 2, 3, 4]));
        assert_eq!(ticks(1), ticks(3));
        // Not for ever, and not for many.
        drop(third);
        lock(&board.seen).tick += LATE + 1;
        board.sample();
        board.sample();
        lock(&board.seen).tick += LATE + 1;
        board.sample();
        assert!(lock(&board.seen).closed.is_empty());
        let many: Vec<_> = (0..10).map(|_| epoch(1)).collect();
        drop(many);
        board.sample();
        assert_eq!(lock(&board.seen).closed.len(), MOST_CLOSED);
        drop(valid);
    }

    #[test]
    fn nobody_looks_so_nothing_runs() {
        let board = Arc::new(Board::new());
        assert!(!lock(&board.interest).running);
        board.look();
        assert!(lock(&board.interest).running);
        assert!(board.snapshot().time > 0.0, "the first look is made at once");
    }
}
