//! Colour arithmetic: blocks of pixels as floats, several steps in one pass.
//!
//! The formulas are those of torchvision on tensors, in single precision and in the same order;
//! between steps `uint8` images are cut to whole levels, as torchvision's tensors are. With the
//! same factors, brightness, contrast, saturation and gray are equal to the last bit for `uint8`
//! (measured on all values); hue too, save where the last bit of a division decides a level.

use bytemuck::Pod;

use super::lanes::lanes;
use super::straight::{self, Lines};
use super::table::Tables;
use crate::error::Fault;
use crate::image::{Image, Pixels};

/// Pixels of a block: three channels of it stay in the nearest cache.
const BLOCK: usize = 64;

type Block = [[f32; BLOCK]; 3];

/// Weights of red, green and blue in gray.
const GRAY: [f32; 3] = [0.2989, 0.587, 0.114];

/// One step on a pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// Times the factor.
    Brightness(f64),
    /// Away from the mean gray of the image by the factor.
    Contrast(f64),
    /// Away from the pixel's own gray by the factor.
    Saturation(f64),
    /// Around the circle of hues by this part of it.
    Hue(f64),
    /// All channels gray.
    Gray,
}

/// An element as the formulas see it.
trait Level: Pod {
    /// True when levels are whole numbers.
    const WHOLE: bool;
    /// The highest level.
    const TOP: f32;
    fn wide(self) -> f32;
    /// Back again, from a level that is whole if levels are.
    fn narrow(level: f32) -> Self;
}

impl Level for u8 {
    const WHOLE: bool = true;
    const TOP: f32 = 255.0;
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn narrow(level: f32) -> Self {
        // Whole numbers up to 255 show in the lowest bits: cheaper than a checked conversion.
        (level + 8_388_608.0).to_bits() as u8
    }
}

impl Level for f32 {
    const WHOLE: bool = false;
    const TOP: f32 = 1.0;
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(level: f32) -> Self {
        level
    }
}

/// What a level becomes that a formula has made.
#[inline(always)]
fn settle<T: Level>(level: f32) -> f32 {
    let level = level.clamp(0.0, T::TOP);
    if T::WHOLE { level.floor() } else { level }
}

#[inline(always)]
fn gray_of<T: Level>(red: f32, green: f32, blue: f32) -> f32 {
    let gray = blue.mul_add(GRAY[2], green.mul_add(GRAY[1], red * GRAY[0]));
    if T::WHOLE { gray.floor() } else { gray }
}

/// `level` and `other` mixed: `ratio` parts of the one, the rest of the other.
#[inline(always)]
fn blend<T: Level>(level: f32, other: f32, ratio: f32, rest: f32) -> f32 {
    settle::<T>(other.mul_add(rest, level * ratio))
}

/// A pixel with its hue turned by `by`.
#[inline(always)]
fn turn_hue<T: Level>([red, green, blue]: [f32; 3], by: f32) -> [f32; 3] {
    let scale = if T::WHOLE { 1.0f32 / 255.0 } else { 1.0 };
    let (red, green, blue) = (red * scale, green * scale, blue * scale);
    // Comparisons rather than `max`, whose care for what is no number keeps lanes apart.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let smaller = |a: f32, b: f32| if a < b { a } else { b };
    let most = larger(larger(red, green), blue);
    let least = smaller(smaller(red, green), blue);
    let range = most - least;
    let even = most == least;
    let saturation = range / if even { 1.0 } else { most };
    let divisor = if even { 1.0 } else { range };
    // The two distances that the sixth of the circle follows from, and where that sixth begins.
    let is_red = most == red;
    let is_green = most == green;
    let choose = |red: f32, green: f32, blue: f32| {
        let other = if is_green { green } else { blue };
        if is_red { red } else { other }
    };
    let (plus, base, minus) =
        (choose(blue, red, green), choose(0.0, 2.0, 4.0), choose(green, blue, red));
    let hue = ((most - plus) / divisor + base) - (most - minus) / divisor;
    let hue = hue * (1.0f32 / 6.0) + 1.0;
    let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
    let hue = hue + by;
    let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
    let hue = if hue < 0.0 { hue + 1.0 } else { hue };
    let sixths = hue * 6.0;
    let sector = sixths.floor();
    let part = sixths - sector;
    let sector = if sector >= 6.0 { 0.0 } else { sector };
    let (slope, pale) = (saturation * part, 1.0 - saturation);
    let unit = |x: f32| smaller(larger(x, 0.0), 1.0);
    let (falling, rising, low) =
        (unit((1.0 - slope) * most), unit((slope + pale) * most), unit(pale * most));
    // A table of six would be looked up one pixel at a time; choices are made for many at once.
    let before = [1.0, 2.0, 3.0, 4.0, 5.0].map(|next| sector < next);
    let pick = |a: f32, b: f32, c: f32, d: f32, e: f32, f: f32| {
        let low = if before[0] { a } else { b };
        let low = if before[1] { low } else { c };
        let high = if before[3] { d } else { e };
        let high = if before[4] { high } else { f };
        if before[2] { low } else { high }
    };
    let back = |x: f32| if T::WHOLE { (x * 255.999f32).floor() } else { x };
    [
        back(pick(most, falling, low, low, rising, most)),
        back(pick(rising, most, most, falling, low, low)),
        back(pick(low, low, rising, most, most, falling)),
    ]
}

