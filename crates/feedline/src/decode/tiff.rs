//! TIFF and BigTIFF: the first image, with Pillow's pixels (16-bit gray apart, see the stage's
//! page).
//!
//! Strips and tiles are unpacked one after the other into one buffer and coloured from there, so
//! no more than the largest of them is held. Each unpacker gets a slice and fills a slice.

use std::borrow::Cow;

use weezl::{BitOrder, LzwStatus, decode::Configuration};

use super::color::{cmyk, put};
use super::fax::{self, Fax};
use super::tiff_tags::{Directory, tag};
use super::{ColorMode, Declared, DecodeOptions, Header, MAX_SIDE, jpeg, jpeg_header};
use crate::error::Fault;

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("TIFF", reason)
}

fn unsupported(what: impl std::fmt::Display) -> Fault {
    Fault::Unsupported(format!("TIFF: {what}"))
}

/// How strips and tiles are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Lzw,
    Deflate,
    PackBits,
    Jpeg,
    Fax(Fax),
}

/// What samples mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Gray { inverted: bool },
    Rgb,
    Palette,
    Cmyk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SampleKind {
    Unsigned,
    Signed,
    Float,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prediction {
    None,
    Horizontal,
    Float,
}

/// What the directory says of the image, checked.
struct TiffImage {
    height: usize,
    width: usize,
    meaning: Meaning,
    kind: SampleKind,
    bits: usize,
    /// Of a pixel, those without a meaning included.
    samples: usize,
    /// The colours were multiplied by the alpha that follows them.
    multiplied: bool,
    packing: Packing,
    prediction: Prediction,
    /// Each sample has strips or tiles of its own.
    planar: bool,
    /// The bits of each byte are stored in reverse.
    reversed: bool,
    /// Rows and columns of a strip or tile.
    chunk: (usize, usize),
    tiled: bool,
    /// The order of bytes.
    little: bool,
}

impl TiffImage {
    fn read(directory: &Directory<'_>) -> Result<TiffImage, Fault> {
        let number = |tag| directory.number(tag, 0);
        let (Some(width), Some(height)) = (number(tag::WIDTH), number(tag::HEIGHT)) else {
            return Err(corrupt("declares no size"));
        };
        let side = |x: u64| {
            u32::try_from(x).map(|x| x as usize).map_err(|_| corrupt("declares an impossible size"))
        };
        let (height, width) = (side(height)?, side(width)?);
        let packing = match number(tag::COMPRESSION).unwrap_or(1) {
            1 => Packing::None,
            2 => Packing::Fax(Fax::ModifiedHuffman),
            3 => {
                let options = number(tag::T4_OPTIONS).unwrap_or(0);
                Packing::Fax(Fax::Group3 { two_dimensional: options & 1 != 0 })
            }
            4 => Packing::Fax(Fax::Group4),
            5 => Packing::Lzw,
            7 => Packing::Jpeg,
            8 | 32946 => Packing::Deflate,
            32773 => Packing::PackBits,
            6 => return Err(unsupported("JPEG compression of the old kind is not supported")),
            other => return Err(unsupported(format!("compression {other} is not supported"))),
        };
        let samples = number(tag::SAMPLES).unwrap_or(1);
        let samples = usize::try_from(samples).ok().filter(|n| (1..=8).contains(n));
        let samples = samples.ok_or_else(|| unsupported("more than 8 samples per pixel"))?;
        let stated = |tag, default: u64| -> Result<u64, Fault> {
            let first = number(tag).unwrap_or(default);
            let mut all = (0..samples).map_while(|i| directory.number(tag, i));
            match all.find(|other| *other != first) {
                Some(other) => {
                    Err(unsupported(format!("samples of different kinds ({first} and {other})")))
                }
                None => Ok(first),
            }
        };
        let bits = stated(tag::BITS, 1)? as usize;
        let kind = match stated(tag::SAMPLE_FORMAT, 1)? {
            1 | 4 => SampleKind::Unsigned,
            2 => SampleKind::Signed,
            3 => SampleKind::Float,
            other => return Err(unsupported(format!("sample format {other} is not supported"))),
        };
        let (meaning, colors) = match number(tag::PHOTOMETRIC).unwrap_or(0) {
            0 => (Meaning::Gray { inverted: true }, 1),
            1 => (Meaning::Gray { inverted: false }, 1),
            2 => (Meaning::Rgb, 3),
            3 => (Meaning::Palette, 1),
            5 if number(tag::INK_SET).unwrap_or(1) == 1 => (Meaning::Cmyk, 4),
            // libjpeg turns it into RGB.
            6 if packing == Packing::Jpeg && samples == 3 => (Meaning::Rgb, 3),
            6 if samples == 1 => (Meaning::Gray { inverted: false }, 1),
            6 => return Err(unsupported("YCbCr colours without JPEG compression")),
            other => return Err(unsupported(format!("colours of kind {other} are not supported"))),
        };
        let known = match (meaning, kind) {
            (Meaning::Gray { inverted }, SampleKind::Unsigned) => {
                matches!(bits, 1 | 2 | 4 | 8 | 12 | 16) || (bits == 32 && !inverted)
            }
            (Meaning::Gray { inverted }, SampleKind::Signed) => {
                matches!(bits, 8 | 16 | 32) && !inverted
            }
            (Meaning::Gray { .. }, SampleKind::Float) => bits == 32,
            (Meaning::Palette, SampleKind::Unsigned) => matches!(bits, 1 | 2 | 4 | 8),
            (Meaning::Rgb | Meaning::Cmyk, SampleKind::Unsigned) => matches!(bits, 8 | 16),
            _ => false,
        };
        let whole_bytes = bits.is_multiple_of(8);
        if !known || (samples > 1 && !whole_bytes) || samples < colors {
            return Err(unsupported(format!(
                "{samples} samples of {bits} bits ({kind:?}) for {meaning:?} are not supported"
            )));
        }
        if matches!(packing, Packing::Fax(_)) && (samples, bits) != (1, 1) {
            return Err(corrupt("fax coding of more than one bit per pixel"));
        }
        if packing == Packing::Jpeg
            && (bits != 8
                || !matches!((meaning, samples), (Meaning::Gray { .. }, 1) | (Meaning::Rgb, 3)))
        {
            return Err(unsupported(format!(
                "JPEG compression of {samples} samples for {meaning:?} is not supported"
            )));
        }
        let planar = match number(tag::PLANAR).unwrap_or(1) {
            2 => samples > 1,
            _ => false,
        };
        if planar && packing == Packing::Jpeg {
            return Err(unsupported("JPEG compression of separate planes is not supported"));
        }
        let prediction = match number(tag::PREDICTOR).unwrap_or(1) {
            _ if !matches!(packing, Packing::Lzw | Packing::Deflate) => Prediction::None,
            1 => Prediction::None,
            2 if matches!(bits, 8 | 16 | 32) => Prediction::Horizontal,
            3 if kind == SampleKind::Float => Prediction::Float,
            other => {
                return Err(unsupported(format!(
                    "predictor {other} for {bits} bits is not supported"
                )));
            }
        };
        let tiled = directory.has(tag::TILE_OFFSETS);
        let chunk = if tiled {
            let of = |tag| number(tag).and_then(|x| usize::try_from(x).ok()).filter(|x| *x > 0);
            let (Some(rows), Some(columns)) = (of(tag::TILE_HEIGHT), of(tag::TILE_WIDTH)) else {
                return Err(corrupt("declares tiles without a size"));
            };
            (rows, columns)
        } else {
            let rows = number(tag::ROWS_PER_STRIP).unwrap_or(u64::MAX).min(height as u64);
            if rows == 0 && height > 0 {
                return Err(corrupt("declares strips without rows"));
            }
            (rows as usize, width)
        };
        Ok(TiffImage {
            height,
            width,
            meaning,
            kind,
            bits,
            samples,
            multiplied: samples > colors && directory.number(tag::EXTRA_SAMPLES, 0) == Some(1),
            packing,
            prediction,
            planar,
            reversed: number(tag::FILL_ORDER) == Some(2) && packing != Packing::Jpeg,
            chunk,
            tiled,
            little: directory.little,
        })
    }

    /// Bytes of a row of a strip or tile, with `samples` samples each.
    fn row_bytes(&self, samples: usize) -> Option<usize> {
        Some(self.chunk.1.checked_mul(samples * self.bits)?.div_ceil(8))
    }

    /// Bytes of a strip or tile, unpacked and with all samples.
    fn chunk_bytes(&self) -> Option<usize> {
        self.row_bytes(self.samples)?.checked_mul(self.chunk.0)
    }

    /// Strips or tiles across and down.
    fn chunks(&self) -> (usize, usize) {
        (self.width.div_ceil(self.chunk.1.max(1)), self.height.div_ceil(self.chunk.0.max(1)))
    }

    /// Where strips or tiles begin, and how long they are.
    fn tags(&self) -> (u16, u16) {
        match self.tiled {
            true => (tag::TILE_OFFSETS, tag::TILE_COUNTS),
            false => (tag::STRIP_OFFSETS, tag::STRIP_COUNTS),
        }
    }
}

/// Bytes of tiles beyond the image's own. A tile may exceed a small image, but a few bytes may say
/// that all of it is white, and all of it is written.
const MOST_BESIDE: usize = 256 << 20;

/// Bytes of the tables that strips share; a file of every table that JPEG knows has 6 kB.
const MOST_TABLES: usize = 64 << 10;

/// Visits of blocks by all JPEGs of a file beyond which it is taken for an attack: strips may share
/// their bytes, so that a visit costs 0.15 µs where it costs 0.05 µs in the longest JPEG of its own.
/// The largest image that `max_pixels` admits by default needs 8 million.
const MOST_VISITS: u64 = 1 << 25;

/// Bytes whose copying and parsing counts as a visit: strips share their tables too.
const BYTES_A_VISIT: u64 = 256;

pub(super) fn probe(bytes: &[u8], options: &DecodeOptions) -> Result<Declared, Fault> {
    let directory = Directory::read(bytes)?;
    let layout = TiffImage::read(&directory)?;
    let pixels = layout.height.saturating_mul(layout.width);
    let image = pixels.saturating_mul(layout.samples * layout.bits.div_ceil(8));
    let (across, down) = layout.chunks();
    let chunks = across.saturating_mul(down);
    // A tile may exceed a small image, but neither one nor all of them by much.
    let held = layout.chunk_bytes().filter(|held| {
        *held <= image.saturating_add(16 << 20)
            && held.saturating_mul(chunks) <= image.saturating_mul(4).saturating_add(MOST_BESIDE)
            && (!layout.tiled || layout.chunk.0.max(layout.chunk.1) <= MAX_SIDE)
    });
    let held = held.ok_or_else(|| {
        let (rows, columns) = layout.chunk;
        Fault::TooLarge(format!(
            "TIFF: tiles of {columns} x {rows} pixels for an image of {} x {}",
            layout.width, layout.height
        ))
    })?;
    let orientation = directory.number(tag::ORIENTATION, 0).unwrap_or(1);
    Ok(Declared {
        height: layout.height,
        width: layout.width,
        orientation: if (1..=8).contains(&orientation) { orientation as u8 } else { 1 },
        progressive: false,
        pixel: options.mode.channels(),
        // The strip, its plane, its packed bytes in order, and what the unpackers take.
        extra: held
            .saturating_mul(3)
            .saturating_add(bytes.len())
            .saturating_add(layout.chunk.1.saturating_mul(64))
            .saturating_add(1 << 20),
    })
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    jpeg: &mut jpeg::Handle,
    out: &mut [u8],
) -> Result<(), Fault> {
    let directory = Directory::read(bytes)?;
    let layout = TiffImage::read(&directory)?;
    let (height, width) = header.stored;
    let channels = options.mode.channels();
    let contradiction = || corrupt("contradictory sizes");
    if (layout.height, layout.width) != (height, width) || out.len() < height * width * channels {
        return Err(contradiction());
    }
    let held = layout.chunk_bytes().filter(|held| *held <= header.memory);
    let held = held.ok_or_else(contradiction)?;
    let row_bytes = layout.row_bytes(layout.samples).ok_or_else(contradiction)?;
    let mut chunk = zeros(held)?;
    let mut plane = zeros(if layout.planar { held / layout.samples } else { 0 })?;
    let palette = palette(&directory, &layout)?;
    let mut chunks = Chunks::new(bytes, &directory, &layout, options);
    let (across, down) = layout.chunks();
    // Each takes its time, also where `allow_truncated` passes over it.
    let listed = directory.count(layout.tags().0);
    if listed < across * down * if layout.planar { layout.samples } else { 1 } {
        return Err(corrupt("has fewer strips or tiles than its size needs"));
    }
    for number in 0..across * down {
        let (top, left) = (number / across * layout.chunk.0, number % across * layout.chunk.1);
        let rows = layout.chunk.0.min(height - top);
        let columns = layout.chunk.1.min(width - left);
        // A tile holds all of its rows, the last strip those that are left (a JPEG may hold more).
        let stored = match layout.tiled || layout.packing == Packing::Jpeg {
            true => layout.chunk.0,
            false => rows,
        };
        // What is missing is zero: black, or the palette's first colour.
        chunk.fill(0);
        let outcome = if layout.planar {
            let mut outcome = Ok(());
            let size = layout.bits / 8;
            for sample in 0..layout.samples {
                plane.fill(0);
                let row = layout.row_bytes(1).ok_or_else(contradiction)?;
                let part = &mut plane[..row * stored];
                let unpacked =
                    chunks.unpack(sample * across * down + number, (rows, 1), jpeg, part);
                outcome = outcome.and(unpacked);
                let pixels = chunk.chunks_exact_mut(layout.samples * size);
                for (pixel, value) in pixels.zip(plane.chunks_exact(size)) {
                    pixel[sample * size..(sample + 1) * size].copy_from_slice(value);
                }
            }
            outcome
        } else {
            let part = &mut chunk[..row_bytes * stored];
            chunks.unpack(number, (rows, layout.samples), jpeg, part)
        };
        match outcome {
            Err(_) if options.allow_truncated => {}
            outcome => outcome?,
        }
        for y in 0..rows {
            let from = &chunk[y * row_bytes..(y + 1) * row_bytes];
            let at = ((top + y) * width + left) * channels;
            expand(&layout, &palette, from, options.mode, &mut out[at..at + columns * channels]);
        }
    }
    Ok(())
}

fn zeros(bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| {
        Fault::TooLarge(format!("TIFF: a strip of {bytes} bytes does not fit into memory"))
    })?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

fn palette(directory: &Directory<'_>, layout: &TiffImage) -> Result<Vec<[u8; 3]>, Fault> {
    if layout.meaning != Meaning::Palette {
        return Ok(Vec::new());
    }
    // All reds, then all greens, then all blues, of 16 bits each.
    let colors = 1 << layout.bits;
    let channel = |i: usize, of: usize| {
        directory.number(tag::COLOR_MAP, of * colors + i).map(|x| (x >> 8) as u8)
    };
    (0..colors)
        .map(|i| Some([channel(i, 0)?, channel(i, 1)?, channel(i, 2)?]))
        .collect::<Option<_>>()
        .ok_or_else(|| corrupt("its palette is missing or too short"))
}

/// Strips or tiles by number.
struct Chunks<'a> {
    bytes: &'a [u8],
    directory: &'a Directory<'a>,
    layout: &'a TiffImage,
    options: &'a DecodeOptions,
    /// Packed bytes that may still be looked at: strips that share their bytes would let a small
    /// file ask for any amount of work.
    left: usize,
    /// Visits of blocks by the scans of all JPEGs, which are bounded as those of one file are.
    visits: u64,
}

