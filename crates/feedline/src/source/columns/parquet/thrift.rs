//! As much of Thrift's compact encoding as it takes to look at a footer and at page headers
//! before a decoder does.

/// Structs and lists may lie in each other so many times.
const DEEPEST: usize = 24;
/// Groups of a schema may lie in each other so many times.
const DEEPEST_SCHEMA: usize = 64;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const STRUCT: u8 = 12;

/// A reader of bytes; whatever is not as it should be is `None`.
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Compact { bytes, at: 0 }
    }

    /// Bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A whole number of any size.
    pub(super) fn int(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return None;
        }
        self.at += bytes as usize;
        Some(())
    }

    /// How many elements a list has, and of which type.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            short => u64::from(short),
        };
        Some((count, head & 15))
    }

    /// Calls `each` with every field of a struct: its number and type. What `each` does not read
    /// (it says `false`) is passed over.
    pub(super) fn fields(
        &mut self,
        depth: usize,
        each: &mut dyn FnMut(&mut Self, i64, u8) -> Option<bool>,
    ) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        let mut number = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            number = match head >> 4 {
                0 => self.int()?,
                delta => i64::checked_add(number, i64::from(delta))?,
            };
            let kind = head & 15;
            if !each(self, number, kind)? {
                self.skip(kind, depth)?;
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            TRUE | FALSE => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(length)
            }
            9 | 10 => {
                let (count, kind) = self.list()?;
                self.skip_many(count, kind, depth)
            }
            STRUCT => self.fields(depth + 1, &mut |_, _, _| Some(false)),
            13 => self.pass(16),
            _ => None,
        }
    }

    fn skip_many(&mut self, count: u64, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            TRUE | FALSE | 3 => self.pass(count),
            // Every element takes a byte at least, so the loop ends with the bytes.
            kind => (0..count).try_for_each(|_| self.skip(kind, depth + 1)),
        }
    }
}

/// What the library takes for an element of a schema, for each level above a leaf, and for a
/// column chunk.
const ELEMENT: u64 = 1 << 10;
const LEVEL: u64 = 64;
const CHUNK: u64 = 600;

/// Bytes that a footer takes once it is read; `None` unless its lists are as long as they say, and
/// its schema is no deeper than can be walked.
pub(super) fn footer_memory(bytes: &[u8]) -> Option<u64> {
    let mut reader = Compact::new(bytes);
    let mut memory = bytes.len() as u64;
    reader.fields(0, &mut |reader, number, kind| {
        let more = match (number, kind) {
            (2, 9) => schema_memory(reader)?,
            (4, 9) => chunk_memory(reader)?,
            _ => return Some(false),
        };
        memory = memory.saturating_add(more);
        Some(true)
    })?;
    Some(memory)
}

fn schema_memory(reader: &mut Compact<'_>) -> Option<u64> {
    let (count, kind) = reader.list()?;
    if kind != STRUCT {
        return None;
    }
    let mut memory = 0_u64;
    // For each group that is open, children that are still to come, and bytes of its path.
    let mut open: Vec<(u64, u64)> = Vec::new();
    for at in 0..count {
        let (mut children, mut name) = (0, 0);
        reader.fields(1, &mut |reader, number, kind| {
            match (number, kind) {
                (4, 8) => {
                    name = reader.varint()?;
                    reader.pass(name)?;
                }
                (5, 5) => children = reader.int()?,
                _ => return Some(false),
            }
            Some(true)
        })?;
        let children = u64::try_from(children).ok()?;
        if children > count - at {
            return None;
        }
        let mut path = name;
        if let Some((left, before)) = open.last_mut() {
            *left = left.checked_sub(1)?;
            path = path.saturating_add(*before);
        }
        memory = memory.saturating_add(ELEMENT);
        if children > 0 {
            open.push((children, path));
        } else {
            // Each leaf has the names of all groups that it is in.
            let levels = LEVEL * open.len() as u64;
            memory = memory.saturating_add(path).saturating_add(levels);
        }
        while open.last().is_some_and(|(left, _)| *left == 0) {
            open.pop();
        }
        if open.len() > DEEPEST_SCHEMA {
            return None;
        }
    }
    Some(memory)
}

fn chunk_memory(reader: &mut Compact<'_>) -> Option<u64> {
    let (count, kind) = reader.list()?;
    // An empty list may be one of nothing.
    if kind != STRUCT && count > 0 {
        return None;
    }
    let mut memory = 0_u64;
    for _ in 0..count {
        memory = memory.saturating_add(CHUNK);
        reader.fields(1, &mut |reader, number, kind| {
            if (number, kind) != (1, 9) {
                return Some(false);
            }
            let (count, kind) = reader.list()?;
            memory = memory.saturating_add(CHUNK.saturating_mul(count));
            reader.skip_many(count, kind, 2)?;
            Some(true)
        })?;
    }
    Some(memory)
}

/// What a page's header says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// 0 data, 1 index, 2 dictionary, 3 data of the second version.
    pub kind: i64,
    /// Bytes after decompression.
    pub uncompressed: u64,
    /// Bytes in the file.
    pub compressed: u64,
    /// Values, with those that are missing.
    pub values: u64,
    /// How they are encoded.
    pub encoding: i64,
    /// How definition levels are encoded (first version).
    pub levels: i64,
    /// Bytes of definition levels (second version).
    pub definition: u64,
    /// Bytes of repetition levels (second version).
    pub repetition: u64,
}

impl Page {
    /// Reads a header; also says how long it is.
    pub(super) fn read(bytes: &[u8]) -> Option<(Page, usize)> {
        let mut page = Page { kind: -1, ..Page::default() };
        let mut reader = Compact::new(bytes);
        let unsigned = |value: i64| u64::try_from(value).ok().filter(|n| *n <= i32::MAX as u64);
        reader.fields(0, &mut |reader, number, kind| {
            match (number, kind) {
                (1, 5) => page.kind = reader.int()?,
                (2, 5) => page.uncompressed = unsigned(reader.int()?)?,
                (3, 5) => page.compressed = unsigned(reader.int()?)?,
                (5 | 7 | 8, STRUCT) => {
                    let second = number == 8;
                    reader.fields(1, &mut |reader, number, kind| {
                        match (number, kind, second) {
                            (1, 5, _) => page.values = unsigned(reader.int()?)?,
                            (2, 5, false) | (4, 5, true) => page.encoding = reader.int()?,
                            (3, 5, false) => page.levels = reader.int()?,
                            (5, 5, true) => page.definition = unsigned(reader.int()?)?,
                            (6, 5, true) => page.repetition = unsigned(reader.int()?)?,
                            _ => return Some(false),
                        }
                        Some(true)
                    })?;
                }
                _ => return Some(false),
            }
            Some(true)
        })?;
        Some((page, reader.position()))
    }
}
