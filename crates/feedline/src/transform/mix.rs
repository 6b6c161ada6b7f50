//! `MixUp` and `CutMix`: each row of a batch mixed with the one before it, its label too.
//!
//! They stand at the end of the transforms, by themselves or in a `RandomChoice`. What is drawn
//! belongs to the whole batch of all ranks, and so does "the one before": the first row's is the
//! last of the batch.

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::Output;
use super::lanes::lanes;
use crate::error::SpecError;
use crate::image::{Layout, Region};
use crate::random::{Draws, key};
use crate::sample::DType;
use crate::spec::{OpSpec, Table};

/// Which draws these are: those of samples are 0, those of the order 1 and up.
const PURPOSE: u64 = 0x4d69_7855;

/// Ops that work on batches.
pub(super) fn is_batch_op(name: &str) -> bool {
    matches!(name, "MixUp" | "CutMix" | "RandomChoice")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MixKind {
    MixUp,
    CutMix,
}

#[derive(Debug, Clone, PartialEq)]
struct Choice {
    kind: MixKind,
    alpha: f64,
    /// Its share of the batches.
    p: f64,
}

/// How the rows of a batch are mixed.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Its place in the transforms, for errors.
    at: usize,
    choices: Vec<Choice>,
    num_classes: Option<usize>,
}

/// What was drawn for a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixed {
    /// The share that a row keeps of itself.
    pub own: f64,
    /// The rectangle that is the other row's; `None` blends everything.
    pub part: Option<Region>,
}

impl Mix {
    /// The ops that work on images, and what is done to batches at the end, if anything.
    pub fn split(ops: &[OpSpec]) -> Result<(&[OpSpec], Option<Mix>), SpecError> {
        let Some(at) = ops.iter().position(|op| is_batch_op(&op.op)) else {
            return Ok((ops, None));
        };
        let path = format!("transforms[{at}]");
        if let Some(later) = ops.get(at + 1) {
            return Err(SpecError::new(
                format!("transforms[{}]", at + 1),
                format!("comes after {}, which works on whole batches", ops[at].op),
            )
            .value(format!("{:?}", later.op))
            .allowed("MixUp, CutMix or a RandomChoice of them as the last op, once"));
        }
        let mut mix = Mix { at, choices: Vec::new(), num_classes: None };
        let mut table = Table::new(path, Value::Object(ops[at].params.clone()))?;
        if ops[at].op == "RandomChoice" {
            mix.read_choices(&mut table)?;
        } else {
            mix.read_one(&ops[at].op, &mut table, 1.0)?;
        }
        table.finish()?;
        Ok((&ops[..at], Some(mix)))
    }

    fn read_one(&mut self, op: &str, table: &mut Table, p: f64) -> Result<(), SpecError> {
        let kind = if op == "MixUp" { MixKind::MixUp } else { MixKind::CutMix };
        let alpha =
            table.number("alpha", f64::MIN_POSITIVE, f64::INFINITY).map_err(|mut error| {
                error.allowed = Some("a number above 0".to_owned());
                error
            })?;
        let classes = table.whole("num_classes", 1)?;
        let classes = classes.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        if let (Some(first), Some(other)) = (self.num_classes, classes)
            && first != other
        {
            return Err(table
                .error("num_classes", "differs from the other's")
                .value(other)
                .allowed(first.to_string()));
        }
        self.num_classes = self.num_classes.or(classes);
        self.choices.push(Choice { kind, alpha: alpha.unwrap_or(1.0), p });
        Ok(())
    }

