//! What Arrow's columns are to us: which field a column becomes, and how one row of an array is
//! written as that field's bytes.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, GenericListArray, OffsetSizeTrait};
use arrow_schema::{DataType, Fields, TimeUnit};

use crate::error::Fault;
use crate::sample::{DType, FieldKind, Room};

/// Lists may lie in lists so many times.
const DEEPEST: usize = 8;

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) enum Sort {
    /// Numbers or text, as the field of that kind.
    Plain(FieldKind),
    /// Whole numbers of any kind that are given as int64: times, dates and classes.
    Whole,
    /// Bytes: an image, or bytes as they are.
    Binary,
    /// An image as Hugging Face's `datasets` keeps it: a struct with its bytes and its path.
    ImageStruct,
}

impl Sort {
    /// The field's kind, where bytes are taken for bytes.
    pub(in crate::source) fn kind(&self) -> FieldKind {
        match self {
            Sort::Plain(kind) => kind.clone(),
            Sort::Whole => FieldKind::scalar(DType::I64),
            Sort::Binary => FieldKind::Bytes,
            Sort::ImageStruct => FieldKind::EncodedImage,
        }
    }
}

/// What a column of that type becomes; an error says why nothing.
pub(in crate::source) fn sort_of(data_type: &DataType) -> Result<Sort, String> {
    use DataType as D;
    Ok(match data_type {
        D::Utf8 | D::LargeUtf8 | D::Utf8View => Sort::Plain(FieldKind::Text),
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => Sort::Binary,
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) | D::Duration(_) => {
            Sort::Whole
        }
        D::Dictionary(_, values) => match sort_of(values)? {
            Sort::Plain(FieldKind::Text) | Sort::Binary => sort_of(values)?,
            Sort::Plain(FieldKind::Array { shape, .. }) if shape.is_empty() => sort_of(values)?,
            _ => return Err(format!("is a dictionary of {values}, which is not supported")),
        },
        D::Struct(fields) if is_image(fields) => Sort::ImageStruct,
        D::FixedSizeList(..) | D::List(_) | D::LargeList(_) => lists(data_type)?,
        other => match element(other) {
            Some(dtype) => Sort::Plain(FieldKind::scalar(dtype)),
            None => return Err(format!("is of type {other}, which is not supported")),
        },
    })
}

/// The element type of numbers and booleans.
fn element(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::I8,
        DataType::Int16 => DType::I16,
        DataType::Int32 => DType::I32,
        DataType::Int64 => DType::I64,
        DataType::UInt8 => DType::U8,
        DataType::UInt16 => DType::U16,
        DataType::UInt32 => DType::U32,
        DataType::UInt64 => DType::U64,
        DataType::Float16 => DType::F16,
        DataType::Float32 => DType::F32,
        DataType::Float64 => DType::F64,
        _ => return None,
    })
}

