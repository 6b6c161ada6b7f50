//! Huffman codes of a baseline scan: tables that resolve most symbols in one look, and a reader
//! that takes eight bytes at a time.

/// Bits that one look covers. At quality 95 most looks find a coefficient or two; 11 bits would
/// find more, but their tables (16 kB for each code) leave too little of the nearest cache: 2 %
/// slower, 12 bits 4 %.
const LOOK: u32 = 10;
const ENTRIES: usize = 1 << LOOK;

/// Where the coefficients of a block lie, in the order of the scan. What runs past the end of a
/// block lands in the spare place.
const NATURAL: [u8; 256] = {
    let mut table = [SPARE as u8; 256];
    let order: [u8; 64] = [
        0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27,
        20, 13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
        58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    ];
    let mut i = 0;
    while i < 64 {
        table[i] = order[i];
        i += 1;
    }
    table
};

/// The place of coefficient `index` of the scan.
pub(super) fn natural(index: usize) -> usize {
    NATURAL[index & 63] as usize
}

const SPARE: usize = 64;

/// From anywhere in a block, a place that is not in it.
const SPARE_OFFSET: u32 = 64;

/// Coefficients of a block in natural order, and one spare place.
pub(super) type Block = [i16; 65];

/// Rounds of a block at most: each reads a coefficient or ends the block, and one is read before.
/// The loops count them, so that they end whatever a table says.
const ROUNDS: u32 = 63;

/// What an end of block adds to the position: more than any mistake can.
const END: u32 = 128;

/// An entry of a table: bits 0 to 6 say how many bits the symbol and its value take, bits 8 to 15
/// how many coefficients are zero before it, bits 16 to 31 the value.
///
/// With bit 7 set the value is not known yet: bits 16 to 20 say how many bits the symbol takes and
/// bits 24 to 27 how many the value. With no bit but that one, the symbol is not known either.
type TableEntry = u32;

const OPEN: TableEntry = 0x80;

fn entry(bits: u32, zeros: u32, value: i32) -> TableEntry {
    bits | zeros << 8 | (value as u32) << 16
}

/// What one look finds of a block's coefficients, up to two of them and the end of the block:
/// - bits 0 to 6: how many bits they take; bit 7: [`OPEN`], nothing is found;
/// - bits 8 to 15: how far the block must go on behind the first for the second to belong to it;
/// - bits 16 to 23 and 24 to 31: where the first and the second belong, from the present one;
/// - bits 32 to 39: how far they lead;
/// - bits 40 to 47 and 48 to 63: the second's value and the first's.
///
/// Where there is one only, it is there twice.
type Pair = u64;

/// One code as a file defines it, and what it takes to read it.
pub(super) struct Table {
    /// The file's definition, to know it again: most photos share theirs.
    definition: Vec<u8>,
    look: Box<[TableEntry; ENTRIES]>,
    pairs: Box<[Pair; ENTRIES]>,
    /// For skipping: the bits of as many whole symbols as one look holds (0 to 7), the
    /// coefficients that they stand for (8 to 15), and whether the block ends with them (16).
    skip: Box<[u32; ENTRIES]>,
    /// One past the largest code of each length, aligned to 16 bits.
    limits: [u32; 18],
    /// What to add to a code of each length to find its symbol.
    offsets: [i32; 17],
    symbols: [u8; 256],
}

impl Default for Table {
    /// A table without a code: whatever is looked up in it is refused.
    fn default() -> Self {
        Table {
            definition: Vec::new(),
            look: Box::new([OPEN; ENTRIES]),
            pairs: Box::new([Pair::from(OPEN); ENTRIES]),
            skip: Box::new([0; ENTRIES]),
            limits: [0; 18],
            offsets: [0; 17],
            symbols: [0; 256],
        }
    }
}

/// The value that `bits` bits stand for: the first half of the range is negative.
fn extend(raw: u32, bits: u32) -> i32 {
    if bits == 0 {
        return 0;
    }
    let raw = raw as i32;
    if raw < 1 << (bits - 1) { raw - (1 << bits) + 1 } else { raw }
}

