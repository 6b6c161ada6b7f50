//! What is to be written for one sample: its bytes as they are, rewritten, or its pixels.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Pack;
use super::gather::{Gathered, fetch};
use super::room::Room;
use crate::decode::{self, Decoder, Format, Header};
use crate::engine::work::panic_text;
use crate::error::{Fault, Result, Stage};
use crate::image::{PixelType, Scratch, View};
use crate::pack::jpeg::Encoder;
use crate::pack::recut::Recutter;
use crate::sample;
use crate::spec::read::show_bytes;
use crate::transform::{Chain, ImageShape};

/// What was made of a sample.
pub(super) struct Made<'a> {
    pub(super) picture: Picture<'a>,
    /// The other fields, where they are wanted.
    pub(super) rest: &'a Gathered,
    /// Bytes of the original.
    pub(super) before: u64,
    /// Why it is as it was.
    pub(super) reason: Option<String>,
}

/// What was made of its image.
pub(super) enum Picture<'a> {
    /// There is none.
    Missing,
    /// Bytes of a file.
    File(&'a [u8]),
    /// Elements, and three sides in the order of the layout.
    Array(&'a [u8], [usize; 3]),
}

/// Why nothing was made.
pub(super) enum Trouble {
    Fault(Stage, Fault),
    /// It takes more memory than a sample may.
    Memory(Stage, Fault),
    /// Another thread failed.
    Over,
}

/// Where the result lies.
enum ConvertedData {
    Missing,
    Encoded,
    Jpeg,
    Recut,
    Pixels([usize; 3]),
}

/// One thread's memory.
pub(super) struct Converter<'a> {
    pack: &'a Pack,
    room: &'a Room,
    tools: Tools,
    rest: Gathered,
    encoded: Vec<u8>,
    /// Pixels at their final size.
    pixels: Vec<u8>,
    jpeg: Vec<u8>,
}

/// What a panic may leave in disorder.
struct Tools {
    decoder: Decoder,
    scratch: Scratch,
    /// For the second of two images that are compared.
    other: Scratch,
    recutter: Option<Recutter>,
    encoder: Option<Encoder>,
}

impl Tools {
    fn new(pack: &Pack) -> Result<Tools> {
        let options = &pack.options;
        let codes = options.decodes() && !options.makes_arrays();
        let encoder = codes.then(|| Encoder::new(options.quality, options.subsampling, false));
        Ok(Tools {
            decoder: Decoder::new(),
            scratch: Scratch::default(),
            other: Scratch::default(),
            recutter: options.crop_index.then(Recutter::new).transpose()?,
            encoder: encoder.transpose()?,
        })
    }
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
                "has {}, more than the {} that a file may have here",
                show_bytes(bytes),
                show_bytes(self.1)
            )));
        }
        self.0.clear();
        self.0.resize(bytes as usize, 0);
        Ok(self.0)
    }
}

/// What is too large to be read is no fault of the sample: it goes with more memory.
fn unread(fault: Fault) -> Trouble {
    match fault {
        Fault::TooLarge(_) => Trouble::Memory(Stage::Read, fault),
        fault => Trouble::Fault(Stage::Read, fault),
    }
}

fn fault(stage: Stage) -> impl Fn(Fault) -> Trouble {
    move |fault| Trouble::Fault(stage, fault)
}

impl<'a> Converter<'a> {
    pub(super) fn new(pack: &'a Pack, room: &'a Room) -> Result<Self> {
        Ok(Converter {
            pack,
            room,
            tools: Tools::new(pack)?,
            rest: Gathered::default(),
            encoded: Vec::new(),
            pixels: Vec::new(),
            jpeg: Vec::new(),
        })
    }

    /// Makes what is to be written for `sample`, the `number`th of those that are packed. The bytes
    /// that it took are to be given back when it is written.
    pub(super) fn make(&mut self, number: u64, sample: u64) -> (Result<Made<'_>, Trouble>, u64) {
        self.let_go();
        let read = self.guarded(Stage::Read, |converter| {
            let header = converter.read(sample)?;
            let need = converter.need(header.as_ref());
            Ok((header, need))
        });
        let need = read.as_ref().map_or(0, |(_, need)| *need);
        let fits = need <= self.pack.largest;
        let need = if fits { need } else { 0 };
        if self.room.take(number, need).is_err() {
            return (Err(Trouble::Over), 0);
        }
        let made = match read {
            Err(trouble) => Err(trouble),
            Ok((_, need)) if !fits => Err(Trouble::Memory(
                Stage::Decode,
                Fault::TooLarge(format!(
                    "needs {}, more than the {} that a sample may take here",
                    show_bytes(need),
                    show_bytes(self.pack.largest)
                )),
            )),
            Ok((header, _)) => self.guarded(Stage::Decode, |converter| converter.convert(header)),
        };
        (made.map(|(place, reason)| self.made(place, reason)), need)
    }

