//! Plain baseline JPEGs, decoded where they are looked at and at the size that is needed.
//!
//! libjpeg-turbo spends most of its time on Huffman codes, also for what is cropped away. This
//! decoder reads codes about twice as fast, passes over what lies outside of the part, jumps over
//! it where a file has restart markers, and can write means of 2 x 2, 4 x 4 or 8 x 8 pixels. What
//! it writes at full size is equal to libjpeg-turbo's, to the bit. It does only what is common;
//! everything else, and every file with a flaw, is left to the library.

mod color;
mod frame;
mod huffman;
mod idct;

use std::ops::Range;

use crate::image::{Excerpt, Region};
use color::{Ends, Lines, Near, Upsampling};
use frame::Frame;
use huffman::{Bits, Block, Ready, Table};

/// The tables and rows of one worker.
#[derive(Default)]
pub(super) struct Baseline {
    codes: Codes,
    planes: [Plane; 3],
    lines: Lines,
    ready: Ready,
}

/// Codes of first coefficients and of the others.
#[derive(Default)]
struct Codes {
    first: [Table; 4],
    rest: [Table; 4],
}

/// Two rows of units of one component, of which the older is overwritten next.
#[derive(Default)]
struct Plane {
    samples: Vec<u8>,
    stride: usize,
    rows: usize,
}

impl Plane {
    fn row(&self, row: usize) -> &[u8] {
        &self.samples[row % self.rows * self.stride..][..self.stride]
    }

    fn near(&self, row: usize, next: usize, columns: Range<usize>, below: bool) -> Near<'_> {
        Near { row: &self.row(row)[columns.clone()], next: &self.row(next)[columns], below }
    }
}

/// How a component is decoded.
#[derive(Clone, Copy)]
struct Scaled {
    /// Samples of a block.
    across: usize,
    down: usize,
    upsampling: Upsampling,
    /// Samples of the whole component.
    height: usize,
    width: usize,
}

impl Baseline {
    /// Writes the rows of what is wanted one after the other, in 1 or 3 channels. None if the file
    /// is not plain, has a flaw, or holds another size; one that has more or fewer than `restarts`
    /// markers has a flaw, too, wherever it is.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        restarts: usize,
        wanted: &Excerpt,
        channels: usize,
        out: &mut [u8],
    ) -> Option<()> {
        let frame = Frame::read(bytes)?;
        let fits = wanted.lies_in(frame.height, frame.width)
            && (channels == 3 || frame.components.len() == 1)
            && out.len() >= wanted.part.height * wanted.part.width * channels
            && restarts == frame.restarts();
        if !fits {
            return None;
        }
        for component in frame.components.iter().map(|i| &frame.component[*i]) {
            self.codes.first[component.dc].define(frame.codes[0][component.dc], false)?;
            self.codes.rest[component.ac].define(frame.codes[1][component.ac], true)?;
        }
        let scaled = scales(&frame, wanted.reduction)?;
        UnitWalk::new(&frame, scaled, wanted.part, channels).run(self, out)
    }
}

/// What each component's blocks become.
fn scales(frame: &Frame<'_>, reduction: usize) -> Option<[Scaled; 3]> {
    let size = 8 / reduction;
    let luma = frame.component[0];
    let whole = Scaled {
        across: size,
        down: size,
        upsampling: Upsampling { across: 1, down: 1 },
        height: frame.height.div_ceil(reduction),
        width: frame.width.div_ceil(reduction),
    };
    // Where the luma is reduced, the colours' blocks have as many pixels as they need.
    let mut colour = Scaled { across: size * luma.across, down: size * luma.down, ..whole };
    if reduction == 1 {
        colour = Scaled {
            across: 8,
            down: 8,
            upsampling: Upsampling { across: luma.across, down: luma.down },
            height: frame.height.div_ceil(luma.down),
            width: frame.width.div_ceil(luma.across),
        };
        // The library does not smooth what is that small.
        if luma.across == 2 && colour.width <= 2 {
            return None;
        }
    }
    Some([whole, colour, colour])
}

/// A place in a scan.
struct Scan<'a> {
    bits: Bits<'a>,
    /// The first coefficients of the blocks before.
    before: [i32; 3],
    /// The next unit.
    at: usize,
    /// Units between restart markers, 0 if there are none, and how many markers were passed.
    restart: usize,
    markers: usize,
}

