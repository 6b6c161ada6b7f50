//! Fields whose rows have no length in common, bytes that a source makes, and data in blocks.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::support::{Folder, photos};
use feedline::Variable;
use feedline::sample::{DType, Field, FieldKind, Room, Value};
use feedline::source::{Blocks, Source};
use feedline::spec::{DecodeSpec, OnError, OpSpec, OpenBlocks};
use feedline::{Batch, Builder, Error, Fault, Loader};

const SAMPLES: u64 = 97;

/// Samples of every kind, as long as `scale` makes them.
struct Odd {
    fields: Vec<Field>,
    scale: u64,
    blocks: Option<Blocks>,
    texts: Vec<String>,
    /// A sample whose text is not UTF-8.
    bad: Option<u64>,
    last_block: AtomicU64,
    changes: AtomicU64,
}

impl Odd {
    fn new(scale: u64) -> Odd {
        let field = |name: &str, kind| Field { name: name.to_owned(), kind };
        Odd {
            fields: vec![
                field("number", FieldKind::scalar(DType::I64)),
                field("words", FieldKind::Text),
                field("series", FieldKind::Ragged { dtype: DType::F32, axes: 1 }),
                field("plane", FieldKind::Ragged { dtype: DType::U16, axes: 2 }),
                field("made", FieldKind::Array { dtype: DType::U8, shape: vec![3] }),
                field("raw", FieldKind::Bytes),
            ],
            scale,
            blocks: None,
            texts: (0..SAMPLES).map(|n| "wört ".repeat((n % 7) as usize)).collect(),
            bad: None,
            last_block: AtomicU64::new(u64::MAX),
            changes: AtomicU64::new(0),
        }
    }
}

fn series(index: u64, scale: u64) -> Vec<f32> {
    (0..index % 5 * scale).map(|n| (index * 1000 + n) as f32).collect()
}

fn plane(index: u64) -> (Vec<u16>, [usize; 2]) {
    let shape = [(index % 4) as usize, (index % 3) as usize + 1];
    ((0..shape[0] * shape[1]).map(|n| (index as usize * 10 + n) as u16).collect(), shape)
}

impl Source for Odd {
    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        Ok(match field {
            0 => Value::Int(index as i64),
            1 if self.bad == Some(index) => Value::Bytes(b"\xff\xfe"),
            1 => Value::Bytes(self.texts[index as usize].as_bytes()),
            5 => Value::Bytes(&[7; 1000][..(index % 1000) as usize]),
            _ => Value::Made,
        })
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        let mut put = |bytes: &[u8]| {
            room.make(bytes.len() as u64)?.copy_from_slice(bytes);
            Ok(())
        };
        match field {
            2 => put(&series(index, self.scale)
                .iter()
                .flat_map(|x| x.to_ne_bytes())
                .collect::<Vec<_>>()),
            3 => {
                let (elements, shape) = plane(index);
                room.shape(&shape);
                let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
                room.make(bytes.len() as u64)?.copy_from_slice(&bytes);
                Ok(())
            }
            _ => {
                if let Some(blocks) = &self.blocks {
                    let block = blocks.ends.partition_point(|end| *end <= index) as u64;
                    if self.last_block.swap(block, Relaxed) != block {
                        self.changes.fetch_add(1, Relaxed);
                    }
                }
                put(&[index as u8, 1, 2])
            }
        }
    }

    fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    fn fingerprint(&self) -> u64 {
        5
    }

    fn name(&self) -> String {
        "odd samples".to_owned()
    }
}