impl<'a> Chunks<'a> {
    fn new(
        bytes: &'a [u8],
        directory: &'a Directory<'a>,
        layout: &'a TiffImage,
        options: &'a DecodeOptions,
    ) -> Self {
        let left = bytes.len().saturating_mul(4);
        Chunks { bytes, directory, layout, options, left, visits: 0 }
    }

    /// Unpacks one, of which `rows` rows of so many samples a pixel are looked at.
    fn unpack(
        &mut self,
        number: usize,
        (rows, samples): (usize, usize),
        jpeg: &mut jpeg::Handle,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let layout = self.layout;
        let (offsets, counts) = layout.tags();
        let start = self.directory.number(offsets, number);
        let start =
            start.ok_or_else(|| corrupt("has fewer strips or tiles than its size needs"))?;
        let rest = usize::try_from(start).ok().and_then(|start| self.bytes.get(start..));
        let rest = rest.ok_or_else(|| super::truncated("TIFF"))?;
        let row = out.len() / if layout.tiled { layout.chunk.0 } else { rows }.max(1);
        if layout.packing == Packing::None {
            // Counts are often wrong where they are not needed.
            let stored = &rest[..rest.len().min(out.len())];
            out[..stored.len()].copy_from_slice(stored);
            if layout.reversed {
                out.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            }
            return if stored.len() >= row * rows { Ok(()) } else { Err(super::truncated("TIFF")) };
        }
        let count = self.directory.number(counts, number).unwrap_or(0);
        let count = if count == 0 { u64::MAX } else { count };
        let packed = &rest[..usize::try_from(count).unwrap_or(usize::MAX).min(rest.len())];
        self.left = self.left.checked_sub(packed.len()).ok_or_else(|| {
            corrupt("its strips or tiles share their bytes: together they are larger than the file")
        })?;
        let mut packed = Cow::Borrowed(packed);
        if layout.reversed {
            packed.to_mut().iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        }
        let needed = row * rows;
        let (written, fault) = match layout.packing {
            Packing::Lzw => lzw(&packed, out),
            Packing::Deflate => deflate(&packed, out),
            Packing::PackBits => (pack_bits(&packed, out), None),
            Packing::Fax(coding) => {
                let whole = fax::unpack(coding, &packed, layout.chunk.1, &mut out[..needed]);
                (if whole { needed } else { 0 }, None)
            }
            Packing::Jpeg => return self.jpeg(&packed, rows, jpeg, out),
            Packing::None => (needed, None),
        };
        if layout.prediction != Prediction::None {
            for (y, row_out) in out.chunks_exact_mut(row).take(rows).enumerate() {
                let there = written.saturating_sub(y * row).min(row);
                if there == row || layout.prediction == Prediction::Horizontal {
                    predict(layout, samples, row_out);
                }
                // Where the data end, a row shows what it has; the last colour does not run on.
                let shown = if layout.prediction == Prediction::Horizontal { there } else { 0 };
                if there < row {
                    row_out[shown..].fill(0);
                }
            }
        }
        match fault {
            None if written >= needed => Ok(()),
            fault => Err(fault.unwrap_or_else(|| super::truncated("TIFF"))),
        }
    }