impl Table {
    /// Takes up a definition: 16 counts and the symbols. None if it is no prefix code, and if
    /// there is none: a code that a scan names and no file defines is the library's to judge.
    ///
    /// Everything is checked before anything changes, so that a table is always the one that
    /// its definition describes: a refused file leaves nothing behind for the next one.
    pub(super) fn define(&mut self, definition: &[u8], is_ac: bool) -> Option<()> {
        let (counts, symbols) = definition.split_first_chunk::<16>()?;
        if self.definition == definition {
            return Some(());
        }
        if symbols.len() > 256
            || counts.iter().map(|n| usize::from(*n)).sum::<usize>() != symbols.len()
        {
            return None;
        }
        if !is_ac && symbols.iter().any(|symbol| *symbol > 15) {
            return None;
        }
        let (mut limits, mut offsets) = ([0; 18], [0; 17]);
        let (mut code, mut first) = (0u32, 0i32);
        for length in 1..=16u32 {
            let count = u32::from(counts[length as usize - 1]);
            // The library keeps the last code of a length free while there are symbols left.
            if (first as usize) < symbols.len() && code + count >= 1 << length {
                return None;
            }
            offsets[length as usize] = first - code as i32;
            first += count as i32;
            code += count;
            limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        (self.limits, self.offsets) = (limits, offsets);
        self.symbols = [0; 256];
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        for at in 0..ENTRIES {
            self.look[at] = self.resolve(at as u32, is_ac);
        }
        if is_ac {
            for at in 0..ENTRIES {
                self.skip[at] = self.resolve_skip(at as u32);
                self.pairs[at] = self.resolve_pair(at as u32);
            }
        }
        self.definition.clear();
        self.definition.extend_from_slice(definition);
        Some(())
    }

    /// The first symbol in 16 bits, and its length; None if it is no code.
    fn symbol(&self, bits: u32) -> Option<(u8, u32)> {
        let length = (1..=16).find(|length| bits < self.limits[*length as usize])?;
        let at = (bits >> (16 - length)) as i32 + self.offsets[length as usize];
        Some((self.symbols[at as usize & 255], length))
    }

    /// What a symbol says: zeros before the value, and bits of the value. None if it is not one of
    /// a baseline scan.
    fn meaning(symbol: u8, is_ac: bool) -> Option<(u32, u32)> {
        match (is_ac, symbol) {
            (false, 0..=15) => Some((0, u32::from(symbol))),
            (false, _) => None,
            (true, 0x00) => Some((END, 0)),
            // Sixteen zeros; no other run goes without a value.
            (true, 0xf0) => Some((15, 0)),
            (true, symbol) if symbol & 15 == 0 => None,
            (true, symbol) => Some((u32::from(symbol >> 4), u32::from(symbol & 15))),
        }
    }

    /// What is known from a look.
    fn resolve(&self, look: u32, is_ac: bool) -> TableEntry {
        let found = self.symbol(look << (16 - LOOK)).filter(|(_, length)| *length <= LOOK);
        let Some((symbol, length)) = found else { return OPEN };
        let Some((zeros, size)) = Table::meaning(symbol, is_ac) else { return OPEN };
        if length + size > LOOK {
            return entry(length + size, zeros, (length | size << 8) as i32) | OPEN;
        }
        let raw = look >> (LOOK - length - size) & ((1 << size) - 1);
        entry(length + size, zeros, extend(raw, size))
    }

    /// What a look at the full window found, with its value; takes it off the window.
    #[inline(always)]
    fn finish(&self, found: TableEntry, window: &mut Window, is_ac: bool) -> Option<TableEntry> {
        if found & OPEN == 0 {
            window.consume(found & 0x7f);
            return Some(found);
        }
        if found != OPEN {
            let (length, size) = (found >> 16 & 31, found >> 24);
            let raw = window.bits << length >> (64 - size);
            window.consume(found & 0x7f);
            return Some(entry(0, found >> 8 & 0xff, extend(raw as u32, size)));
        }
        let (entry, bits) = self.read_long(window.bits, is_ac)?;
        window.consume(bits);
        Some(entry)
    }

    /// The symbol and value at the top of a window, whose symbol no look resolves, and the bits
    /// that they take.
    #[cold]
    #[inline(never)]
    fn read_long(&self, window: u64, is_ac: bool) -> Option<(TableEntry, u32)> {
        let (symbol, length) = self.symbol((window >> 48) as u32)?;
        let (zeros, size) = Table::meaning(symbol, is_ac)?;
        let raw = if size == 0 { 0 } else { window << length >> (64 - size) };
        Some((entry(0, zeros, extend(raw as u32, size)), length + size))
    }

    fn resolve_pair(&self, look: u32) -> Pair {
        let first = self.look[look as usize];
        if first & OPEN != 0 {
            return Pair::from(OPEN);
        }
        let (bits, zeros, value) = (first & 0x7f, first >> 8 & 0xff, first >> 16);
        let pair = |bits: u32, need: u32, second: u32, ahead: u32, other: u32| {
            Pair::from(bits | need << 8 | zeros << 16 | second << 24)
                | Pair::from(ahead | (other & 0xff) << 8 | value << 16) << 32
        };
        // A value that has no room in the second place is not in need of it.
        let alone = pair(bits, 0, SPARE_OFFSET, zeros + 1, 0);
        if zeros == END {
            return alone;
        }
        let next = self.look[(look << bits & (ENTRIES as u32 - 1)) as usize];
        let (next_bits, next_zeros) = (next & 0x7f, next >> 8 & 0xff);
        let next_value = next as i32 >> 16;
        if next & OPEN != 0 || bits + next_bits > LOOK || i8::try_from(next_value).is_err() {
            return alone;
        }
        if next_zeros == END {
            // Further than an end of block alone leads from the first coefficient.
            return pair(bits + next_bits, zeros, SPARE_OFFSET, END + 2, 0);
        }
        let second = zeros + 1 + next_zeros;
        pair(bits + next_bits, zeros, second, second + 1, next_value as u32)
    }

    fn resolve_skip(&self, look: u32) -> u32 {
        let (mut used, mut passed, mut ends) = (0, 0, 0);
        while ends == 0 && passed < 48 {
            let rest = look << used & (ENTRIES as u32 - 1);
            let next = self.look[rest as usize];
            let bits = next & 0x7f;
            // The bits shifted in are not known: a symbol that reaches them is not whole.
            if next & OPEN != 0 || used + bits > LOOK {
                break;
            }
            used += bits;
            match next >> 8 & 0xff {
                END => ends = 1,
                zeros => passed += zeros + 1,
            }
        }
        used | passed << 8 | ends << 16
    }
}

/// Bytes that are made ready at a time: few enough to stay in the nearest cache.
const CHUNK: usize = 8 << 10;

/// Bytes of a unit at most: six blocks of 64 values of 31 bits, and one look further.
const UNIT: usize = 6 * 64 * 31 / 8 + 16;

/// Bytes of a scan without the zeros that are stuffed into it, in a worker's memory.
pub(super) struct Ready(Box<[u8; CHUNK + 2 * UNIT]>);

impl Default for Ready {
    fn default() -> Self {
        Ready(Box::new([0; CHUNK + 2 * UNIT]))
    }
}

/// Bits of a scan, up to a marker.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// Where in `bytes` to go on; where a marker was met once `ended`.
    next: usize,
    ended: bool,
    ready: &'a mut [u8; CHUNK + 2 * UNIT],
    /// How many bytes are ready. What follows is left from before: a unit that takes of it is
    /// [`Bits::is_short`].
    length: usize,
    window: Window,
}

