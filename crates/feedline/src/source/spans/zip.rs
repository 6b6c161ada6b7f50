//! Zip archives of images: class folders are labels, as in a folder; without them there are none.
//!
//! Read by hand, because members are read later, at their places and by many threads: a scan notes
//! where each lies, how long it will be and its checksum. Nothing is unpacked to disk.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::encoding::{Encoding, LARGEST_MEMBER, packed};
use super::input::{Compression, Input};
use super::part::{ABSENT, Content, ShardPart, SpanColumn, Values};
use super::{Claim, Peek, Scanner, Spans};
use crate::error::Result;
use crate::source::names::Names;
use crate::source::{Opening, shards, walk};
use crate::spec::FieldChoice;

/// The columns' names.
const IMAGE: &str = "image";
const LABEL: &str = "label";

/// What archives' names end in.
const ENDINGS: [&str; 1] = [".zip"];

/// Opens archives.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let files = shards::expand(path, &ENDINGS, &**with.store)?;
    let scanner = Scanner {
        format: "zip",
        version: 1,
        compression: |_| Compression::None,
        scan: Arc::new(scan),
        admit: &|_, part, _| admit(part),
        check: &check,
    };
    Spans::open(path, &scanner, files, fields, with)
}

/// The end of the archive is a record of 22 bytes, and a comment of up to 64 KiB.
const END: u64 = 22;
const LONGEST_COMMENT: u64 = 0xffff;

/// Where the list of members lies.
struct Directory {
    start: u64,
    end: u64,
    /// Bytes before the archive proper, as a program that unpacks itself.
    before: u64,
}

/// A member as the list has it.
struct Member {
    name: Vec<u8>,
    /// Where its own header lies.
    header: u64,
    size: u64,
    extra: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 2).map_or(0, |b| u64::from(u16::from_le_bytes([b[0], b[1]])))
}

fn u32_at(bytes: &[u8], at: usize) -> u64 {
    u16_at(bytes, at) | u16_at(bytes, at + 2) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u32_at(bytes, at) | u32_at(bytes, at + 4) << 32
}

fn find_directory(input: &mut Input<'_>) -> Result<Directory> {
    let length = input.length()?;
    let from = length.saturating_sub(END + LONGEST_COMMENT);
    let tail = input.bytes(from, length - from)?;
    // The comment may hold the mark too: the right one has a comment up to the end.
    let fits = |at: &usize| {
        let end = &tail[*at..];
        end.len() >= END as usize && u16_at(end, 20) + END == end.len() as u64
    };
    let Some(at) = memchr::memmem::rfind_iter(tail, b"PK\x05\x06").find(fits) else {
        return Err(input.problem("has no list of members at its end: it is no zip, or cut short"));
    };
    let (mut size, mut offset) = (u32_at(&tail[at..], 12), u32_at(&tail[at..], 16));
    let several = u16_at(&tail[at..], 4) != 0 && u16_at(&tail[at..], 4) != 0xffff;
    let mut end = from + at as u64;
    if several {
        return Err(input.problem("is one of several parts of an archive: join them first"));
    }
    // Large archives have a second end before the first.
    if let Some(locator) = end.checked_sub(20) {
        let bytes = input.bytes(locator, 20)?;
        if bytes.starts_with(b"PK\x06\x07") {
            let declared = u64_at(bytes, 8);
            // With bytes before the archive, it lies right before its locator.
            for at in [Some(declared), locator.checked_sub(56)].into_iter().flatten() {
                let large = input.some(at, 56)?;
                if large.len() == 56 && large.starts_with(b"PK\x06\x06") {
                    (size, offset, end) = (u64_at(large, 40), u64_at(large, 48), at);
                    break;
                }
            }
        }
    }
    let start = end.checked_sub(size);
    let before = start.and_then(|start| start.checked_sub(offset));
    match (start, before) {
        (Some(start), Some(before)) => Ok(Directory { start, end, before }),
        _ => Err(input.problem("has a list of members that lies outside of it: it is damaged")),
    }
}

