//! What `zarr.json`, or `.zarray` of the older version, says of an array.

use serde_json::Value;

use super::codecs::Codec;
use crate::sample::DType;
use crate::source::arrays::{Element, Grid, MOST_AXES, from_numpy};

/// How a chunk's place becomes a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// What comes first, as "c".
    pub prefix: Option<&'static str>,
    /// What is between the numbers.
    pub separator: char,
}

impl Keys {
    /// The name of the chunk at a place.
    pub(super) fn name(&self, place: &[u64]) -> String {
        let mut name = String::new();
        let parts = place.iter().map(u64::to_string);
        for part in self.prefix.map(str::to_owned).into_iter().chain(parts) {
            if !name.is_empty() {
                name.push(self.separator);
            }
            name += &part;
        }
        name
    }
}

/// How one chunk is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packing {
    /// Axis numbers in the order in which they are stored; empty for the usual one.
    pub order: Vec<usize>,
    /// True when bytes are in the other order than this machine's.
    pub swap: bool,
    /// True when the elements are texts or bytes of different lengths, each after its length.
    pub lengths: bool,
    /// What was done to the bytes, in that order.
    pub codecs: Vec<Codec>,
}

/// A chunk that has an index of smaller ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard {
    /// The shape of the whole.
    pub shape: Vec<u64>,
    /// True when the index comes first.
    pub index_first: bool,
    /// True when the index has a checksum.
    pub checked: bool,
}

/// What is known of an array.
pub(super) struct Metadata {
    /// Its shape, and that of the smallest chunk.
    pub grid: Grid,
    /// What it consists of; a text of any length has none.
    pub element: Option<Element>,
    /// True when texts of any length are bytes instead.
    pub bytes: bool,
    /// How a chunk is stored.
    pub packing: Packing,
    /// How chunks are called.
    pub keys: Keys,
    /// Set if chunks lie in larger ones.
    pub shard: Option<Shard>,
    /// The element where no chunk is, as it would be stored.
    pub fill: Vec<u8>,
    /// What its owner wrote beside it.
    pub attributes: Value,
}

const NATIVE_BIG: bool = cfg!(target_endian = "big");

fn damaged(what: &str) -> String {
    format!("has no proper {what} in its metadata")
}

fn axes(value: Option<&Value>, what: &str) -> Result<Vec<u64>, String> {
    let axes: Option<Vec<u64>> =
        value.and_then(Value::as_array).and_then(|axes| axes.iter().map(Value::as_u64).collect());
    axes.filter(|axes| axes.len() <= MOST_AXES).ok_or_else(|| damaged(what))
}

/// The separator that is said, or the usual one.
fn separator(value: Option<&Value>, usual: char) -> Result<char, String> {
    match value.map(Value::as_str) {
        None => Ok(usual),
        Some(Some(".")) => Ok('.'),
        Some(Some("/")) => Ok('/'),
        Some(_) => Err(damaged("separator")),
    }
}

fn bits(value: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// The bytes of the value where nothing was written; zeros if none is said.
fn fill_value(value: Option<&Value>, element: &Element) -> Result<Vec<u8>, String> {
    let wrong = || damaged("fill_value");
    let Element::Number { dtype, swap } = element else {
        return match value {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
            Some(Value::Number(zero)) if zero.as_f64() == Some(0.0) => Ok(Vec::new()),
            Some(_) => Err("has a fill_value that is not empty, for texts".to_owned()),
        };
    };
    let size = dtype.size();
    let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let mut bytes = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Bool(value)) => vec![u8::from(*value); size],
        Some(Value::Number(number)) if float => bits(number.as_f64().ok_or_else(wrong)?, *dtype),
        Some(Value::Number(number)) => {
            let whole = number
                .as_i64()
                .or_else(|| number.as_u64().map(|number| number as i64))
                .or_else(|| number.as_f64().map(|number| number as i64));
            let mut bytes = whole.ok_or_else(wrong)?.to_le_bytes()[..size].to_vec();
            if NATIVE_BIG {
                bytes.reverse();
            }
            bytes
        }
        Some(Value::String(text)) if float => match (text.as_str(), text.strip_prefix("0x")) {
            ("NaN", _) => bits(f64::NAN, *dtype),
            ("Infinity", _) => bits(f64::INFINITY, *dtype),
            ("-Infinity", _) => bits(f64::NEG_INFINITY, *dtype),
            (_, Some(digits)) => {
                let number = u64::from_str_radix(digits, 16).map_err(|_| wrong())?;
                let mut bytes = number.to_le_bytes()[..size].to_vec();
                if NATIVE_BIG {
                    bytes.reverse();
                }
                bytes
            }
            _ => return Err(wrong()),
        },
        Some(_) => return Err(wrong()),
    };
    if *swap {
        bytes.reverse();
    }
    Ok(bytes)
}

