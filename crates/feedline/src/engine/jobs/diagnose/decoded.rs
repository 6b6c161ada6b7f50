//! What decoding makes of some samples, kept to be handed over again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::decode::{self, Decoder};
use crate::engine::plan::{ImageField, Plan};
use crate::engine::recorded::{DecodedImage, Recorded};
use crate::error::{Fault, Result};
use crate::image::{Pixels, Scratch};
use crate::order::Pick;
use crate::sample::{Grown, Value};
use crate::transform::ImageShape;

/// Images, and what ended the list.
#[derive(Default)]
pub(super) struct Decoded {
    pub(super) recorded: Recorded,
    /// The next one would not have fit.
    pub(super) full: bool,
}

/// Decodes the samples of `batches` batches from `start` (epoch and batch) on, as the plan does, and
/// keeps what that gives: at most `room` bytes, and as long as `more` says so after each of them.
pub(super) fn decode_some(
    plan: &Plan,
    start: (u64, u64),
    batches: u64,
    room: u64,
    more: &mut dyn FnMut() -> bool,
) -> Decoded {
    let mut decoded = Decoded::default();
    let Some(image) = &plan.image else { return decoded };
    let (mut worker, mut used) = (Bench::new(plan), 0);
    let count = plan.batches.count().max(1);
    for after in 0..batches {
        let batch = start.1.saturating_add(after);
        let (epoch, batch) = (start.0.saturating_add(batch / count), batch % count);
        let order = plan.order.epoch(epoch);
        let key = crate::random::key(plan.spec.seed, epoch, 0);
        for row in 0..plan.batches.rows(batch) {
            let place = plan.batches.row(batch, row);
            let pick = order.pick(place.position);
            let draws = (key, place.draws);
            // Bad samples are others' business, and so are panics that they lead to.
            match catch_unwind(AssertUnwindSafe(|| worker.decode(plan, image, pick, draws))) {
                Ok(Ok(made)) => {
                    used += made.pixels.len() as u64;
                    decoded.full = used > room;
                    if decoded.full {
                        return decoded;
                    }
                    decoded.recorded.images.push(made);
                }
                Ok(Err(_)) => {}
                Err(_) => worker = Bench::new(plan),
            }
            if !more() {
                return decoded;
            }
        }
    }
    decoded
}

/// What decoding needs, from sample to sample.
struct Bench {
    encoded: Grown,
    decoder: Decoder,
    scratch: Scratch,
}

impl Bench {
    fn new(plan: &Plan) -> Bench {
        let encoded = Grown::at_most(plan.memory);
        Bench { encoded, decoder: Decoder::default(), scratch: Scratch::default() }
    }

    fn decode(
        &mut self,
        plan: &Plan,
        image: &ImageField,
        pick: Pick,
        draws: (u64, u64),
    ) -> Result<DecodedImage, Fault> {
        let source = &plan.sources[pick.source];
        let value = source.value(pick.index, image.field)?;
        match &value {
            Value::File(location) => plan.store.read(location, &mut self.encoded)?,
            Value::Made => source.read(pick.index, image.field, &mut self.encoded)?,
            _ => {}
        }
        let bytes = match value {
            Value::Bytes(bytes) => bytes,
            _ => &self.encoded.bytes,
        };
        let header = decode::probe(bytes, &plan.decode)?;
        if header.memory as u64 > plan.memory {
            return Err(Fault::TooLarge(format!("needs {} bytes to decode", header.memory)));
        }
        let (height, width, channels) = (header.height, header.width, header.channels);
        let shape = ImageShape { height, width, channels };
        let wanted = Some(plan.chain.excerpt(shape, draws.0, draws.1, plan.decode.exact));
        let made =
            self.decoder.decode_part(bytes, &header, &plan.decode, wanted, &mut self.scratch)?;
        let (view, excerpt) = (made.view(), made.excerpt());
        match made.pixels() {
            Pixels::U8(pixels) => {
                let pixels = pixels[..view.bounds().1].into();
                Ok(DecodedImage { pixels, view, excerpt, draws })
            }
            Pixels::F32(_) => Err(Fault::Shape("is not of bytes".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loader;
    use crate::spec::{OpSpec, SourceKind, Spec, Workers};
    use feedline_sample_photos::SamplePhotos;

    fn hashes(plan: Plan) -> Vec<u64> {
        let mut loader = Loader::of_plan(plan).unwrap();
        let batches = loader.epoch().map(|batch| {
            let batch = batch.unwrap();
            let bytes = |field| batch.array(field).unwrap().bytes;
            (0..batch.fields().len())
                .map(|field| xxhash_rust::xxh3::xxh3_64(bytes(field)) >> 8)
                .sum()
        });
        batches.collect()
    }

    #[test]
    fn what_was_decoded_stands_for_decoding() {
        let top = std::env::temp_dir().join(format!("feedline-decoded-{}", std::process::id()));
        let photos = SamplePhotos { count: 10, classes: 2, ..SamplePhotos::default() };
        photos.write(&top, &|_| ()).unwrap();
        let spec = Spec {
            sources: vec![SourceKind::Path(top.clone()).into()],
            transforms: vec![
                OpSpec::new("RandomResizedCrop").with("size", 32),
                OpSpec::new("ColorJitter").with("brightness", 0.5),
            ],
            batch_size: 4,
            shuffle: true,
            num_workers: Workers::Count(2),
            ..Spec::default()
        };
        let plan = || Plan::new(spec.clone(), Vec::new(), None).unwrap();
        let real = hashes(plan());
        let decode = |room, batches| decode_some(&plan(), (0, 0), batches, room, &mut || true);
        let recorded = |change: fn(&mut DecodedImage)| {
            let mut decoded = decode(u64::MAX, 3);
            assert_eq!((decoded.recorded.images.len(), decoded.full), (10, false));
            decoded.recorded.images.iter_mut().for_each(change);
            let mut plan = plan();
            plan.recorded = Some(decoded.recorded);
            hashes(plan)
        };
        // Crops and draws are those of the sample that it was.
        assert_eq!(recorded(|_| ()), real);
        assert_ne!(recorded(|image| image.pixels.fill(0)), real);
        // As many as fit, of this epoch and the next ones.
        let size = decode(u64::MAX, 1).recorded.images[0].pixels.len() as u64;
        let few = decode(size, 3);
        assert_eq!((few.recorded.images.len(), few.full), (1, true));
        assert!(decode(size - 1, 3).recorded.images.is_empty());
        assert_eq!(decode(u64::MAX, 6).recorded.images.len(), 20);
        let mut asked = 0;
        let mut more = || {
            asked += 1;
            asked < 3
        };
        assert_eq!(decode_some(&plan(), (0, 0), 3, 1 << 30, &mut more).recorded.images.len(), 3);
        std::fs::remove_dir_all(top).unwrap();
    }
}