/// The numbers of 64 bits that stand for those that are all ones, in their order.
fn widen(extra: &[u8], numbers: [&mut u64; 3]) {
    let mut rest = extra;
    while rest.len() >= 4 {
        let (kind, length) = (u16_at(rest, 0), u16_at(rest, 2) as usize);
        let Some(mut field) = rest.get(4..4 + length) else { return };
        rest = &rest[4 + length..];
        if kind != 1 {
            continue;
        }
        for number in numbers {
            if *number == 0xffff_ffff && field.len() >= 8 {
                *number = u64_at(field, 0);
                field = &field[8..];
            }
        }
        return;
    }
}

/// Reads the list: members that are images.
fn members(input: &mut Input<'_>, list: &Directory, with: &Opening<'_>) -> Result<Vec<Member>> {
    let mut found = Vec::new();
    // A member, its place and its name, once more as its sample's.
    let mut kept = 0;
    let mut at = list.start;
    while at < list.end {
        let head: [u8; 46] = match input.some(at, 46)?.try_into() {
            Ok(head) => head,
            Err(_) => return Err(input.problem("ends in its list of members: it is damaged")),
        };
        if !head.starts_with(b"PK\x01\x02") {
            return Err(input.problem(format!("has no member at byte {at} of its list: damaged")));
        }
        let (name, extra, comment) = (u16_at(&head, 28), u16_at(&head, 30), u16_at(&head, 32));
        let text = input.bytes(at + 46, name + extra)?;
        let (name, extra) = text.split_at(name as usize);
        let (mut size, mut unpacked) = (u32_at(&head, 20), u32_at(&head, 24));
        let mut offset = u32_at(&head, 42);
        widen(extra, [&mut unpacked, &mut size, &mut offset]);
        at += 46 + text.len() as u64 + comment;
        let path = String::from_utf8_lossy(name).into_owned();
        let hidden = path.split('/').any(|part| part.starts_with('.') || part == "__MACOSX");
        if hidden || !walk::is_image(Path::new(&path), with.image_extensions) {
            continue;
        }
        let name = name.to_vec();
        if u16_at(&head, 8) & 1 != 0 {
            return Err(input.problem(format!("holds {path:?} encrypted: unpack it first")));
        }
        let deflated = match u16_at(&head, 10) {
            0 => false,
            8 => true,
            other => {
                return Err(input.problem(format!(
                    "holds {path:?} compressed by method {other}: only stored and deflated members are read"
                )));
            }
        };
        let crc = u32_at(&head, 16) as u32;
        let whole = deflated || size == unpacked;
        // Deflate makes at most 1032 bytes of one, and not even a bad writer doubles what it compresses.
        let honest = unpacked / 1032 <= size && size <= unpacked.saturating_mul(2) + 1024;
        let extra = packed(unpacked, crc, deflated).filter(|_| whole && honest);
        let (Some(extra), Some(header)) = (extra, list.before.checked_add(offset)) else {
            return Err(input.problem(format!("declares {unpacked} bytes for {path:?}: damaged")));
        };
        kept += 128 + 3 * name.len() as u64;
        found.push(Member { name, header, size, extra });
        if found.len().is_multiple_of(1024) {
            input.hold(kept)?;
        }
    }
    input.hold(kept)?;
    Ok(found)
}

/// Whether an index says nothing but images and their names. Labels and classes come from these.
fn admit(part: &mut ShardPart) -> Option<()> {
    part.columns.retain(|column| column.name != LABEL);
    let [column] = &part.columns[..] else { return None };
    let sound = (&*column.name, &*column.field) == (IMAGE, IMAGE)
        && !column.hidden
        && column.content == Content::Image
        && column.encoding == Encoding::Deflate
        && column.values.len() == 0
        && !column.places.contains(&ABSENT);
    sound.then(|| add_labels(part))
}

