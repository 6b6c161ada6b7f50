//! The pages of a column chunk: looked at before they are decoded, and the places of values that
//! lie in them plainly.

use parquet::basic::{Compression, Type};
use parquet::file::metadata::ColumnChunkMetaData;

use super::thrift::Page;
use crate::buffer;
use crate::error::Fault;
use crate::source::columns::{MISSING, Places};
use crate::store::Object;

/// No page of a sound file is larger, decompressed.
const LARGEST_PAGE: u64 = 1 << 30;
/// What a page may always take, however little of the file it is.
pub(super) const SMALL_PAGE: u64 = 4 << 20;
/// A compressed page grows by no more than this (zstd, of one value again and again).
const GROWTH: u64 = 1 << 14;
/// No page holds more values.
const MOST_VALUES: u64 = 1 << 24;
/// No page header is longer.
const LONGEST_HEADER: u64 = 1 << 20;

const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
const DELTA_BYTE_ARRAY: i64 = 7;

fn corrupt(reason: &str) -> Fault {
    Fault::corrupt("parquet", reason)
}

/// A piece of a file that moves forward with what is asked for.
struct Window<'a> {
    file: &'a dyn Object,
    /// The file's length.
    length: u64,
    /// What is read at once ends here: at the end of the column, so that no other one is fetched.
    until: u64,
    begin: u64,
    bytes: Vec<u8>,
    /// Bytes that are read at once.
    step: u64,
}

impl Window<'_> {
    /// `length` bytes at `at`.
    fn get(&mut self, at: u64, length: u64) -> Result<&[u8], Fault> {
        let have = self.begin..self.begin + self.bytes.len() as u64;
        if !(have.contains(&at) && at + length <= have.end) {
            let end = at.checked_add(length).filter(|end| *end <= self.length);
            let end = end.ok_or_else(|| corrupt("a value lies beyond the end of the file"))?;
            let end = end.max((at + self.step).min(self.until));
            let length = (end - at) as usize;
            let more = length.saturating_sub(self.bytes.len());
            buffer::grow(&mut self.bytes, more)?;
            self.bytes.resize(length, 0);
            self.begin = at;
            self.file.read_exact_at(&mut self.bytes, at)?;
        }
        let from = (at - self.begin) as usize;
        Ok(&self.bytes[from..from + length as usize])
    }

    fn number(&mut self, at: u64) -> Result<u64, Fault> {
        let bytes = self.get(at, 4)?;
        Ok(u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }
}

/// Where a column chunk lies, checked against the file.
pub(super) fn range(chunk: &ColumnChunkMetaData, length: u64) -> Result<(u64, u64), Fault> {
    let begin = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let begin = u64::try_from(begin).ok();
    let bytes = u64::try_from(chunk.compressed_size()).ok();
    begin
        .zip(bytes)
        .and_then(|(begin, bytes)| Some((begin, begin.checked_add(bytes)?)))
        .filter(|(begin, end)| *begin >= 4 && *end <= length && chunk.num_values() >= 0)
        .ok_or_else(|| corrupt("a column lies beyond the end of the file"))
}