/// Does a step to a block; `mean` is the gray that contrast keeps away from.
#[inline(always)]
fn step_block<T: Level>(block: &mut Block, step: Step, mean: f32) {
    let [red, green, blue] = block;
    match step {
        Step::Brightness(factor) => {
            let factor = factor as f32;
            for channel in [red, green, blue] {
                channel.iter_mut().for_each(|x| *x = settle::<T>(*x * factor));
            }
        }
        Step::Contrast(factor) => {
            let (ratio, rest) = (factor as f32, (1.0 - factor) as f32);
            for channel in [red, green, blue] {
                channel.iter_mut().for_each(|x| *x = blend::<T>(*x, mean, ratio, rest));
            }
        }
        Step::Saturation(factor) => {
            let (ratio, rest) = (factor as f32, (1.0 - factor) as f32);
            for i in 0..BLOCK {
                let gray = gray_of::<T>(red[i], green[i], blue[i]);
                red[i] = blend::<T>(red[i], gray, ratio, rest);
                green[i] = blend::<T>(green[i], gray, ratio, rest);
                blue[i] = blend::<T>(blue[i], gray, ratio, rest);
            }
        }
        Step::Hue(by) => {
            let by = by as f32;
            for i in 0..BLOCK {
                [red[i], green[i], blue[i]] = turn_hue::<T>([red[i], green[i], blue[i]], by);
            }
        }
        Step::Gray => {
            for i in 0..BLOCK {
                let gray = gray_of::<T>(red[i], green[i], blue[i]);
                (red[i], green[i], blue[i]) = (gray, gray, gray);
            }
        }
    }
}

/// The channels of up to a block of pixels, from lines of whole pixels or of one channel each.
#[inline(always)]
fn load<T: Level>(lines: [&[T]; 3], planar: bool, block: &mut Block) {
    if planar {
        for (channel, line) in block.iter_mut().zip(lines) {
            channel.iter_mut().zip(line).for_each(|(to, x)| *to = x.wide());
        }
        return;
    }
    let [red, green, blue] = block;
    let (pixels, _) = lines[0].as_chunks::<3>();
    for (((red, green), blue), pixel) in red.iter_mut().zip(green).zip(blue).zip(pixels) {
        (*red, *green, *blue) = (pixel[0].wide(), pixel[1].wide(), pixel[2].wide());
    }
}

#[inline(always)]
fn store_whole<T: Level>(block: &Block, line: &mut [T]) {
    // Narrow first: three short runs are turned into pixels faster than floats are.
    let mut narrow = [[T::zeroed(); BLOCK]; 3];
    for (to, channel) in narrow.iter_mut().zip(block) {
        to.iter_mut().zip(channel).for_each(|(to, x)| *to = T::narrow(*x));
    }
    let [red, green, blue] = &narrow;
    let (pixels, _) = line.as_chunks_mut::<3>();
    for (((pixel, red), green), blue) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
        *pixel = [*red, *green, *blue];
    }
}

