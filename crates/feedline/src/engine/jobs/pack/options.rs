//! What is to be made of a data set.

use serde_json::{Value as Json, json};

use crate::engine::identity;
use crate::error::SpecError;
use crate::image::Layout;
use crate::pack::jpeg::Subsampling;
use crate::pack::record::WriteOptions;
use crate::pack::shards::Limit;
use crate::spec::{DecodeSpec, OpSpec, SourceFormat, Workers};
use crate::transform::Chain;

/// What is made of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct PackOptions {
    /// The format that samples are written to; a folder of images or raw pixels if not given.
    pub to: Option<SourceFormat>,
    /// How that format is written.
    pub write: WriteOptions,
    /// When a shard of it is full.
    pub shard: Limit,
    /// The seed of the order in which samples are written to it; `None` keeps theirs.
    pub shuffle: Option<u64>,
    /// Restart markers into JPEGs, so that crops decode alone.
    pub crop_index: bool,
    /// Units between two markers; as many as serve the image's width if not given.
    pub segment: Option<u16>,
    /// The shorter side of images that are larger.
    pub resize: Option<u32>,
    /// What is done to every image, once for all epochs.
    pub transforms: Vec<OpSpec>,
    /// Store images of a format `to` as arrays instead of encoded.
    pub decoded: bool,
    /// How such arrays lie.
    pub layout: Layout,
    /// Of JPEGs that are coded anew, 1 to 100.
    pub quality: u8,
    /// Of JPEGs that are coded anew.
    pub subsampling: Subsampling,
    /// Decoded pixels instead of files.
    pub raw: bool,
    /// Compare the pixels of every JPEG that is rewritten.
    pub check: bool,
    /// How images are decoded that have to be.
    pub decode: DecodeSpec,
    /// Leave out samples that cannot be read, and those whose image cannot be decoded as a whole:
    /// every one is, also where its bytes are kept as they are. Without it, images that need not be
    /// decoded are not.
    pub skip_bad: bool,
    /// Threads that work.
    pub num_workers: Workers,
    /// Bytes that they may take together.
    pub memory: Option<u64>,
}

impl Default for PackOptions {
    fn default() -> Self {
        PackOptions {
            to: None,
            write: WriteOptions::default(),
            shard: Limit::default(),
            shuffle: Some(0),
            crop_index: false,
            segment: None,
            resize: None,
            transforms: Vec::new(),
            decoded: false,
            layout: Layout::Hwc,
            quality: 90,
            subsampling: Subsampling::Half,
            raw: false,
            check: true,
            decode: DecodeSpec::default(),
            skip_bad: false,
            num_workers: Workers::Auto,
            memory: None,
        }
    }
}

fn subsampling_name(subsampling: Subsampling) -> &'static str {
    match subsampling {
        Subsampling::Half => "4:2:0",
        Subsampling::Horizontal => "4:2:2",
        Subsampling::Vertical => "4:4:0",
        Subsampling::Full => "4:4:4",
        Subsampling::Gray => "gray",
    }
}

fn decode(spec: &DecodeSpec) -> Json {
    let DecodeSpec {
        gray,
        bytes,
        exif_orientation,
        max_pixels,
        allow_truncated,
        allow_damaged,
        exact,
    } = spec;
    json!({
        "gray": gray,
        "bytes": bytes,
        "exif_orientation": exif_orientation,
        "max_pixels": max_pixels,
        "allow_truncated": allow_truncated,
        "allow_damaged": allow_damaged,
        "exact": exact,
    })
}

impl PackOptions {
    /// True when every image has to be decoded.
    pub(super) fn decodes(&self) -> bool {
        self.raw || self.decoded || self.resize.is_some() || !self.transforms.is_empty()
    }

    /// True when images become arrays.
    pub(super) fn makes_arrays(&self) -> bool {
        self.raw || self.decoded
    }

    pub(super) fn check(&self) -> Result<(), SpecError> {
        if self.to.is_none() && !self.crop_index && !self.decodes() {
            return Err(SpecError::new("pack", "nothing is to be done")
                .allowed("to, crop_index, resize, transforms, raw, or several of them"));
        }
        if self.makes_arrays() && self.crop_index {
            let key = if self.raw { "raw" } else { "decoded" };
            return Err(SpecError::new(key, "cannot go with crop_index: pixels have no markers"));
        }
        match self.to {
            Some(_) if self.raw => {
                return Err(SpecError::new("raw", "is a format of its own: cannot go with to")
                    .allowed("decoded, for arrays in another format"));
            }
            Some(format) if !format.is_written() => {
                return Err(SpecError::new("to", "cannot be written")
                    .value(format.name())
                    .allowed(SourceFormat::names(SourceFormat::writable())));
            }
            None if self.decoded => {
                return Err(SpecError::new("decoded", "needs a format to go to")
                    .allowed("with to, or raw instead"));
            }
            _ => {}
        }
        if self.resize.is_some() && !self.transforms.is_empty() {
            return Err(SpecError::new("resize", "cannot go with transforms")
                .allowed("a Resize among the transforms"));
        }
        let range = |key: &str, value: u64, low: u64, high: u64| match (low..=high).contains(&value)
        {
            true => Ok(()),
            false => Err(SpecError::new(key, "is not allowed")
                .value(value)
                .allowed(format!("{low} to {high}"))),
        };
        range("segment", self.segment.unwrap_or(1).into(), 1, 65_535)?;
        range("resize", self.resize.unwrap_or(1).into(), 1, 65_500)?;
        range("quality", self.quality.into(), 1, 100)?;
        range("shard", self.shard.bytes.min(self.shard.samples), 1, u64::MAX)?;
        self.transforms.iter().enumerate().try_for_each(|(number, op)| check_op(number, op))
    }

