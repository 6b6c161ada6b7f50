//! Colour as Pillow computes it, in place: a decoder's pixels become the output's.

use super::ColorMode;

/// Pillow's "L" of an RGB pixel.
pub(super) fn luma(red: u8, green: u8, blue: u8) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16)
        as u8
}

/// Pillow's RGB of a CMYK pixel (0 is no ink).
pub(super) fn cmyk(c: u8, m: u8, y: u8, k: u8) -> [u8; 3] {
    let white = u32::from(255 - k);
    [c, m, y].map(|ink| {
        let product = u32::from(ink) * white + 128;
        (white - (((product >> 8) + product) >> 8)) as u8
    })
}

/// Writes pixels to a row of the output, as many as both have.
pub(super) fn put(to: &mut [u8], mode: ColorMode, pixels: impl Iterator<Item = [u8; 3]>) {
    match mode {
        ColorMode::Rgb => {
            let (to, _) = to.as_chunks_mut::<3>();
            to.iter_mut().zip(pixels).for_each(|(to, pixel)| *to = pixel);
        }
        ColorMode::Gray => {
            to.iter_mut().zip(pixels).for_each(|(to, [r, g, b])| *to = luma(r, g, b));
        }
    }
}

/// What a decoder has written for each pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raw {
    /// Gray.
    L8,
    /// Colour.
    Rgb8,
    /// Inks of which 255 is none, as Adobe writes JPEGs.
    InvertedCmyk,
}

impl Raw {
    /// Bytes of a pixel.
    pub(super) fn size(self) -> usize {
        match self {
            Raw::L8 => 1,
            Raw::Rgb8 => 3,
            Raw::InvertedCmyk => 4,
        }
    }
}

/// Turns the first `pixels` pixels of `buffer` into `mode`, in place.
pub(super) fn reduce(buffer: &mut [u8], pixels: usize, raw: Raw, mode: ColorMode) {
    match (raw, mode) {
        (Raw::L8, ColorMode::Gray) | (Raw::Rgb8, ColorMode::Rgb) => {}
        (Raw::L8, _) => each::<1>(buffer, pixels, mode, |p| [p[0]; 3]),
        (Raw::Rgb8, _) => each::<3>(buffer, pixels, mode, |p| p),
        (Raw::InvertedCmyk, _) => {
            each::<4>(buffer, pixels, mode, |p| {
                cmyk(255 - p[0], 255 - p[1], 255 - p[2], 255 - p[3])
            });
        }
    }
}

fn each<const N: usize>(
    buffer: &mut [u8],
    pixels: usize,
    mode: ColorMode,
    rgb: impl Fn([u8; N]) -> [u8; 3],
) {
    let read = |buffer: &[u8], i: usize| {
        let mut pixel = [0; N];
        pixel.copy_from_slice(&buffer[i * N..(i + 1) * N]);
        rgb(pixel)
    };
    match mode {
        // Gray of gray is itself: the weights sum to 65536.
        ColorMode::Gray => {
            for i in 0..pixels {
                let [red, green, blue] = read(buffer, i);
                buffer[i] = luma(red, green, blue);
            }
        }
        ColorMode::Rgb if N >= 3 => {
            for i in 0..pixels {
                let pixel = read(buffer, i);
                buffer[i * 3..i * 3 + 3].copy_from_slice(&pixel);
            }
        }
        // The output is larger than what it is made from: from the end, nothing is overwritten
        // before it is read.
        ColorMode::Rgb => {
            for i in (0..pixels).rev() {
                let pixel = read(buffer, i);
                buffer[i * 3..i * 3 + 3].copy_from_slice(&pixel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_stays_gray() {
        assert!((0..=255).all(|x| luma(x, x, x) == x));
    }

    #[test]
    fn growing_and_shrinking_in_place() {
        let mut buffer = [1, 2, 0, 0, 0, 0];
        reduce(&mut buffer, 2, Raw::L8, ColorMode::Rgb);
        assert_eq!(buffer, [1, 1, 1, 2, 2, 2]);
        let mut buffer = [255, 255, 255, 255, 255, 0, 0, 255];
        reduce(&mut buffer, 2, Raw::InvertedCmyk, ColorMode::Rgb);
        assert_eq!(buffer[..6], [255, 255, 255, 255, 0, 0]);
        let mut buffer = [0, 0, 0, 255, 255, 255];
        reduce(&mut buffer, 2, Raw::Rgb8, ColorMode::Gray);
        assert_eq!(buffer[..2], [0, 255]);
    }
}
