//! Makes an image's bytes pixels of its row.

use super::memory::Need;
use super::read::room_for;
use super::{Trouble, Worker, in_decode, in_read, in_transform};
use crate::decode::{self, Header};
use crate::engine::plan::{ImageField, Pixels, Plan, Purpose};
use crate::engine::recorded::DecodedImage;
use crate::error::Fault;
use crate::image::{self, Excerpt, Image, PixelType, View};
use crate::observe::{Stopwatch, WorkPart};
use crate::order::Pick;
use crate::sample::{Location, Value};
use crate::spec::read::show_bytes;
use crate::store::Cache;
use crate::transform::ImageShape;

/// One sample on its way into its row.
pub(super) struct Sample<'a, 'w> {
    pub(super) plan: &'a Plan,
    pub(super) pick: Pick,
    /// The epoch's key and the position that random draws belong to.
    pub(super) draws: (u64, u64),
    pub(super) out: &'a mut [u8],
    pub(super) watch: &'a mut Stopwatch<'w>,
}

impl Sample<'_, '_> {
    fn transform(&mut self, mut image: Image<'_>) -> Result<(), Trouble> {
        let chain = &self.plan.chain;
        if let Some(row) = self.plan.recorded.as_ref().and_then(|all| all.row(self.draws.1))
            && row.len() == self.out.len()
        {
            self.out.copy_from_slice(row);
            self.watch.lap(WorkPart::Transform);
            return Ok(());
        }
        let (whole, channels) = (image.excerpt(), image.view().channels);
        let shape = ImageShape { height: whole.height, width: whole.width, channels };
        let pixel_type = image.pixel_type();
        chain.run(&mut image, self.draws.0, self.draws.1, self.out).map_err(|fault| {
            in_transform(self.unlike_the_others(shape, pixel_type).unwrap_or(fault))
        })?;
        self.watch.lap(WorkPart::Transform);
        Ok(())
    }

    /// What to say of an image whose result has another size than the batch's rows.
    fn unlike_the_others(&self, shape: ImageShape, pixel_type: PixelType) -> Option<Fault> {
        let own = self.plan.chain.output(shape, pixel_type).ok()?.shape;
        let batch = &self.plan.image.as_ref()?.output.shape;
        (own != *batch).then(|| {
            Fault::Shape(format!(
                "comes out as {own:?}, while the first image of the data set set the shape {batch:?} for all: add a Resize or a crop to the transforms"
            ))
        })
    }
}

impl Worker {
    pub(super) fn make_image(
        &mut self,
        sample: &mut Sample<'_, '_>,
        field: &ImageField,
        value: &Value<'_>,
    ) -> Result<(), Trouble> {
        let plan = sample.plan;
        if let Pixels::Array { view, pixel_type } = &field.pixels {
            let Value::Bytes(bytes) = value else {
                return Err(in_transform(Fault::Shape("is not an array".to_owned())));
            };
            let pixels = image::Pixels::from_bytes(bytes, *pixel_type).map_err(in_transform)?;
            return self.make_from_pixels(sample, pixels, *view);
        }
        if let Value::Pixels { location, height, width, channels } = *value {
            let shape = ImageShape { height, width, channels };
            return self.make_from_stored(sample, field, location, shape);
        }
        let shared = self.shared.clone();
        let cache = shared.caches.get(sample.pick.source);
        if let Some(kept) = cache.and_then(|cache| cache.get(sample.pick.index)) {
            sample.watch.counters().cache_hit();
            // What is left for the other fields does not depend on where the image comes from.
            self.alone = self.alone.max(kept.need);
            let [height, width, channels] = kept.shape.map(|n| n as usize);
            if channels > 0 {
                let view = View::interleaved(height, width, channels);
                return self.make_from_pixels(sample, image::Pixels::U8(&kept.bytes), view);
            }
            return self.make_from_encoded(sample, &kept.bytes, None, None);
        }
        match value {
            Value::Bytes(bytes) => self.make_from_encoded(sample, bytes, None, cache),
            Value::File(_) | Value::Made => {
                // The bytes leave `self` while they are used, so that the rest can be borrowed.
                let mut slab = std::mem::take(&mut self.encoded);
                let made = self.read(plan, sample.pick, value, &mut slab).and_then(|length| {
                    sample.watch.counters().read(length as u64);
                    let time = sample.watch.lap(WorkPart::Read);
                    self.note_read(plan, (sample.pick, field.field), time, length);
                    let held = slab.len();
                    let bytes = slab.at_least(length).map_err(in_read)?;
                    self.make_from_encoded(sample, bytes, Some(held), cache)
                });
                self.encoded = slab;
                made
            }
            _ => Err(in_read(Fault::Shape("is not an image".to_owned()))),
        }
    }