lanes! {
    /// A line of whole pixels.
    fn whole_line[T: Level](from: &[T], to: &mut [T], steps: &[Step], mean: f32) {
        let mut block = [[0.0; BLOCK]; 3];
        for (from, to) in from.chunks(3 * BLOCK).zip(to.chunks_mut(3 * BLOCK)) {
            load([from, from, from], false, &mut block);
            for step in steps {
                step_block::<T>(&mut block, *step, mean);
            }
            store_whole(&block, to);
        }
    }

    /// A line of each of three channels.
    fn split_line[T: Level](
        from: [&[T]; 3],
        red: &mut [T],
        green: &mut [T],
        blue: &mut [T],
        steps: &[Step],
        mean: f32,
    ) {
        let mut block = [[0.0; BLOCK]; 3];
        for start in (0..red.len()).step_by(BLOCK) {
            let end = red.len().min(start + BLOCK);
            load(from.map(|line| &line[start..end]), true, &mut block);
            for step in steps {
                step_block::<T>(&mut block, *step, mean);
            }
            for (to, channel) in
                [&mut red[start..end], &mut green[start..end], &mut blue[start..end]].into_iter().zip(&block)
            {
                to.iter_mut().zip(channel).for_each(|(to, x)| *to = T::narrow(*x));
            }
        }
    }

    /// A line of an image with one channel. Only brightness and contrast mean something there.
    fn single_line[T: Level](from: &[T], to: &mut [T], steps: &[Step], mean: f32) {
        let mut block = [[0.0; BLOCK]; 3];
        for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
            block[0].iter_mut().zip(from).for_each(|(to, x)| *to = x.wide());
            for step in steps {
                if matches!(step, Step::Brightness(_) | Step::Contrast(_)) {
                    step_block::<T>(&mut block, *step, mean);
                }
            }
            to.iter_mut().zip(&block[0]).for_each(|(to, x)| *to = T::narrow(*x));
        }
    }

    /// The grays of a line.
    fn gray_line[T: Level](lines: [&[T]; 3], planar: bool, to: &mut [T]) {
        let step = if planar { 1 } else { 3 };
        let mut block = [[0.0; BLOCK]; 3];
        for (number, to) in to.chunks_mut(BLOCK).enumerate() {
            let run = number * BLOCK * step..(number * BLOCK + to.len()) * step;
            load(lines.map(|line| &line[run.clone()]), planar, &mut block);
            step_block::<T>(&mut block, Step::Gray, 0.0);
            to.iter_mut().zip(&block[0]).for_each(|(to, x)| *to = T::narrow(*x));
        }
    }

    /// The sum of a line's grays.
    fn gray_sum[T: Level](lines: [&[T]; 3], planar: bool, single: bool) -> f64 {
        let width = if planar { lines[0].len() } else { lines[0].len() / 3 };
        let mut block = [[0.0; BLOCK]; 3];
        let mut total = 0.0;
        for start in (0..width).step_by(BLOCK) {
            let end = width.min(start + BLOCK);
            let step = if planar { 1 } else { 3 };
            load(lines.map(|line| &line[start * step..end * step]), planar, &mut block);
            let [red, green, blue] = &mut block;
            // What a shorter last block leaves behind must not count.
            for channel in [&mut *red, &mut *green, &mut *blue] {
                channel[end - start..].fill(0.0);
            }
            let mut sums = [0.0f32; 8];
            for i in 0..BLOCK {
                let gray = if single { red[i] } else { gray_of::<T>(red[i], green[i], blue[i]) };
                sums[i % 8] += gray;
            }
            total += sums.iter().map(|sum| f64::from(*sum)).sum::<f64>();
        }
        total
    }

    /// What contrast makes of each of the 256 levels.
    fn contrast_levels(factor: f64, mean: f32) -> [u8; 256] {
        let (ratio, rest) = (factor as f32, (1.0 - factor) as f32);
        let mut levels = [0; 256];
        for (value, level) in levels.iter_mut().enumerate() {
            *level = u8::narrow(blend::<u8>(value as f32, mean, ratio, rest));
        }
        levels
    }
}

fn channel_lines<T>(from: &[T], lines: Lines, y: usize) -> [&[T]; 3] {
    let plane = |c: usize| if lines.planar { c.min(lines.planes() - 1) } else { 0 };
    [0, 1, 2].map(|c| &from[lines.range(plane(c), y)])
}

