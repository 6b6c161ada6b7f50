//! What is to be written for one sample: its bytes as they are, rewritten, or its pixels.

use super::Pack;
use super::room::Room;
use crate::decode::{self, Decoder, Format, Header};
use crate::error::{Fault, Result, Stage};
use crate::image::{PixelType, Scratch};
use crate::pack::jpeg::Encoder;
use crate::pack::recut::Recutter;
use crate::sample::{self, Location, Value};
use crate::spec::read::show_bytes;
use crate::store::{Local, Store};
use crate::transform::{Chain, ImageShape};

/// What was made of a sample.
pub(super) enum Made<'a> {
    /// Bytes of a file, with those of the original, and why they are as they were.
    File { bytes: &'a [u8], before: u64, reason: Option<String> },
    /// Decoded pixels.
    Pixels { pixels: &'a [u8], height: usize, width: usize, channels: usize, before: u64 },
}

/// Why nothing was made.
pub(super) enum Trouble {
    Fault(Stage, Fault),
    /// Another thread failed.
    Over,
}

/// One thread's memory.
pub(super) struct Converter<'a> {
    pack: &'a Pack,
    room: &'a Room,
    decoder: Decoder,
    scratch: Scratch,
    /// For the second of two images that are compared.
    other: Scratch,
    recutter: Option<Recutter>,
    encoder: Option<Encoder>,
    encoded: Vec<u8>,
    /// Interleaved pixels at their final size.
    pixels: Vec<u8>,
    jpeg: Vec<u8>,
}

/// A file's bytes, within a limit.
struct Bytes<'a>(&'a mut Vec<u8>, u64);

impl sample::Room for Bytes<'_> {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes == 0 {
            return Err(Fault::corrupt("image", "the file is empty"));
        }
        if bytes > self.1 {
            return Err(Fault::TooLarge(format!(
                "has {}, more than the {} that a file may have here: raise memory",
                show_bytes(bytes),
                show_bytes(self.1)
            )));
        }
        self.0.clear();
        self.0.resize(bytes as usize, 0);
        Ok(self.0)
    }
}

fn fault(stage: Stage) -> impl Fn(Fault) -> Trouble {
    move |fault| Trouble::Fault(stage, fault)
}

impl<'a> Converter<'a> {
    pub(super) fn new(pack: &'a Pack, room: &'a Room) -> Result<Self> {
        let options = &pack.options;
        let encoder = match options.resize {
            Some(_) if !options.raw => {
                Some(Encoder::new(options.quality, options.subsampling, false)?)
            }
            _ => None,
        };
        Ok(Converter {
            pack,
            room,
            decoder: Decoder::new(),
            scratch: Scratch::default(),
            other: Scratch::default(),
            recutter: options.crop_index.then(Recutter::new).transpose()?,
            encoder,
            encoded: Vec::new(),
            pixels: Vec::new(),
            jpeg: Vec::new(),
        })
    }

    /// Makes what is to be written for `sample`, the `number`th of those that are packed. The bytes
    /// that it took are to be given back when it is written.
    pub(super) fn make(&mut self, number: u64, sample: u64) -> (Result<Made<'_>, Trouble>, u64) {
        self.let_go();
        let read = self.read(sample);
        let need = match &read {
            Ok(header) => self.need(header.as_ref()),
            Err(_) => 0,
        };
        let fits = need <= self.room.limit();
        let need = if fits { need } else { 0 };
        if self.room.take(number, need).is_err() {
            return (Err(Trouble::Over), 0);
        }
        let made = match read {
            Err(trouble) => Err(trouble),
            Ok(_) if !fits => Err(Trouble::Fault(
                Stage::Decode,
                Fault::TooLarge("needs more memory than there is: raise memory".to_owned()),
            )),
            Ok(header) => self.convert(header),
        };
        (made, need)
    }

    /// Memory of an uncommonly large sample is given back: what is kept counts for nobody.
    fn let_go(&mut self) {
        let most = self.room.limit() as usize / self.pack.workers.max(1) / 8;
        for scratch in [&mut self.scratch, &mut self.other] {
            if scratch.held() > most {
                scratch.release();
            }
        }
        for buffer in [&mut self.encoded, &mut self.pixels, &mut self.jpeg] {
            if buffer.capacity() > most {
                *buffer = Vec::new();
            }
        }
    }

