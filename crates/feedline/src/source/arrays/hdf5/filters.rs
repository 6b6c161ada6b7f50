//! What a chunk went through before it was written, undone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hdf5_reader::filters::{apply_pipeline_with_limit, fletcher32};
use hdf5_reader::messages::filter_pipeline::FilterDescription;

use crate::error::Fault;
use crate::source::arrays::{unshuffle, zlib, zstd};

const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;
const FLETCHER32: u16 = 3;
const SZIP: u16 = 4;
const NBIT: u16 = 5;
const SCALE_OFFSET: u16 = 6;
const LZF: u16 = 32000;
const ZSTD: u16 = 32015;

/// What a filter adds to a chunk at most, as a checksum does.
const SLACK: usize = 64;

/// Refuses a pipeline with a filter that cannot be undone.
pub(super) fn check(filters: &[FilterDescription]) -> Result<(), String> {
    if filters.len() > 32 {
        return Err("has more than 32 filters".to_owned());
    }
    let known = |filter: &&FilterDescription| {
        !matches!(
            filter.id,
            DEFLATE | SHUFFLE | FLETCHER32 | SZIP | NBIT | SCALE_OFFSET | LZF | ZSTD
        )
    };
    match filters.iter().find(known) {
        None => Ok(()),
        Some(filter) => Err(format!(
            "is packed with filter {} ({}), which cannot be undone: gzip, lzf, shuffle, fletcher32, szip, nbit, scaleoffset and zstd can",
            filter.id,
            filter.name.as_deref().unwrap_or("without a name")
        )),
    }
}

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("hdf5", reason)
}

/// The bytes of a chunk of `bytes` bytes. A bit of `mask` says that its filter was left out.
pub(super) fn undo(
    filters: &[FilterDescription],
    mask: u32,
    stored: Vec<u8>,
    element: usize,
    bytes: usize,
) -> Result<Vec<u8>, Fault> {
    let mut data = stored;
    let limit = bytes.saturating_add(SLACK);
    for (at, filter) in filters.iter().enumerate().rev() {
        if mask & (1 << at) != 0 {
            continue;
        }
        data = match filter.id {
            DEFLATE => zlib("hdf5", &data, limit)?,
            ZSTD => zstd("hdf5", &data, limit)?,
            SHUFFLE => {
                let size = filter.client_data.first().map_or(element, |size| *size as usize);
                unshuffle(&data, size)
            }
            LZF => lzf(&data, limit).ok_or_else(|| corrupt("a chunk's lzf data is damaged"))?,
            FLETCHER32 => {
                let sum = catch_unwind(AssertUnwindSafe(|| fletcher32::verify_and_strip(&data)));
                match sum {
                    Ok(Ok(stripped)) => stripped,
                    _ => return Err(corrupt("a chunk's checksum is wrong")),
                }
            }
            _ => {
                let one = std::slice::from_ref(filter);
                let made = catch_unwind(AssertUnwindSafe(|| {
                    apply_pipeline_with_limit(&data, one, 0, element, None, Some(limit))
                }));
                match made {
                    Ok(Ok(made)) => made,
                    Ok(Err(error)) => return Err(corrupt(error.to_string())),
                    Err(_) => return Err(corrupt(format!("filter {} failed", filter.id))),
                }
            }
        };
    }
    Ok(data)
}

/// LibLZF, as h5py writes it. `None` if the data is damaged or gives more than `limit`.
fn lzf(mut data: &[u8], limit: usize) -> Option<Vec<u8>> {
    fn take<'a>(data: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = data.split_at_checked(count)?;
        *data = rest;
        Some(taken)
    }
    let mut out: Vec<u8> = Vec::new();
    while !data.is_empty() {
        let control = usize::from(take(&mut data, 1)?[0]);
        if control < 32 {
            out.extend_from_slice(take(&mut data, control + 1)?);
        } else {
            let mut length = 2 + (control >> 5);
            if length == 9 {
                length += usize::from(take(&mut data, 1)?[0]);
            }
            let back = ((control & 31) << 8 | usize::from(take(&mut data, 1)?[0])) + 1;
            let start = out.len().checked_sub(back)?;
            // What is copied may be what was just written.
            for at in start..start + length {
                out.push(out[at]);
            }
        }
        if out.len() > limit {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lzf_of_runs_and_copies() {
        assert_eq!(lzf(&[2, b'a', b'b', b'c'], 9).unwrap(), b"abc");
        // "ab", then six bytes from two back.
        assert_eq!(lzf(&[1, b'a', b'b', 4 << 5, 1], 9).unwrap(), b"abababab");
        assert_eq!(lzf(&[0, b'x', 7 << 5, 3, 0], 20).unwrap(), [b'x'; 13]);
        assert_eq!(lzf(&[0, b'x', 7 << 5, 255, 0], 20), None, "too much");
        assert_eq!(lzf(&[0, b'x', 1 << 5, 1], 20), None, "before the start");
        assert_eq!(lzf(&[5, b'x'], 20), None, "cut short");
        assert_eq!(lzf(&[], 20).unwrap(), b"");
    }
}
