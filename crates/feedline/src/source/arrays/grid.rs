//! Chunks of an array that are cut along several axes.

use crate::buffer;
use crate::error::Fault;

/// Chunks that one block may consist of.
const MOST_CHUNKS: u64 = 1 << 20;

/// How an array is cut: the lengths of its axes and those of a chunk.
#[derive(Clone)]
pub(in crate::source) struct Grid {
    /// The array's axes, the first being the samples.
    pub shape: Vec<u64>,
    /// A chunk's axes.
    pub chunk: Vec<u64>,
    /// Bytes of an element.
    pub size: u64,
}

impl Grid {
    /// A grid whose numbers make sense.
    pub(in crate::source) fn new(
        shape: Vec<u64>,
        chunk: Vec<u64>,
        size: u64,
    ) -> Result<Grid, String> {
        if chunk.len() != shape.len() || chunk.is_empty() || chunk.contains(&0) {
            return Err(format!("has chunks of shape {chunk:?} for an array of {shape:?}"));
        }
        let grid = Grid { shape, chunk, size };
        let counted = grid.chunk_bytes().is_some()
            && grid.shape.iter().try_fold(size, |all, axis| all.checked_mul(*axis)).is_some()
            && grid.counts().try_fold(1u64, |all, count| all.checked_mul(count)).is_some();
        match counted {
            true => Ok(grid),
            false => Err(format!("has an impossible shape {:?}", grid.shape)),
        }
    }

    /// Bytes of a whole chunk.
    pub(in crate::source) fn chunk_bytes(&self) -> Option<u64> {
        self.chunk.iter().try_fold(self.size, |all, axis| all.checked_mul(*axis))
    }

