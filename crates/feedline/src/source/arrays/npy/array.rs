//! The arrays that one .npy is: where its rows lie, or who makes them.

use std::io::Read;
use std::sync::Arc;

use super::Makers;
use super::header::{Header, LARGEST};
use crate::buffer;
use crate::error::Fault;
use crate::source::Needs;
use crate::source::arrays::{Array, Data, Files, Maker, check_block, elements};

/// Bytes of a block of rows that are gathered from all over a file.
const GATHERED: u64 = 16 << 20;

/// Bytes that are read for a header at first; nearly all are shorter.
const FIRST_LOOK: u64 = 4096;

/// Where a .npy lies: in a file of its own, or in a .npz.
#[derive(Clone, Copy)]
pub(super) struct NpyPlace {
    /// The file.
    pub file: u32,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes, as they are stored.
    pub length: u64,
    /// Its bytes once they are inflated, if they are deflated.
    pub packed: Option<u64>,
}

impl NpyPlace {
    /// Its first `bytes` bytes, or all if there are fewer.
    fn start(&self, files: &Files, bytes: u64) -> Result<Vec<u8>, Fault> {
        match self.packed {
            None => files.take(self.file, self.offset, self.length.min(bytes)),
            Some(_) => {
                let stored = files.take(self.file, self.offset, self.length.min(bytes * 2))?;
                let mut start = Vec::new();
                let inflated = flate2::read::DeflateDecoder::new(&stored[..]);
                // It was cut on purpose: what came out before the end is enough.
                let _ = inflated.take(bytes).read_to_end(&mut start);
                Ok(start)
            }
        }
    }

    /// All of its bytes once they are inflated.
    fn whole(&self, files: &Files, block_memory: u64) -> Result<Vec<u8>, Fault> {
        let Some(length) = self.packed else {
            return files.take(self.file, self.offset, self.length);
        };
        check_block(length, block_memory, self.length)?;
        // What cannot be deflated is stored, with a few bytes more.
        if self.length > length.saturating_mul(2).saturating_add(64 << 10) {
            return Err(Fault::corrupt("npz", "a member is larger as stored than it can be"));
        }
        let stored = files.take(self.file, self.offset, self.length)?;
        let mut whole = Vec::new();
        flate2::read::DeflateDecoder::new(&stored[..]).take(length + 1).read_to_end(&mut whole)?;
        if whole.len() as u64 != length {
            return Err(Fault::corrupt("npz", "a member is not as long as it should be"));
        }
        Ok(whole)
    }
}

/// The header of a .npy.
pub(super) fn header_of(files: &Files, stored: &NpyPlace) -> Result<Header, String> {
    for bytes in [FIRST_LOOK, LARGEST as u64 + 12] {
        let start = stored.start(files, bytes).map_err(|fault| fault.to_string())?;
        if let Some(header) = Header::parse(&start)? {
            return Ok(header);
        }
    }
    Err("ends within its header: it was cut short".to_owned())
}