    fn read_choices(&mut self, table: &mut Table) -> Result<(), SpecError> {
        let allowed = "a list of MixUp and CutMix ops";
        let shares = table.numbers("p")?;
        let items = match table.take("transforms") {
            Some(Value::Array(items)) if !items.is_empty() => items,
            Some(other) => {
                return Err(table
                    .error("transforms", "is not allowed")
                    .value(other)
                    .allowed(allowed));
            }
            None => return Err(table.missing("transforms", allowed)),
        };
        let shares = shares.unwrap_or_else(|| vec![1.0; items.len()]);
        let total: f64 = shares.iter().sum();
        let fit = shares.len() == items.len() && shares.iter().all(|p| *p >= 0.0);
        if !(fit && total > 0.0 && total.is_finite()) {
            return Err(table
                .error("p", "is not allowed")
                .value(json!(shares))
                .allowed("a share for each of the transforms, none below 0, not all 0"));
        }
        for (number, (item, p)) in items.into_iter().zip(shares).enumerate() {
            let path = table.key(&format!("transforms[{number}]"));
            let item = match item {
                Value::String(op) => json!({"op": op}),
                item => item,
            };
            let mut inner = Table::new(path, item)?;
            match inner.text("op")?.as_deref() {
                Some(op @ ("MixUp" | "CutMix")) => self.read_one(op, &mut inner, p / total)?,
                Some(other) => {
                    return Err(inner
                        .error("op", "cannot be chosen here")
                        .value(format!("{other:?}"))
                        .allowed("MixUp, CutMix"));
                }
                None => return Err(inner.missing("op", "MixUp, CutMix")),
            }
            inner.finish()?;
        }
        Ok(())
    }

    /// An error about the op, or one of its parameters.
    #[must_use]
    pub fn error(&self, name: &str, problem: impl Into<String>) -> SpecError {
        SpecError::new(name, problem).within(&format!("transforms[{}]", self.at))
    }

    /// How many classes it was given.
    #[must_use]
    pub fn num_classes(&self) -> Option<usize> {
        self.num_classes
    }

    /// Refuses images that cannot be mixed.
    pub fn check(&self, output: &Output) -> Result<(), SpecError> {
        let blends = self.choices.iter().any(|choice| choice.kind == MixKind::MixUp);
        if blends && !matches!(output.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(self
                .error("", format!("cannot blend {} images", output.dtype))
                .allowed("float images: put ToDtype(\"float32\", scale=True) before MixUp"));
        }
        Ok(())
    }

    /// With all parameters in one spelling.
    #[must_use]
    pub fn canonical(&self) -> OpSpec {
        let Mix { at: _, choices, num_classes } = self;
        let one = |Choice { kind, alpha, p }: &Choice| {
            let name = match kind {
                MixKind::MixUp => "MixUp",
                MixKind::CutMix => "CutMix",
            };
            json!({"op": name, "alpha": alpha, "num_classes": num_classes, "p": p})
        };
        let params = Map::from_iter([(
            "transforms".to_owned(),
            Value::Array(choices.iter().map(one).collect()),
        )]);
        OpSpec { op: "RandomChoice".to_owned(), params }
    }

    /// What happens to batch `number` of an epoch, on every rank.
    #[must_use]
    pub fn draw(&self, seed: u64, epoch: u64, number: u64, output: &Output) -> Mixed {
        let mut draws = Draws::with_key(key(seed, epoch, PURPOSE), number, 0);
        let mut left = draws.uniform(0.0, 1.0);
        let mut chosen = &self.choices[0];
        for choice in &self.choices {
            if choice.p > 0.0 {
                chosen = choice;
                if left < choice.p {
                    break;
                }
            }
            left -= choice.p;
        }
        let own = beta(&mut draws, chosen.alpha);
        if chosen.kind == MixKind::MixUp {
            return Mixed { own, part: None };
        }
        let (height, width) = size(output);
        let x = draws.below(width as u64) as usize;
        let y = draws.below(height as u64) as usize;
        let half = 0.5 * (1.0 - own).sqrt();
        let (half_width, half_height) =
            ((half * width as f64) as usize, (half * height as f64) as usize);
        let (left, top) = (x.saturating_sub(half_width), y.saturating_sub(half_height));
        let (right, bottom) = ((x + half_width).min(width), (y + half_height).min(height));
        let part = Region { top, left, height: bottom - top, width: right - left };
        let area = (part.height * part.width) as f64 / (width * height) as f64;
        Mixed { own: 1.0 - area, part: Some(part) }
    }
}

fn size(output: &Output) -> (usize, usize) {
    match (output.layout, output.shape.as_slice()) {
        (Layout::Hwc, &[height, width, _]) => (height, width),
        (_, &[_, height, width]) => (height, width),
        _ => (1, 1),
    }
}

/// A number from Beta(alpha, alpha): a share out of two gamma variates. Their logarithms are
/// compared, since for a small alpha both may be too small for a float.
fn beta(draws: &mut Draws, alpha: f64) -> f64 {
    let (a, b) = (log_gamma_variate(draws, alpha), log_gamma_variate(draws, alpha));
    1.0 / (1.0 + (b - a).exp())
}

