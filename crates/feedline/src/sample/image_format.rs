//! Formats of encoded images, as their first bytes and the names of files show them.

/// The formats that feedline decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// Baseline, progressive, grayscale, CMYK.
    Jpeg,
    /// All colour types and depths; of an animation the default image.
    Png,
    /// Lossy and lossless; of an animation the first frame.
    WebP,
    /// Windows bitmaps.
    Bmp,
    /// The first frame.
    Gif,
    /// The first image.
    Tiff,
    /// PBM, PGM, PPM.
    Pnm,
}

/// What names of files end in, in lower case and without the dot, and the formats that they claim.
const ENDINGS: [(&str, ImageFormat); 11] = [
    ("jpg", ImageFormat::Jpeg),
    ("jpeg", ImageFormat::Jpeg),
    ("png", ImageFormat::Png),
    ("ppm", ImageFormat::Pnm),
    ("pgm", ImageFormat::Pnm),
    ("pbm", ImageFormat::Pnm),
    ("bmp", ImageFormat::Bmp),
    ("tif", ImageFormat::Tiff),
    ("tiff", ImageFormat::Tiff),
    ("webp", ImageFormat::WebP),
    ("gif", ImageFormat::Gif),
];

/// Names of files that may hold an image, in lower case and without the dot.
pub const EXTENSIONS: &[&str] = &{
    let mut names = [""; ENDINGS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = ENDINGS[at].0;
        at += 1;
    }
    names
};

impl ImageFormat {
    /// The format's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Png => "PNG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Bmp => "BMP",
            ImageFormat::Gif => "GIF",
            ImageFormat::Tiff => "TIFF",
            ImageFormat::Pnm => "PNM",
        }
    }

    /// What the name of a file in this format ends in, without the dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        ENDINGS.iter().find(|(_, format)| *format == self).map_or("", |(ending, _)| ending)
    }

    /// The format that a file of this extension (without the dot, any case) claims to have.
    #[must_use]
    pub(crate) fn from_extension(extension: &str) -> Option<ImageFormat> {
        let known = ENDINGS.iter().find(|(ending, _)| ending.eq_ignore_ascii_case(extension));
        known.map(|(_, format)| *format)
    }

    /// The format that the bytes have, whatever the file is called.
    #[must_use]
    pub fn sniff(bytes: &[u8]) -> Option<ImageFormat> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(ImageFormat::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Some(ImageFormat::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                Some(ImageFormat::WebP)
            }
            [b'B', b'M', ..] => Some(ImageFormat::Bmp),
            [b'G', b'I', b'F', b'8', ..] => Some(ImageFormat::Gif),
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some(ImageFormat::Tiff),
            // BigTIFF.
            [b'I', b'I', 43, 0, ..] | [b'M', b'M', 0, 43, ..] => Some(ImageFormat::Tiff),
            [b'P', b'1'..=b'6', b' ' | b'\n' | b'\r' | b'\t' | b'#', ..] => Some(ImageFormat::Pnm),
            _ => None,
        }
    }
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
