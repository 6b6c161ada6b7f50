//! A training loop over a folder of class folders that can be stopped at any time, also by a
//! power cut, and goes on where it was:
//!
//!     feedline sample-data photos
//!     cargo run --release -p feedline --example plain_loop -- photos

use std::fs;
use std::path::Path;

use feedline::spec::OpSpec;
use feedline::{Loader, State};

const EPOCHS: u64 = 2;
const STATE: &str = "plain_loop.state";
/// Batches between two saves: what is lost at most when the power goes.
const SAVE_EVERY: u64 = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: plain_loop FOLDER")?;
    let mut loader = Loader::builder(folder)
        .transform(OpSpec::new("RandomResizedCrop").with("size", 224))
        .transform(OpSpec::new("RandomHorizontalFlip"))
        .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
        .transform(
            OpSpec::new("Normalize")
                .with("mean", vec![0.485, 0.456, 0.406])
                .with("std", vec![0.229, 0.224, 0.225]),
        )
        .batch_size(64)
        .shuffle(true)
        .seed(7)
        .build()?;

    if let Ok(text) = fs::read(STATE) {
        // A state of another folder, seed or chain is refused with the reason.
        loader.resume(&serde_json::from_slice::<State>(&text)?)?;
        let (epoch, batch) = loader.position();
        println!("going on at epoch {epoch}, batch {batch}");
    }

    while loader.position().0 < EPOCHS {
        let epoch = loader.position().0;
        let (mut rows, mut count, mut sum) = (0, 0, 0.0);
        let mut batches = loader.epoch();
        while let Some(batch) = batches.next() {
            let batch = batch?;
            let images: &[f32] = batch.get("image").and_then(|a| a.as_slice()).ok_or("images")?;
            let labels: &[i64] = batch.get("label").and_then(|a| a.as_slice()).ok_or("labels")?;
            // The training step would be here; this one only adds up.
            sum += images.iter().map(|x| f64::from(*x)).sum::<f64>() / images.len() as f64;
            rows += labels.len();
            count += 1;
            if (batch.number() + 1).is_multiple_of(SAVE_EVERY) {
                save(&batches.state())?;
            }
        }
        save(&loader.state())?;
        println!("epoch {epoch}: {rows} images, mean {:.4}", sum / f64::from(count));
    }
    fs::remove_file(STATE)?;
    Ok(())
}

/// Renaming makes the new state appear at once, so that no crash leaves half of one.
fn save(state: &State) -> Result<(), Box<dyn std::error::Error>> {
    let partial = Path::new(STATE).with_extension("partial");
    fs::write(&partial, serde_json::to_vec(state)?)?;
    Ok(fs::rename(partial, STATE)?)
}
