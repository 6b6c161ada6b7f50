//! The members of a .npz, which is a zip archive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Makers;
use super::array::{NpyPlace, arrays, header_of};
use crate::source::arrays::{Array, Files, MOST_ARRAYS};
use crate::store::Reader;

/// The arrays of file number `file`.
pub(super) fn arrays_of(
    files: &Arc<Files>,
    file: u32,
    makers: &mut Makers,
) -> Result<Vec<Array>, String> {
    let listed = catch_unwind(AssertUnwindSafe(|| members(files, file)));
    let members = listed.map_err(|_| "has a damaged list of members".to_owned())??;
    let mut found = Vec::new();
    for (name, stored) in members {
        let of = |why: String| format!("has a member {name:?} that {why}");
        let header = header_of(files, &stored).map_err(of)?;
        // A number that was saved beside the arrays is no field.
        if header.shape.is_empty() {
            continue;
        }
        found.extend(arrays(files, &stored, &header, &name, makers).map_err(of)?);
    }
    if found.is_empty() {
        return Err("has no arrays with an axis; the first axis counts the samples".to_owned());
    }
    Ok(found)
}

/// The .npy members and where they lie.
fn members(files: &Files, file: u32) -> Result<Vec<(String, NpyPlace)>, String> {
    let opened = files.open(file).map_err(|fault| fault.to_string())?;
    let mut archive = zip::ZipArchive::new(std::io::BufReader::new(Reader::new(opened)))
        .map_err(|error| format!("is not a .npz archive: {error}"))?;
    if archive.len() > MOST_ARRAYS {
        return Err(format!("has more than {MOST_ARRAYS} members"));
    }
    let mut found = Vec::new();
    for number in 0..archive.len() {
        let damaged = |error: zip::result::ZipError| format!("has a damaged member: {error}");
        let member = archive.by_index_raw(number).map_err(damaged)?;
        let name = member.name().map_err(damaged)?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
        if member.encrypted() {
            return Err(format!("has an encrypted member {name:?}"));
        }
        let offset = member.data_start().ok_or("has a member without a place")?;
        let length = member.compressed_size();
        let packed = match member.compression() {
            zip::CompressionMethod::Stored => None,
            zip::CompressionMethod::Deflated => Some(member.size()),
            other => return Err(format!("has a member {name:?} that is packed as {other}")),
        };
        if offset.checked_add(length).is_none_or(|end| end > files.bytes(file)) {
            return Err(format!("ends within {name:?}: it was cut short"));
        }
        found.push((name, NpyPlace { file, offset, length, packed }));
    }
    Ok(found)
}
