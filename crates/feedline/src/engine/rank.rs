//! Which of several processes this is.

use crate::error::SpecError;
use crate::tune;

/// More processes than this do not share a machine: the variable means something else.
const MOST_PROCESSES: usize = 4096;

/// Workers where nobody says how many: one for each core, which the processes that a launcher such
/// as torchrun starts on one machine share.
#[must_use]
pub fn auto_workers() -> usize {
    share_of(tune::cores(), std::env::var("LOCAL_WORLD_SIZE").ok().as_deref())
}

/// A process's share of the cores, at least one. What is no sensible number counts for nothing.
fn share_of(cores: usize, processes: Option<&str>) -> usize {
    let processes = processes.and_then(|text| text.trim().parse::<usize>().ok());
    let processes = processes.filter(|count| (1..=MOST_PROCESSES).contains(count)).unwrap_or(1);
    (cores / processes).max(1)
}

/// This process among those that share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) rank: u64,
    pub(crate) world: u64,
}

impl Rank {
    /// What was given, or else what launchers such as torchrun put into the environment.
    pub(crate) fn resolve(rank: Option<u64>, world: Option<u64>) -> Result<Rank, SpecError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        Rank::from_parts(rank, world, variable("RANK"), variable("WORLD_SIZE"))
    }

    fn from_parts(
        rank: Option<u64>,
        world: Option<u64>,
        rank_variable: Option<String>,
        world_variable: Option<String>,
    ) -> Result<Rank, SpecError> {
        let number = |name: &str, text: Option<String>| match text {
            None => Ok(None),
            Some(text) => text.trim().parse::<u64>().map(Some).map_err(|_| {
                SpecError::new(name, "the environment variable is not a whole number")
                    .value(format!("{text:?}"))
            }),
        };
        let (rank, world) =
            match (rank, world) {
                (Some(rank), Some(world)) => (rank, world),
                (None, Some(1)) => (0, 1),
                (None, None) => {
                    match (number("RANK", rank_variable)?, number("WORLD_SIZE", world_variable)?) {
                        (Some(rank), Some(world)) => (rank, world),
                        (None, None | Some(1)) => (0, 1),
                        (Some(0), None) => (0, 1),
                        (Some(_), None) => {
                            return Err(SpecError::new(
                                "WORLD_SIZE",
                                "the environment has RANK but not WORLD_SIZE",
                            )
                            .allowed("both or none"));
                        }
                        (None, Some(_)) => {
                            return Err(SpecError::new(
                                "RANK",
                                "the environment has WORLD_SIZE but not RANK",
                            )
                            .allowed("both or none"));
                        }
                    }
                }
                (Some(_), None) => {
                    return Err(SpecError::new("world_size", "is missing beside rank")
                        .allowed("both or none"));
                }
                (None, Some(_)) => {
                    return Err(SpecError::new("rank", "is missing beside world_size")
                        .allowed("both or none"));
                }
            };
        if rank >= world {
            let allowed = if world == 0 {
                "a world_size of at least 1".to_owned()
            } else {
                format!("0 to {}", world - 1)
            };
            return Err(SpecError::new("rank", "is not below world_size")
                .value(rank)
                .allowed(allowed));
        }
        Ok(Rank { rank, world })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(
        rank: Option<u64>,
        world: Option<u64>,
        r: Option<&str>,
        w: Option<&str>,
    ) -> Option<(u64, u64)> {
        let text = |t: Option<&str>| t.map(str::to_owned);
        Rank::from_parts(rank, world, text(r), text(w)).ok().map(|rank| (rank.rank, rank.world))
    }

    #[test]
    fn processes_of_one_machine_share_its_cores() {
        for (processes, expected) in [
            (None, 32),
            (Some("1"), 32),
            (Some(" 8\n"), 4),
            (Some("5"), 6),
            (Some("64"), 1),
            (Some(""), 32),
            (Some("0"), 32),
            (Some("-4"), 32),
            (Some("eight"), 32),
            (Some("99999999999999999999"), 32),
            (Some("1000000"), 32),
        ] {
            assert_eq!(share_of(32, processes), expected, "{processes:?}");
        }
    }

    #[test]
    fn given_beats_the_environment_and_halves_are_refused() {
        assert_eq!(from(None, None, None, None), Some((0, 1)));
        assert_eq!(from(None, None, Some("3"), Some("8")), Some((3, 8)));
        assert_eq!(from(Some(1), Some(2), Some("3"), Some("8")), Some((1, 2)));
        for (rank, world, r, w) in [
            (Some(1), None, None, None),
            (None, Some(2), None, None),
            (Some(2), Some(2), None, None),
            (None, None, Some("1"), None),
            (None, None, None, Some("2")),
            (None, None, Some("x"), Some("2")),
            (None, None, Some("2"), Some("2")),
            (None, None, Some("0"), Some("0")),
        ] {
            assert_eq!(from(rank, world, r, w), None, "{rank:?} {world:?} {r:?} {w:?}");
        }
    }
}