fn with_order(element: Element, other: bool) -> Element {
    match element {
        Element::Number { dtype, .. } => Element::Number { dtype, swap: other && dtype.size() > 1 },
        Element::Wide { width, .. } => Element::Wide { width, swap: other },
        other => other,
    }
}

impl Metadata {
    /// Reads `.zarray`.
    pub(super) fn version_2(value: &Value, attributes: Value) -> Result<Metadata, String> {
        let shape = axes(value.get("shape"), "shape")?;
        let chunk = axes(value.get("chunks"), "chunks")?;
        let Some(dtype) = value.get("dtype").and_then(Value::as_str) else {
            return Err("has records, which are not read: write each field as an array".to_owned());
        };
        let mut codecs = Vec::new();
        let mut lengths = None;
        let filters = value.get("filters").and_then(Value::as_array);
        let compressor = value.get("compressor").filter(|compressor| !compressor.is_null());
        for codec in filters.into_iter().flatten().chain(compressor) {
            let id = codec.get("id").and_then(Value::as_str).ok_or_else(|| damaged("codec"))?;
            match id {
                "vlen-utf8" if codecs.is_empty() => lengths = Some(false),
                "vlen-bytes" if codecs.is_empty() => lengths = Some(true),
                id => codecs.push(Codec::named(id, codec)?),
            }
        }
        let element = match (lengths, dtype) {
            (Some(_), _) => None,
            (None, dtype) => Some(from_numpy(dtype)?),
        };
        let order = match value.get("order").and_then(Value::as_str) {
            Some("F") => (0..shape.len()).rev().collect(),
            _ => Vec::new(),
        };
        let packing = Packing { order, swap: false, lengths: lengths.is_some(), codecs };
        let keys =
            Keys { prefix: None, separator: separator(value.get("dimension_separator"), '.')? };
        Metadata::new(value, attributes, (shape, chunk), (element, lengths), packing, keys, None)
    }

