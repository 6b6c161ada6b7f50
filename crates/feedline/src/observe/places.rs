//! Which files, shards or folders are slow to read, in bounded memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::sample::Location;

/// So many places are known; the least slow one gives way.
const MOST: usize = 64;

/// Reads below this are never slow: a worker that lost its core takes as long.
const LEAST: Duration = Duration::from_millis(2);

/// A read is slow if it takes so many times as long as half of the others.
const TIMES: f64 = 8.0;

/// So many reads are looked at before any counts as slow.
const WARM_UP: u32 = 16;

/// What one worker knows of its reads: about how long half of them take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    median: f64,
    seen: u32,
}

impl Pace {
    /// Notes a read; true if it was far slower than others.
    pub(crate) fn note(&mut self, time: Duration) -> bool {
        let seconds = time.as_secs_f64();
        let slow = self.seen >= WARM_UP && time >= LEAST && seconds > TIMES * self.median;
        if self.seen == 0 || self.seen < WARM_UP / 2 && seconds < self.median {
            self.median = seconds;
        } else if seconds > self.median {
            // Steps of one size in both directions end where both happen as often.
            self.median *= 1.05;
        } else {
            self.median /= 1.05;
        }
        self.seen = self.seen.saturating_add(1);
        slow
    }
}

#[derive(Debug)]
struct ReadPlace {
    root: PathBuf,
    path: PathBuf,
    reads: u64,
    other_reads: u64,
    seconds: f64,
    elsewhere: f64,
}

/// A place and its reads so far.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct PlaceStats {
    /// Its path: a shard, or the folder of a file that is read as a whole.
    pub name: String,
    /// Slow reads of it.
    pub reads: u64,
    /// Other reads of it since the first slow one.
    pub other_reads: u64,
    /// Seconds of the slow ones, all together.
    pub seconds: f64,
    /// About how long a read takes elsewhere.
    pub elsewhere: f64,
}

/// Places with slow reads.
#[derive(Debug, Default)]
pub(crate) struct SlowPlaces {
    some: AtomicBool,
    places: Mutex<Vec<ReadPlace>>,
}

/// What is named: a shard by itself, a file by its folder.
fn place<'a>(location: &Location<'a>) -> &'a Path {
    match location.range {
        Some(_) => location.path,
        None => location.path.parent().unwrap_or(Path::new("")),
    }
}

impl SlowPlaces {
    /// There are some: then other reads are counted, too.
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.some.load(Relaxed)
    }

    /// Counts a slow read.
    pub(crate) fn slow(&self, location: &Location<'_>, time: Duration, pace: &Pace) {
        let (seconds, elsewhere) = (time.as_secs_f64(), pace.median);
        let path = place(location);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = find(&mut places, location.root, path) {
            known.reads += 1;
            known.seconds += seconds;
            known.elsewhere = elsewhere;
            return;
        }
        if places.len() == MOST {
            let least = (0..MOST).min_by(|a, b| places[*a].seconds.total_cmp(&places[*b].seconds));
            if let Some(least) = least.filter(|least| places[*least].seconds < seconds) {
                places.swap_remove(least);
            } else {
                return;
            }
        }
        let (root, path) = (location.root.to_owned(), path.to_owned());
        places.push(ReadPlace { root, path, reads: 1, other_reads: 0, seconds, elsewhere });
        self.some.store(true, Relaxed);
    }

    /// Counts another read, unless somebody else is counting.
    pub(crate) fn other(&self, location: &Location<'_>) {
        let mut places: MutexGuard<'_, Vec<ReadPlace>> = match self.places.try_lock() {
            Ok(places) => places,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(known) = find(&mut places, location.root, place(location)) {
            known.other_reads += 1;
        }
    }

    /// All of them, those with the most time first.
    #[must_use]
    pub(crate) fn figures(&self) -> Vec<PlaceStats> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut figures: Vec<PlaceStats> = places
            .iter()
            .map(|place| PlaceStats {
                name: place.root.join(&place.path).to_string_lossy().into_owned(),
                reads: place.reads,
                other_reads: place.other_reads,
                seconds: place.seconds,
                elsewhere: place.elsewhere,
            })
            .collect();
        figures.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        figures
    }
}

fn find<'a>(places: &'a mut [ReadPlace], root: &Path, path: &Path) -> Option<&'a mut ReadPlace> {
    // The shorter comparison first.
    places.iter_mut().find(|place| place.path == path && place.root == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_shard_stands_out_and_names_are_bounded() {
        let (places, mut pace) = (SlowPlaces::default(), Pace::default());
        let root = Path::new("/data");
        let mut read = |name: &str, range, millis: f64| {
            let time = Duration::from_secs_f64(millis / 1e3);
            let location = Location { root, path: Path::new(name), range, stamp: None };
            if pace.note(time) {
                places.slow(&location, time, &pace);
            } else if places.any() {
                places.other(&location);
            }
        };
        for number in 0..200 {
            let slow = number % 10 == 7;
            let name = format!("{:02}.tar", number % 10);
            read(&name, Some((0, 1)), if slow { 50.0 } else { 0.2 });
        }
        let figures = places.figures();
        assert_eq!(figures.len(), 1, "{figures:?}");
        let place = &figures[0];
        assert_eq!((&*place.name, place.other_reads), ("/data/07.tar", 0));
        assert!(place.reads >= 17 && (place.seconds / place.reads as f64 - 0.05).abs() < 1e-3);
        assert!(place.elsewhere < 1e-3, "{place:?}");

        let read = |name: &str, range, millis: f64| {
            let time = Duration::from_secs_f64(millis / 1e3);
            let location = Location { root, path: Path::new(name), range, stamp: None };
            places.slow(&location, time, &Pace::default());
        };
        for folder in 0..200 {
            read(&format!("class-{folder}/image.jpg"), None, 60.0 + f64::from(folder));
        }
        let figures = places.figures();
        assert_eq!(figures.len(), MOST);
        assert_eq!(figures[0].name, "/data/07.tar");
        assert_eq!(figures[1].name, "/data/class-199");
    }

    #[test]
    fn what_is_slow_everywhere_is_no_place() {
        let mut pace = Pace::default();
        assert!((0..500).all(|_| !pace.note(Duration::from_millis(50))));
        assert!(!pace.note(Duration::from_millis(90)), "not far slower");
        assert!(pace.note(Duration::from_millis(900)));
        let mut pace = Pace::default();
        let warm = |n: u64| Duration::from_micros(20 + n % 30);
        assert!((0..500).all(|n| !pace.note(warm(n))));
        assert!(!pace.note(Duration::from_millis(1)), "nothing to care about");
    }
}
