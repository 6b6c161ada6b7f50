//! A shorter JPEG, made of those restart segments of a JPEG that a part of the image lies in.
//!
//! At a restart marker the coder begins anew, so what lies between two markers can be decoded
//! without what came before. Segments that end where a row of units (MCUs) ends let whole rows be
//! left out; segments that divide a row let columns be left out as well. Entropy decoding, most of
//! the work, is then as much as the part needs.
//!
//! Nothing here decodes. Anything that is not plainly as expected makes [`splice`] decline, and
//! the file is decoded as any other. A file whose markers are in order up to the part's end has
//! the same segments for libjpeg as it has here, whatever is in them; damage in segments that are
//! left out is not seen.

use memchr::memchr;

use super::jpeg_header::JpegHeader;
use crate::image::Part;

/// Bytes that the end marker takes, beyond what is copied.
pub(super) const END: usize = 2;

/// A spliced image is at least two units wide unless the image is not: with two columns of colour
/// or fewer, libjpeg upsamples them in another way.
const LEAST_COLUMNS: usize = 2;

/// Splicing must save so much of the entropy decoding that the search for markers and the copy
/// are paid for: both together take 2 to 4 % of the time of decoding what they pass over.
const WORTHWHILE: f64 = 0.9;

/// A shorter JPEG and where it lies in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spliced {
    /// The part of the image that it shows.
    pub(super) part: Part,
    /// Its bytes in the buffer.
    pub(super) length: usize,
}

/// The segments to keep.
struct Cut {
    /// The first and one past the last segment of a row of segments.
    columns: (usize, usize),
    /// Likewise for the rows.
    rows: (usize, usize),
    /// Segments in a row of the whole image.
    per_row: usize,
    part: Part,
}

/// Writes to `buffer` a JPEG that holds at least `part`, which the caller has widened by what
/// upsampling looks at. `None` if the file does not allow it or little would be gained.
pub(super) fn splice(
    bytes: &[u8],
    header: &JpegHeader,
    part: Part,
    buffer: &mut [u8],
) -> Option<Spliced> {
    let cut = plan(header, part)?;
    let mut out = Writer { buffer, at: 0 };
    write_header(bytes, header, cut.part, &mut out)?;
    write_segments(bytes, header, &cut, &mut out)?;
    out.put(&[0xff, 0xd9])?;
    Some(Spliced { part: cut.part, length: out.at })
}

/// Which segments are wanted, from the header alone.
fn plan(header: &JpegHeader, part: Part) -> Option<Cut> {
    let interval = header.restart_interval;
    let (height, width) = header.size();
    let (unit_height, unit_width) = header.unit();
    let units_wide = width.div_ceil(unit_width);
    let inside = part.top + part.height <= height && part.left + part.width <= width;
    if !header.plain || interval == 0 || part.height == 0 || part.width == 0 || !inside {
        return None;
    }
    // So many rows of units end together with a segment.
    let together = interval / divisor(interval, units_wide);
    let divides = units_wide.is_multiple_of(interval);
    let step = (unit_height * together, unit_width * if divides { interval } else { units_wide });
    let per_row = together * units_wide / interval;
    let rows = (part.top / step.0, (part.top + part.height).div_ceil(step.0));
    let mut columns = (part.left / step.1, (part.left + part.width).div_ceil(step.1));
    if (columns.1 - columns.0) * step.1 < LEAST_COLUMNS * unit_width {
        columns.0 = columns.0.saturating_sub(1);
    }
    let spliced = Part {
        top: rows.0 * step.0,
        left: columns.0 * step.1,
        height: (rows.1 * step.0).min(height) - rows.0 * step.0,
        width: (columns.1 * step.1).min(width) - columns.0 * step.1,
    };
    if !divides {
        // All segments of the rows.
        columns = (0, per_row);
    }
    // Without splicing, every unit down to the part's last row goes through the entropy decoder.
    let before = (part.top + part.height).div_ceil(unit_height) * units_wide;
    let after = spliced.height.div_ceil(unit_height) * spliced.width.div_ceil(unit_width);
    (after as f64 <= before as f64 * WORTHWHILE).then_some(Cut {
        columns,
        rows,
        per_row,
        part: spliced,
    })
}

/// The greatest common divisor.
fn divisor(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Copies what the decoder needs of the header, with the new size.
fn write_header(bytes: &[u8], header: &JpegHeader, part: Part, out: &mut Writer<'_>) -> Option<()> {
    out.put(bytes.get(..2)?)?;
    let mut at = 2;
    while at < header.data {
        let [0xff, marker, high, low] = *bytes.get(at..)?.first_chunk()? else { return None };
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        let segment = bytes.get(at..end).filter(|_| end <= header.data)?;
        match marker {
            0xc0 | 0xc1 => {
                let ([before @ .., _, _, _, _], after) = segment.split_first_chunk::<9>()?;
                out.put(before)?;
                out.put(&u16::try_from(part.height).ok()?.to_be_bytes())?;
                out.put(&u16::try_from(part.width).ok()?.to_be_bytes())?;
                out.put(after)?;
            }
            // Tables, the restart interval, the scan's header; JFIF's and Adobe's markers say what
            // the components mean.
            0xc4 | 0xdb | 0xdd | 0xda | 0xe0 | 0xee => out.put(segment)?,
            0xe1..=0xef | 0xfe => {}
            _ => return None,
        }
        at = end;
    }
    Some(())
}

/// Copies the segments of `cut`, with their markers numbered anew.
fn write_segments(
    bytes: &[u8],
    header: &JpegHeader,
    cut: &Cut,
    out: &mut Writer<'_>,
) -> Option<()> {
    let last_of_all = segments(header) - 1;
    // The last of the rows that are taken together may have fewer segments.
    let last = ((cut.rows.1 - 1) * cut.per_row + cut.columns.1 - 1).min(last_of_all);
    let mut start = header.data;
    let mut written = 0u8;
    let mut column = 0;
    let mut row = 0;
    for number in 0..=last {
        let (end, marker) = next_marker(bytes, start)?;
        let expected = if number == last_of_all { 0xd9 } else { 0xd0 | (number % 8) as u8 };
        if marker != expected {
            return None;
        }
        if row >= cut.rows.0 && column >= cut.columns.0 && column < cut.columns.1 {
            if written > 0 {
                out.put(&[0xff, 0xd0 | ((written - 1) % 8)])?;
            }
            // 8 divides 248, so the markers' numbers go on as if it counted to infinity.
            written = if written == 248 { 1 } else { written + 1 };
            out.put(&bytes[start..end])?;
        }
        start = end + 2;
        column += 1;
        if column == cut.per_row {
            (column, row) = (0, row + 1);
        }
    }
    Some(())
}

/// How many segments the whole image has.
fn segments(header: &JpegHeader) -> usize {
    let (height, width) = header.size();
    let (unit_height, unit_width) = header.unit();
    let units = height.div_ceil(unit_height) * width.div_ceil(unit_width);
    units.div_ceil(header.restart_interval)
}

/// The place and the second byte of the next marker in a scan's data.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(usize, u8)> {
    loop {
        at += memchr(0xff, bytes.get(at..)?)?;
        match *bytes.get(at + 1)? {
            // A byte of data that happens to be 0xff.
            0 => at += 2,
            marker => return Some((at, marker)),
        }
    }
}

/// A buffer that is filled from its beginning and refuses what does not fit.
struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.buffer.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }
}