fn check(batch: &Batch, scale: u64) {
    let numbers = batch.get("number").unwrap();
    for (row, index) in numbers.as_slice::<i64>().unwrap().iter().enumerate() {
        let index = *index as u64;
        let words = batch.ragged(1).unwrap();
        assert_eq!(words.variable, Variable::Text);
        assert_eq!(words.bytes(row), "wört ".repeat((index % 7) as usize).as_bytes());
        let floats: Vec<u8> = series(index, scale).iter().flat_map(|x| x.to_ne_bytes()).collect();
        let ragged = batch.ragged(2).unwrap();
        assert_eq!((ragged.bytes(row), ragged.shape(row)), (&*floats, vec![floats.len() / 4]));
        let (elements, shape) = plane(index);
        let elements: Vec<u8> = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let ragged = batch.ragged(3).unwrap();
        assert_eq!((ragged.bytes(row), ragged.shape(row)), (&*elements, shape.to_vec()));
        let made = batch.get("made").unwrap();
        assert_eq!(made.bytes[row * 3..row * 3 + 3], [index as u8, 1, 2]);
        assert_eq!(batch.ragged(5).unwrap().bytes(row).len() as u64, index % 1000);
    }
    assert!(batch.array(1).is_none() && batch.ragged(0).is_none());
}

fn hashes(builder: Builder, scale: u64) -> Vec<u64> {
    let mut loader = builder.build().unwrap();
    let mut hashes = Vec::new();
    for _ in 0..2 {
        for batch in loader.epoch() {
            let batch = batch.unwrap();
            check(&batch, scale);
            hashes.push(batch.hash());
        }
    }
    hashes
}

#[test]
fn every_kind_of_field_comes_out_as_it_is_with_any_number_of_workers() {
    let run = |workers: u64, memory: Option<u64>| {
        let mut builder =
            Loader::over(Odd::new(3)).batch_size(10).shuffle(true).num_workers(workers);
        if let Some(memory) = memory {
            builder = builder.memory(memory);
        }
        hashes(builder, 3)
    };
    let first = run(0, None);
    assert_eq!(first.len(), 20);
    for (workers, memory) in [(1, None), (4, None), (2, Some(30_000_000)), (4, Some(30_000_000))] {
        assert_eq!(run(workers, memory), first, "{workers} {memory:?}");
    }
}

#[test]
fn long_rows_stay_within_the_memory_or_say_that_they_cannot() {
    // 0 to 4 MB a row, 20 MB a batch of ten.
    let scale = 250_000;
    let builder =
        |memory| Loader::over(Odd::new(scale)).batch_size(10).num_workers(3).memory(memory);
    let mut loader = builder(120_000_000).build().unwrap();
    for _ in 0..SAMPLES.div_ceil(10) {
        check(&loader.next_batch().unwrap().unwrap(), scale);
        let used = loader.stats().flow.used;
        assert!(used <= 120_000_000, "{used}");
    }
    let mut small = builder(16_000_000).build().unwrap();
    let failed = small.epoch().find_map(|batch| batch.err()).unwrap();
    assert!(matches!(failed, Error::Memory(_)), "{failed}");
}

#[test]
fn kept_batches_keep_their_rows() {
    let mut loader = Loader::over(Odd::new(3)).batch_size(7).num_workers(2).build().unwrap();
    let kept: Vec<Batch> = loader.epoch().map(|batch| batch.unwrap()).collect();
    drop(loader);
    kept.iter().for_each(|batch| check(batch, 3));
}

#[test]
fn text_that_is_none_is_that_samples_error() {
    let odd = || Odd { bad: Some(12), ..Odd::new(1) };
    let mut loader = Loader::over(odd()).batch_size(10).num_workers(2).build().unwrap();
    let error = loader.epoch().find_map(|batch| batch.err()).unwrap();
    assert!(error.to_string().contains("UTF-8") && error.to_string().contains("12"), "{error}");
    let builder = Loader::over(odd()).batch_size(10).num_workers(2).on_error(OnError::Skip);
    let mut loader = builder.build().unwrap();
    assert!(loader.epoch().all(|batch| batch.is_ok()));
}

