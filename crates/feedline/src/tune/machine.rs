//! The machine that something is measured on, as the system reports it.

use std::fs;

use super::limits::{cores, memory_available};
use super::result::Machine;

impl Machine {
    /// This one. What cannot be read is left empty; cores are at least 1.
    #[must_use]
    pub fn here() -> Machine {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let (processor, machine_cores) = read_processors(&text);
        let cores = cores() as u64;
        Machine {
            processor,
            cores,
            machine_cores: machine_cores.max(cores),
            memory_available: memory_available(),
            device: None,
        }
    }
}

/// The processor's name and how many cores there are.
fn read_processors(text: &str) -> (String, u64) {
    let value = |name: &str| {
        let line = text.lines().find(|line| {
            line.split_once(':').is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case(name))
        })?;
        let value = line.split_once(':')?.1.split_whitespace().collect::<Vec<_>>().join(" ");
        (!value.is_empty()).then_some(value)
    };
    // Intel and AMD; some ARM boards; others name themselves by numbers that help nobody.
    let name = ["model name", "hardware", "cpu model"].into_iter().find_map(value);
    let cores = text
        .lines()
        .filter(|line| line.split_once(':').is_some_and(|(key, _)| key.trim_end() == "processor"));
    (name.unwrap_or_default(), cores.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name() {
        let text = "processor\t: 0\nmodel name\t: Fast  Chip(R) @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: Fast  Chip(R) @ 3 GHz\n";
        assert_eq!(read_processors(text), ("Fast Chip(R) @ 3 GHz".to_owned(), 2));
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n";
        assert_eq!(read_processors(arm), (String::new(), 1));
        assert_eq!(read_processors(""), (String::new(), 0));
        let here = Machine::here();
        assert!(here.cores >= 1 && here.machine_cores >= here.cores);
    }
}
