//! What distinguishes one class from another: the shape, colour, pattern and grain of its subject.

/// The outline of an object, in coordinates in which it spans about -1 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Disc,
    Leaf,
    Star,
    Tile,
    Ring,
    Triangle,
    Flower,
    Crescent,
    Cross,
    Hexagon,
}

const SHAPES: [(Shape, &str); 10] = [
    (Shape::Disc, "disc"),
    (Shape::Leaf, "leaf"),
    (Shape::Star, "star"),
    (Shape::Tile, "tile"),
    (Shape::Ring, "ring"),
    (Shape::Triangle, "triangle"),
    (Shape::Flower, "flower"),
    (Shape::Crescent, "crescent"),
    (Shape::Cross, "cross"),
    (Shape::Hexagon, "hexagon"),
];

impl Shape {
    /// The shape of number `n`, counted around.
    pub(super) fn number(n: u64) -> Self {
        SHAPES[(n % SHAPES.len() as u64) as usize].0
    }

    /// Below 1 inside, 1 on the outline, above 1 outside.
    #[inline(always)]
    pub(super) fn level(self, u: f32, v: f32) -> f32 {
        let square = u * u + v * v;
        match self {
            Shape::Disc => square.sqrt(),
            Shape::Tile => (u * u * u * u + v * v * v * v).sqrt().sqrt(),
            Shape::Triangle => 2.0 * v.max((0.866 * u).abs() - 0.5 * v),
            Shape::Hexagon => v.abs().max(0.866 * u.abs() + 0.5 * v.abs()) * 1.155,
            Shape::Ring => (square.sqrt() - 0.72).abs() * (1.0 / 0.28),
            Shape::Leaf => (((v.abs() + 0.75) * (v.abs() + 0.75) + u * u).sqrt() - 0.75) * 2.0,
            Shape::Cross => {
                let (u, v) = (u.abs(), v.abs());
                u.max(v * 3.0).min(v.max(u * 3.0))
            }
            Shape::Crescent => {
                let bite = ((u - 0.5) * (u - 0.5) + v * v).sqrt();
                square.sqrt().max(1.0 + (0.8 - bite) * 1.5)
            }
            // The cosines of five and three times the angle are the real parts of z^5 and z^3.
            Shape::Star => {
                let radius = square.sqrt() + 1e-6;
                let real = u * (u * u * u * u - 10.0 * u * u * v * v + 5.0 * v * v * v * v);
                radius / (0.66 + 0.34 * real / (radius * square * square + 1e-12))
            }
            Shape::Flower => {
                let radius = square.sqrt() + 1e-6;
                let cosine = u * (u * u - 3.0 * v * v) / (radius * square + 1e-12);
                radius / (0.62 + 0.38 * cosine * cosine)
            }
        }
    }
}

/// What is painted on a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Plain,
    Stripes,
    Spots,
    Rings,
}

/// Red, green, blue from 0 to 1, as encoded (not linear) values.
pub(super) type Colour = [f32; 3];

const COLOURS: [(Colour, &str); 10] = [
    ([0.90, 0.60, 0.15], "amber"),
    ([0.10, 0.52, 0.52], "teal"),
    ([0.74, 0.12, 0.18], "crimson"),
    ([0.47, 0.28, 0.66], "violet"),
    ([0.55, 0.72, 0.16], "lime"),
    ([0.20, 0.45, 0.80], "azure"),
    ([0.94, 0.48, 0.40], "coral"),
    ([0.92, 0.88, 0.76], "ivory"),
    ([0.28, 0.33, 0.40], "slate"),
    ([0.42, 0.28, 0.16], "umber"),
];

/// How the subjects of a class look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) shape: Shape,
    pub(super) colour: Colour,
    pub(super) accent: Colour,
    pub(super) pattern: Pattern,
    /// Direction of the grain, in turns.
    pub(super) grain: f32,
}

/// Place of a class's colour: differs for classes with the same shape, up to 100 classes.
fn colour_number(class: u64) -> usize {
    ((class * 3 + class / 10) % COLOURS.len() as u64) as usize
}

impl Style {
    pub(super) fn of(class: u64) -> Self {
        let number = colour_number(class);
        Style {
            shape: Shape::number(class),
            colour: COLOURS[number].0,
            accent: COLOURS[(number + 3 + (class % 5) as usize) % COLOURS.len()].0,
            pattern: match (class / 2) % 4 {
                0 => Pattern::Plain,
                1 => Pattern::Stripes,
                2 => Pattern::Spots,
                _ => Pattern::Rings,
            },
            // The golden ratio spreads any number of classes evenly over the half turn.
            grain: (class * 618 % 1000) as f32 / 2000.0,
        }
    }
}

/// The folder of a class: its number first, so that folders sort by class.
pub(super) fn folder_name(class: u64, classes: u64) -> String {
    let digits = (classes.max(1) - 1).to_string().len().max(2);
    let (shape, colour) = (SHAPES[(class % 10) as usize].1, COLOURS[colour_number(class)].1);
    format!("{class:0digits$}_{colour}_{shape}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_an_inside_within_its_bounds() {
        for (shape, name) in SHAPES {
            let inside = (-24..=24)
                .flat_map(|x| (-24..=24).map(move |y| (x as f32 / 20.0, y as f32 / 20.0)))
                .filter(|&(u, v)| shape.level(u, v) < 1.0);
            let points: Vec<_> = inside.collect();
            assert!(points.len() > 150, "{name} has {} points", points.len());
            assert!(points.iter().all(|(u, v)| u.abs() < 1.1 && v.abs() < 1.1), "{name}");
        }
    }

    #[test]
    fn a_hundred_classes_look_and_sort_differently() {
        let names: Vec<_> = (0..100).map(|class| folder_name(class, 100)).collect();
        assert!(names.is_sorted());
        let looks: std::collections::BTreeSet<_> =
            names.iter().map(|name| name[2..].to_owned()).collect();
        assert_eq!(looks.len(), 100);
    }
}
