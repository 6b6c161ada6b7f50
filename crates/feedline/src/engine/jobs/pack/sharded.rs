//! Samples into shards of a format.

use std::path::PathBuf;

use super::convert::{Made, Picture};
use super::records::{Noted, Sink};
use super::work::Work;
use super::{Pack, Packed, output_type};
use crate::catalog::{ListedFile, Shard};
use crate::error::Result;
use crate::image::PixelType;
use crate::pack::destination::Destination;
use crate::pack::record::{Given, Record};
use crate::pack::shards::{Names, Plan};
use crate::sample::{DType, Field, FieldKind};
use crate::spec::SourceFormat;

impl Pack {
    /// What a sample of the packed set holds.
    pub(super) fn fields(&self) -> Vec<Field> {
        let kind = |(number, field): (usize, &Field)| match &field.kind {
            _ if Some(number) == self.image && self.options.decoded => self.array_kind(),
            // Each has its own size; there is no other way to say so in a file.
            FieldKind::Pixels { .. } => FieldKind::Ragged { dtype: DType::U8, axes: 3 },
            other => other.clone(),
        };
        let fields = self.source.fields().iter().enumerate();
        fields
            .map(|(at, field)| Field { name: field.name.clone(), kind: kind((at, field)) })
            .collect()
    }

    /// What images become when they are stored as arrays.
    fn array_kind(&self) -> FieldKind {
        let channels = if self.options.decode.gray { 1 } else { 3 };
        match self.chain.fixed_output(channels, PixelType::U8) {
            Some(output) => FieldKind::Array { dtype: output.dtype, shape: output.shape },
            None => {
                let dtype = output_type(&self.chain, channels).unwrap_or(DType::U8);
                FieldKind::Ragged { dtype, axes: 3 }
            }
        }
    }

    pub(super) fn write_records(
        &self,
        format: SourceFormat,
        name: &str,
        destination: &Destination,
        work: &mut Work<'_>,
    ) -> Result<(Vec<Shard>, Vec<ListedFile>, Packed)> {
        let plain = format.ending(None);
        let name = name.strip_suffix(&plain).unwrap_or(name);
        let ending = format.ending(self.options.write.compression.as_deref());
        let plan = Plan {
            folder: destination.folder().to_owned(),
            format,
            fields: self.fields(),
            options: self.options.write.clone(),
            limit: self.options.limit(),
            names: match format.is_one_file() {
                true => Names::One(format!("{name}{ending}")),
                false => Names::Numbered(format!("{name}-"), 6, ending),
            },
        };
        let (sink, earlier) = Sink::open(destination, plan)?;
        let mut noted = Noted::default();
        earlier.iter().for_each(|line| noted.append(&line.noted));
        let resumed = earlier.iter().map(|line| line.shard.samples).sum();
        work.begin_at(earlier.last().map_or(0, |line| line.end), noted);
        let work = &*work;
        work.run(
            &|number, sample, made| match made {
                Ok(made) => {
                    self.put(&sink, number, &made, &|| work.name(sample))?;
                    Ok(None)
                }
                Err(error) => {
                    let reason = error.fault.to_string();
                    sink.put(number, None, &|noted| {
                        noted.left_out(sample, work.name(sample), reason.clone());
                    })?;
                    Ok(Some(reason))
                }
            },
            &|| sink.abort(),
        )?;
        let (shards, entries) = sink.end()?;
        let samples = shards.iter().map(|shard| shard.samples).sum();
        Ok((shards, entries, work.packed(samples, resumed)))
    }

    /// Hands a sample to the sink, as a record of all its fields.
    fn put(
        &self,
        sink: &Sink,
        number: u64,
        made: &Made<'_>,
        name: &dyn Fn() -> PathBuf,
    ) -> Result<()> {
        let picture = match &made.picture {
            Picture::Missing => None,
            Picture::File(bytes) => Some(Given { bytes, shape: &[] }),
            Picture::Array(bytes, shape) => Some(Given { bytes, shape }),
        };
        let given = |field: usize| match picture {
            Some(picture) if Some(field) == self.image => picture,
            _ => {
                let (bytes, shape) = made.rest.part(field);
                Given { bytes, shape }
            }
        };
        let values: Vec<Given<'_>> = (0..self.source.fields().len()).map(given).collect();
        let record = Record { key: &format!("{number:09}"), values: &values };
        sink.put(number, Some(&record), &|noted| {
            noted.before += made.before;
            if let Some(reason) = &made.reason {
                noted.unchanged(reason.clone(), 1, name());
            }
        })
    }
}
