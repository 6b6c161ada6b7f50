//! Writes every kind of picture of made-up results into a folder, to be looked at:
//! `cargo run --release -p feedline-view --example pictures -- FOLDER`. The browser tests do so.

#[path = "../tests/made_up/mod.rs"]
mod made_up;

use std::fs;
use std::path::PathBuf;

use feedline_view::{Format, Report};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("say where to")?);
    let (benchmark, hostile, empty) = (made_up::benchmark(), made_up::hostile(), made_up::empty());
    let (diagnosis, large) = (made_up::diagnosis(), made_up::large());
    let reports = [
        ("benchmark", Report::of_benchmark("Benchmark of photos/train", &benchmark)),
        ("diagnosis", Report::of_diagnosis("Diagnosis of photos/train", &diagnosis)),
        ("hostile", Report::of_benchmark(made_up::HOSTILE, &hostile)),
        ("large", Report::of_diagnosis("A long run", &large)),
        ("empty", Report::of_benchmark("Nothing", &empty)),
    ];
    for (name, report) in reports {
        let place = folder.join(name);
        fs::create_dir_all(&place)?;
        fs::write(place.join("report.html"), report.html()?)?;
        report.write_trace(std::io::BufWriter::new(fs::File::create(place.join("trace.json"))?))?;
        for format in [Format::Svg, Format::Png] {
            for picture in report.pictures(format)? {
                fs::write(place.join(picture.name), picture.content)?;
            }
        }
    }
    Ok(())
}