    /// Reads the file and its header. A file that need not be decoded may have none.
    fn read(&mut self, sample: u64) -> Result<Option<Header>, Trouble> {
        let location: Location<'_> = match self.pack.source.value(sample, self.pack.image) {
            Ok(Value::File(location)) => location,
            Ok(_) => return Err(fault(Stage::Read)(Fault::Shape("is not a file".to_owned()))),
            Err(reason) => return Err(fault(Stage::Read)(reason)),
        };
        let limit = self.room.limit() / 4;
        Local.read(&location, &mut Bytes(&mut self.encoded, limit)).map_err(fault(Stage::Read))?;
        match decode::probe(&self.encoded, &self.pack.decode) {
            Ok(header) => Ok(Some(header)),
            Err(_) if !self.decodes() => Ok(None),
            Err(reason) => Err(fault(Stage::Decode)(reason)),
        }
    }

    /// True when every sample has to be decoded.
    fn decodes(&self) -> bool {
        self.pack.options.raw || self.pack.options.resize.is_some()
    }

    fn need(&self, header: Option<&Header>) -> u64 {
        let Some(header) = header else { return self.encoded.len() as u64 };
        let mut need = self.encoded.len();
        if self.decodes() {
            let shape = shape(header);
            let chain = self.chain(header);
            let out = chain.output(shape, PixelType::U8).map_or(0, |output| output.bytes());
            // The pixels, and a JPEG of them that takes as much at worst.
            need += header.memory + chain.scratch(shape, PixelType::U8) + out * 3;
        }
        if self.recutter.is_some() {
            need += Recutter::memory(&self.encoded);
            let compared = self.pack.options.check || header.progressive;
            need += if compared { 2 * header.memory } else { 0 };
        }
        need as u64
    }

    /// The ops that an image goes through: none if it is small enough.
    fn chain(&self, header: &Header) -> &'a Chain {
        match self.pack.options.resize {
            Some(side) if header.height.min(header.width) > side as usize => &self.pack.resize,
            _ => &self.pack.plain,
        }
    }

    fn convert(&mut self, header: Option<Header>) -> Result<Made<'_>, Trouble> {
        let before = self.encoded.len() as u64;
        let options = &self.pack.options;
        let Some(header) = header else {
            let reason = decode::probe(&self.encoded, &self.pack.decode).err();
            let reason = reason.map(|reason| format!("cannot be decoded: {reason}"));
            return Ok(Made::File { bytes: &self.encoded, before, reason });
        };
        if options.raw {
            let (height, width, channels) = self.decode(&header)?;
            return Ok(Made::Pixels { pixels: &self.pixels, height, width, channels, before });
        }
        let is_large =
            options.resize.is_some_and(|side| header.height.min(header.width) > side as usize);
        let turned = header.orientation != 1;
        let coded_anew =
            options.resize.is_some() && (is_large || turned || header.format != Format::Jpeg);
        if coded_anew {
            let (height, width, _) = self.decode(&header)?;
            let Some(encoder) = &mut self.encoder else {
                return Err(fault(Stage::Transform)(Fault::Unsupported("no encoder".to_owned())));
            };
            let jpeg = encoder
                .encode(&self.pixels, width, height)
                .map_err(|error| fault(Stage::Transform)(Fault::Unsupported(error.to_string())))?;
            self.jpeg.clear();
            self.jpeg.extend_from_slice(jpeg);
        }
        let Some(recutter) = &mut self.recutter else {
            let bytes = if coded_anew { &self.jpeg } else { &self.encoded };
            return Ok(Made::File { bytes, before, reason: None });
        };
        let original: &[u8] = if coded_anew { &self.jpeg } else { &self.encoded };
        let recut = match recutter.recut(original, options.segment) {
            Ok(recut) => recut,
            Err(reason) => {
                let reason = match reason {
                    Fault::Unsupported(reason) => reason,
                    other => format!("damaged: {other}"),
                };
                return Ok(Made::File { bytes: original, before, reason: Some(reason) });
            }
        };
        // A progressive file that lacks scans is shown smoothed, its rewritten copy would not be:
        // such files are always compared.
        let differs = if coded_anew || !options.check && !header.progressive {
            None
        } else {
            let (scratch, other) = (&mut self.scratch, &mut self.other);
            difference(&mut self.decoder, original, recut, scratch, other, self.pack)
        };
        Ok(match differs {
            None => Made::File { bytes: recut, before, reason: None },
            reason => Made::File { bytes: original, before, reason },
        })
    }

    /// Decodes into `self.pixels`, at the size that is asked for.
    fn decode(&mut self, header: &Header) -> Result<(usize, usize, usize), Trouble> {
        let chain = self.chain(header);
        let output = chain.output(shape(header), PixelType::U8).map_err(fault(Stage::Transform))?;
        let mut image = self
            .decoder
            .decode(&self.encoded, header, &self.pack.decode, &mut self.scratch)
            .map_err(fault(Stage::Decode))?;
        self.pixels.resize(output.bytes(), 0);
        chain.run(&mut image, 0, 0, &mut self.pixels).map_err(fault(Stage::Transform))?;
        match output.shape.as_slice() {
            [height, width, channels] => Ok((*height, *width, *channels)),
            _ => Err(fault(Stage::Transform)(Fault::Shape("is not an image".to_owned()))),
        }
    }
}

fn shape(header: &Header) -> ImageShape {
    ImageShape { height: header.height, width: header.width, channels: header.channels }
}

/// Why a rewritten JPEG cannot stand for the original; `None` if every pixel is the same.
fn difference(
    decoder: &mut Decoder,
    original: &[u8],
    rewritten: &[u8],
    scratch: &mut Scratch,
    other: &mut Scratch,
    pack: &Pack,
) -> Option<String> {
    let options = &pack.decode;
    let mut decode = |bytes: &[u8], scratch: &mut Scratch| {
        let header = decode::probe(bytes, options)?;
        let view = decoder.decode(bytes, &header, options, scratch)?.view();
        Ok::<_, Fault>(view)
    };
    let first = match decode(original, scratch) {
        Ok(view) => view,
        Err(reason) => return Some(format!("damaged: {reason}")),
    };
    match decode(rewritten, other) {
        Ok(view) if view == first => {}
        _ => return Some("would not have the same pixels".to_owned()),
    }
    let bytes = first.bounds().1;
    let same = match (scratch.decoded(bytes), other.decoded(bytes)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    (!same).then(|| "would not have the same pixels".to_owned())
}