    /// Reads the rows that the transforms look at, all of them with one call, and goes on from
    /// there: they stay in the cache between the two.
    fn make_from_stored(
        &mut self,
        sample: &mut Sample<'_, '_>,
        field: &ImageField,
        location: Location<'_>,
        shape: ImageShape,
    ) -> Result<(), Trouble> {
        let (plan, (key, position)) = (sample.plan, sample.draws);
        let ImageShape { height, width, channels } = shape;
        let mut excerpt = match plan.purpose {
            Purpose::Load => plan.chain.excerpt(shape, key, position, true),
            Purpose::Check => Excerpt::whole(height, width),
        };
        (excerpt.part.left, excerpt.part.width) = (0, width);
        let (begins, row) = (location.range.map_or(0, |(start, _)| start), width * channels);
        let (above, rows) = (excerpt.part.top * row, excerpt.part.height);
        let range = Some((begins + above as u64, (rows * row) as u64));
        let value = Value::File(Location { range, ..location });
        // The bytes leave `self` while they are used, so that the rest can be borrowed.
        let mut slab = std::mem::take(&mut self.encoded);
        let made = self.read(plan, sample.pick, &value, &mut slab).and_then(|length| {
            sample.watch.counters().read(length as u64);
            let time = sample.watch.lap(WorkPart::Read);
            self.note_read(plan, (sample.pick, field.field), time, length);
            if plan.purpose == Purpose::Check {
                return Ok(());
            }
            let held = slab.len();
            let rest = plan.chain.scratch(shape, PixelType::U8);
            let encoded = room_for(length);
            self.reserve(Need { encoded, rest, ..Need::default() }, held)?;
            let pixels = image::Pixels::U8(slab.at_least(length).map_err(in_read)?);
            let view = View::interleaved(rows, width, channels);
            let image = Image::borrowed(&mut self.scratch, pixels, view).map_err(in_transform)?;
            sample.transform(image.with_excerpt(excerpt))
        });
        self.encoded = slab;
        made
    }

    fn make_from_pixels(
        &mut self,
        sample: &mut Sample<'_, '_>,
        pixels: image::Pixels<'_>,
        view: View,
    ) -> Result<(), Trouble> {
        let shape = ImageShape { height: view.height, width: view.width, channels: view.channels };
        let rest = sample.plan.chain.scratch(shape, pixels.pixel_type());
        self.reserve(Need { rest, ..Need::default() }, self.encoded.len())?;
        let image = Image::borrowed(&mut self.scratch, pixels, view).map_err(in_transform)?;
        sample.transform(image)
    }