    /// Chunks along each axis.
    pub(in crate::source) fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.shape.iter().zip(&self.chunk).map(|(axis, chunk)| axis.div_ceil(*chunk))
    }

    /// True when a chunk is a number of whole rows, and nothing else.
    pub(in crate::source) fn whole_rows(&self) -> bool {
        self.shape[1..] == self.chunk[1..]
    }

    /// The number of the chunk at that place in the grid.
    pub(in crate::source) fn number(&self, place: &[u64]) -> u64 {
        self.counts().zip(place).fold(0, |number, (count, at)| number * count + at)
    }

    /// Puts together the rows of block `block`, that is of all chunks whose place on the first
    /// axis is so. `chunk` gives the bytes of the chunk at a place, or `None` if it is not there.
    pub(in crate::source) fn block(
        &self,
        block: u64,
        bytes: u64,
        fill: &[u8],
        mut chunk: impl FnMut(&[u64]) -> Result<Option<Vec<u8>>, Fault>,
    ) -> Result<Vec<u8>, Fault> {
        let whole = self.chunk_bytes().unwrap_or(u64::MAX);
        let complete = |made: Vec<u8>| match made.len() as u64 == whole {
            true => Ok(made),
            false => Err(Fault::corrupt(
                "chunk",
                format!("has {} bytes, {whole} were expected", made.len()),
            )),
        };
        let counts: Vec<u64> = self.counts().collect();
        if self.whole_rows() {
            let mut place = vec![0; counts.len()];
            place[0] = block;
            if let Some(made) = chunk(&place)? {
                let mut made = complete(made)?;
                made.truncate(bytes as usize);
                return Ok(made);
            }
            return filled(bytes, fill);
        }
        let chunks = counts[1..].iter().product::<u64>();
        if chunks > MOST_CHUNKS {
            return Err(Fault::TooLarge(format!("a row lies in {chunks} chunks")));
        }
        let mut out = filled(bytes, fill)?;
        let mut place = vec![0; counts.len()];
        place[0] = block;
        for _ in 0..chunks {
            if let Some(made) = chunk(&place)? {
                self.paste(&complete(made)?, &place, &mut out);
            }
            for axis in (1..place.len()).rev() {
                place[axis] += 1;
                if place[axis] < counts[axis] {
                    break;
                }
                place[axis] = 0;
            }
        }
        Ok(out)
    }

    /// Calls `each` with the place of every chunk of a block.
    pub(in crate::source) fn chunks_of(&self, block: u64, mut each: impl FnMut(&[u64])) {
        let counts: Vec<u64> = self.counts().collect();
        let chunks = counts[1..].iter().fold(1, |all: u64, count| all.saturating_mul(*count));
        let mut place = vec![0; counts.len()];
        place[0] = block;
        for _ in 0..chunks.min(MOST_CHUNKS) {
            each(&place);
            for axis in (1..place.len()).rev() {
                place[axis] += 1;
                if place[axis] < counts[axis] {
                    break;
                }
                place[axis] = 0;
            }
        }
    }

    /// Copies what is inside the array of a chunk into the block's rows.
    fn paste(&self, chunk: &[u8], place: &[u64], out: &mut [u8]) {
        let axes = self.shape.len();
        let size = self.size as usize;
        // What is left of the chunk inside the array, along each axis.
        let inside: Vec<usize> = (0..axes)
            .map(|axis| {
                let start = place[axis] * self.chunk[axis];
                (self.shape[axis] - start).min(self.chunk[axis]) as usize
            })
            .collect();
        let run = inside[axes - 1] * size;
        let runs: usize = inside[..axes - 1].iter().product();
        let mut at = vec![0usize; axes - 1];
        for _ in 0..runs {
            let (mut from, mut to) = (0usize, 0usize);
            for (axis, number) in place.iter().enumerate() {
                let here = at.get(axis).copied().unwrap_or(0);
                from = from * self.chunk[axis] as usize + here;
                let start = if axis == 0 { 0 } else { number * self.chunk[axis] };
                to = to * self.shape[axis] as usize + start as usize + here;
            }
            out[to * size..to * size + run].copy_from_slice(&chunk[from * size..from * size + run]);
            for axis in (0..axes - 1).rev() {
                at[axis] += 1;
                if at[axis] < inside[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
    }
}

/// So many bytes of a value that is repeated; zeros if there is none.
pub(in crate::source) fn filled(bytes: u64, fill: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut out = buffer::zeroed(bytes)?;
    if fill.iter().any(|byte| *byte != 0) {
        for element in out.chunks_exact_mut(fill.len()) {
            element.copy_from_slice(fill);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together() {
        // An array of 5 x 7 x 3 with a[i, j, k] = its number, in chunks of 2 x 3 x 2.
        let grid = Grid::new(vec![5, 7, 3], vec![2, 3, 2], 1).unwrap();
        let element = |i: u64, j: u64, k: u64| (i * 21 + j * 3 + k) as u8;
        for block in 0..3 {
            let rows = if block == 2 { 1 } else { 2 };
            let made = grid.block(block, rows * 21, &[9], |place| {
                if place[1..] == [1, 0] {
                    return Ok(None);
                }
                let mut chunk = Vec::new();
                for i in 0..2 {
                    for j in 0..3 {
                        for k in 0..2 {
                            chunk.push(element(
                                place[0] * 2 + i,
                                place[1] * 3 + j,
                                place[2] * 2 + k,
                            ));
                        }
                    }
                }
                Ok(Some(chunk))
            });
            let mut wanted = Vec::new();
            for i in 0..rows {
                for j in 0..7 {
                    for k in 0..3 {
                        let missing = (3..6).contains(&j) && k < 2;
                        wanted.push(if missing { 9 } else { element(block * 2 + i, j, k) });
                    }
                }
            }
            assert_eq!(made.unwrap(), wanted);
        }
        assert!(grid.block(0, 42, &[0], |_| Ok(Some(vec![0; 11]))).is_err());
        assert!(Grid::new(vec![5], vec![0], 1).is_err());
        assert!(Grid::new(vec![u64::MAX, 2], vec![1, 1], 8).is_err());
    }
}