    /// A strip or tile that is a JPEG, of which the tables may lie elsewhere.
    fn jpeg(
        &mut self,
        packed: &[u8],
        rows: usize,
        jpeg: &mut jpeg::Handle,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        // What colours mean is the directory's to say: libjpeg believes the marker of Adobe.
        let ycc = self.directory.number(tag::PHOTOMETRIC, 0) == Some(6);
        let adobe =
            [0xff, 0xee, 0, 14, b'A', b'd', b'o', b'b', b'e', 0, 100, 0, 0, 0, 0, u8::from(ycc)];
        let tables = self.directory.bytes(tag::JPEG_TABLES).unwrap_or_default();
        let tables = tables.strip_prefix(&[0xff, 0xd8]).unwrap_or(tables);
        let tables = tables.strip_suffix(&[0xff, 0xd9]).unwrap_or(tables);
        if tables.len() > MOST_TABLES {
            return Err(corrupt(format!("{} bytes of JPEG tables", tables.len())));
        }
        let data = packed.strip_prefix(&[0xff, 0xd8]).unwrap_or(packed);
        let mut file = Vec::new();
        let length = 2 + adobe.len() + tables.len() + data.len();
        file.try_reserve_exact(length).map_err(|_| {
            Fault::TooLarge(format!("TIFF: a JPEG of {length} bytes does not fit into memory"))
        })?;
        for part in [&[0xff, 0xd8][..], &adobe, tables, data] {
            file.extend_from_slice(part);
        }
        let mode = if self.layout.samples == 1 { ColorMode::Gray } else { ColorMode::Rgb };
        let options = DecodeOptions { mode, exif_orientation: false, ..self.options.clone() };
        let header = super::probe(&file, &options)?;
        self.visits += jpeg_header::read(&file)?.visits(&file)? + length as u64 / BYTES_A_VISIT;
        // Whoever admits larger images has two visits for each of their blocks.
        let pixels = self.layout.height.saturating_mul(self.layout.width);
        let blocks = pixels.saturating_mul(self.layout.samples) as u64 / 64;
        if self.visits > MOST_VISITS.max(2 * blocks) {
            return Err(Fault::TooLarge(format!(
                "TIFF: its JPEGs are more work than any encoder asks for ({} visits of blocks)",
                self.visits
            )));
        }
        let columns = self.layout.chunk.1;
        if header.stored.1 != columns || header.raw > out.len() {
            return Err(corrupt("a strip or tile has another size than its JPEG"));
        }
        let (height, width) = header.stored;
        let whole = crate::image::Excerpt::whole(height, width);
        jpeg.decode(&file, &header, &options, whole, out)?;
        if height < rows { Err(super::truncated("TIFF")) } else { Ok(()) }
    }
}