fn mean_of<T: Level>(from: &[T], lines: Lines) -> f32 {
    let single = lines.channels() == 1;
    let sum: f64 = (0..lines.height())
        .map(|y| gray_sum(channel_lines(from, lines, y), lines.planar, single))
        .sum();
    (sum / (lines.height() * lines.width()).max(1) as f64) as f32
}

/// The mean gray of the image.
fn mean(image: &mut Image<'_>) -> Result<f32, Fault> {
    let lines = straight::lines(image)?;
    Ok(match image.pixels() {
        Pixels::U8(from) => mean_of(from, lines),
        Pixels::F32(from) => mean_of(from, lines),
    })
}

fn pass<T: Level>(from: &[T], lines: Lines, out: &mut [T], new: Lines, steps: &[Step], mean: f32) {
    for y in 0..lines.height() {
        if lines.channels() == 1 {
            single_line(&from[lines.range(0, y)], &mut out[new.range(0, y)], steps, mean);
        } else if lines.planar {
            let (red, rest) = out.split_at_mut(new.range(1, 0).start);
            let (green, blue) = rest.split_at_mut(new.range(2, 0).start - new.range(1, 0).start);
            let first = new.range(0, y);
            let later = y * new.length()..(y + 1) * new.length();
            split_line(
                channel_lines(from, lines, y),
                &mut red[first],
                &mut green[later.clone()],
                &mut blue[later],
                steps,
                mean,
            );
        } else {
            whole_line(&from[lines.range(0, y)], &mut out[new.range(0, y)], steps, mean);
        }
    }
}

fn one_pass(image: &mut Image<'_>, steps: &[Step], mean: f32) -> Result<(), Fault> {
    let channels = image.view().channels;
    if matches!(image.pixels(), Pixels::U8(_)) {
        straight::redraw(image, 0, channels, straight::bytes, |from, lines, out, new| {
            pass(from, lines, out, new, steps, mean);
        })
    } else {
        straight::redraw(image, 0, channels, straight::floats, |from, lines, out, new| {
            pass(from, lines, out, new, steps, mean);
        })
    }
}

/// Does the steps one after the other, in as few passes as their order allows.
pub(super) fn adjust(image: &mut Image<'_>, steps: &[Step]) -> Result<(), Fault> {
    let colors = image.view().channels == 3;
    let bytes = matches!(image.pixels(), Pixels::U8(_));
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        match *step {
            Step::Brightness(factor) if bytes => {
                let factor = factor as f32;
                Tables::same(|x| u8::narrow(settle::<u8>(f32::from(x) * factor))).apply(image)?;
                at += 1;
            }
            Step::Contrast(factor) if bytes => {
                let levels = contrast_levels(factor, mean(image)?);
                Tables([levels; 4]).apply(image)?;
                at += 1;
            }
            // One channel has neither hue nor saturation, and is gray.
            Step::Saturation(_) | Step::Hue(_) | Step::Gray if !colors => at += 1,
            first => {
                let mean = if matches!(first, Step::Contrast(_)) { mean(image)? } else { 0.0 };
                // The next contrast needs the mean of what comes before it, so a pass ends there.
                let stops = |step: &Step| match step {
                    Step::Contrast(_) => true,
                    Step::Brightness(_) => bytes,
                    _ => false,
                };
                let rest = &steps[at + 1..];
                let count = 1 + rest.iter().position(stops).unwrap_or(rest.len());
                one_pass(image, &steps[at..at + count], mean)?;
                at += count;
            }
        }
    }
    Ok(())
}

fn gray_pass<T: Level>(from: &[T], lines: Lines, out: &mut [T], new: Lines) {
    for y in 0..lines.height() {
        gray_line(channel_lines(from, lines, y), lines.planar, &mut out[new.range(0, y)]);
    }
}

/// Gray in one channel, of three.
pub(super) fn to_gray(image: &mut Image<'_>) -> Result<(), Fault> {
    if matches!(image.pixels(), Pixels::U8(_)) {
        straight::redraw(image, 0, 1, straight::bytes, gray_pass)
    } else {
        straight::redraw(image, 0, 1, straight::floats, gray_pass)
    }
}
