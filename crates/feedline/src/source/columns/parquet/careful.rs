//! Pages on their way to the decoder, with a last look at those whose contents say how much
//! memory to take.

use std::ops::Range;
use std::sync::Arc;

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

use super::Chunks;
use super::pages::hybrid;

/// No block of deltas is larger.
const LARGEST_BLOCK: u64 = 1 << 16;

/// One row group of a file.
pub(super) struct Group<'a> {
    pub chunks: Arc<Chunks>,
    pub metadata: &'a ParquetMetaData,
    pub number: usize,
    /// The rows that are wanted.
    pub rows: Range<u64>,
    /// Bytes that the values of these may take in each column.
    pub most: u64,
}

/// The reason why rows are refused while they are decoded.
pub(super) const GROWN: &str = "has rows that become larger than there is memory for: give more \
     memory, or write it with smaller row groups";

impl RowGroups for Group<'_> {
    fn num_rows(&self) -> usize {
        self.metadata.row_group(self.number).num_rows() as usize
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let chunk = self.metadata.row_group(self.number).column(leaf);
        let descriptor = chunk.column_descr();
        let inner = SerializedPageReader::new(self.chunks.clone(), chunk, self.num_rows(), None)?;
        let levels = [descriptor.max_rep_level() > 0, descriptor.max_def_level() > 0];
        let lists = levels[0].then(|| Lists {
            bits: u32::from(descriptor.max_rep_level() as u16).ilog2() + 1,
            width: super::width(chunk) + super::LEVELS,
            rows: self.rows.clone(),
            begun: 0,
            left: self.most,
        });
        Ok(Box::new(Once(Some(Careful { inner, levels, lists }))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.number)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

/// The pages of one column chunk.
struct Once(Option<Careful>);

impl Iterator for Once {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for Once {}

struct Careful {
    inner: SerializedPageReader<Chunks>,
    /// Whether there are repetition and definition levels.
    levels: [bool; 2],
    /// Set where rows are lists.
    lists: Option<Lists>,
}

/// Counts the values of the lists that are wanted: how many a row has is only said by the levels
/// of its pages, of which a few bytes may stand for millions.
struct Lists {
    /// Bits of a repetition level.
    bits: u32,
    /// Bytes that a value takes.
    width: u64,
    rows: Range<u64>,
    /// Rows that have begun.
    begun: u64,
    /// Bytes that are left.
    left: u64,
}

impl Lists {
    /// Counts a page; `None` if its levels are damaged, `false` if there are too many values.
    fn count(&mut self, page: &Page) -> Option<bool> {
        let (levels, values) = match page {
            Page::DataPage { buf, num_values, rep_level_encoding: Encoding::RLE, .. } => {
                let length = u32::from_le_bytes(buf.get(..4)?.try_into().ok()?) as usize;
                (buf.get(4..length.checked_add(4)?)?, *num_values)
            }
            Page::DataPageV2 { buf, num_values, rep_levels_byte_len, .. } => {
                (buf.get(..*rep_levels_byte_len as usize)?, *num_values)
            }
            // In an encoding of old all count as wanted.
            Page::DataPage { num_values, .. } => {
                return Some(self.take(u64::from(*num_values)));
            }
            Page::DictionaryPage { .. } => return Some(true),
        };
        let mut wanted = 0;
        let counted = hybrid(levels, self.bits, u64::from(values), &mut |level, run| {
            if level == 0 {
                let (begin, end) = (self.begun, self.begun + run);
                self.begun = end;
                wanted += end.min(self.rows.end).saturating_sub(begin.max(self.rows.start));
            } else if self.begun > self.rows.start && self.begun <= self.rows.end {
                wanted += run;
            }
        });
        counted.ok()?;
        Some(self.take(wanted))
    }

    fn take(&mut self, values: u64) -> bool {
        let bytes = values.saturating_mul(self.width);
        let fits = bytes <= self.left;
        self.left = self.left.saturating_sub(bytes);
        fits
    }
}

impl Careful {
    fn check(&self, page: &Page) -> Option<()> {
        let (bytes, values, encoding, begin) = match page {
            Page::DataPage { buf, num_values, encoding, .. } => {
                let mut begin = 0_usize;
                for _ in self.levels.iter().filter(|there| **there) {
                    let length = buf.get(begin..begin.checked_add(4)?)?;
                    let length = u32::from_le_bytes(length.try_into().ok()?);
                    begin = begin.checked_add(4)?.checked_add(length as usize)?;
                }
                (buf, *num_values, *encoding, begin)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                rep_levels_byte_len,
                def_levels_byte_len,
                ..
            } => {
                let begin = rep_levels_byte_len.checked_add(*def_levels_byte_len)?;
                (buf, *num_values, *encoding, begin as usize)
            }
            Page::DictionaryPage { .. } => return Some(()),
        };
        let runs = match encoding {
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Some(()),
        };
        let mut rest = bytes.get(begin..)?;
        if rest.is_empty() {
            return Some(());
        }
        for _ in 0..runs {
            rest = rest.get(deltas(rest, u64::from(values))?..)?;
        }
        Some(())
    }
}

/// The length of a run of numbers that are stored as differences, `most` at most.
fn deltas(bytes: &[u8], most: u64) -> Option<usize> {
    let mut at = 0;
    let varint = |at: &mut usize| {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *bytes.get(*at)?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    };
    let block = varint(&mut at)?;
    let parts = varint(&mut at)?;
    let count = varint(&mut at)?;
    varint(&mut at)?;
    let sound = block > 0
        && block <= LARGEST_BLOCK
        && parts > 0
        && parts <= block
        && block % parts == 0
        && count <= most;
    if !sound {
        return None;
    }
    let each = block / parts;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        varint(&mut at)?;
        let widths = bytes.get(at..at.checked_add(parts as usize)?)?;
        at += parts as usize;
        for width in widths {
            // Parts behind the last number are not there.
            if left == 0 {
                break;
            }
            if *width > 64 {
                return None;
            }
            at = at.checked_add((each * u64::from(*width)).div_ceil(8) as usize)?;
            left = left.saturating_sub(each);
        }
    }
    // A last part may be cut short.
    Some(at.min(bytes.len()))
}

impl Iterator for Careful {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Careful {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let (Some(lists), Some(page)) = (&mut self.lists, &page) {
            match lists.count(page) {
                Some(true) => {}
                Some(false) => return Err(ParquetError::General(GROWN.to_owned())),
                None => {
                    return Err(ParquetError::General("a page's levels are damaged".to_owned()));
                }
            }
        }
        match page.as_ref().map(|page| self.check(page)) {
            Some(None) => Err(ParquetError::General("a page's deltas are damaged".to_owned())),
            _ => Ok(page),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(lists) = &mut self.lists {
            let page = self.inner.peek_next_page()?;
            lists.begun += page.and_then(|page| page.num_rows).unwrap_or(0) as u64;
        }
        self.inner.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.inner.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        self.inner.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}