fn is_image(fields: &Fields) -> bool {
    let binary = |field: &DataType| {
        matches!(field, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    };
    fields.iter().any(|field| field.name() == "bytes" && binary(field.data_type()))
        && fields.iter().all(|field| matches!(field.name().as_str(), "bytes" | "path"))
}

/// Lists of one length make an array's axes; lists of any length make it ragged.
fn lists(data_type: &DataType) -> Result<Sort, String> {
    let mut shape = Vec::new();
    let mut ragged = false;
    let mut inner = data_type;
    loop {
        inner = match inner {
            DataType::FixedSizeList(field, length) => {
                shape.push(usize::try_from(*length).map_err(|_| "has a list of negative length")?);
                field.data_type()
            }
            DataType::List(field) | DataType::LargeList(field) => {
                ragged = true;
                shape.push(0);
                field.data_type()
            }
            leaf => {
                let dtype = element(leaf).ok_or_else(|| {
                    format!("is a list of {leaf}: only lists of numbers and booleans are supported")
                })?;
                let size =
                    shape.iter().try_fold(dtype.size(), |size, axis| size.checked_mul(*axis));
                if size.is_none_or(|size| size > 1 << 31) {
                    return Err("has lists of more than 2 GiB".to_owned());
                }
                return Ok(Sort::Plain(match ragged {
                    true => FieldKind::Ragged { dtype, axes: shape.len() },
                    false => FieldKind::Array { dtype, shape },
                }));
            }
        };
        if shape.len() > DEEPEST {
            return Err(format!("has more than {DEEPEST} lists in each other"));
        }
    }
}

fn null() -> Fault {
    Fault::Unsupported("has no value here (null)".to_owned())
}

fn odd(array: &dyn Array) -> Fault {
    Fault::Unsupported(format!("cannot be read as {}", array.data_type()))
}

/// Calls a macro with the Rust type of an array's numbers, where they are kept as they are.
macro_rules! numbers {
    ($array:expr, $($data:pat => $type:ty),+ $(,)?) => {
        match $array.data_type() {
            $($data => Some($array.as_primitive_opt::<$type>()?.values().inner().as_slice()),)+
            _ => None,
        }
    };
}

/// All elements of an array of numbers, as bytes.
pub(in crate::source) fn number_bytes(array: &dyn Array) -> Option<&[u8]> {
    numbers!(array,
        DataType::Int8 => Int8Type, DataType::Int16 => Int16Type,
        DataType::Int32 => Int32Type, DataType::Int64 => Int64Type,
        DataType::UInt8 => UInt8Type, DataType::UInt16 => UInt16Type,
        DataType::UInt32 => UInt32Type, DataType::UInt64 => UInt64Type,
        DataType::Float16 => Float16Type, DataType::Float32 => Float32Type,
        DataType::Float64 => Float64Type,
        DataType::Date32 => Date32Type, DataType::Date64 => Date64Type,
        DataType::Time32(TimeUnit::Second) => Time32SecondType,
        DataType::Time32(TimeUnit::Millisecond) => Time32MillisecondType,
        DataType::Time64(TimeUnit::Microsecond) => Time64MicrosecondType,
        DataType::Time64(TimeUnit::Nanosecond) => Time64NanosecondType,
        DataType::Timestamp(TimeUnit::Second, _) => TimestampSecondType,
        DataType::Timestamp(TimeUnit::Millisecond, _) => TimestampMillisecondType,
        DataType::Timestamp(TimeUnit::Microsecond, _) => TimestampMicrosecondType,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => TimestampNanosecondType,
        DataType::Duration(TimeUnit::Second) => DurationSecondType,
        DataType::Duration(TimeUnit::Millisecond) => DurationMillisecondType,
        DataType::Duration(TimeUnit::Microsecond) => DurationMicrosecondType,
        DataType::Duration(TimeUnit::Nanosecond) => DurationNanosecondType,
    )
}

/// Bytes of a number of that type in an array.
fn width(data_type: &DataType) -> usize {
    data_type.primitive_width().unwrap_or(1)
}

/// Which entry of a dictionary row `row` is.
fn key(keys: &dyn Array, row: usize) -> Option<usize> {
    macro_rules! at {
        ($($data:pat => $type:ty),+) => {
            match keys.data_type() {
                $($data => usize::try_from(*keys.as_primitive_opt::<$type>()?.values().get(row)?).ok(),)+
                _ => None,
            }
        };
    }
    at!(DataType::Int8 => Int8Type, DataType::Int16 => Int16Type, DataType::Int32 => Int32Type,
        DataType::Int64 => Int64Type, DataType::UInt8 => UInt8Type, DataType::UInt16 => UInt16Type,
        DataType::UInt32 => UInt32Type, DataType::UInt64 => UInt64Type)
}

/// The bytes of row `row` of text, bytes, an image's struct, or a dictionary of those.
pub(in crate::source) fn bytes_of(array: &dyn Array, row: usize) -> Result<&[u8], Fault> {
    if row >= array.len() {
        return Err(Fault::corrupt("table", format!("has no row {row} here")));
    }
    if array.is_null(row) {
        return Err(null());
    }
    Ok(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).as_bytes(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).as_bytes(),
        DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        DataType::Struct(_) => {
            let bytes = array.as_struct().column_by_name("bytes").ok_or_else(|| odd(array))?;
            return bytes_of(bytes, row);
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let at = key(dictionary.keys(), row).ok_or_else(null)?;
            return bytes_of(dictionary.values(), at);
        }
        _ => return Err(odd(array)),
    })
}

/// Row `row` of whole numbers, times or dates.
pub(in crate::source) fn whole_of(array: &dyn Array, row: usize) -> Result<i64, Fault> {
    if row >= array.len() || array.is_null(row) {
        return Err(null());
    }
    if let DataType::Dictionary(..) = array.data_type() {
        let dictionary = array.as_any_dictionary();
        let at = key(dictionary.keys(), row).ok_or_else(null)?;
        return whole_of(dictionary.values(), at);
    }
    let size = width(array.data_type());
    let bytes = number_bytes(array).and_then(|bytes| bytes.get(row * size..(row + 1) * size));
    let signed = !array.data_type().is_unsigned_integer();
    let value = match (bytes.ok_or_else(|| odd(array))?, signed) {
        (&[a], true) => i64::from(a as i8),
        (&[a], false) => i64::from(a),
        (&[a, b], true) => i64::from(i16::from_ne_bytes([a, b])),
        (&[a, b], false) => i64::from(u16::from_ne_bytes([a, b])),
        (&[a, b, c, d], true) => i64::from(i32::from_ne_bytes([a, b, c, d])),
        (&[a, b, c, d], false) => i64::from(u32::from_ne_bytes([a, b, c, d])),
        (&[a, b, c, d, e, f, g, h], true) => i64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (&[a, b, c, d, e, f, g, h], false) => {
            let value = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            i64::try_from(value).map_err(|_| Fault::Shape(format!("{value} is no int64")))?
        }
        _ => return Err(odd(array)),
    };
    Ok(value)
}