    /// A panic of a library is that sample's error. What it left behind is thrown away.
    fn guarded<T>(
        &mut self,
        stage: Stage,
        work: impl FnOnce(&mut Self) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => done,
            Err(payload) => {
                let text = panic_text(&*payload);
                self.tools = Tools::new(self.pack)
                    .map_err(|error| fault(stage)(Fault::Unsupported(error.to_string())))?;
                Err(fault(stage)(Fault::Panic(text)))
            }
        }
    }

    fn made(&self, place: ConvertedData, reason: Option<String>) -> Made<'_> {
        let picture = match place {
            ConvertedData::Missing => Picture::Missing,
            ConvertedData::Encoded => Picture::File(&self.encoded),
            ConvertedData::Jpeg => Picture::File(&self.jpeg),
            ConvertedData::Recut => {
                Picture::File(self.tools.recutter.as_ref().map_or(&[], |r| r.last()))
            }
            ConvertedData::Pixels(shape) => Picture::Array(&self.pixels, shape),
        };
        let encoded = if self.pack.image.is_some() { self.encoded.len() as u64 } else { 0 };
        Made { picture, rest: &self.rest, before: encoded + self.rest.len(), reason }
    }

    /// Memory of an uncommonly large sample is given back: what is kept counts for nobody.
    fn let_go(&mut self) {
        let most = self.room.limit() as usize / self.pack.workers.max(1) / 8;
        for scratch in [&mut self.tools.scratch, &mut self.tools.other] {
            if scratch.held() > most {
                scratch.release();
            }
        }
        for buffer in [&mut self.encoded, &mut self.pixels, &mut self.jpeg] {
            if buffer.capacity() > most {
                *buffer = Vec::new();
            }
        }
        self.rest.let_go(most);
    }

    /// Reads the sample, and its image's header. An image that need not be decoded may have none.
    fn read(&mut self, sample: u64) -> Result<Option<Header>, Trouble> {
        let from = (&*self.pack.source, &*self.pack.store);
        let limit = self.pack.largest / 4;
        if self.pack.options.to.is_some() {
            let read = self.rest.read(from, sample, self.pack.image, limit);
            read.map_err(unread)?;
        }
        let Some(image) = self.pack.image else { return Ok(None) };
        fetch(from, sample, image, &mut Bytes(&mut self.encoded, limit)).map_err(unread)?;
        let must_decode = self.pack.options.decodes() || self.pack.options.skip_bad;
        if !must_decode && self.tools.recutter.is_none() {
            return Ok(None);
        }
        match decode::probe(&self.encoded, &self.pack.decode) {
            Ok(header) => Ok(Some(header)),
            Err(_) if !must_decode => Ok(None),
            Err(reason) => Err(fault(Stage::Decode)(reason)),
        }
    }

    fn need(&self, header: Option<&Header>) -> u64 {
        let mut need = self.encoded.len() + self.rest.len() as usize;
        let Some(header) = header else { return need as u64 };
        if self.pack.options.decodes() {
            let shape = shape(header);
            let chain = self.chain(header);
            let out = chain.output(shape, PixelType::U8).map_or(0, |output| output.bytes());
            // The pixels, and a JPEG of them that takes as much at worst.
            need += header.memory + chain.scratch(shape, PixelType::U8) + out * 3;
        }
        let mut compared = usize::from(self.pack.options.skip_bad);
        if self.tools.recutter.is_some() {
            need += Recutter::memory(&self.encoded);
            compared = if self.pack.options.check || header.progressive { 2 } else { compared };
        }
        (need + compared * header.memory) as u64
    }

    /// The ops that an image goes through: of a resize alone, none if it is small enough.
    fn chain(&self, header: &Header) -> &'a Chain {
        match self.pack.options.resize {
            Some(side) if header.height.min(header.width) <= side as usize => &self.pack.plain,
            _ => &self.pack.chain,
        }
    }

    fn convert(
        &mut self,
        header: Option<Header>,
    ) -> Result<(ConvertedData, Option<String>), Trouble> {
        let options = &self.pack.options;
        let Some(header) = header else {
            if self.pack.image.is_none() {
                return Ok((ConvertedData::Missing, None));
            }
            let wanted = self.tools.recutter.is_some();
            let reason = || decode::probe(&self.encoded, &self.pack.decode).err();
            let reason = wanted.then(reason).flatten();
            return Ok((
                ConvertedData::Encoded,
                reason.map(|why| format!("cannot be decoded: {why}")),
            ));
        };
        if options.makes_arrays() {
            return Ok((ConvertedData::Pixels(self.decode(&header)?), None));
        }
        let coded_anew = self.is_coded_anew(&header);
        if coded_anew {
            self.encode(&header)?;
        }
        let as_it_is = if coded_anew { ConvertedData::Jpeg } else { ConvertedData::Encoded };
        let mut whole = None;
        if options.skip_bad && !coded_anew {
            // What is kept can be loaded: all of it, as crops differ from epoch to epoch.
            let Tools { decoder, scratch, .. } = &mut self.tools;
            let decoded = decoder.decode(&self.encoded, &header, &self.pack.decode, scratch);
            whole = Some(decoded.map_err(fault(Stage::Decode))?.view());
        }
        let Some(recutter) = &mut self.tools.recutter else { return Ok((as_it_is, None)) };
        let original: &[u8] = if coded_anew { &self.jpeg } else { &self.encoded };
        let recut = match recutter.recut(original, options.segment) {
            Ok(recut) => recut,
            Err(Fault::Unsupported(reason)) => return Ok((as_it_is, Some(reason))),
            Err(other) => return Ok((as_it_is, Some(format!("damaged: {other}")))),
        };
        // A progressive file that lacks scans is shown smoothed, its rewritten copy would not be:
        // such files are always compared.
        let differs = if coded_anew || !options.check && !header.progressive {
            None
        } else {
            let (scratch, other) = (&mut self.tools.scratch, &mut self.tools.other);
            let decoder = &mut self.tools.decoder;
            difference(decoder, (original, whole), recut, scratch, other, self.pack)
        };
        Ok(match differs {
            None => (ConvertedData::Recut, None),
            reason => (as_it_is, reason),
        })
    }

    /// True when the image has to be written as another JPEG.
    fn is_coded_anew(&self, header: &Header) -> bool {
        let options = &self.pack.options;
        let is_large = |side: u32| header.height.min(header.width) > side as usize;
        let resized = options.resize.is_some_and(|side| {
            is_large(side) || header.orientation != 1 || header.format != Format::Jpeg
        });
        resized || !options.transforms.is_empty()
    }

    /// Makes a JPEG of what is to become of the image, in `self.jpeg`.
    fn encode(&mut self, header: &Header) -> Result<(), Trouble> {
        let [height, width, channels] = self.decode(header)?;
        let cannot = |text: String| fault(Stage::Transform)(Fault::Unsupported(text));
        if channels == 1 {
            self.pixels = self.pixels.iter().flat_map(|gray| [*gray; 3]).collect();
        }
        let Some(encoder) = &mut self.tools.encoder else {
            return Err(cannot("no encoder".to_owned()));
        };
        let jpeg = encoder
            .encode(&self.pixels, width, height)
            .map_err(|error| cannot(error.to_string()))?;
        self.jpeg.clear();
        self.jpeg.extend_from_slice(jpeg);
        Ok(())
    }

    /// Decodes into `self.pixels`, at the size that is asked for.
    fn decode(&mut self, header: &Header) -> Result<[usize; 3], Trouble> {
        let chain = self.chain(header);
        let input = shape(header);
        let output = chain.output(input, PixelType::U8).map_err(fault(Stage::Transform))?;
        // A plain resize is done as well as can be; ops of a pipeline as a loader does them.
        let is_pipeline = !self.pack.options.transforms.is_empty();
        let wanted = is_pipeline.then(|| chain.excerpt(input, 0, 0, self.pack.decode.exact));
        let Tools { decoder, scratch, .. } = &mut self.tools;
        let mut image = decoder
            .decode_part(&self.encoded, header, &self.pack.decode, wanted, scratch)
            .map_err(fault(Stage::Decode))?;
        self.pixels.resize(output.bytes(), 0);
        chain.run(&mut image, 0, 0, &mut self.pixels).map_err(fault(Stage::Transform))?;
        match output.shape.as_slice() {
            [a, b, c] => Ok([*a, *b, *c]),
            _ => Err(fault(Stage::Transform)(Fault::Shape("is not an image".to_owned()))),
        }
    }
}

fn shape(header: &Header) -> ImageShape {
    ImageShape { height: header.height, width: header.width, channels: header.channels }
}

/// Why a rewritten JPEG cannot stand for the original; `None` if every pixel is the same. If the
/// original's pixels are in `scratch` already, how they lie comes with it.
fn difference(
    decoder: &mut Decoder,
    (original, whole): (&[u8], Option<View>),
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
    let first = match whole.map_or_else(|| decode(original, scratch), Ok) {
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
