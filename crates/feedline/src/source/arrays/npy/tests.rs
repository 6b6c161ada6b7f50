//! Files as NumPy writes them, whole and damaged.

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::error::Fault;
use crate::sample::{FieldKind, Grown, Value};
use crate::store::Local;

/// A folder that goes away.
pub(in crate::source) struct Folder(pub PathBuf);

impl Folder {
    pub(in crate::source) fn new() -> Folder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let path =
            std::env::temp_dir().join(format!("feedline-arrays-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(in crate::source) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The files of this machine.
pub(in crate::source) fn local() -> &'static Arc<dyn Store> {
    static LOCAL: OnceLock<Arc<dyn Store>> = OnceLock::new();
    LOCAL.get_or_init(|| Arc::new(Local))
}

pub(in crate::source) fn opening() -> Opening<'static> {
    Opening {
        store: local(),
        image_extensions: &[],
        block_memory: 1 << 26,
        memory: 1 << 30,
        is_image: |bytes| bytes.starts_with(b"\xff\xd8"),
    }
}

/// The bytes of a field, wherever they are.
pub(in crate::source) fn bytes(
    source: &dyn Source,
    index: u64,
    field: usize,
) -> Result<Vec<u8>, Fault> {
    match source.value(index, field)? {
        Value::File(location) => {
            let file = Local.open(&location.root.join(location.path))?;
            let (offset, length) = location.range.unwrap();
            let size = file.len();
            if offset + length > size {
                return Err(Fault::corrupt("test", "a range beyond the file"));
            }
            let mut out = vec![0; length as usize];
            file.read_exact_at(&mut out, offset)?;
            Ok(out)
        }
        Value::Made => {
            let mut grown = Grown::at_most(1 << 26);
            source.read(index, field, &mut grown)?;
            Ok(grown.bytes)
        }
        Value::Bytes(bytes) => Ok(bytes.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Reads everything of a damaged source; nothing is expected of it but an end.
pub(in crate::source) fn exhaust(source: &dyn Source) {
    for index in (0..source.len().min(20)).chain([source.len() - 1, source.len()]) {
        for field in 0..source.fields().len() {
            let _ = bytes(source, index, field);
        }
        let _ = source.origin(index);
    }
}

fn npy(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let dict = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\0".to_vec();
    file.extend((dict.len() as u16).to_le_bytes());
    file.extend(dict.as_bytes());
    file.extend(data);
    file
}

fn floats(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(|n| (n as f32).to_ne_bytes()).collect()
}

fn open_npy(path: &Path) -> Result<Arc<dyn Source>> {
    open(path, &[], &opening())
}

fn names(source: &dyn Source) -> Vec<String> {
    source.fields().iter().map(|field| field.name.clone()).collect()
}

#[test]
fn rows_are_places_in_the_file() {
    let folder = Folder::new();
    let path = folder.write("x.npy", &npy("'<f4'", false, "(3, 2)", &floats(0..6)));
    let source = open_npy(&path).unwrap();
    assert_eq!((source.len(), names(&*source)), (3, vec!["x".to_owned()]));
    assert!(matches!(source.value(1, 0).unwrap(), Value::File(_)));
    assert!(source.blocks().is_none());
    assert_eq!(bytes(&*source, 1, 0).unwrap(), floats([2, 3]));
    assert!(source.value(3, 0).is_err());
    // Column by column, and in the other byte order: the same rows.
    let path = folder.write("f.npy", &npy("'<f4'", true, "(3, 2)", &floats([0, 2, 4, 1, 3, 5])));
    let other = open_npy(&path).unwrap();
    let mut swapped = floats(0..6);
    swapped.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    let path = folder.write("b.npy", &npy("'>f4'", false, "(3, 2)", &swapped));
    let big = open_npy(&path).unwrap();
    for index in 0..3 {
        assert_eq!(bytes(&*other, index, 0).unwrap(), bytes(&*source, index, 0).unwrap());
        assert_eq!(bytes(&*big, index, 0).unwrap(), bytes(&*source, index, 0).unwrap());
    }
    assert!(other.blocks().is_some());
}

#[test]
fn fortran_order_of_three_axes() {
    let folder = Folder::new();
    // a[i, j, k] = 100 i + 10 j + k, of shape (2, 3, 4).
    let element = |i: u32, j: u32, k: u32| 100 * i + 10 * j + k;
    let mut stored = Vec::new();
    for k in 0..4 {
        for j in 0..3 {
            stored.extend((0..2).map(|i| element(i, j, k)));
        }
    }
    let path = folder.write("f.npy", &npy("'<f4'", true, "(2, 3, 4)", &floats(stored)));
    let source = open_npy(&path).unwrap();
    for i in 0..2 {
        let wanted = (0..3).flat_map(|j| (0..4).map(move |k| element(i, j, k)));
        assert_eq!(bytes(&*source, i.into(), 0).unwrap(), floats(wanted));
    }
}

#[test]
fn records_and_texts() {
    let folder = Folder::new();
    let mut data = Vec::new();
    for n in 0..3u8 {
        data.extend(floats([n.into(), 7]));
        data.extend([b'a' + n, b'b', 0]);
    }
    let path =
        folder.write("r.npy", &npy("[('x', '<f4', (2,)), ('s', '|S3')]", false, "(3,)", &data));
    let source = open_npy(&path).unwrap();
    assert_eq!(names(&*source), ["x", "s"]);
    assert_eq!(source.fields()[1].kind, FieldKind::Text);
    assert_eq!(bytes(&*source, 2, 0).unwrap(), floats([2, 7]));
    assert_eq!(bytes(&*source, 2, 1).unwrap(), b"cb");
}

#[test]
fn a_folder_is_fields_or_shards() {
    let folder = Folder::new();
    let file = |rows: usize, start: u32| {
        npy("'<f4'", false, &format!("({rows},)"), &floats(start..start + rows as u32))
    };
    folder.write("fields/x.npy", &file(3, 0));
    folder.write("fields/y.npy", &file(3, 10));
    let source = open_npy(&folder.0.join("fields")).unwrap();
    assert_eq!((source.len(), names(&*source)), (3, vec!["x".to_owned(), "y".to_owned()]));
    folder.write("shards/x-000.npy", &file(3, 0));
    folder.write("shards/x-001.npy", &file(2, 3));
    folder.write("shards/y-000.npy", &file(3, 10));
    folder.write("shards/y-001.npy", &file(2, 13));
    let source = open_npy(&folder.0.join("shards")).unwrap();
    assert_eq!((source.len(), names(&*source)), (5, vec!["x".to_owned(), "y".to_owned()]));
    assert_eq!(bytes(&*source, 4, 1).unwrap(), floats([14]));
    folder.write("shards/y-002.npy", &file(2, 15));
    let error = open_npy(&folder.0.join("shards")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("other shards of \"y\""), "{error}");
    folder.write("fields/y.npy", &file(2, 10));
    let error = open_npy(&folder.0.join("fields")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("name them with fields"), "{error}");
}

#[test]
fn stretches_of_one_long_array() {
    let folder = Folder::new();
    let offsets: Vec<u8> = [0i64, 2, 2, 5].iter().flat_map(|n| n.to_ne_bytes()).collect();
    folder.write("a/t.text.npy", &npy("'|u1'", false, "(5,)", b"abcde"));
    folder.write("a/t.offsets.npy", &npy("'<i8'", false, "(4,)", &offsets));
    folder.write("a/b.data.npy", &npy("'|u1'", false, "(5,)", b"\xff\xd8cde"));
    folder.write("a/b.offsets.npy", &npy("'<i8'", false, "(4,)", &offsets));
    folder.write("a/r.data.npy", &npy("'<f4'", false, "(5,)", &floats(0..5)));
    folder.write("a/r.offsets.npy", &npy("'<i8'", false, "(4,)", &offsets));
    let shapes: Vec<u8> = [1i64, 2, 0, 1, 3, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
    folder.write("a/r.shapes.npy", &npy("'<i8'", false, "(3, 2)", &shapes));
    let source = open_npy(&folder.0.join("a")).unwrap();
    assert_eq!(source.len(), 3);
    let field = |name: &str| source.fields().iter().position(|field| field.name == name).unwrap();
    assert_eq!(source.fields()[field("t")].kind, FieldKind::Text);
    assert_eq!(source.fields()[field("image")].kind, FieldKind::EncodedImage);
    let ragged = FieldKind::Ragged { dtype: crate::sample::DType::F32, axes: 2 };
    assert_eq!(source.fields()[field("r")].kind, ragged);
    for (index, text) in [&b"ab"[..], b"", b"cde"].into_iter().enumerate() {
        assert_eq!(bytes(&*source, index as u64, field("t")).unwrap(), text);
    }
    assert_eq!(bytes(&*source, 2, field("r")).unwrap(), floats(2..5));
    // Offsets that run backwards are found when they are needed.
    let wrong: Vec<u8> = [0i64, 2, 1, 50].iter().flat_map(|n| n.to_ne_bytes()).collect();
    folder.write("a/t.offsets.npy", &npy("'<i8'", false, "(4,)", &wrong));
    let source = open_npy(&folder.0.join("a")).unwrap();
    assert!(bytes(&*source, 0, field("t")).is_ok());
    assert!(bytes(&*source, 1, field("t")).is_err());
    assert!(bytes(&*source, 2, field("t")).is_err());
}

fn npz(method: zip::CompressionMethod) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, file) in [
        ("x.npy", npy("'<f4'", false, "(3, 2)", &floats(0..6))),
        ("y.npy", npy("'<f4'", true, "(3, 2)", &floats([0, 2, 4, 1, 3, 5]))),
        ("n.npy", npy("'<f4'", false, "()", &floats([9]))),
    ] {
        archive.start_file(name, options).unwrap();
        archive.write_all(&file).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

#[test]
fn members_of_an_archive() {
    let folder = Folder::new();
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        let path = folder.write("a.npz", &npz(method));
        let source = open_npy(&path).unwrap();
        assert_eq!(names(&*source), ["x", "y"]);
        let stored = method == zip::CompressionMethod::Stored;
        assert_eq!(matches!(source.value(0, 0).unwrap(), Value::File(_)), stored);
        for index in 0..3 {
            let row = floats([2 * index, 2 * index + 1]);
            assert_eq!(bytes(&*source, index.into(), 0).unwrap(), row, "{method}");
            assert_eq!(bytes(&*source, index.into(), 1).unwrap(), row, "{method}");
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let folder = Folder::new();
    for (file, message) in [
        (npy("'<f4'", false, "()", &floats([1])), "has no axis"),
        (npy("'<f4'", false, "(0, 3)", &[]), "has no samples"),
        (npy("'<f4'", false, "(4,)", &floats(0..3)), "cut short"),
        (npy("'<f4'", false, "(4, 4294967296, 4294967296)", &floats(0..3)), "cut short"),
        (npy("'|O'", false, "(4,)", b"\x80\x04"), "pickle"),
        (npy("'<U3'", false, "(1, 2)", &[0; 24]), "only one of them a sample"),
        (b"\x93NUMPY\x01\0\xff\xff{".to_vec(), "ends within its header"),
        (b"".to_vec(), "ends within its header"),
    ] {
        let path = folder.write("x.npy", &file);
        let error = open_npy(&path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn damage_ends_in_an_error_or_in_other_numbers() {
    let folder = Folder::new();
    let records = npy("[('x', '<f4', (2,)), ('s', '|S3')]", false, "(3,)", &[65; 33]);
    let mut whole = vec![("r.npy", records)];
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        whole.push(("a.npz", npz(method)));
    }
    for (name, whole) in whole {
        for at in 0..whole.len() {
            let flipped = |value: u8| {
                let mut file = whole.clone();
                file[at] = value;
                file
            };
            for file in [flipped(whole[at] ^ 4), flipped(0xff), whole[..at].to_vec()] {
                let path = folder.write(name, &file);
                if let Ok(source) = open_npy(&path) {
                    exhaust(&*source);
                }
            }
        }
    }
}
