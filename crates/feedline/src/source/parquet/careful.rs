//! Pages on their way to the decoder, with a last look at those whose contents say how much
//! memory to take.

use std::sync::Arc;

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

use super::Chunks;

/// No block of deltas is larger.
const LARGEST_BLOCK: u64 = 1 << 16;

/// One row group of a file.
pub(super) struct Group<'a> {
    pub chunks: Arc<Chunks>,
    pub metadata: &'a ParquetMetaData,
    pub number: usize,
}

impl RowGroups for Group<'_> {
    fn num_rows(&self) -> usize {
        self.metadata.row_group(self.number).num_rows() as usize
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let chunk = self.metadata.row_group(self.number).column(leaf);
        let descriptor = chunk.column_descr();
        let inner = SerializedPageReader::new(self.chunks.clone(), chunk, self.num_rows(), None)?;
        let levels = [descriptor.max_rep_level() > 0, descriptor.max_def_level() > 0];
        Ok(Box::new(Once(Some(Careful { inner, levels }))))
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

/// The length of a run of numbers that are told by their differences, `most` at most.
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
        match page.as_ref().map(|page| self.check(page)) {
            Some(None) => Err(ParquetError::General("a page's deltas are damaged".to_owned())),
            _ => Ok(page),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
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
