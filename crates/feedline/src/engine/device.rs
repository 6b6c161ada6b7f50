//! A loader whose batches are handed over in a device's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::loader::Loader;
use super::monitor::Stats;
use crate::deliver::device::{Device, DeviceBatch, PrefetchStats, Prefetcher};
use crate::error::{Error, Result, SpecError};
use crate::order::State;

/// How often a waiting program is asked whether it still wants to.
pub(super) const ASKING: Duration = Duration::from_millis(50);

/// How long to sleep between looks at a device: a copy of a batch takes milliseconds.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

/// What is known of a batch that was pulled from the loader.
struct Pulled {
    /// Where the run stands when it is handed over.
    state: State,
    /// It is its epoch's last.
    last: bool,
}

/// Hands over the batches of a loader in a device's memory, copied ahead of the program.
///
/// The state counts what was handed over, not what was copied. Within an epoch batches are copied
/// ahead; the next epoch's first one is copied when it is asked for.
pub struct DeviceLoader {
    prefetcher: Prefetcher<Pulled>,
    loader: Loader,
    /// Where the run stands.
    state: State,
    /// The loader's answer after the batches that are on the device: its end, or an error.
    after: Option<Option<Error>>,
}

impl DeviceLoader {
    /// Copies up to `ahead` batches of `loader` to `device` before they are asked for. `pin`
    /// page-locks the host's memory, without which copies hold the program up.
    pub fn new(
        mut loader: Loader,
        device: Arc<dyn Device>,
        ahead: usize,
        pin: bool,
    ) -> Result<DeviceLoader> {
        if let Some(field) = loader.fields().iter().find(|field| field.variable.is_some()) {
            return Err(SpecError::new(
                "device",
                format!("cannot hold {:?}, whose rows have no length in common", field.name),
            )
            .allowed("none, or other fields of the source")
            .into());
        }
        let prefetcher = Prefetcher::new(device.clone(), loader.layout(), ahead)?;
        if pin {
            loader.pin_for_prefetch(device);
        }
        let state = loader.state();
        Ok(DeviceLoader { prefetcher, loader, state, after: None })
    }

    /// The loader that makes the batches. Its position and state are ahead of the program.
    #[must_use]
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Begins the next epoch; see [`Loader::begin_epoch`].
    pub fn begin_epoch(&mut self) {
        self.forget();
        self.loader.begin_epoch();
        self.state = self.loader.state();
    }

    /// The program is done with an epoch's last batch; see [`Loader::end_epoch`].
    pub fn end_epoch(&mut self) {
        self.loader.end_epoch();
    }