/// Compares a member with its own header, which stands before it.
fn check(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    // Labels were made of the names.
    if claim.column.name == LABEL {
        return Some(());
    }
    let [start, size] = claim.place()?;
    let said = *claim.column.extra.get(claim.at)?;
    let name = claim.name();
    let least = 30 + name.len() as u64;
    // What stands between the name and the bytes is up to 64 kB long, and usually nothing.
    let extra = [0, 28, 20, 36].into_iter().chain(0..1 << 10);
    let fits = |extra: u64| {
        let head = peek(start.checked_sub(least + extra)?, least)?;
        let found = head.starts_with(b"PK\x03\x04")
            && u16_at(&head, 28) == extra
            && u16_at(&head, 26) == name.len() as u64
            && head.get(30..)? == name;
        found.then_some(head)
    };
    let head = extra.into_iter().find_map(fits)?;
    let deflated = u16_at(&head, 8) == 8;
    // Checksum and lengths stand behind the bytes if they were not known before, and in the extra
    // field if they are large.
    let later = u16_at(&head, 6) & 8 != 0;
    let (crc, stored, unpacked) = (u32_at(&head, 14), u32_at(&head, 18), u32_at(&head, 22));
    let small = |number: u64, said: u64| later || number == 0xffff_ffff || number == said;
    let same = (said & 1 << 31 != 0) == deflated
        && (later || crc == said >> 32)
        && small(stored, size)
        && small(unpacked, said & LARGEST_MEMBER);
    same.then_some(())
}

/// The folder of a name, and the rest.
fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let slash = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    name.split_at(slash)
}

/// How many bytes of all names are folders around those of the classes.
fn wrapping(names: &Names) -> usize {
    let all = || (0..names.len()).map(|at| names.get(at).as_os_str().as_bytes());
    let Some(first) = all().next() else { return 0 };
    let mut common = 0;
    loop {
        let Some(slash) = first[common..].iter().position(|byte| *byte == b'/') else {
            return common;
        };
        let folder = &first[common..=common + slash];
        let wraps = all().all(|name| {
            let inner = name[common..].strip_prefix(folder);
            inner.is_some_and(|inner| inner.contains(&b'/'))
        });
        if !wraps {
            return common;
        }
        common += folder.len();
    }
}

/// Adds the labels that the names of folders are, if every image lies in one.
fn add_labels(part: &mut ShardPart) {
    let common = wrapping(&part.names);
    let folder = |at: u64| {
        let name = &part.names.get(at).as_os_str().as_bytes()[common..];
        // An image beside the folders makes the archive a flat one.
        name.iter().position(|byte| *byte == b'/').map(|slash| &name[..slash])
    };
    let mut numbers: HashMap<&[u8], usize> = HashMap::new();
    let mut classes: Vec<String> = Vec::new();
    for at in 0..part.names.len() {
        let Some(folder) = folder(at) else { return };
        numbers.entry(folder).or_insert_with(|| {
            classes.push(String::from_utf8_lossy(folder).into_owned());
            classes.len() - 1
        });
    }
    if classes.is_empty() {
        return;
    }
    let mut sorted = classes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let number = |name: &String| sorted.binary_search(name).unwrap_or(0) as i64;
    let ranks: Vec<i64> = classes.iter().map(number).collect();
    let label_of = |at| folder(at).and_then(|folder| numbers.get(folder)).map_or(0, |n| ranks[*n]);
    let mut label = SpanColumn::new(LABEL, Content::Number);
    label.values = Values::Int((0..part.names.len()).map(label_of).collect());
    part.columns.push(label);
    part.classes = sorted;
}

