//! PNG, all colour types and depths, bit-equal to Pillow (16-bit gray apart, see the stage's page).

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodingError, InterlaceInfo, Transformations};

use super::color::{luma, put};
use super::{ColorMode, Declared, DecodeOptions, Header, exif};
use crate::error::Fault;

type Reader<'a> = png::Reader<Cursor<&'a [u8]>>;

fn fault(error: DecodingError) -> Fault {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            super::truncated("PNG")
        }
        DecodingError::LimitsExceeded => {
            Fault::TooLarge("PNG: its chunks are larger than its pixels".into())
        }
        other => Fault::corrupt("PNG", other.to_string()),
    }
}

fn open(bytes: &[u8], limit: usize) -> png::Decoder<Cursor<&[u8]>> {
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: limit });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder
}

pub(super) fn probe(bytes: &[u8], options: &DecodeOptions) -> Result<Declared, Fault> {
    // IHDR is always the first chunk, so that 33 bytes say it all but the orientation.
    let mut decoder = open(bytes, 1 << 20);
    let info = decoder.read_header_info().map_err(fault)?;
    let (height, width) = (info.height as usize, info.width as usize);
    let row = info.raw_row_length();
    Ok(Declared {
        height,
        width,
        orientation: if options.exif_orientation { orientation(bytes) } else { 1 },
        progressive: false,
        pixel: options.mode.channels(),
        // Rows before and after unfiltering, the 32 kB window and its slack, the palette.
        extra: row.saturating_mul(6) + 512 * 1024,
    })
}

/// The orientation in an eXIf chunk before the pixels.
fn orientation(bytes: &[u8]) -> u8 {
    let mut rest = bytes.get(8..).unwrap_or_default();
    while let Some((&[l0, l1, l2, l3, kind @ ..], _)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        match &kind {
            b"IDAT" => break,
            b"eXIf" => return rest.get(8..8 + length).and_then(exif::orientation).unwrap_or(1),
            _ => {}
        }
        // Length, kind and checksum are 12 bytes.
        rest = rest.get(length.saturating_add(12)..).unwrap_or_default();
    }
    1
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let mut reader = open(bytes, header.memory.max(64 << 20)).read_info().map_err(fault)?;
    let palette = Palette::new(&reader, options.mode);
    if options.allow_truncated && reader.info().color_type == ColorType::Indexed {
        // Missing pixels have index 0.
        put(out, options.mode, std::iter::repeat(palette.colors[0]));
    }
    let outcome = rows(&mut reader, header, options.mode, &palette, out);
    match outcome {
        Err(_) if options.allow_truncated => Ok(()),
        outcome => outcome,
    }
}

fn rows(
    reader: &mut Reader<'_>,
    header: &Header,
    mode: ColorMode,
    palette: &Palette,
    out: &mut [u8],
) -> Result<(), Fault> {
    let (height, width) = header.stored;
    let channels = mode.channels();
    let (color, depth) = (reader.info().color_type, reader.info().bit_depth);
    let stride = width * channels;
    let direct = matches!(
        (color, depth, mode),
        (ColorType::Rgb, BitDepth::Eight, ColorMode::Rgb)
            | (ColorType::Grayscale, BitDepth::Eight, ColorMode::Gray)
    );
    let mut line = 0;
    let mut expanded = vec![0; stride];
    if direct && !reader.info().interlaced {
        for row in out.chunks_exact_mut(stride) {
            if reader.output_line_size(width as u32) != Some(stride)
                || reader.read_row(row).map_err(fault)?.is_none()
            {
                return Err(Fault::corrupt("PNG", "fewer rows than declared"));
            }
        }
        return Ok(());
    }
    while let Some(row) = reader.next_interlaced_row().map_err(fault)? {
        match row.interlace() {
            InterlaceInfo::Null(_) => {
                let Some(to) =
                    out.get_mut(line * stride..(line + 1) * stride).filter(|_| line < height)
                else {
                    return Err(Fault::corrupt("PNG", "more rows than declared"));
                };
                expand(row.data(), color, depth, mode, palette, to)?;
                line += 1;
            }
            InterlaceInfo::Adam7(pass) => {
                // A pass has at most `width` pixels in a row; its rows are expanded to whole
                // bytes before they are dealt out to their places.
                let samples = samples(row.data().len(), color, depth).min(width);
                let to = &mut expanded[..samples * channels];
                expand(row.data(), color, depth, mode, palette, to)?;
                png::expand_interlaced_row(
                    &mut out[..height * stride],
                    stride,
                    to,
                    pass,
                    8 * channels as u8,
                );
            }
        }
    }
    if !reader.info().interlaced && line < height {
        return Err(Fault::corrupt("PNG", "fewer rows than declared"));
    }
    Ok(())
}

/// Pixels that `bytes` can hold at most.
fn samples(bytes: usize, color: ColorType, depth: BitDepth) -> usize {
    bytes * 8 / (color.samples() * depth as usize)
}

struct Palette {
    colors: [[u8; 3]; 256],
    grays: [u8; 256],
}

impl Palette {
    fn new(reader: &Reader<'_>, mode: ColorMode) -> Self {
        let mut palette = Palette { colors: [[0; 3]; 256], grays: [0; 256] };
        // An index beyond the palette is black, as in Pillow.
        let (entries, _) = reader.info().palette.as_deref().unwrap_or_default().as_chunks::<3>();
        for (i, entry) in entries.iter().take(256).enumerate() {
            palette.colors[i] = *entry;
            if mode == ColorMode::Gray {
                palette.grays[i] = luma(entry[0], entry[1], entry[2]);
            }
        }
        palette
    }
}

/// One row of the file to one row of the output.
fn expand(
    row: &[u8],
    color: ColorType,
    depth: BitDepth,
    mode: ColorMode,
    palette: &Palette,
    to: &mut [u8],
) -> Result<(), Fault> {
    if samples(row.len(), color, depth) < to.len() / mode.channels() {
        return Err(Fault::corrupt("PNG", "a row is shorter than declared"));
    }
    // 16-bit samples are big-endian: the first byte is the high one.
    let bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
    let step = bytes * color.samples();
    match color {
        ColorType::Grayscale | ColorType::GrayscaleAlpha if bytes * 8 <= depth as usize => {
            put(to, mode, row.chunks_exact(step).map(|p| [p[0]; 3]));
        }
        ColorType::Grayscale | ColorType::GrayscaleAlpha => {
            let most = (1u16 << depth as u8) - 1;
            put(to, mode, bits(row, depth).map(|v| [(u16::from(v) * 255 / most) as u8; 3]));
        }
        ColorType::Indexed => {
            let indices = bits(row, depth).map(usize::from);
            match mode {
                ColorMode::Rgb => put(to, mode, indices.map(|i| palette.colors[i])),
                ColorMode::Gray => {
                    to.iter_mut().zip(indices).for_each(|(to, i)| *to = palette.grays[i])
                }
            }
        }
        ColorType::Rgb | ColorType::Rgba => {
            put(to, mode, row.chunks_exact(step).map(|p| [p[0], p[bytes], p[2 * bytes]]));
        }
    }
    Ok(())
}

/// Samples of up to 8 bits, high bits first.
fn bits(row: &[u8], depth: BitDepth) -> impl Iterator<Item = u8> {
    let depth = (depth as usize).min(8);
    let mask = ((1u16 << depth) - 1) as u8;
    row.iter()
        .flat_map(move |byte| (0..8 / depth).map(move |i| byte >> (8 - depth * (i + 1)) & mask))
}
