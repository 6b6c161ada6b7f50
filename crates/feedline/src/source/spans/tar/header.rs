//! The headers of tar archives: the old format, ustar, pax and GNU's long names.
//!
//! Read by hand, because only the headers are read, at their places, with every length compared
//! with the file first; a general reader goes through all of the data, and takes what a header
//! says for granted.

use crate::error::Result;
use crate::source::spans::input::Input;

const BLOCK: u64 = 512;
/// A path, or a few attributes; anything longer is no header.
const LONGEST_EXTENDED: u64 = 1 << 20;

/// A regular file of the archive.
#[derive(Clone)]
pub(in crate::source) struct Member {
    pub(in crate::source) name: Vec<u8>,
    /// Where its bytes begin, and how many there are.
    pub(in crate::source) start: u64,
    pub(in crate::source) size: u64,
}

/// Goes through the archive's headers.
#[derive(Default)]
pub(super) struct Headers {
    at: u64,
    /// What extended headers say of the next member.
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl Headers {
    /// The next regular file; `None` at the end. Its bytes may be read before the next call.
    pub(super) fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Member>> {
        loop {
            let at = self.at;
            let Some(block) = read_block(input, at)? else { return Ok(None) };
            let wrong = |what: &str| {
                let advice = if at == 0 { "it is no tar archive" } else { "it is damaged" };
                input.problem(format!("has {what} at byte {at}: {advice}"))
            };
            if !checksum_fits(&block) {
                return Err(wrong("a header with a wrong checksum"));
            }
            let kind = block[156];
            let mut size = number(&block[124..136]).ok_or_else(|| wrong("no length"))?;
            let start = at + BLOCK;
            match kind {
                b'x' | b'L' => {
                    if size > LONGEST_EXTENDED {
                        return Err(wrong("an extended header of more than 1 MiB"));
                    }
                    let text = input.bytes(start, size)?.to_vec();
                    if kind == b'L' {
                        self.name = Some(until_zero(&text).to_vec());
                    } else if self.extend(&text).is_none() {
                        return Err(
                            input.problem(format!("has a damaged extended header at byte {at}"))
                        );
                    }
                    self.at = after(start, size).ok_or_else(|| input.problem("is damaged"))?;
                    continue;
                }
                b'S' => self.sparse = true,
                _ => {}
            }
            let (name, extended) = (self.name.take(), self.size.take());
            let sparse = std::mem::take(&mut self.sparse);
            let name = name.unwrap_or_else(|| own_name(&block));
            let regular = matches!(kind, 0 | b'0' | b'7' | b'S') && !name.ends_with(b"/");
            // Links, devices, folders and pipes have no bytes, whatever their header says.
            let empty = matches!(kind, b'1'..=b'6') || name.ends_with(b"/") && kind == 0;
            if let Some(extended) = extended {
                size = extended;
            }
            if empty {
                size = 0;
            }
            let next = after(start, size).ok_or_else(|| {
                input.problem(format!("declares {size} bytes at byte {at}: it is damaged"))
            })?;
            self.at = next;
            if sparse && regular {
                let name = String::from_utf8_lossy(&name).into_owned();
                return Err(input.problem(format!(
                    "holds {name:?} as a sparse file, which is not supported: write it without --sparse"
                )));
            }
            if regular {
                return Ok(Some(Member { name, start, size }));
            }
        }
    }

    /// Reads the records of a pax header: `LENGTH KEY=VALUE\n`.
    fn extend(&mut self, mut text: &[u8]) -> Option<()> {
        // Some writers fill the rest with zeros.
        while !text.is_empty() && text[0] != 0 {
            let blank = text.iter().take(8).position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
            let record = text.get(blank + 1..length)?.strip_suffix(b"\n")?;
            text = &text[length..];
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"size" => self.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
        Some(())
    }
}

/// The name in the header of a member of `size` bytes; `None` if it is not one.
pub(super) fn name_before(block: &[u8; 512], size: u64) -> Option<Vec<u8>> {
    let regular = matches!(block[156], 0 | b'0' | b'7');
    // What octal digits cannot say stands in a header of its own.
    let fits = number(&block[124..136]) == Some(size) || size >= 1 << 33;
    (regular && fits && checksum_fits(block)).then(|| own_name(block))
}

/// The header at `at`; `None` where the archive ends.
fn read_block(input: &mut Input<'_>, at: u64) -> Result<Option<[u8; 512]>> {
    let bytes = input.some(at, BLOCK)?;
    if bytes.is_empty() && at > 0 || bytes.len() == 512 && bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    match bytes.try_into() {
        Ok(block) => Ok(Some(block)),
        Err(_) if at == 0 => Err(input.problem("is no tar archive: it is too short")),
        Err(_) => Err(input.problem(format!("ends in a header at byte {at}: it is cut short"))),
    }
}

fn after(start: u64, size: u64) -> Option<u64> {
    start.checked_add(size.checked_next_multiple_of(BLOCK)?).filter(|end| *end < 1 << 62)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn own_name(block: &[u8; 512]) -> Vec<u8> {
    let name = until_zero(&block[..100]);
    let prefix = until_zero(&block[345..500]);
    // GNU's own format has other things in the prefix's place.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        return [prefix, b"/", name].concat();
    }
    name.to_vec()
}

/// The sum of all bytes with blanks in the sum's own place. Old programs took bytes as signed.
fn checksum_fits(block: &[u8; 512]) -> bool {
    let Some(declared) = number(&block[148..156]) else { return false };
    let others = || block[..148].iter().chain(&block[156..]);
    let sum: u64 = others().map(|byte| u64::from(*byte)).sum::<u64>() + 8 * 32;
    let signed: i64 = others().map(|byte| i64::from(*byte as i8)).sum::<i64>() + 8 * 32;
    declared == sum || i64::try_from(declared) == Ok(signed)
}

/// A number in octal digits, or in GNU's way for large ones.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let high_is_zero =
            high.iter().enumerate().all(|(at, b)| *b == if at == 0 { 0x80 } else { 0 });
        return high_is_zero.then(|| low.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}