/// Writes row `row` of an array as a field of that sort.
pub(in crate::source) fn write_row(
    array: &dyn Array,
    row: usize,
    sort: &Sort,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    match sort {
        Sort::Plain(FieldKind::Array { .. } | FieldKind::Ragged { .. }) => {
            write_numbers(array, row, sort, room)
        }
        Sort::Whole => {
            let value = whole_of(array, row)?;
            room.make(8)?.copy_from_slice(&value.to_ne_bytes());
            Ok(())
        }
        _ => {
            let bytes = bytes_of(array, row)?;
            room.make(bytes.len() as u64)?.copy_from_slice(bytes);
            Ok(())
        }
    }
}

/// The elements under `from..to` of a list array, which all must be lists of one length.
fn inside<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    from: usize,
    to: usize,
) -> Result<(usize, usize, usize), Fault> {
    let offsets = list.value_offsets();
    let at = |row: usize| offsets.get(row).map_or(0, |offset| offset.as_usize());
    let length = if from < to { at(from + 1) - at(from) } else { 0 };
    if (from..to).any(|row| at(row + 1) - at(row) != length) {
        return Err(Fault::Shape("has lists of several lengths inside one value".to_owned()));
    }
    Ok((at(from), at(to), length))
}

fn write_numbers(
    array: &dyn Array,
    row: usize,
    sort: &Sort,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    if row >= array.len() {
        return Err(Fault::corrupt("table", format!("has no row {row} here")));
    }
    let (mut leaf, mut from, mut to) = (array, row, row + 1);
    let mut shape = Vec::new();
    loop {
        if leaf.nulls().is_some_and(|nulls| (from..to).any(|at| nulls.is_null(at))) {
            return Err(null());
        }
        leaf = match leaf.data_type() {
            DataType::FixedSizeList(_, length) => {
                let (list, length) = (leaf.as_fixed_size_list(), *length as usize);
                shape.push(length);
                (from, to) = (from * length, to * length);
                list.values()
            }
            DataType::List(_) => {
                let list = leaf.as_list::<i32>();
                let length;
                (from, to, length) = inside(list, from, to)?;
                shape.push(length);
                list.values()
            }
            DataType::LargeList(_) => {
                let list = leaf.as_list::<i64>();
                let length;
                (from, to, length) = inside(list, from, to)?;
                shape.push(length);
                list.values()
            }
            DataType::Dictionary(..) => {
                let dictionary = leaf.as_any_dictionary();
                from = key(dictionary.keys(), from).ok_or_else(null)?;
                to = from + 1;
                dictionary.values()
            }
            _ => break,
        };
        if to > leaf.len() {
            return Err(Fault::corrupt("table", "has a list beyond its elements"));
        }
    }
    match sort {
        Sort::Plain(FieldKind::Ragged { axes, .. }) if *axes != 1 => room.shape(&shape),
        Sort::Plain(FieldKind::Array { shape: wanted, .. }) if *wanted != shape => {
            return Err(Fault::Shape(format!("has the shape {shape:?} instead of {wanted:?}")));
        }
        _ => {}
    }
    if let Some(bits) = leaf.as_boolean_opt() {
        let room = room.make((to - from) as u64)?;
        for (out, at) in room.iter_mut().zip(from..to) {
            *out = u8::from(bits.value(at));
        }
        return Ok(());
    }
    let size = width(leaf.data_type());
    let bytes = number_bytes(leaf).and_then(|bytes| bytes.get(from * size..to * size));
    let bytes = bytes.ok_or_else(|| odd(leaf))?;
    room.make(bytes.len() as u64)?.copy_from_slice(bytes);
    Ok(())
}

/// Whether a row has no value.
pub(in crate::source) fn is_missing(array: &dyn Array, row: usize) -> bool {
    array.is_null(row)
        || array.as_any_dictionary_opt().is_some_and(|dictionary| {
            key(dictionary.keys(), row)
                .is_none_or(|at| at >= dictionary.values().len() || dictionary.values().is_null(at))
        })
}
