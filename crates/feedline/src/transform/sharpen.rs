//! Sharpness: away from a blurred copy, or towards it.

use super::lanes::lanes;
use super::straight;
use crate::error::Fault;
use crate::image::Image;

lanes! {
    /// The inner elements of a line; `above` and `below` are its neighbours.
    fn sharpen_line(above: &[u8], line: &[u8], below: &[u8], step: usize, rest: f32, out: &mut [u8]) {
        let length = line.len();
        let inner = length - 2 * step;
        let cut = |from: usize| from..from + inner;
        let row = |line: &[u8], i: usize| {
            u16::from(line[i]) + u16::from(line[i + step]) + u16::from(line[i + 2 * step])
        };
        let (above, line, below) = (&above[..length], &line[..length], &below[..length]);
        let out = &mut out[cut(step)];
        for i in 0..inner {
            let middle = u16::from(line[i + step]);
            let sum = row(above, i) + row(line, i) + row(below, i) + 4 * middle;
            // The nearest of thirteenths: none lies half way between two levels.
            let blurred = (2 * sum + 13) / 26;
            let (level, blurred) = (f32::from(middle), f32::from(blurred));
            let level = (blurred - level).mul_add(rest, level).clamp(0.0, 255.0).floor();
            out[i] = (level + 8_388_608.0).to_bits() as u8;
        }
    }
}

/// Sharper for factors above 1, softer below. The outermost pixels stay as they are.
pub(super) fn sharpen(image: &mut Image<'_>, factor: f64) -> Result<(), Fault> {
    let view = image.view();
    if view.height <= 2 || view.width <= 2 {
        return Ok(());
    }
    let rest = (1.0 - factor) as f32;
    straight::redraw(image, 0, view.channels, straight::bytes, |from, lines, out, new| {
        for plane in 0..lines.planes() {
            for y in 0..lines.height() {
                let line = &from[lines.range(plane, y)];
                let to = &mut out[new.range(plane, y)];
                to.copy_from_slice(line);
                if y > 0 && y + 1 < lines.height() {
                    let above = &from[lines.range(plane, y - 1)];
                    let below = &from[lines.range(plane, y + 1)];
                    sharpen_line(above, line, below, lines.step(), rest, to);
                }
            }
        }
    })
}