impl<'a> Scan<'a> {
    fn new(frame: &Frame<'a>, ready: &'a mut Ready) -> Self {
        Scan {
            bits: Bits::new(frame.scan, ready),
            before: [0; 3],
            at: 0,
            restart: frame.restart,
            markers: 0,
        }
    }

    /// Passes the marker that comes before the present unit, if one does, and jumps over whole
    /// segments that end before unit `next`.
    #[inline(always)]
    fn advance(&mut self, next: usize) -> Option<()> {
        if self.restart == 0 || !self.at.is_multiple_of(self.restart) {
            return Some(());
        }
        let segments = (next - self.at) / self.restart;
        // A segment has as many markers before it as there are segments before it.
        let markers = self.at / self.restart + segments;
        if segments > 0 {
            self.bits.restart_after(self.markers, markers - self.markers)?;
        } else if markers > self.markers {
            self.bits.restart(self.markers)?;
        } else {
            return Some(());
        }
        self.before = [0; 3];
        self.markers = markers;
        self.at += segments * self.restart;
        Some(())
    }
}

/// The units to decode, and where their samples go.
struct UnitWalk<'a> {
    frame: &'a Frame<'a>,
    scaled: [Scaled; 3],
    part: Region,
    channels: usize,
    units_wide: usize,
    /// First and one past the last unit, across and down.
    columns: (usize, usize),
    rows: (usize, usize),
}

impl<'a> UnitWalk<'a> {
    fn new(frame: &'a Frame<'a>, scaled: [Scaled; 3], part: Region, channels: usize) -> Self {
        let luma = &frame.component[0];
        let (units_wide, units_high) = frame.units();
        let range = |start: usize, length: usize, unit: usize, all: usize, factor: usize| {
            // Smooth upsampling looks one colour sample, two pixels, further.
            let reach = if factor > 1 { factor } else { 0 };
            let first = start.saturating_sub(reach) / unit;
            let last = (start + length - 1 + reach) / unit;
            (first, (last + 1).min(all))
        };
        let Upsampling { across, down } = scaled[1].upsampling;
        let columns =
            range(part.left, part.width, scaled[0].across * luma.across, units_wide, across);
        let rows = range(part.top, part.height, scaled[0].down * luma.down, units_high, down);
        UnitWalk { frame, scaled, part, channels, units_wide, columns, rows }
    }

    fn run(&self, state: &mut Baseline, out: &mut [u8]) -> Option<()> {
        let units = self.columns.1 - self.columns.0;
        for &i in self.frame.components {
            let (component, scaled) = (&self.frame.component[i], &self.scaled[i]);
            let plane = &mut state.planes[i];
            plane.stride = units * component.across * scaled.across;
            plane.rows = 2 * component.down * scaled.down;
            plane.samples.resize(plane.rows * plane.stride, 0);
        }
        let Baseline { codes, planes, lines, ready } = state;
        let mut scan = Scan::new(self.frame, ready);
        let mut written = 0;
        let unit_rows = self.frame.component[0].down * self.scaled[0].down;
        for row in 0..self.rows.1 {
            let row_start = row * self.units_wide;
            let row_end = row_start + self.units_wide;
            let wanted = row >= self.rows.0;
            let is_last = row + 1 == self.rows.1;
            // The units of this row to decode; none yet above the first row that is wanted.
            let (first, last) = match wanted {
                true => (row_start + self.columns.0, row_start + self.columns.1),
                false => (self.rows.0 * self.units_wide + self.columns.0, usize::MAX),
            };
            while scan.at < row_end && !(is_last && scan.at >= last) {
                let next = match scan.at {
                    at if at < first => first,
                    at if at < last => at,
                    _ => row_end + self.columns.0,
                };
                scan.advance(next)?;
                if scan.at >= row_end {
                    break;
                }
                scan.bits.prepare();
                if (first..last).contains(&scan.at) {
                    let column = scan.at - first;
                    self.decode_unit(codes, planes, &mut scan, row, column)?;
                } else {
                    self.skip_unit(codes, &mut scan)?;
                }
                if scan.bits.is_short() {
                    return None;
                }
                scan.at += 1;
            }
            if wanted {
                // The row below the last belongs to the smooth upsampling of it.
                let done = if is_last {
                    self.part.height
                } else {
                    ((row + 1) * unit_rows - (self.scaled[1].upsampling.down - 1))
                        .saturating_sub(self.part.top)
                        .min(self.part.height)
                };
                self.write_rows(planes, lines, written..done, out);
                written = written.max(done);
            }
        }
        Some(())
    }

