//! The order and one sample's stages by themselves agree with a loader, and the numbering of ops
//! goes on where another chain ended.
#![allow(clippy::unwrap_used)]

use crate::support::{Folder, jpeg, photos};
use feedline::error::Stage;
use feedline::internals::engine::{Given, Schedule, Stages, Workbench};
use feedline::internals::image::{Pixels, View};
use feedline::internals::order::Pick;
use feedline::spec::{LastBatch, OpSpec, SourceSpec};
use feedline::{Loader, Spec};

fn augmented(folder: &Folder) -> Spec {
    Spec::default().with(|spec| {
        spec.sources = vec![SourceSpec::from(folder.path())];
        spec.transforms = vec![
            OpSpec::new("RandomResizedCrop").with("size", 12),
            OpSpec::new("RandomHorizontalFlip"),
            OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true),
        ];
        spec.batch_size = 5;
        spec.shuffle = true;
        spec.seed = 11;
        spec.last_batch = LastBatch::Pad;
    })
}

#[test]
fn a_schedule_and_stages_make_a_loaders_batches() {
    let folder = Folder::new("single");
    photos(&folder, 2, 6);
    let spec = augmented(&folder);
    let schedule = Schedule::new(spec.clone(), &[12], &|_| None).unwrap();
    let stages = Stages::new(&spec, 0).unwrap();
    let mut bench = Workbench::default();
    let mut loader = Loader::from_spec(spec).unwrap();
    assert_eq!((schedule.batches(), schedule.samples()), (loader.len(), loader.samples()));
    for epoch in 0..2 {
        for batch in loader.epoch() {
            let batch = batch.unwrap();
            let images = batch.get("image").unwrap();
            let size = images.bytes.len() / images.rows;
            let due = schedule.batch(epoch, batch.number());
            assert_eq!(due.len(), batch.rows());
            assert_eq!(schedule.padding(batch.number()), batch.padding() as u64);
            for (row, due) in due.iter().enumerate() {
                let (class, number) = (due.pick.index / 6, due.pick.index % 6);
                let path = folder.path().join(format!("class{class}/{number:03}.jpg"));
                let bytes = std::fs::read(path).unwrap();
                let given = Given::Encoded(&bytes);
                let ready = stages.prepare(given).unwrap();
                let mut out = vec![0; ready.output.bytes()];
                let draws = (11, epoch, due.row.draws);
                stages.write(given, &ready, draws, &mut bench, &mut out).unwrap();
                assert_eq!(out, &images.bytes[row * size..(row + 1) * size]);
            }
        }
    }
}

#[test]
fn a_later_chain_draws_for_itself() {
    let folder = Folder::new("numbered");
    let flip =
        augmented(&folder).with(|spec| spec.transforms = vec![OpSpec::new("RandomHorizontalFlip")]);
    let pixels: Vec<u8> = (0..12).collect();
    let given = Given::Pixels(Pixels::U8(&pixels), View::interleaved(2, 2, 3));
    let flipped = |first: usize| -> Vec<bool> {
        let stages = Stages::new(&flip, first).unwrap();
        let ready = stages.prepare(given).unwrap();
        let mut out = vec![0; 12];
        let mut bench = Workbench::default();
        (0..64)
            .map(|position| {
                stages.write(given, &ready, (0, 0, position), &mut bench, &mut out).unwrap();
                out[0] != 0
            })
            .collect()
    };
    assert_eq!(flipped(3), flipped(3));
    assert_ne!(flipped(0), flipped(3));
    let wrong = flip.clone().with(|spec| spec.transforms = vec![OpSpec::new("Flip")]);
    let error = Stages::new(&wrong, 3).unwrap_err().to_string();
    assert!(error.starts_with("transforms[3].op"), "{error}");
}

#[test]
fn bad_samples_and_states_are_named() {
    let folder = Folder::new("bad");
    let spec = augmented(&folder);
    let stages = Stages::new(&spec, 0).unwrap();
    assert!(matches!(stages.prepare(Given::Encoded(b"text")), Err((Stage::Decode, _))));
    let empty = Given::Pixels(Pixels::U8(&[]), View::interleaved(0, 4, 3));
    assert!(matches!(stages.prepare(empty), Err((Stage::Transform, _))));
    let whole = jpeg(1, 40, 30);
    let ready = stages.prepare(Given::Encoded(&whole)).unwrap();
    let mut out = vec![0; ready.output.bytes()];
    let cut = Given::Encoded(&whole[..whole.len() / 2]);
    let made = stages.write(cut, &ready, (0, 0, 0), &mut Workbench::default(), &mut out);
    assert!(matches!(made, Err((Stage::Decode, _))), "{made:?}");
    let schedule = Schedule::new(spec.clone(), &[12], &|_| None).unwrap();
    let skipped = || std::iter::once(Pick { source: 0, index: 3 });
    let (data, pixels, other) = ("data".into(), "pixels".into(), "other".into());
    let state = schedule.state((1, 2), &data, &pixels, skipped());
    schedule.check(&state, &data, &pixels).unwrap();
    assert!(schedule.check(&state, &other, &pixels).is_err());
    assert!(schedule.check(&state, &data, &other).is_err());
    let smaller = Schedule::new(spec, &[3], &|_| None).unwrap();
    assert!(
        smaller.check(&smaller.state((0, 0), &data, &pixels, skipped()), &data, &pixels).is_err()
    );
}