/// The logarithm of a number from Gamma(alpha), by Marsaglia and Tsang's method.
fn log_gamma_variate(draws: &mut Draws, alpha: f64) -> f64 {
    // Below 1, a variate for alpha + 1 times a power of a uniform number.
    let boost = if alpha < 1.0 { (1.0 - draws.uniform(0.0, 1.0)).ln() / alpha } else { 0.0 };
    let d = if alpha < 1.0 { alpha + 1.0 } else { alpha } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(draws);
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - draws.uniform(0.0, 1.0);
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d.ln() + v.ln() + boost;
        }
    }
}

fn normal(draws: &mut Draws) -> f64 {
    let length = (-2.0 * (1.0 - draws.uniform(0.0, 1.0)).ln()).sqrt();
    length * draws.uniform(0.0, std::f64::consts::TAU).cos()
}

lanes! {
    fn blend_floats(row: &mut [f32], other: &[f32], own: f32, rest: f32) {
        for (x, other) in row.iter_mut().zip(other) {
            // In torch's order: the other's part, then the own part added to it.
            *x = *other * rest + *x * own;
        }
    }
}

impl Mixed {
    fn shares(&self) -> (f32, f32) {
        (self.own as f32, (1.0 - self.own) as f32)
    }

    /// Mixes the labels of two rows, each a probability for each class.
    pub fn labels(&self, row: &mut [u8], other: &[u8]) {
        let (own, rest) = self.shares();
        let cast = (bytemuck::try_cast_slice_mut(row), bytemuck::try_cast_slice(other));
        if let (Ok(row), Ok(other)) = cast {
            blend_floats(row, other, own, rest);
        }
    }

    /// Mixes the images of two rows.
    pub fn images(&self, output: &Output, row: &mut [u8], other: &[u8]) {
        let Some(part) = self.part else { return self.blend(output.dtype, row, other) };
        let (height, width) = size(output);
        let bytes = output.dtype.size();
        // Lines of one channel each, or of whole pixels.
        let (planes, step) = match output.layout {
            Layout::Chw => (output.shape[0], bytes),
            Layout::Hwc => (1, output.shape[2] * bytes),
            Layout::ChannelsLast => (1, output.shape[0] * bytes),
        };
        for plane in 0..planes {
            for y in part.top..part.top + part.height {
                let start = ((plane * height + y) * width + part.left) * step;
                let run = start..start + part.width * step;
                row[run.clone()].copy_from_slice(&other[run]);
            }
        }
    }

    fn blend(&self, dtype: DType, row: &mut [u8], other: &[u8]) {
        let (own, rest) = self.shares();
        match dtype {
            DType::F32 => self.labels(row, other),
            // Rounded after each step, as torch's halves are.
            DType::F16 => halves(row, other, |x, other| {
                let (x, other) = (f16::from_bits(x).to_f32(), f16::from_bits(other).to_f32());
                let parts = [x * own, other * rest].map(|x| f16::from_f32(x).to_f32());
                f16::from_f32(parts[1] + parts[0]).to_bits()
            }),
            DType::BF16 => halves(row, other, |x, other| {
                let (x, other) = (bf16::from_bits(x).to_f32(), bf16::from_bits(other).to_f32());
                let parts = [x * own, other * rest].map(|x| bf16::from_f32(x).to_f32());
                bf16::from_f32(parts[1] + parts[0]).to_bits()
            }),
            _ => {}
        }
    }
}

