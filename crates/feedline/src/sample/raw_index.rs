//! The index of a packed set of pixels: where each sample lies, its size, its labels, its name.
//!
//! Little-endian: `feedraw1`, the number of samples (u64), labels of a sample (u32), zero (u32);
//! then for each sample shard, height, width, channels (u32 each), offset (u64) and its labels
//! (u64 each: an int64, or the bits of a float32). The names have a file of their own: the end of
//! each (u64), then the names one after the other.

/// Where one sample's pixels lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawRecord {
    /// The number of the file.
    pub shard: u32,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Channels of a pixel.
    pub channels: u32,
    /// The first byte in the file.
    pub offset: u64,
}

impl RawRecord {
    /// Bytes of the pixels; `None` for a size that cannot be, or none at all.
    #[must_use]
    pub(crate) fn elements(&self) -> Option<u64> {
        let pixels = u64::from(self.height).checked_mul(u64::from(self.width))?;
        pixels.checked_mul(u64::from(self.channels)).filter(|n| *n > 0)
    }
}

/// The index of a packed set of pixels.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawIndex {
    bytes: Vec<u8>,
    names: Vec<u8>,
    labels: usize,
    count: u64,
}

const MAGIC: &[u8; 8] = b"feedraw1";
const HEADER: usize = 24;
const PLACE: usize = 24;

impl RawIndex {
    /// The name of the index.
    pub(crate) const FILE: &'static str = "index.bin";
    /// The name of the file of names.
    pub(crate) const NAMES: &'static str = "names.bin";

    /// The name of a file of pixels.
    #[must_use]
    pub(crate) fn shard(number: u32) -> String {
        format!("pixels-{number:05}.bin")
    }