/// The next bits, from the top. Those beyond `count` are the ones that will come.
#[derive(Clone, Copy, Default)]
struct Window {
    bits: u64,
    count: u32,
    /// The next of the bytes that are ready.
    at: usize,
}

impl Window {
    /// At least 56 bits.
    #[inline(always)]
    fn fill(&mut self, ready: &[u8; CHUNK + 2 * UNIT]) {
        // A unit cannot reach further than there is room: the other branch is never taken.
        if let Some((eight, _)) = ready.get(self.at..).and_then(<[u8]>::split_first_chunk::<8>) {
            self.bits |= u64::from_be_bytes(*eight) >> self.count;
            self.at += (63 - self.count as usize) >> 3;
            self.count |= 56;
        }
    }

    #[inline(always)]
    fn consume(&mut self, bits: u32) {
        self.bits <<= bits;
        self.count = self.count.wrapping_sub(bits);
    }
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8], ready: &'a mut Ready) -> Self {
        let ready = &mut *ready.0;
        Bits { bytes, next: 0, ended: false, ready, length: 0, window: Window::default() }
    }

    /// Makes enough bytes ready for one unit, as far as there are any.
    #[inline(always)]
    pub(super) fn prepare(&mut self) {
        if self.length < self.window.at + UNIT && !self.ended {
            self.make_ready();
        }
    }

    #[inline(never)]
    fn make_ready(&mut self) {
        let at = self.window.at.min(self.length);
        self.ready.copy_within(at..self.length, 0);
        self.length -= at;
        self.window.at -= at;
        while self.length < CHUNK {
            let rest = &self.bytes[self.next..];
            let room = &rest[..rest.len().min(CHUNK - self.length)];
            let plain = memchr::memchr(0xff, room).unwrap_or(room.len());
            self.ready[self.length..self.length + plain].copy_from_slice(&rest[..plain]);
            self.length += plain;
            self.next += plain;
            match rest.get(plain..plain + 2) {
                _ if plain == room.len() && plain < rest.len() => {}
                Some([0xff, 0]) => {
                    self.ready[self.length] = 0xff;
                    self.length += 1;
                    self.next += 2;
                }
                _ => {
                    self.ended = true;
                    break;
                }
            }
        }
    }

    /// True when more bits were taken than there are.
    pub(super) fn is_short(&self) -> bool {
        self.window.at * 8 > self.length * 8 + self.window.count as usize
    }

    /// Goes on behind the restart marker of this number. None if it does not follow at once.
    pub(super) fn restart(&mut self, number: usize) -> Option<()> {
        if !self.ended {
            self.make_ready();
        }
        let left =
            (self.length * 8 + self.window.count as usize).checked_sub(self.window.at * 8)?;
        let marker = [0xff, 0xd0 | (number & 7) as u8];
        if left >= 8 || self.bytes.get(self.next..self.next + 2) != Some(&marker) {
            return None;
        }
        self.begin(self.next + 2);
        Some(())
    }

    fn begin(&mut self, next: usize) {
        (self.next, self.ended, self.length, self.window) = (next, false, 0, Window::default());
    }

    /// Goes on behind the next `count` restart markers, the first of which is numbered `first`,
    /// whatever lies between them. None if another marker is met.
    pub(super) fn restart_after(&mut self, first: usize, count: usize) -> Option<()> {
        // Bytes that are ready hold no marker.
        let mut at = self.next;
        for number in first..first + count {
            loop {
                at += memchr::memchr(0xff, self.bytes.get(at..)?)?;
                match *self.bytes.get(at + 1)? {
                    0 => at += 2,
                    0xff => at += 1,
                    marker if marker == 0xd0 | (number & 7) as u8 => break,
                    _ => return None,
                }
            }
            at += 2;
        }
        self.begin(at);
        Some(())
    }

    /// The difference to the block before.
    #[inline(always)]
    pub(super) fn difference(&mut self, table: &Table) -> Option<i32> {
        let mut window = self.window;
        window.fill(self.ready);
        let found = table.look[(window.bits >> (64 - LOOK)) as usize];
        let entry = table.finish(found, &mut window, false)?;
        self.window = window;
        Some(entry as i32 >> 16)
    }

    /// Reads all but the first coefficient into `block`, which is zero. True if there were any.
    #[inline(always)]
    pub(super) fn coefficients(&mut self, table: &Table, block: &mut Block) -> Option<bool> {
        let pairs = &*table.pairs;
        let mut window = self.window;
        let mut at = 1u32;
        'block: for _ in 0..ROUNDS {
            window.fill(self.ready);
            // Five looks fit into what was filled.
            for _ in 0..5 {
                let found = pairs[(window.bits >> (64 - LOOK)) as usize];
                if found & Pair::from(OPEN) != 0 || at + (found >> 8 & 0xff) as u32 >= 63 {
                    window.fill(self.ready);
                    let found = table.look[(window.bits >> (64 - LOOK)) as usize];
                    let entry = table.finish(found, &mut window, true)?;
                    at += entry >> 8 & 0xff;
                    block[usize::from(NATURAL[at as usize & 255])] = (entry >> 16) as i16;
                    at += 1;
                    if at >= 64 {
                        break 'block;
                    }
                    continue 'block;
                }
                window.consume(found as u32 & 0x7f);
                let first = at + (found >> 16 & 0xff) as u32;
                let second = at + (found >> 24 & 0xff) as u32;
                block[usize::from(NATURAL[first as usize & 255])] = (found >> 48) as i16;
                block[usize::from(NATURAL[second as usize & 255])] = i16::from((found >> 40) as i8);
                at += (found >> 32 & 0xff) as u32;
                if at >= 64 {
                    break 'block;
                }
            }
        }
        self.window = window;
        // Either the last coefficient was read or an end of block: a run past the end is neither.
        (at == 64 || at >= END).then_some(at != END + 2)
    }

    /// Passes over all but the first coefficient.
    #[inline(always)]
    pub(super) fn skip_coefficients(&mut self, table: &Table) -> Option<()> {
        let mut window = self.window;
        let mut at = 1u32;
        for _ in 0..ROUNDS {
            if at >= 64 {
                break;
            }
            window.fill(self.ready);
            let found = table.skip[(window.bits >> (64 - LOOK)) as usize];
            let passed = found >> 8 & 0xff;
            // If the block may end inside of the look, what follows means something else.
            if found & 0xff != 0 && at + passed < 64 {
                window.consume(found & 0xff);
                at += passed;
                if found >> 16 != 0 {
                    at = 64;
                }
                continue;
            }
            let found = table.look[(window.bits >> (64 - LOOK)) as usize];
            let entry = table.finish(found, &mut window, true)?;
            at += (entry >> 8 & 0xff) + 1;
        }
        self.window = window;
        (at == 64 || at >= END).then_some(())
    }
}