    /// Reads an array's `zarr.json`.
    pub(super) fn version_3(value: &Value) -> Result<Metadata, String> {
        let shape = axes(value.get("shape"), "shape")?;
        if value
            .get("storage_transformers")
            .and_then(Value::as_array)
            .is_some_and(|l| !l.is_empty())
        {
            return Err("has storage transformers, which are not known".to_owned());
        }
        let named = |value: Option<&Value>| -> Option<(String, Value)> {
            match value? {
                Value::String(name) => Some((name.clone(), Value::Null)),
                value => Some((
                    value.get("name")?.as_str()?.to_owned(),
                    value.get("configuration").cloned().unwrap_or(Value::Null),
                )),
            }
        };
        let (grid, settings) =
            named(value.get("chunk_grid")).ok_or_else(|| damaged("chunk_grid"))?;
        if grid != "regular" {
            return Err(format!("has a chunk grid {grid:?}, only regular ones are known"));
        }
        let mut chunk = axes(settings.get("chunk_shape"), "chunk_shape")?;
        let (encoding, settings) =
            named(value.get("chunk_key_encoding")).ok_or_else(|| damaged("chunk_key_encoding"))?;
        let given = settings.get("separator");
        let keys = match encoding.as_str() {
            "default" => Keys { prefix: Some("c"), separator: separator(given, '/')? },
            "v2" => Keys { prefix: None, separator: separator(given, '.')? },
            other => return Err(format!("has chunks named by {other:?}, which is not known")),
        };
        let (dtype, settings) =
            named(value.get("data_type")).ok_or_else(|| damaged("data_type"))?;
        let bytes_of = |key: &str| {
            let bytes = settings.get(key).and_then(Value::as_u64);
            bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| damaged("data_type"))
        };
        let element = match dtype.as_str() {
            "string" | "bytes" | "variable_length_bytes" => None,
            "fixed_length_utf32" => {
                Some(Element::Wide { width: bytes_of("length_bytes")? / 4, swap: false })
            }
            "null_terminated_bytes" => {
                Some(Element::Chars { width: bytes_of("length_bytes")?, pad: 0 })
            }
            name => match DType::from_name(name) {
                Some(dtype) => Some(Element::Number { dtype, swap: false }),
                None => {
                    return Err(format!(
                        "has elements of type {name:?}, which cannot be in a batch: numbers, booleans and texts can"
                    ));
                }
            },
        };
        let mut codecs = value.get("codecs").cloned().unwrap_or(Value::Null);
        let mut shard = None;
        if let Some([Value::Object(only)]) = codecs.as_array().map(Vec::as_slice)
            && only.get("name").and_then(Value::as_str) == Some("sharding_indexed")
        {
            let settings = only.get("configuration").cloned().unwrap_or(Value::Null);
            let inner = axes(settings.get("chunk_shape"), "chunk_shape")?;
            let fits = inner.len() == chunk.len()
                && inner
                    .iter()
                    .zip(&chunk)
                    .all(|(inner, outer)| *inner > 0 && *outer > 0 && outer % inner == 0);
            if !fits {
                return Err(format!("has shards of {chunk:?} with chunks of {inner:?}"));
            }
            let index: Vec<String> = settings
                .get("index_codecs")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|codec| named(Some(codec)).map(|(name, _)| name))
                .collect();
            let checked = match index.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["bytes"] => false,
                ["bytes", "crc32c"] => true,
                _ => return Err("has a shard index that is packed in an unknown way".to_owned()),
            };
            let first = settings.get("index_location").and_then(Value::as_str) == Some("start");
            shard = Some(Shard {
                shape: std::mem::replace(&mut chunk, inner),
                index_first: first,
                checked,
            });
            codecs = settings.get("codecs").cloned().unwrap_or(Value::Null);
        }
        let codecs = codecs.as_array().ok_or_else(|| damaged("codecs"))?;
        let mut packing =
            Packing { order: Vec::new(), swap: false, lengths: false, codecs: Vec::new() };
        let mut serialised = false;
        let mut lengths = None;
        for codec in codecs {
            let (name, settings) = named(Some(codec)).ok_or_else(|| damaged("codecs"))?;
            match name.as_str() {
                "transpose" if !serialised => {
                    let order = axes(settings.get("order"), "order")?;
                    let order: Vec<usize> = order.iter().map(|axis| *axis as usize).collect();
                    let mut sorted = order.clone();
                    sorted.sort_unstable();
                    if sorted != (0..shape.len()).collect::<Vec<_>>() || !packing.order.is_empty() {
                        return Err(damaged("transpose"));
                    }
                    packing.order = order;
                }
                "bytes" if !serialised => {
                    serialised = true;
                    let big = settings.get("endian").and_then(Value::as_str) == Some("big");
                    packing.swap = big != NATIVE_BIG;
                }
                "vlen-utf8" | "vlen-bytes" if !serialised => {
                    serialised = true;
                    lengths = Some(name == "vlen-bytes");
                }
                "sharding_indexed" => {
                    return Err(
                        "has shards within shards or beside other codecs, which are not known"
                            .to_owned(),
                    );
                }
                name if serialised => packing.codecs.push(Codec::named(name, &settings)?),
                name => return Err(format!("has a codec {name:?} that is not known")),
            }
        }
        if !serialised || lengths.is_some() != element.is_none() {
            return Err(damaged("codecs"));
        }
        packing.lengths = lengths.is_some();
        let element = element.map(|element| with_order(element, packing.swap));
        let attributes = value.get("attributes").cloned().unwrap_or(Value::Null);
        Metadata::new(value, attributes, (shape, chunk), (element, lengths), packing, keys, shard)
    }

    fn new(
        value: &Value,
        attributes: Value,
        (shape, chunk): (Vec<u64>, Vec<u64>),
        (element, lengths): (Option<Element>, Option<bool>),
        packing: Packing,
        keys: Keys,
        shard: Option<Shard>,
    ) -> Result<Metadata, String> {
        let fill = match &element {
            Some(element) => fill_value(value.get("fill_value"), element)?,
            // A chunk that was never written has empty texts.
            None => match value.get("fill_value") {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::String(text)) if text.is_empty() => Vec::new(),
                Some(Value::Array(bytes)) if bytes.is_empty() => Vec::new(),
                Some(Value::Number(zero)) if zero.as_f64() == Some(0.0) => Vec::new(),
                Some(_) => {
                    return Err("has a fill_value that is not empty, for texts: write them with an empty one".to_owned());
                }
            },
        };
        let size = element.as_ref().map_or(1, |element| element.width() as u64);
        // An array without an axis has no grid: the caller leaves it out.
        let grid = match shape.is_empty() {
            true => Grid { shape, chunk, size },
            false => Grid::new(shape, chunk, size)?,
        };
        let bytes = lengths == Some(true);
        Ok(Metadata { grid, element, bytes, packing, keys, shard, fill, attributes })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_filled_with_nothing_else() {
        let array = |fill: Value| {
            let value = json!({"shape": [4], "chunks": [2], "dtype": "|O", "fill_value": fill,
                "filters": [{"id": "vlen-utf8"}], "compressor": null, "order": "C"});
            Metadata::version_2(&value, Value::Null).map(|_| ())
        };
        for empty in [json!(""), json!(null), json!(0)] {
            assert_eq!(array(empty), Ok(()));
        }
        for other in [json!("none"), json!(1)] {
            assert!(array(other).unwrap_err().contains("fill_value"));
        }
    }
}