    /// When a shard is full: never where a set is one file.
    pub(super) fn limit(&self) -> Limit {
        match self.to {
            Some(format) if format.is_one_file() => Limit::NONE,
            _ => self.shard,
        }
    }

    /// What decides the result, in words of the journal's own: code can be renamed while a job is
    /// unfinished.
    pub(super) fn to_value(&self) -> Json {
        let coded = self.resize.is_some() || !self.transforms.is_empty() && !self.makes_arrays();
        let mut value = json!({
            "crop_index": self.crop_index,
            "segment": self.segment,
            "resize": self.resize,
            "quality": coded.then_some(self.quality),
            "subsampling": coded.then(|| subsampling_name(self.subsampling)),
            "raw": self.raw,
            "check": self.check,
            "exif_orientation": self.decode.exif_orientation,
            "skip_bad": self.skip_bad,
        });
        if !self.transforms.is_empty() {
            let ops = self.transforms.iter().map(|op| json!({"op": op.op, "params": op.params}));
            value["transforms"] = ops.collect();
        }
        if self.decodes() {
            value["decode"] = decode(&self.decode);
        }
        if let Some(format) = self.to {
            value["to"] = format.name().into();
            value["decoded"] = self.decoded.into();
            value["layout"] = self.decoded.then(|| identity::layout_name(self.layout)).into();
            value["shuffle_seed"] = self.shuffle.into();
            value["shard_bytes"] = self.limit().bytes.into();
            value["shard_samples"] = self.limit().samples.into();
            value["compression"] = self.write.compression.clone().into();
            value["level"] = self.write.level.into();
            value["block_samples"] = self.write.block_samples.into();
        }
        value
    }
}

/// What is done once must be the same in every epoch.
fn check_op(number: usize, op: &OpSpec) -> Result<(), SpecError> {
    // A size that varies is random, and the only thing that a chain of one op may lack.
    let random_size = Chain::varies(number, op).map_err(|mut error| {
        if !Chain::knows(&op.op) {
            error.allowed = error.allowed.map(|allowed| {
                format!("{allowed}; text and sound (tokenise, mel) have no ops in this version")
            });
        }
        error
    })?;
    if random_size {
        return Err(random(number, op));
    }
    let chain = Chain::build_from(number, std::slice::from_ref(op), Layout::Hwc)?;
    if chain.is_random() { Err(random(number, op)) } else { Ok(()) }
}

fn random(number: usize, op: &OpSpec) -> SpecError {
    SpecError::new(
        format!("transforms[{number}].op"),
        "is random, so it cannot be done once for all epochs",
    )
    .value(format!("{:?}", op.op))
    .allowed("the ops before it; leave it to the loader")
}

/// The first ops of a pipeline, up to a point: an op's name, how many ops, or "decode" for none.
pub fn transforms_until(ops: &[OpSpec], until: &str) -> Result<Vec<OpSpec>, SpecError> {
    if until.eq_ignore_ascii_case("decode") {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = ops.iter().map(|op| op.op.as_str()).collect();
    let wrong = |problem: &str| {
        SpecError::new("until", problem).value(format!("{until:?}")).allowed(format!(
            "decode, a number of ops up to {}, or one of: {}; text and sound (tokenise, mel) have no ops in this version",
            ops.len(),
            names.join(", ")
        ))
    };
    let count = match until.parse::<usize>() {
        Ok(count) if count <= ops.len() => count,
        Ok(_) => return Err(wrong("is more than there are")),
        Err(_) => {
            let mut found = (0..ops.len()).filter(|at| names[*at].eq_ignore_ascii_case(until));
            match (found.next(), found.next()) {
                (Some(at), None) => at + 1,
                (Some(_), Some(_)) => return Err(wrong("is there more than once: give a number")),
                (None, _) => return Err(wrong("is no op of the spec")),
            }
        }
    };
    Ok(ops[..count].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops() -> Vec<OpSpec> {
        vec![
            OpSpec::new("Resize").with("size", 64),
            OpSpec::new("CenterCrop").with("size", 48),
            OpSpec::new("RandomHorizontalFlip"),
            OpSpec::new("CenterCrop").with("size", 32),
        ]
    }

    #[test]
    fn a_point_is_a_name_or_a_number() {
        let ops = ops();
        assert_eq!(transforms_until(&ops, "decode").unwrap(), []);
        assert_eq!(transforms_until(&ops, "resize").unwrap(), ops[..1]);
        assert_eq!(transforms_until(&ops, "2").unwrap(), ops[..2]);
        for (until, problem) in [
            ("CenterCrop", "more than once"),
            ("5", "more than there are"),
            ("mel", "text and sound (tokenise, mel) have no ops"),
        ] {
            let error = transforms_until(&ops, until).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn how_images_are_decoded_is_part_of_the_job() {
        let options = PackOptions { raw: true, ..PackOptions::default() };
        let gray = PackOptions {
            decode: DecodeSpec { gray: true, ..DecodeSpec::default() },
            ..options.clone()
        };
        assert_ne!(options.to_value(), gray.to_value());
    }

    #[test]
    fn random_ops_are_refused_with_the_reason() {
        let options = |transforms: &[OpSpec]| PackOptions {
            to: Some(SourceFormat::Tar),
            transforms: transforms.to_vec(),
            ..PackOptions::default()
        };
        let ops = ops();
        assert!(options(&ops[..2]).check().is_ok());
        let error = options(&ops[..3]).check().unwrap_err().to_string();
        assert!(error.contains("transforms[2].op") && error.contains("random"), "{error}");
        let error = options(&[OpSpec::new("Tokenise")]).check().unwrap_err().to_string();
        assert!(error.contains("text and sound"), "{error}");
    }
}