    /// The encoded bytes lie in the worker's slab of `slab` bytes, or elsewhere if there is none.
    fn make_from_encoded(
        &mut self,
        sample: &mut Sample<'_, '_>,
        bytes: &[u8],
        slab: Option<usize>,
        cache: Option<&Cache>,
    ) -> Result<(), Trouble> {
        let plan = sample.plan;
        if let Some(decoded) = plan.recorded.as_ref().and_then(|all| all.image(sample.draws.1)) {
            return self.make_from_recorded(sample, decoded, slab);
        }
        let (header, shape) = self.prepare(plan, bytes, slab)?;
        if plan.purpose == Purpose::Check {
            let decoded = self.decoder.decode(bytes, &header, &plan.decode, &mut self.scratch);
            return decoded.map(|_| ()).map_err(in_decode);
        }
        let cache = cache.zip(plan.spec.cache.as_ref());
        if let Some((cache, spec)) = cache {
            let mut kept = true;
            if !spec.decoded {
                kept = cache.put(sample.pick.index, bytes, [0; 3], self.alone);
            } else if let Ok(image) =
                // What fails as a whole may still be good where it is looked at.
                self.decoder.decode(bytes, &header, &plan.decode, &mut self.scratch)
            {
                kept = keep_pixels(cache, sample.pick, &image, self.alone);
                if kept || !spec.required {
                    sample.watch.lap(WorkPart::Decode);
                    return sample.transform(image);
                }
            }
            if !kept && spec.required {
                return Err(Trouble::CacheFull(no_room(cache)));
            }
        }
        let (key, position) = sample.draws;
        let wanted = plan.chain.excerpt(shape, key, position, plan.decode.exact);
        let image = self
            .decoder
            .decode_part(bytes, &header, &plan.decode, Some(wanted), &mut self.scratch)
            .map_err(in_decode)?;
        sample.watch.lap(WorkPart::Decode);
        sample.transform(image)
    }

    /// What decoding gave before stands for what it would give.
    fn make_from_recorded(
        &mut self,
        sample: &mut Sample<'_, '_>,
        decoded: &DecodedImage,
        slab: Option<usize>,
    ) -> Result<(), Trouble> {
        let DecodedImage { pixels, view, excerpt, draws } = decoded;
        let (height, width, channels) = (excerpt.height, excerpt.width, view.channels);
        let shape = ImageShape { height, width, channels };
        let rest = sample.plan.chain.scratch(shape, PixelType::U8);
        let encoded = slab.unwrap_or(self.encoded.len());
        self.reserve(Need { encoded, rest, ..Need::default() }, encoded)?;
        let image = Image::borrowed(&mut self.scratch, image::Pixels::U8(pixels), *view);
        let image = image.map_err(in_decode)?.with_excerpt(*excerpt);
        sample.draws = *draws;
        sample.watch.lap(WorkPart::Decode);
        sample.transform(image)
    }

    /// Looks at the header and has all the memory granted that the sample will take.
    fn prepare(
        &mut self,
        plan: &Plan,
        bytes: &[u8],
        slab: Option<usize>,
    ) -> Result<(Header, ImageShape), Trouble> {
        let header = decode::probe(bytes, &plan.decode).map_err(in_decode)?;
        let (height, width, channels) = (header.height, header.width, header.channels);
        let shape = ImageShape { height, width, channels };
        let need = Need {
            encoded: slab.map_or(0, |_| room_for(bytes.len())),
            decoded: header.memory,
            rest: plan.chain.scratch(shape, PixelType::U8),
        };
        self.reserve(need, slab.unwrap_or(self.encoded.len()))?;
        Ok((header, shape))
    }
}

/// Keeps decoded pixels for later epochs; false if there is no room.
fn keep_pixels(cache: &Cache, pick: Pick, image: &Image<'_>, need: u64) -> bool {
    let view = image.view();
    match image.pixels() {
        image::Pixels::U8(pixels)
            if view == View::interleaved(view.height, view.width, view.channels) =>
        {
            let shape = [view.height as u32, view.width as u32, view.channels as u32];
            cache.put(pick.index, &pixels[..view.elements()], shape, need)
        }
        // Turned by its EXIF tag: rare enough to decode again.
        _ => true,
    }
}

fn no_room(cache: &Cache) -> String {
    format!(
        "the data set does not fit ({} of {} are used): raise cache.limit, or set cache.required = false to keep what fits",
        show_bytes(cache.used()),
        show_bytes(cache.limit())
    )
}