fn halves(row: &mut [u8], other: &[u8], mix: impl Fn(u16, u16) -> u16) {
    for (x, other) in row.chunks_exact_mut(2).zip(other.chunks_exact(2)) {
        let mixed = mix(u16::from_ne_bytes([x[0], x[1]]), u16::from_ne_bytes([other[0], other[1]]));
        x.copy_from_slice(&mixed.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Output {
        Output { shape: vec![3, 20, 30], dtype: DType::F32, layout: Layout::Chw }
    }

    fn of(json: Value) -> Result<Option<Mix>, SpecError> {
        let Value::Object(mut params) = json else { panic!("an op") };
        let Some(Value::String(op)) = params.shift_remove("op") else { panic!("a name") };
        Mix::split(&[OpSpec { op, params }]).map(|(_, mix)| mix)
    }

    #[test]
    fn shares_follow_the_beta_distribution() {
        // The variance of Beta(a, a) is 1 / (4 (2a + 1)); its mean is a half.
        for alpha in [0.05, 0.2, 1.0, 4.0] {
            let mut draws = Draws::new(3, 0, 0, 0);
            let drawn: Vec<f64> = (0..40_000).map(|_| beta(&mut draws, alpha)).collect();
            let mean = drawn.iter().sum::<f64>() / 40_000.0;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40_000.0;
            let wanted = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.011, "{alpha}: {mean}");
            assert!((variance / wanted - 1.0).abs() < 0.05, "{alpha}: {variance} {wanted}");
            assert!(drawn.iter().all(|x| (0.0..=1.0).contains(x)));
        }
        assert!((0..100).all(|i| beta(&mut Draws::new(i, 0, 0, 0), 1e-300).is_finite()));
    }

    #[test]
    fn choices_have_their_shares() {
        let mix = of(json!({"op": "RandomChoice", "p": [3, 1], "transforms": [{"op": "CutMix", "num_classes": 5}, {"op": "MixUp"}]}))
            .unwrap()
            .unwrap();
        assert_eq!(mix.num_classes(), Some(5));
        let cut = (0..4000).filter(|n| mix.draw(1, 0, *n, &output()).part.is_some()).count();
        assert!((cut as f64 / 4000.0 - 0.75).abs() < 0.03, "{cut}");
        assert_eq!(mix.draw(1, 0, 7, &output()), mix.draw(1, 0, 7, &output()));
        assert_ne!(mix.draw(1, 0, 7, &output()), mix.draw(1, 1, 7, &output()));
    }

    #[test]
    fn mistakes_are_named() {
        for (wrong, start) in [
            (json!({"op": "MixUp", "alpha": 0}), "transforms[0].alpha = 0"),
            (json!({"op": "CutMix", "num_classes": 0}), "transforms[0].num_classes = 0"),
            (json!({"op": "CutMix", "classes": 3}), "transforms[0].classes = 3: unknown key"),
            (json!({"op": "RandomChoice"}), "transforms[0].transforms: is missing"),
            (
                json!({"op": "RandomChoice", "transforms": [{"op": "Resize"}]}),
                "transforms[0].transforms[0].op",
            ),
            (
                json!({"op": "RandomChoice", "transforms": ["MixUp"], "p": [1, 2]}),
                "transforms[0].p",
            ),
            (
                json!({"op": "RandomChoice", "transforms": [{"op": "MixUp", "num_classes": 2}, {"op": "CutMix", "num_classes": 3}]}),
                "transforms[0].transforms[1].num_classes = 3",
            ),
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        let late = [OpSpec::new("MixUp"), OpSpec::new("ToDtype")];
        assert!(Mix::split(&late).unwrap_err().to_string().starts_with("transforms[1]"));
        let bytes = Output { dtype: DType::U8, ..output() };
        let mix = of(json!({"op": "MixUp"})).unwrap().unwrap();
        assert!(mix.check(&bytes).unwrap_err().to_string().contains("ToDtype"));
        assert!(of(json!({"op": "CutMix"})).unwrap().unwrap().check(&bytes).is_ok());
    }

    #[test]
    fn a_rectangle_is_the_same_in_every_layout() {
        let part = Region { top: 2, left: 3, height: 5, width: 7 };
        let mixed = Mixed { own: 0.9, part: Some(part) };
        for layout in [Layout::Chw, Layout::Hwc, Layout::ChannelsLast] {
            let shape = if layout == Layout::Hwc { vec![20, 30, 3] } else { vec![3, 20, 30] };
            let output = Output { shape, dtype: DType::U8, layout };
            let mut row = vec![0u8; 1800];
            mixed.images(&output, &mut row, &vec![1; 1800]);
            let (row_step, column_step, channel_step) =
                if layout == Layout::Chw { (30, 1, 600) } else { (90, 3, 1) };
            for y in 0..20 {
                for x in 0..30 {
                    let inside = (2..7).contains(&y) && (3..10).contains(&x);
                    for c in 0..3 {
                        let at = y * row_step + x * column_step + c * channel_step;
                        assert_eq!(row[at] == 1, inside, "{layout:?} {y} {x} {c}");
                    }
                }
            }
        }
    }
}