/// Fills `out` from the front and says how far.
fn lzw(mut packed: &[u8], out: &mut [u8]) -> (usize, Option<Fault>) {
    // An early writer stored the codes the other way round.
    let old = matches!(packed, [0, second, ..] if second & 1 == 1);
    let settings = match old {
        true => Configuration::new(BitOrder::Lsb, 8),
        false => Configuration::with_tiff_size_switch(BitOrder::Msb, 8),
    };
    let mut decoder = settings.with_yield_on_full_buffer(true).build();
    let (mut written, mut idle) = (0, 0);
    while written < out.len() {
        let result = decoder.decode_bytes(packed, &mut out[written..]);
        packed = &packed[result.consumed_in..];
        written += result.consumed_out;
        match result.status {
            Err(error) => return (written, Some(corrupt(error.to_string()))),
            Ok(LzwStatus::Done) => break,
            Ok(_) if result.consumed_in + result.consumed_out > 0 => idle = 0,
            Ok(_) if idle > super::IDLE_TURNS => break,
            Ok(_) => idle += 1,
        }
    }
    (written, None)
}

fn deflate(mut packed: &[u8], out: &mut [u8]) -> (usize, Option<Fault>) {
    let mut decoder = flate2::Decompress::new(true);
    let mut written = 0;
    while written < out.len() {
        let before = (decoder.total_in(), decoder.total_out());
        let status = decoder.decompress(packed, &mut out[written..], flate2::FlushDecompress::None);
        let (read, made) = (decoder.total_in() - before.0, decoder.total_out() - before.1);
        packed = &packed[read as usize..];
        written += made as usize;
        match status {
            Err(error) => return (written, Some(corrupt(error.to_string()))),
            Ok(flate2::Status::StreamEnd) => break,
            Ok(_) if read == 0 && made == 0 => break,
            Ok(_) => {}
        }
    }
    (written, None)
}