/// Calls `each` with every page of a chunk and where its body begins.
fn pages(
    window: &mut Window<'_>,
    chunk: &ColumnChunkMetaData,
    each: &mut dyn FnMut(&mut Window<'_>, &Page, u64) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut at, end) = range(chunk, window.length)?;
    window.until = end;
    let mut values = 0;
    while values < chunk.num_values() as u64 {
        let mut header = None;
        for length in [256, 16 << 10, LONGEST_HEADER] {
            header = match window.get(at, (end - at).min(length)) {
                Ok(bytes) => Page::read(bytes),
                Err(Fault::Io(error)) => return Err(Fault::Io(error)),
                Err(_) => None,
            };
            if header.is_some() {
                break;
            }
        }
        let (page, header) = header.ok_or_else(|| corrupt("a page header is damaged"))?;
        let body = at + header as u64;
        at = body
            .checked_add(page.compressed)
            .filter(|next| *next <= end)
            .ok_or_else(|| corrupt("a page is longer than its column"))?;
        if page.kind != 2 && page.kind != 1 {
            values += page.values;
            if values > chunk.num_values() as u64 {
                break;
            }
        }
        each(window, &page, body)?;
    }
    match values == chunk.num_values() as u64 {
        true => Ok(()),
        false => Err(corrupt("a page has more values than its column")),
    }
}

/// What decoding a chunk will meet.
pub(super) struct Facts {
    /// Bytes of the largest page.
    pub largest: u64,
    /// Bytes of the dictionary.
    pub dictionary: u64,
    /// Values and bytes of each page of data.
    pub data: Vec<(u32, u32)>,
    /// Whether values are made of those before them, so that little may become much.
    pub grows: bool,
}

impl Facts {
    /// Bytes of the pages that hold values `first` to `end`, the dictionary included.
    pub(super) fn bytes(&self, first: u64, end: u64) -> u64 {
        let mut before = 0;
        let within = self.data.iter().filter(|(values, _)| {
            let begin = before;
            before += u64::from(*values);
            begin < end && before > first
        });
        self.dictionary + within.map(|(_, bytes)| u64::from(*bytes)).sum::<u64>()
    }
}

/// Looks at all pages of a chunk, so that no decoder is misled by them.
pub(super) fn check(
    file: &dyn Object,
    length: u64,
    chunk: &ColumnChunkMetaData,
) -> Result<Facts, Fault> {
    let mut window = Window { file, length, until: length, begin: 0, bytes: Vec::new(), step: 256 };
    let mut facts = Facts { largest: 0, dictionary: 0, data: Vec::new(), grows: false };
    let codec = chunk.compression();
    pages(&mut window, chunk, &mut |window, page, body| {
        let most = unpacked(codec, page.compressed).clamp(SMALL_PAGE, LARGEST_PAGE);
        // No codec makes a page much larger.
        let stored = page.uncompressed.saturating_mul(2).saturating_add(64 << 10);
        if page.uncompressed > most || page.compressed > LARGEST_PAGE.min(stored) {
            return Err(corrupt("a page is larger than it can be"));
        }
        if page.values > MOST_VALUES {
            return Err(corrupt("a page has more than 16 million values"));
        }
        if page.definition + page.repetition > page.uncompressed.min(page.compressed) {
            return Err(corrupt("a page's levels are longer than the page"));
        }
        if matches!(codec, Compression::GZIP(_)) && page.compressed > 64 << 10 {
            let levels = page.definition + page.repetition;
            let stored = PageBytes { file, at: body + levels, end: body + page.compressed };
            gunzip_is_bounded(stored, page.uncompressed)?;
        }
        // The decoder of Hadoop's LZ4 does not know when to stop.
        if matches!(codec, Compression::LZ4) && page.compressed > 4 << 20 {
            return Err(Fault::Unsupported(
                "has pages of more than 4 MB in Hadoop's LZ4: write it with lz4_raw".to_owned(),
            ));
        }
        // Both are held while a page is unpacked; neither is larger than LARGEST_PAGE.
        let mut bytes = page.uncompressed.max(page.compressed);
        // Frames, which the library takes for Hadoop's LZ4 as well, become what they become.
        if matches!(codec, Compression::LZ4) && page.compressed >= 4 {
            let levels = page.definition + page.repetition;
            let magic = window.number(body + levels).unwrap_or(0);
            if matches!(magic, 0x184d_2204 | 0x184c_2102 | 0x184d_2a50..=0x184d_2a5f) {
                bytes = bytes.max(page.compressed.saturating_mul(255).min(LARGEST_PAGE));
            }
        }
        facts.largest = facts.largest.max(bytes);
        match page.kind {
            2 => facts.dictionary = facts.dictionary.saturating_add(bytes),
            1 => {}
            _ => {
                buffer::grow(&mut facts.data, 1)?;
                facts.data.push((page.values as u32, bytes as u32));
            }
        }
        facts.grows |= page.encoding == DELTA_BYTE_ARRAY;
        Ok(())
    })?;
    Ok(facts)
}

/// What so many bytes of a codec become at most.
pub(super) fn unpacked(codec: Compression, bytes: u64) -> u64 {
    match codec {
        Compression::UNCOMPRESSED => bytes,
        Compression::SNAPPY | Compression::LZ4_RAW => bytes.saturating_mul(256),
        _ => bytes.saturating_mul(GROWTH),
    }
}

/// Reads on from a place up to another.
struct PageBytes<'a> {
    file: &'a dyn Object,
    at: u64,
    end: u64,
}