    /// Goes to the beginning of `epoch`: the next iteration is that one.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.forget();
        self.loader.set_epoch(epoch);
        self.state = self.loader.state();
    }

    /// Goes on where `state` was taken; the next epoch begins there.
    pub fn resume(&mut self, state: &State) -> Result<()> {
        self.loader.resume(state)?;
        self.forget();
        self.state = self.loader.state();
        Ok(())
    }

    /// Where the run stands: after the last batch that was handed over.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// The epoch and the number of the next batch.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        (self.state.epoch, self.state.batch)
    }

    /// What happened so far, and what was copied.
    #[must_use]
    pub fn stats(&self) -> (Stats, PrefetchStats) {
        (self.loader.stats(), self.prefetcher.figures())
    }

    /// The next batch of the epoch and whether it is the last; `None` at its end.
    pub fn next_batch(&mut self) -> Option<Result<(DeviceBatch, bool)>> {
        self.next_or_stop(None)
    }

    /// [`DeviceLoader::next_batch`] for a program that may be interrupted; see
    /// [`Loader::next_batch_unless`].
    pub fn next_batch_unless(
        &mut self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Result<(DeviceBatch, bool)>> {
        self.next_or_stop(Some(interrupted))
    }

    fn next_or_stop(
        &mut self,
        mut interrupted: Option<&mut dyn FnMut() -> bool>,
    ) -> Option<Result<(DeviceBatch, bool)>> {
        loop {
            if let Err(error) = self.top_up() {
                return Some(Err(self.fail(error)));
            }
            if let Some((batch, pulled)) = self.prefetcher.take() {
                self.state = pulled.state;
                return Some(Ok((batch, pulled.last)));
            }
            match self.after.take() {
                None => {}
                Some(None) => {
                    self.after = Some(None);
                    return None;
                }
                // The loader stands at the batch that failed, as does the state.
                Some(Some(error)) => return Some(Err(error)),
            }
            if let Err(error) = self.wait(&mut interrupted) {
                return Some(Err(self.fail(error)));
            }
        }
    }

    /// Copies what is ready, as far as there is room. Where host memory is tight only one batch is
    /// under way, as a program holds one of a loader without a device: it comes back with the next
    /// call, and the workers may need it before.
    fn top_up(&mut self) -> Result<()> {
        let mut under_way = self.prefetcher.release()?;
        while self.after.is_none()
            && self.loader.is_ready()
            && (!under_way || self.loader.has_spare())
            && self.prefetcher.reserve()?
        {
            self.pull(&mut None)?;
            under_way = true;
        }
        Ok(())
    }

    /// Waits for a batch when none is on the device.
    fn wait(&mut self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<()> {
        let began = Instant::now();
        // Batches under way to the device hold memory that the next one may have to be made in.
        while self.prefetcher.release()? && !self.loader.is_ready() {
            if began.elapsed() >= ASKING && interrupted.as_mut().is_some_and(|ask| ask()) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(PAUSE);
        }
        self.prefetcher.reserve()?;
        self.pull(interrupted)
    }

    /// Takes one batch from the loader and queues its copy.
    fn pull(&mut self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<()> {
        let epoch = self.loader.position().0;
        let pulled = match interrupted {
            Some(interrupted) => self.loader.next_batch_unless(*interrupted),
            None => self.loader.next_batch(),
        };
        match pulled {
            None => self.after = Some(None),
            Some(Err(Error::Interrupted)) => return Err(Error::Interrupted),
            Some(Err(error)) => self.after = Some(Some(error)),
            Some(Ok(batch)) => {
                let last = self.loader.position().0 != epoch;
                let state = self.loader.state();
                self.prefetcher.submit(batch, Pulled { state, last })?;
            }
        }
        Ok(())
    }

    /// After an error of the device the run stands where the program last saw it: what was copied
    /// and not handed over is made again.
    fn fail(&mut self, error: Error) -> Error {
        if !matches!(error, Error::Interrupted) {
            self.forget();
            // The state is this loader's own, so it fits.
            let _ = self.loader.resume(&self.state);
        }
        error
    }

    fn forget(&mut self) {
        self.prefetcher.clear();
        self.after = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::device::fake::Fake;
    use crate::sample::DType;
    use crate::source::{Arrays, Column};

    /// Images of `side` by `side`. Those of 224 come with as little memory as can be: three
    /// batches, so that copies and the engine wait for each other.
    fn loader(workers: u64, side: usize) -> Loader {
        let values: Vec<u8> = (0..57 * 3 * side * side).map(|n| (n * 7 % 251) as u8).collect();
        let labels: Vec<i64> = (0..57).collect();
        let arrays = Arrays::new(vec![
            Column::new("image", DType::U8, &[57, 3, side, side], values),
            Column::new("label", DType::I64, &[57], labels),
        ])
        .unwrap();
        let builder = Loader::over(arrays).batch_size(4).shuffle(true).seed(3).num_workers(workers);
        let small = side == 224;
        if small { builder.memory(2_210_000) } else { builder }.build().unwrap()
    }

    /// Hashes and states of `epochs` epochs.
    fn expected(epochs: u64, side: usize) -> Vec<(u64, State)> {
        let mut loader = loader(0, side);
        let mut seen = Vec::new();
        for _ in 0..epochs {
            loader.begin_epoch();
            while let Some(batch) = loader.next_batch() {
                seen.push((batch.unwrap().hash(), loader.state()));
            }
        }
        seen
    }

    #[test]
    fn batches_and_states_are_those_of_the_host() {
        let (small, large) = (expected(2, 4), expected(2, 224));
        for seed in 0..24u64 {
            let fake = Fake::new(seed, [0, 50, 200][seed as usize % 3]);
            let (side, expected) = if seed % 4 == 3 { (224, &large) } else { (4, &small) };
            let host = loader(seed % 3, side);
            let ahead = seed as usize % 4;
            let mut loader = DeviceLoader::new(host, fake.device(), ahead, seed % 2 == 0).unwrap();
            let mut seen = Vec::new();
            for _ in 0..2 {
                loader.begin_epoch();
                let mut lasts = 0;
                while let Some(batch) = loader.next_batch() {
                    let (batch, last) = batch.unwrap();
                    lasts += u64::from(last);
                    seen.push((batch.hash().unwrap(), loader.state()));
                }
                assert_eq!(lasts, 1);
            }
            assert_eq!(&seen, expected, "seed {seed}");
            let (_, figures) = loader.stats();
            assert_eq!(figures.batches, 30);
            assert!(figures.slots <= ahead as u64 + 3, "{figures:?}");
            drop(loader);
            assert_eq!(fake.left(), (0, 0, 0, 0), "seed {seed}");
        }
    }

    #[test]
    fn a_state_goes_on_exactly_and_a_failed_copy_is_made_again() {
        let expected = expected(2, 4);
        for stop in [0, 1, 7, 14] {
            let fake = Fake::new(stop as u64, 50);
            let mut first = DeviceLoader::new(loader(2, 4), fake.device(), 2, true).unwrap();
            first.begin_epoch();
            for _ in 0..stop {
                first.next_batch().unwrap().unwrap();
            }
            let state = first.state();
            drop(first);
            let mut second = DeviceLoader::new(loader(1, 4), fake.device(), 2, true).unwrap();
            second.resume(&state).unwrap();
            second.begin_epoch();
            *fake.failing.lock().unwrap() = Some(("copy_in", 3, 1));
            let mut seen = Vec::new();
            loop {
                match second.next_batch() {
                    None => break,
                    Some(Ok((batch, _))) => seen.push((batch.hash().unwrap(), second.state())),
                    Some(Err(error)) => {
                        assert!(error.to_string().contains("copy_in"), "{error}");
                        second.begin_epoch();
                    }
                }
            }
            assert_eq!(seen, expected[stop..15], "stop {stop}");
        }
    }

    #[test]
    fn pinned_batches_are_those_of_the_host() {
        let expected = expected(1, 224);
        let fake = Fake::new(9, 100);
        let mut loader = loader(2, 224);
        loader.pin(fake.device());
        loader.begin_epoch();
        let mut seen = Vec::new();
        while let Some(batch) = loader.next_batch() {
            seen.push((batch.unwrap().hash(), loader.state()));
        }
        assert_eq!(seen, expected);
        let held = {
            loader.begin_epoch();
            loader.next_batch().unwrap().unwrap()
        };
        drop(loader);
        drop(held);
        assert_eq!(fake.left(), (0, 0, 0, 0));
    }
}