#[test]
fn images_can_be_left_as_bytes() {
    let folder = Folder::new("bytes");
    photos(&folder, 2, 3);
    let builder = || {
        let bytes = DecodeSpec::default().with(|decode| decode.bytes = true);
        Loader::builder(folder.path()).decode(bytes).batch_size(4).num_workers(2)
    };
    let mut loader = builder().build().unwrap();
    let mut seen = 0;
    for batch in loader.epoch() {
        let batch = batch.unwrap();
        let images = batch.ragged(0).unwrap();
        for row in 0..batch.rows() {
            let path = folder.path().join(format!("class{}/{:03}.jpg", seen / 3, seen % 3));
            assert!(images.bytes(row) == std::fs::read(path).unwrap());
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
    let crop = OpSpec::new("CenterCrop").with("size", 16);
    assert!(matches!(builder().transform(crop).build(), Err(Error::Spec(_))));
}

#[test]
fn blocks_are_shuffled_a_few_at_a_time_and_resumed_exactly() {
    let odd = |bytes| Odd { blocks: Some(Blocks::even(SAMPLES, 8, bytes)), ..Odd::new(1) };
    let builder = |bytes: u64| {
        Loader::over(odd(bytes)).batch_size(5).shuffle(true).num_workers(0).memory(80_000_000)
    };
    let numbers = |loader: &mut Loader| -> Vec<i64> {
        let batches: Vec<Batch> = loader.epoch().map(|batch| batch.unwrap()).collect();
        let all = batches
            .iter()
            .flat_map(|b| b.get("number").unwrap().as_slice::<i64>().unwrap().to_vec());
        all.collect()
    };
    // A quarter of the memory is for blocks, half of that for a pool: 10 MB hold two blocks.
    let order = numbers(&mut builder(4_000_000).build().unwrap());
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), SAMPLES as usize);
    let first: BTreeSet<i64> = order[..16].iter().map(|n| n / 8).collect();
    assert_eq!(first.len(), 2, "{first:?}");
    let limited = builder(4_000_000).open_blocks(OpenBlocks::Count(2)).build().unwrap();
    assert_eq!(order, numbers(&mut { limited }));
    // With room for all, or when asked to: the full shuffle of the same seed.
    let plain =
        numbers(&mut Loader::over(Odd::new(1)).batch_size(5).shuffle(true).build().unwrap());
    assert_eq!(plain, numbers(&mut builder(1).build().unwrap()));
    let all = builder(4_000_000).open_blocks(OpenBlocks::All);
    assert_eq!(plain, numbers(&mut all.build().unwrap()));
    let mut loader = builder(4_000_000).build().unwrap();
    for batch in loader.epoch().take(7) {
        batch.unwrap();
    }
    let state = loader.state();
    let mut again = builder(4_000_000).num_workers(3).build().unwrap();
    again.resume(&state).unwrap();
    assert_eq!(numbers(&mut again), order[35..]);
    // Blocks that end elsewhere are another order.
    let elsewhere = Odd { blocks: Some(Blocks::even(SAMPLES, 9, 4_000_000)), ..Odd::new(1) };
    let elsewhere = Loader::over(elsewhere).batch_size(5).shuffle(true).memory(80_000_000);
    assert!(elsewhere.build().unwrap().resume(&state).is_err());
    let other =
        builder(4_000_000).open_blocks(OpenBlocks::Count(3)).build().unwrap().resume(&state);
    assert!(other.is_err());
}

#[test]
fn draws_from_everywhere_are_refused_where_each_would_read_a_block() {
    let builder = |bytes| {
        let odd = Odd { blocks: Some(Blocks::even(SAMPLES, 8, bytes)), ..Odd::new(1) };
        Loader::over(odd).batch_size(5).replacement(true).memory(80_000_000)
    };
    let error = builder(4_000_000).build().err().unwrap().to_string();
    assert!(error.contains("replacement") && error.contains("13 blocks"), "{error}");
    assert!(builder(1_000_000).build().is_ok(), "all of them are kept");
    assert!(builder(4_000_000).open_blocks(OpenBlocks::All).build().is_ok());
}
