//! What formats do to the bytes of a chunk, undone.

use std::io::Read;

use crate::error::Fault;

/// All that a reader gives, as long as it is no more than `limit`. The memory grows with what
/// comes out, whatever was promised.
pub(in crate::source) fn grown(
    format: &'static str,
    reader: impl Read,
    limit: usize,
) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    let read = reader.take(limit as u64 + 1).read_to_end(&mut out);
    read.map_err(|error| Fault::corrupt(format, format!("a chunk cannot be unpacked: {error}")))?;
    match out.len() > limit {
        true => Err(Fault::corrupt(format, "a chunk unpacks to more than it should")),
        false => Ok(out),
    }
}

/// Undoes zlib.
pub(in crate::source) fn zlib(
    format: &'static str,
    data: &[u8],
    limit: usize,
) -> Result<Vec<u8>, Fault> {
    grown(format, flate2::read::ZlibDecoder::new(data), limit)
}

/// Undoes zstd.
pub(in crate::source) fn zstd(
    format: &'static str,
    data: &[u8],
    limit: usize,
) -> Result<Vec<u8>, Fault> {
    let decoder = zstd::stream::read::Decoder::with_buffer(data)
        .map_err(|error| Fault::corrupt(format, error.to_string()))?;
    grown(format, decoder, limit)
}

/// Bytes that were sorted by their place in the element, put back.
pub(in crate::source) fn unshuffle(data: &[u8], size: usize) -> Vec<u8> {
    if size < 2 || data.len() < size {
        return data.to_vec();
    }
    let count = data.len() / size;
    let mut out = vec![0; data.len()];
    for place in 0..size {
        let from = &data[place * count..(place + 1) * count];
        for (element, byte) in out.chunks_exact_mut(size).zip(from) {
            element[place] = *byte;
        }
    }
    let rest = count * size;
    out[rest..].copy_from_slice(&data[rest..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_bytes_go_back() {
        assert_eq!(unshuffle(&[1, 3, 5, 2, 4, 6, 7], 2), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(unshuffle(&[1, 2], 1), [1, 2]);
        assert_eq!(unshuffle(&[1, 2], 0), [1, 2]);
        assert_eq!(unshuffle(&[1], 4), [1]);
    }
}
