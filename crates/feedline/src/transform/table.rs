//! Ops on bytes that are a table: what each of the 256 values becomes.

use super::straight::{self, Lines};
use crate::error::Fault;
use crate::image::{Image, Pixels};

/// What each value becomes, for each channel.
pub(super) struct Tables(pub(super) [[u8; 256]; 4]);

impl Tables {
    /// The same for all channels.
    pub(super) fn same(of: impl Fn(u8) -> u8) -> Self {
        let mut table = [0; 256];
        table.iter_mut().zip(0..=255).for_each(|(entry, value)| *entry = of(value));
        Tables([table; 4])
    }

    /// Of its own for each channel.
    pub(super) fn each(of: impl Fn(usize, u8) -> u8) -> Self {
        let mut tables = [[0; 256]; 4];
        for (c, table) in tables.iter_mut().enumerate() {
            table.iter_mut().zip(0..=255).for_each(|(entry, value)| *entry = of(c, value));
        }
        Tables(tables)
    }

    /// Changes every element of a `uint8` image.
    pub(super) fn apply(&self, image: &mut Image<'_>) -> Result<(), Fault> {
        let lines = straight::lines(image)?;
        if let Some(own) = image.own_bytes() {
            for (plane, y) in every(lines) {
                self.change(plane, lines.step(), &mut own[lines.range(plane, y)]);
            }
            return Ok(());
        }
        straight::redraw(image, 0, lines.channels(), straight::bytes, |from, lines, out, new| {
            for (plane, y) in every(lines) {
                let to = &mut out[new.range(plane, y)];
                self.copy(plane, lines.step(), &from[lines.range(plane, y)], to);
            }
        })
    }

    fn change(&self, plane: usize, step: usize, line: &mut [u8]) {
        match step {
            3 => {
                let (pixels, _) = line.as_chunks_mut::<3>();
                for pixel in pixels {
                    for (x, table) in pixel.iter_mut().zip(&self.0) {
                        *x = table[usize::from(*x)];
                    }
                }
            }
            _ => {
                let table = &self.0[plane];
                line.iter_mut().for_each(|x| *x = table[usize::from(*x)]);
            }
        }
    }

    fn copy(&self, plane: usize, step: usize, from: &[u8], to: &mut [u8]) {
        match step {
            3 => {
                let ((from, _), (to, _)) = (from.as_chunks::<3>(), to.as_chunks_mut::<3>());
                for (from, to) in from.iter().zip(to) {
                    for c in 0..3 {
                        to[c] = self.0[c][usize::from(from[c])];
                    }
                }
            }
            _ => {
                let table = &self.0[plane];
                to.iter_mut().zip(from).for_each(|(to, x)| *to = table[usize::from(*x)]);
            }
        }
    }
}

fn every(lines: Lines) -> impl Iterator<Item = (usize, usize)> {
    (0..lines.planes()).flat_map(move |plane| (0..lines.height()).map(move |y| (plane, y)))
}

/// How often each value occurs in each channel.
fn histogram(image: &mut Image<'_>) -> Result<[[u32; 256]; 4], Fault> {
    let lines = straight::lines(image)?;
    let Pixels::U8(from) = image.pixels() else {
        return Err(Fault::Shape("has other elements than uint8".to_owned()));
    };
    let mut counts = [[0; 256]; 4];
    for (plane, y) in every(lines) {
        let line = &from[lines.range(plane, y)];
        for pixel in line.chunks_exact(lines.step()) {
            for (c, x) in pixel.iter().enumerate() {
                counts[(plane + c) & 3][usize::from(*x)] += 1;
            }
        }
    }
    Ok(counts)
}

/// Keeps the upper `bits` bits of every value.
pub(super) fn posterize(image: &mut Image<'_>, bits: u32) -> Result<(), Fault> {
    let mask = 0xff_u32.wrapping_shl(8 - bits.min(8)) as u8;
    if bits >= 8 { Ok(()) } else { Tables::same(|x| x & mask).apply(image) }
}

/// Inverts every value from `threshold` on.
pub(super) fn solarize(image: &mut Image<'_>, threshold: f32) -> Result<(), Fault> {
    Tables::same(|x| if f32::from(x) >= threshold { !x } else { x }).apply(image)
}

/// Stretches each channel over the full range.
pub(super) fn autocontrast(image: &mut Image<'_>) -> Result<(), Fault> {
    let ranges = histogram(image)?.map(|counts| {
        let least = counts.iter().position(|n| *n > 0).unwrap_or(0);
        let most = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
        if least == most {
            (0.0, 1.0)
        } else {
            (least as f32, (most - least) as f32 * (1.0f32 / 255.0))
        }
    });
    Tables::each(|c, x| ((f32::from(x) - ranges[c].0) / ranges[c].1).clamp(0.0, 255.0) as u8)
        .apply(image)
}

/// Spreads each channel's values evenly, in Pillow's arithmetic.
pub(super) fn equalize(image: &mut Image<'_>) -> Result<(), Fault> {
    let mut tables = Tables::same(|x| x);
    for (table, counts) in tables.0.iter_mut().zip(histogram(image)?) {
        let total: u32 = counts.iter().sum();
        let last = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
        let step = (total - counts[last]) / 255;
        if step == 0 {
            continue;
        }
        let mut sum = step / 2;
        for (entry, count) in table.iter_mut().zip(counts) {
            *entry = (sum / step).min(255) as u8;
            sum += count;
        }
    }
    tables.apply(image)
}