fn pack_bits(mut packed: &[u8], out: &mut [u8]) -> usize {
    let mut written = 0;
    while let Some((&head, rest)) = packed.split_first() {
        packed = rest;
        let room = &mut out[written..];
        if room.is_empty() {
            break;
        }
        match head {
            0..=127 => {
                let count = (usize::from(head) + 1).min(packed.len());
                let (literal, rest) = packed.split_at(count);
                packed = rest;
                let count = count.min(room.len());
                room[..count].copy_from_slice(&literal[..count]);
                written += count;
            }
            128 => {}
            129.. => {
                let Some((&value, rest)) = packed.split_first() else { break };
                packed = rest;
                let count = (257 - usize::from(head)).min(room.len());
                room[..count].fill(value);
                written += count;
            }
        }
    }
    written
}

/// Undoes the differences that a row was stored as.
fn predict(layout: &TiffImage, samples: usize, row: &mut [u8]) {
    let little = layout.little;
    match (layout.prediction, layout.bits) {
        (Prediction::None, _) => {}
        (Prediction::Horizontal, 8) => {
            for i in samples..row.len() {
                row[i] = row[i].wrapping_add(row[i - samples]);
            }
        }
        (Prediction::Horizontal, bits) => {
            let size = bits / 8;
            for i in samples..row.len() / size {
                let read = |at: usize| integer(&row[at * size..(at + 1) * size], little);
                let sum = read(i).wrapping_add(read(i - samples));
                let sum =
                    if little { sum.to_le_bytes() } else { (sum << (32 - bits)).to_be_bytes() };
                row[i * size..(i + 1) * size].copy_from_slice(&sum[..size]);
            }
        }
        (Prediction::Float, _) => {
            for i in samples..row.len() {
                row[i] = row[i].wrapping_add(row[i - samples]);
            }
            // All high bytes of the row, then all next ones, whatever the file's order is.
            let stored = row.to_vec();
            let values = row.len() / 4;
            for (i, value) in row.chunks_exact_mut(4).enumerate() {
                for (place, byte) in value.iter_mut().enumerate() {
                    let rank = if little { 3 - place } else { place };
                    *byte = stored[rank * values + i];
                }
            }
        }
    }
}