fn scan(input: &mut Input<'_>, with: &Opening<'_>) -> Result<ShardPart> {
    let list = find_directory(input)?;
    let mut members = members(input, &list, with)?;
    // The order of a folder of the same files: folders by their path, then files by name.
    members.sort_by(|a, b| split(&a.name).cmp(&split(&b.name)));
    if let Some(pair) = members.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let name = String::from_utf8_lossy(&pair[0].name).into_owned();
        return Err(input.problem(format!("holds {name:?} twice")));
    }
    let mut part = ShardPart::default();
    let mut image = SpanColumn::new(IMAGE, Content::Image);
    image.encoding = Encoding::Deflate;
    for member in &members {
        let head = input.bytes(member.header, 30)?;
        if !head.starts_with(b"PK\x03\x04") {
            let name = String::from_utf8_lossy(&member.name).into_owned();
            return Err(input.problem(format!("has no {name:?} where its list says: damaged")));
        }
        let start = member.header + 30 + u16_at(head, 26) + u16_at(head, 28);
        image.places.push([start, member.size]);
        image.extra.push(member.extra);
        part.names.push(&member.name);
    }
    part.columns.push(image);
    add_labels(&mut part);
    Ok(part)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use ::zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

    use super::*;
    use crate::error::Fault;
    use crate::sample::{Grown, Value};
    use crate::source::Source;

    fn with() -> Opening<'static> {
        Opening {
            store: crate::source::arrays::npy::tests::local(),
            image_extensions: &["jpg", "png"],
            block_memory: 1 << 20,
            memory: 1 << 30,
            is_image: |_| false,
        }
    }

    fn archive(files: &[(&str, &[u8])], method: CompressionMethod, large: bool) -> Vec<u8> {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(method).large_file(large);
        for (name, bytes) in files {
            writer.start_file(*name, options).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("feedline-zip-{name}-{}.zip", std::process::id()))
    }

    fn opened(path: &Path, bytes: &[u8]) -> Result<Spans> {
        std::fs::write(path, bytes).unwrap();
        open(path, &[], &with())
    }

    fn image(source: &Spans, index: u64) -> Result<Vec<u8>, Fault> {
        match source.value(index, 0)? {
            Value::File(location) => {
                let (start, length) = location.range.unwrap();
                let bytes = std::fs::read(location.path).unwrap();
                Ok(bytes[start as usize..(start + length) as usize].to_vec())
            }
            _ => {
                let mut taken = Grown::default();
                source.read(index, 0, &mut taken)?;
                Ok(taken.bytes)
            }
        }
    }

    #[test]
    fn class_folders_are_labels_and_flat_archives_have_none() {
        let path = file("labels");
        let long = vec![7u8; 5000];
        let files: [(&str, &[u8]); 6] = [
            ("set/dog/1.jpg", b"d1"),
            ("set/cat/2.png", &long),
            ("set/cat/1.JPG", b""),
            ("set/cat/.x.jpg", b"-"),
            ("__MACOSX/set/dog/1.jpg", b"-"),
            ("notes.txt", b"-"),
        ];
        for (method, large) in [
            (CompressionMethod::Stored, false),
            (CompressionMethod::Deflated, false),
            (CompressionMethod::Deflated, true),
        ] {
            let mut bytes = archive(&files, method, large);
            for prefix in [0, 100] {
                // A program that unpacks itself has bytes before the archive.
                bytes.splice(0..0, vec![b'#'; prefix]);
                let source = opened(&path, &bytes).unwrap();
                assert_eq!(source.classes(), ["cat", "dog"]);
                let label =
                    |at| matches!(source.value(at, 1), Ok(Value::Int(n)) if n == at as i64 / 2);
                assert!(source.len() == 3 && (0..3).all(label));
                let images: Vec<_> = (0..3).map(|at| image(&source, at).unwrap()).collect();
                assert_eq!(images, [b"".to_vec(), long.clone(), b"d1".to_vec()]);
                assert_eq!(source.origin(2).unwrap(), path.join("set/dog/1.jpg"));
            }
        }
        let flat = archive(&[("b.jpg", b"b"), ("x/a.jpg", b"a")], CompressionMethod::Stored, false);
        let source = opened(&path, &flat).unwrap();
        assert_eq!((source.fields().len(), source.len()), (1, 2));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let path = file("damage");
        let long = vec![7u8; 3000];
        let whole =
            archive(&[("a/1.jpg", &long), ("b/2.jpg", b"xyz")], CompressionMethod::Deflated, false);
        for end in 0..whole.len() {
            assert!(opened(&path, &whole[..end]).is_err(), "cut at {end}");
        }
        for at in 0..whole.len() {
            for change in [1u8, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] ^= change;
                if let Ok(source) = opened(&path, &changed) {
                    for index in 0..source.len() {
                        let _ = image(&source, index);
                    }
                }
            }
        }
        let mut wrong = whole.clone();
        let data = 30 + "a/1.jpg".len() + 2;
        wrong[data] ^= 1;
        assert!(image(&opened(&path, &wrong).unwrap(), 0).is_err(), "the checksum is compared");
        let mut encrypted = whole.clone();
        let list = memchr::memmem::find(&whole, b"PK\x01\x02").unwrap();
        encrypted[list + 8] |= 1;
        let message = opened(&path, &encrypted).err().unwrap().to_string();
        assert!(message.contains("encrypted"), "{message}");
        std::fs::remove_file(&path).unwrap();
    }
}