    #[inline(always)]
    fn decode_unit(
        &self,
        codes: &Codes,
        planes: &mut [Plane; 3],
        Scan { bits, before, .. }: &mut Scan<'_>,
        row: usize,
        column: usize,
    ) -> Option<()> {
        for &i in self.frame.components {
            let component = &self.frame.component[i];
            let Scaled { across, down, .. } = self.scaled[i];
            let (first, rest) = (&codes.first[component.dc], &codes.rest[component.ac]);
            let factors = &self.frame.quantisers[component.quantiser];
            let plane = &mut planes[i];
            for y in 0..component.down {
                for x in 0..component.across {
                    before[i] = before[i].wrapping_add(bits.difference(first)?);
                    let start = ((row * component.down + y) * down % plane.rows) * plane.stride
                        + (column * component.across + x) * across;
                    let out = &mut plane.samples[start..];
                    if across * down == 1 {
                        bits.skip_coefficients(rest)?;
                        idct::flat(before[i] as i16, factors[0], (1, 1), out, plane.stride);
                        continue;
                    }
                    let mut block: Block = [0; 65];
                    block[0] = before[i] as i16;
                    if !bits.coefficients(rest, &mut block)? {
                        idct::flat(block[0], factors[0], (across, down), out, plane.stride);
                        continue;
                    }
                    match (across, down) {
                        (8, 8) => idct::full(&block, factors, out, plane.stride),
                        (4, 4) => idct::half(&block, factors, out, plane.stride),
                        (2, 2) => idct::quarter(&block, factors, out, plane.stride),
                        _ => idct::oblong(&block, factors, (across, down), out, plane.stride),
                    }
                }
            }
        }
        Some(())
    }

    #[inline(always)]
    fn skip_unit(&self, codes: &Codes, scan: &mut Scan<'_>) -> Option<()> {
        let Scan { bits, before, .. } = scan;
        for &i in self.frame.components {
            let component = &self.frame.component[i];
            for _ in 0..component.down * component.across {
                before[i] = before[i].wrapping_add(bits.difference(&codes.first[component.dc])?);
                bits.skip_coefficients(&codes.rest[component.ac])?;
            }
        }
        Some(())
    }

    /// Writes these rows of the part.
    fn write_rows(
        &self,
        planes: &[Plane; 3],
        lines: &mut Lines,
        rows: Range<usize>,
        out: &mut [u8],
    ) {
        let Region { top, left, width, .. } = self.part;
        // Where the planes begin, in samples of the reduced image.
        let luma_left = self.columns.0 * self.frame.component[0].across * self.scaled[0].across;
        let pitch = width * self.channels;
        for y in rows {
            let out = &mut out[y * pitch..][..pitch];
            let luma = &planes[0].row(top + y)[left - luma_left..][..width];
            if self.frame.components.len() == 1 {
                match self.channels {
                    1 => out.copy_from_slice(luma),
                    _ => out
                        .as_chunks_mut::<3>()
                        .0
                        .iter_mut()
                        .zip(luma)
                        .for_each(|(to, x)| *to = [*x; 3]),
                }
                continue;
            }
            let (scaled, how) = (&self.scaled[1], self.scaled[1].upsampling);
            let row = (top + y) / how.down;
            let below = (top + y) % how.down == 1;
            let next = match how.down {
                1 => row,
                _ if below => (row + 1).min(scaled.height - 1),
                _ => row.saturating_sub(1),
            };
            // Colour samples from the plane's first to the image's last.
            let begin = self.columns.0 * scaled.across;
            let available = planes[1].stride.min(scaled.width - begin);
            let wanted_first = left / how.across - begin;
            let wanted_last = (left + width - 1) / how.across - begin;
            // From one before the first that is wanted, if there is one, to one behind the last.
            let start = wanted_first.saturating_sub(1);
            let end = (wanted_last + 2).min(available);
            let ends = Ends {
                before: wanted_first - start,
                count: wanted_last + 1 - wanted_first,
                skip: left % how.across,
            };
            let (start, end) =
                if how.across == 1 { (wanted_first, wanted_last + 1) } else { (start, end) };
            let blue = planes[1].near(row, next, start..end, below);
            let red = planes[2].near(row, next, start..end, below);
            lines.write(luma, blue, red, how, ends, out);
        }
    }
}