/// An unsigned number of 1 to 4 bytes.
fn integer(bytes: &[u8], little: bool) -> u32 {
    let shift = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
    match little {
        true => bytes.iter().rev().fold(0, shift),
        false => bytes.iter().fold(0, shift),
    }
}

/// A colour that was multiplied by its alpha, as it was before.
fn divided(color: u8, alpha: u8) -> u8 {
    if alpha == 0 { 0 } else { (u32::from(color) * 255 / u32::from(alpha)).min(255) as u8 }
}

/// One row of the file to one row of the output.
fn expand(layout: &TiffImage, palette: &[[u8; 3]], row: &[u8], mode: ColorMode, to: &mut [u8]) {
    let bits = layout.bits;
    let size = bits.div_ceil(8);
    // The byte of a sample that counts most.
    let high = if layout.little { size - 1 } else { 0 };
    let pixels = row.chunks_exact(layout.samples * size);
    let sample = |pixel: &[u8], i: usize| pixel[i * size + high];
    let undo = |pixel: &[u8], color: u8, alpha: usize| match layout.multiplied {
        true => divided(color, sample(pixel, alpha)),
        false => color,
    };
    let number = |pixel: &[u8]| integer(&pixel[..size], layout.little);
    let clipped = |value: i32| [value.clamp(0, 255) as u8; 3];
    match (layout.meaning, layout.kind, bits) {
        (Meaning::Palette, _, 8) => put(to, mode, pixels.map(|p| palette[usize::from(p[0])])),
        (Meaning::Palette, _, _) => {
            put(to, mode, small_samples(row, bits).map(|index| palette[usize::from(index)]));
        }
        (Meaning::Gray { inverted }, _, 1 | 2 | 4) => {
            let (most, flip) = ((1u16 << bits) - 1, if inverted { 255 } else { 0 });
            let shade = |value: u8| (u16::from(value) * 255 / most) as u8 ^ flip;
            put(to, mode, small_samples(row, bits).map(|value| [shade(value); 3]));
        }
        (Meaning::Gray { inverted }, _, 12) => {
            // The high 8 of 12 bits: two samples lie in three bytes.
            let flip = if inverted { 255 } else { 0 };
            let shade = |i: usize| match (i % 2, i / 2 * 3) {
                (0, at) => row.get(at).copied(),
                (_, at) => Some((row.get(at + 1)? & 15) << 4 | row.get(at + 2)? >> 4),
            };
            put(to, mode, (0..).map_while(shade).map(|value| [value ^ flip; 3]));
        }
        (Meaning::Gray { .. }, SampleKind::Float, _) => {
            put(to, mode, pixels.map(|p| [f32::from_bits(number(p)) as u8; 3]));
        }
        (Meaning::Gray { .. }, SampleKind::Signed, 16) => {
            put(to, mode, pixels.map(|p| clipped(i32::from(number(p) as u16 as i16))));
        }
        (Meaning::Gray { .. }, _, 32) => put(to, mode, pixels.map(|p| clipped(number(p) as i32))),
        (Meaning::Gray { inverted }, _, _) => {
            let flip = if inverted { 255 } else { 0 };
            put(to, mode, pixels.map(|p| [undo(p, sample(p, 0), 1) ^ flip; 3]));
        }
        (Meaning::Rgb, _, _) => {
            put(to, mode, pixels.map(|p| [0, 1, 2].map(|i| undo(p, sample(p, i), 3))));
        }
        (Meaning::Cmyk, _, _) => {
            put(
                to,
                mode,
                pixels.map(|p| cmyk(sample(p, 0), sample(p, 1), sample(p, 2), sample(p, 3))),
            );
        }
    }
}

/// Samples of less than 8 bits, high bits first.
fn small_samples(row: &[u8], bits: usize) -> impl Iterator<Item = u8> {
    let mask = ((1u16 << bits) - 1) as u8;
    row.iter().flat_map(move |byte| (0..8 / bits).map(move |i| byte >> (8 - bits * (i + 1)) & mask))
}