/// The arrays of a .npy: one, or one for each part of its records.
pub(super) fn arrays(
    files: &Arc<Files>,
    stored: &NpyPlace,
    header: &Header,
    name: &str,
    makers: &mut Makers,
) -> Result<Vec<Array>, String> {
    let Some((rows, shape)) = header.shape.split_first() else {
        return Err("has no axis; the first axis counts the samples".to_owned());
    };
    let rows = *rows as u64;
    let present = stored.packed.unwrap_or(stored.length).saturating_sub(header.bytes as u64);
    let wanted = header.data_bytes();
    if wanted.is_none_or(|wanted| wanted > present) {
        let wanted = wanted.map_or("more than can be counted".to_owned(), |n| n.to_string());
        return Err(format!(
            "has {present} bytes of elements, a shape of {:?} needs {wanted}: it was cut short",
            header.shape
        ));
    }
    let records = elements(shape).unwrap_or(0);
    let row_bytes = records * header.record;
    // An array of one axis is the same in either order.
    let fortran = header.fortran && !shape.is_empty();
    let data = match (stored.packed, fortran) {
        (None, false) => {
            Data::File { file: stored.file, offset: stored.offset + header.bytes as u64 }
        }
        (packed, fortran) => {
            let each = match packed {
                // A member is inflated as a whole.
                Some(_) => rows.max(1),
                None => (GATHERED / row_bytes.max(1)).clamp(1, rows.max(1)),
            };
            let maker = Gather {
                files: files.clone(),
                stored: *stored,
                header: header.clone(),
                fortran,
                each,
                block_memory: makers.block_memory,
            };
            Data::Made { each, maker: Arc::new(maker) }
        }
    };
    let number = makers.number();
    let mut arrays = Vec::new();
    for part in &header.parts {
        let named = if part.name.is_empty() { name } else { &part.name };
        // A row of records is no row of one part of them.
        if !part.name.is_empty() && !shape.is_empty() {
            return Err(format!(
                "has records in rows of shape {shape:?}: only one record a sample can be read"
            ));
        }
        let shape = [shape, &part.shape[..]].concat();
        let mut array =
            Array::new(named.to_owned(), rows, shape, part.element.clone(), data.clone())?;
        array.stride = row_bytes;
        array.skip = part.skip;
        array.maker = number;
        arrays.push(array);
    }
    Ok(arrays)
}

/// Makes rows out of what is deflated, or lies with the first axis running fastest.
struct Gather {
    files: Arc<Files>,
    stored: NpyPlace,
    header: Header,
    fortran: bool,
    each: u64,
    block_memory: u64,
}

/// For each element of a row in Fortran's order, its place in C order.
fn places(shape: &[usize]) -> impl Iterator<Item = u64> {
    let count = elements(shape).unwrap_or(0);
    (0..count).map(move |number| {
        let mut rest = number;
        let mut axes = [0u64; crate::source::arrays::MOST_AXES];
        for (axis, length) in axes.iter_mut().zip(shape) {
            *axis = rest % *length as u64;
            rest /= *length as u64;
        }
        axes.iter().zip(shape).fold(0, |place, (axis, length)| place * *length as u64 + axis)
    })
}

impl Maker for Gather {
    fn needs(&self, _block: u64, each: &mut Needs<'_>) {
        let NpyPlace { file, offset, length, .. } = self.stored;
        // In Fortran's order a block is spread over all of it.
        each(&self.files.location(file, (offset, length)));
    }

    fn make(&self, block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        let start = self.header.bytes as u64;
        let whole = match self.stored.packed {
            Some(_) => Some(self.stored.whole(&self.files, self.block_memory)?),
            None => None,
        };
        let whole = match whole {
            Some(mut whole) if !self.fortran => {
                whole.drain(..whole.len().min(self.header.bytes));
                whole.truncate(bytes as usize);
                return Ok(whole);
            }
            other => other,
        };
        let (Some((rows, shape)), record) = (self.header.shape.split_first(), self.header.record)
        else {
            return Ok(Vec::new());
        };
        check_block(bytes, self.block_memory, self.files.bytes(self.stored.file))?;
        let records = elements(shape).unwrap_or(0);
        let row = records * record;
        let count = bytes.checked_div(row).unwrap_or(0);
        let mut out = buffer::zeroed(bytes)?;
        let mut run = buffer::zeroed(count * record)?;
        for (number, place) in places(shape).enumerate() {
            let from = start + (number as u64 * *rows as u64 + block * self.each) * record;
            match &whole {
                Some(whole) => {
                    let stored = whole.get(from as usize..from as usize + run.len());
                    run.copy_from_slice(stored.ok_or_else(|| {
                        Fault::corrupt("npz", "a member is shorter than its header says")
                    })?);
                }
                None => self.files.read(self.stored.file, self.stored.offset + from, &mut run)?,
            }
            for (at, element) in run.chunks_exact(record as usize).enumerate() {
                let to = (at as u64 * row + place * record) as usize;
                out[to..to + record as usize].copy_from_slice(element);
            }
        }
        Ok(out)
    }
}