    /// An index to add samples to, each with so many labels.
    #[must_use]
    pub(crate) fn new(labels: usize) -> RawIndex {
        RawIndex { labels, ..RawIndex::default() }
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, record: RawRecord, labels: &[u64], name: &[u8]) {
        for number in [record.shard, record.height, record.width, record.channels] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&record.offset.to_le_bytes());
        for at in 0..self.labels {
            let label = labels.get(at).copied().unwrap_or(0);
            self.bytes.extend_from_slice(&label.to_le_bytes());
        }
        self.names.extend_from_slice(&(name.len() as u64).to_le_bytes());
        self.names.extend_from_slice(name);
        self.count += 1;
    }

    /// The two files: the index and the names.
    #[must_use]
    pub(crate) fn files(&self) -> (Vec<u8>, Vec<u8>) {
        let mut index = MAGIC.to_vec();
        index.extend_from_slice(&self.count.to_le_bytes());
        index.extend_from_slice(&(self.labels as u32).to_le_bytes());
        index.extend_from_slice(&[0; 4]);
        index.extend_from_slice(&self.bytes);
        // Lengths become ends, before all the text.
        let (mut ends, mut text) = (Vec::new(), Vec::new());
        let mut at = 0;
        for _ in 0..self.count {
            let length = read_u64(&self.names, at) as usize;
            text.extend_from_slice(&self.names[at + 8..at + 8 + length]);
            ends.extend_from_slice(&(text.len() as u64).to_le_bytes());
            at += 8 + length;
        }
        ends.extend_from_slice(&text);
        (index, ends)
    }

    /// The length of the index of so many samples with so many labels each, and the most that
    /// their names take: none is longer than a path may be.
    #[must_use]
    pub(crate) fn lengths(samples: u64, labels: usize) -> (u64, u64) {
        let each = (labels as u64).saturating_mul(8).saturating_add(PLACE as u64);
        let index = samples.saturating_mul(each).saturating_add(HEADER as u64);
        (index, samples.saturating_mul(8 + 4096))
    }

    /// Reads what [`RawIndex::files`] gave; `None` if it is anything else.
    #[must_use]
    pub(crate) fn parse(mut index: Vec<u8>, names: Vec<u8>) -> Option<RawIndex> {
        let header = index.get(..HEADER).filter(|header| header.starts_with(MAGIC))?;
        let count = read_u64(header, 8);
        let labels = u32::from_le_bytes(*header[16..].first_chunk()?) as usize;
        let samples = usize::try_from(count).ok()?;
        let body = PLACE.checked_add(labels.checked_mul(8)?)?.checked_mul(samples)?;
        if index.len() - HEADER != body {
            return None;
        }
        let ends = samples.checked_mul(8).filter(|ends| *ends <= names.len())?;
        let text = (names.len() - ends) as u64;
        let mut last = 0;
        for at in 0..samples {
            let end = read_u64(&names, at * 8);
            if end < last || end > text {
                return None;
            }
            last = end;
        }
        index.drain(..HEADER);
        Some(RawIndex { bytes: index, names, labels, count })
    }

    /// How many samples there are.
    #[must_use]
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// True when there are none.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that it takes.
    #[must_use]
    pub(crate) fn held(&self) -> u64 {
        (self.bytes.capacity() + self.names.capacity()) as u64
    }

    /// Labels of each sample.
    #[must_use]
    pub(crate) fn labels(&self) -> usize {
        self.labels
    }

    fn place(&self, sample: u64) -> usize {
        sample as usize * (PLACE + 8 * self.labels)
    }

    /// Where a sample below [`RawIndex::len`] lies.
    #[must_use]
    pub(crate) fn record(&self, sample: u64) -> RawRecord {
        let at = self.place(sample);
        let number = |n: usize| read_u32(&self.bytes, at + 4 * n);
        RawRecord {
            shard: number(0),
            height: number(1),
            width: number(2),
            channels: number(3),
            offset: read_u64(&self.bytes, at + 16),
        }
    }

    /// One of its labels.
    #[must_use]
    pub(crate) fn label(&self, sample: u64, label: usize) -> u64 {
        read_u64(&self.bytes, self.place(sample) + PLACE + 8 * label)
    }

    /// The name that it had before it was packed, for an index that was read.
    #[must_use]
    pub(crate) fn name(&self, sample: u64) -> &[u8] {
        let text = self.count as usize * 8;
        let end = |n: u64| text + read_u64(&self.names, n as usize * 8) as usize;
        let start = if sample == 0 { text } else { end(sample - 1) };
        self.names.get(start..end(sample)).unwrap_or_default()
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let mut index = RawIndex::new(2);
        let record = |n: u32| RawRecord {
            shard: n,
            height: 3 + n,
            width: 5,
            channels: 3,
            offset: u64::from(n) << 40,
        };
        for n in 0..5 {
            index.push(record(n), &[u64::from(n), u64::MAX], format!("name {n}").as_bytes());
        }
        let (bytes, names) = index.files();
        let read = RawIndex::parse(bytes.clone(), names.clone()).unwrap();
        assert_eq!((read.len(), read.labels()), (5, 2));
        for n in 0..5u32 {
            let sample = u64::from(n);
            assert_eq!(read.record(sample), record(n));
            assert_eq!((read.label(sample, 0), read.label(sample, 1)), (sample, u64::MAX));
            assert_eq!(read.name(sample), format!("name {n}").as_bytes());
        }
        for cut in 0..bytes.len() {
            assert!(RawIndex::parse(bytes[..cut].to_vec(), names.clone()).is_none(), "{cut}");
        }
        for cut in 0..names.len() {
            assert!(RawIndex::parse(bytes.clone(), names[..cut].to_vec()).is_none(), "{cut}");
        }
        let mut huge = bytes.clone();
        huge[8..16].fill(0xff);
        assert!(RawIndex::parse(huge, names.clone()).is_none());
        let mut wrong = names.clone();
        wrong[..8].fill(0xff);
        assert!(RawIndex::parse(bytes, wrong).is_none());
    }
}