impl std::io::Read for PageBytes<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let length = (self.end.saturating_sub(self.at)).min(out.len() as u64) as usize;
        let read = self.file.read_at(&mut out[..length], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The library's decoder of gzip takes all that comes: it is counted first where that may be much.
fn gunzip_is_bounded(stored: PageBytes<'_>, expected: u64) -> Result<(), Fault> {
    use std::io::Read;
    let stored = std::io::BufReader::with_capacity(64 << 10, stored);
    let mut reader = flate2::bufread::MultiGzDecoder::new(stored).take(expected + 1);
    let found = std::io::copy(&mut reader, &mut std::io::sink())?;
    match found <= expected {
        true => Ok(()),
        false => Err(corrupt("a page is larger than it says")),
    }
}

/// Whether the values of a chunk may lie in the file as they are.
pub(super) fn is_plain(chunk: &ColumnChunkMetaData) -> bool {
    use parquet::basic::Encoding as E;
    #[allow(deprecated)]
    let known = |encoding: E| {
        matches!(
            encoding,
            E::PLAIN | E::RLE | E::BIT_PACKED | E::PLAIN_DICTIONARY | E::RLE_DICTIONARY
        )
    };
    chunk.compression() == Compression::UNCOMPRESSED
        && chunk.column_descr().max_rep_level() == 0
        && match chunk.column_type() {
            Type::BYTE_ARRAY => true,
            // Values of nothing would be many in a page of nothing.
            Type::FIXED_LEN_BYTE_ARRAY => chunk.column_descr().type_length() > 0,
            _ => false,
        }
        && chunk.encodings().all(known)
        && chunk.file_path().is_none()
}

/// Refuses what takes more than there is room for while places are looked for.
fn check_room(bytes: u64, room: u64) -> Result<(), Fault> {
    match bytes <= room.max(SMALL_PAGE) {
        true => Ok(()),
        false => Err(Fault::TooLarge(
            "has pages that are larger than there is memory for: give more memory".to_owned(),
        )),
    }
}

/// Adds the places of a chunk's values; `false` if they do not lie in the file as they are.
fn places(
    file: &dyn Object,
    length: u64,
    chunk: &ColumnChunkMetaData,
    begins: &mut Vec<u64>,
    lengths: &mut Vec<u32>,
    room: u64,
) -> Result<bool, Fault> {
    let descriptor = chunk.column_descr();
    let max = descriptor.max_def_level();
    let fixed = (chunk.column_type() == Type::FIXED_LEN_BYTE_ARRAY)
        .then(|| u64::try_from(descriptor.type_length()).unwrap_or(0));
    let each = chunk.compressed_size().max(0) / chunk.num_values().max(1);
    // Of large values only their lengths are looked at, of small ones all at once.
    let step = if each > 16 << 10 { 256 } else { 64 << 10 };
    let mut window = Window { file, length, until: length, begin: 0, bytes: Vec::new(), step };
    let mut dictionary: Vec<(u64, u32)> = Vec::new();
    let mut plain = true;
    pages(&mut window, chunk, &mut |window, page, body| {
        let end = body + page.compressed;
        if page.kind == 2 {
            plain &= matches!(page.encoding, PLAIN | PLAIN_DICTIONARY);
            // Each value takes a byte of the page at least.
            let most = page.values.min(page.compressed);
            check_room(most.saturating_add(dictionary.len() as u64).saturating_mul(16), room)?;
            buffer::reserve(&mut dictionary, most)?;
            return walk(window, body, end, page.values, fixed, &mut |begin, length| {
                dictionary.push((begin, length));
            });
        }
        if page.kind == 1 || !plain {
            return Ok(());
        }
        let (levels, at) = match (page.kind, max > 0) {
            (3, _) => {
                let levels = body + page.repetition;
                let at = levels + page.definition;
                ((levels, at), at)
            }
            (_, true) if page.levels == RLE => {
                let at = body + 4 + window.number(body)?;
                ((body + 4, at), at)
            }
            (_, false) => ((body, body), body),
            _ => {
                plain = false;
                return Ok(());
            }
        };
        if at > end || page.values > MOST_VALUES {
            return Err(corrupt("a page's levels are longer than the page"));
        }
        // Which of the rows have a value.
        let first = begins.len();
        buffer::grow(begins, page.values as usize)?;
        buffer::grow(lengths, page.values as usize)?;
        let mut present = 0;
        if max > 0 {
            let bits = u32::from(max as u16).ilog2() + 1;
            check_room(levels.1 - levels.0, room)?;
            let bytes = window.get(levels.0, levels.1 - levels.0)?;
            hybrid(bytes, bits, page.values, &mut |level, run| {
                let here = level == max as u32;
                let length = if here { 0 } else { MISSING };
                present += if here { run } else { 0 };
                lengths.extend(std::iter::repeat_n(length, run as usize));
            })?;
        } else {
            present = page.values;
            lengths.extend(std::iter::repeat_n(0, page.values as usize));
        }
        begins.resize(lengths.len(), 0);
        let mut row = first;
        let mut put = |begin: u64, length: u32| {
            while lengths.get(row) == Some(&MISSING) {
                row += 1;
            }
            if row < lengths.len() {
                (begins[row], lengths[row]) = (begin, length);
                row += 1;
            }
        };
        match page.encoding {
            PLAIN => walk(window, at, end, present, fixed, &mut put),
            PLAIN_DICTIONARY | RLE_DICTIONARY if present > 0 => {
                check_room(end - at, room)?;
                let bytes = window.get(at, end - at)?;
                let (bits, bytes) =
                    bytes.split_first().ok_or_else(|| corrupt("a page is empty"))?;
                let mut sound = true;
                hybrid(bytes, u32::from(*bits), present, &mut |key, run| match dictionary
                    .get(key as usize)
                {
                    Some((begin, length)) => (0..run).for_each(|_| put(*begin, *length)),
                    None => sound = false,
                })?;
                match sound {
                    true => Ok(()),
                    false => Err(corrupt("a value is not in the dictionary")),
                }
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => Ok(()),
            _ => {
                plain = false;
                Ok(())
            }
        }
    })?;
    Ok(plain)
}

/// Walks over values that lie one after the other, each with its length before it.
fn walk(
    window: &mut Window<'_>,
    mut at: u64,
    end: u64,
    count: u64,
    fixed: Option<u64>,
    put: &mut dyn FnMut(u64, u32),
) -> Result<(), Fault> {
    for _ in 0..count {
        let length = match fixed {
            Some(length) => length,
            None => {
                at += 4;
                if at > end {
                    return Err(corrupt("a page ends within its values"));
                }
                window.number(at - 4)?
            }
        };
        let next = at + length;
        if next > end || length >= u64::from(MISSING) {
            return Err(corrupt("a value is longer than its page"));
        }
        put(at, length as u32);
        at = next;
    }
    Ok(())
}

/// Runs of equal numbers and packed numbers, of `bits` bits each: `count` in all.
pub(super) fn hybrid(
    bytes: &[u8],
    bits: u32,
    count: u64,
    each: &mut dyn FnMut(u32, u64),
) -> Result<(), Fault> {
    if bits > 32 {
        return Err(corrupt("a page's numbers are too wide"));
    }
    let short = || corrupt("a page ends within its numbers");
    let mut at = 0;
    let mut left = count;
    while left > 0 {
        let mut head = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = *bytes.get(at).ok_or_else(short)?;
            at += 1;
            head |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        if head & 1 == 0 {
            let width = bits.div_ceil(8) as usize;
            let value = bytes.get(at..at + width).ok_or_else(short)?;
            at += width;
            let value = value.iter().rev().fold(0_u32, |value, byte| value << 8 | u32::from(*byte));
            let run = (head >> 1).min(left);
            if run == 0 {
                return Err(corrupt("a page has an empty run"));
            }
            each(value, run);
            left -= run;
        } else {
            let values = (head >> 1).saturating_mul(8).min(left.next_multiple_of(8));
            if values == 0 {
                return Err(corrupt("a page has an empty run"));
            }
            let length = (head >> 1).saturating_mul(u64::from(bits));
            // A last group may be cut short where nothing of it is needed.
            let packed = &bytes[at..at.saturating_add(length as usize).min(bytes.len())];
            at += packed.len();
            let take = values.min(left);
            if (packed.len() as u64) * 8 < take * u64::from(bits) {
                return Err(short());
            }
            for number in 0..take {
                each(unpack(packed, number * u64::from(bits), bits), 1);
            }
            left -= take;
        }
    }
    Ok(())
}

/// The number of `bits` bits at bit `at`.
fn unpack(bytes: &[u8], at: u64, bits: u32) -> u32 {
    let first = (at / 8) as usize;
    let mut word = [0; 8];
    let have = bytes.len().saturating_sub(first).min(8);
    word[..have].copy_from_slice(&bytes[first..first + have]);
    ((u64::from_le_bytes(word) >> (at % 8)) & ((1_u64 << bits) - 1)) as u32
}

/// The places of a whole column of a file of `rows` rows, if all of its values lie there plainly.
pub(super) fn column(
    file: &dyn Object,
    length: u64,
    rows: u64,
    chunks: &mut dyn Iterator<Item = &ColumnChunkMetaData>,
    room: u64,
) -> Result<Option<Places>, Fault> {
    let (mut begins, mut lengths) = (Vec::new(), Vec::new());
    buffer::reserve(&mut begins, rows)?;
    buffer::reserve(&mut lengths, rows)?;
    for chunk in chunks {
        if !places(file, length, chunk, &mut begins, &mut lengths, room)? {
            return Ok(None);
        }
    }
    Ok(Some(Places::Each { begins, lengths }))
}
