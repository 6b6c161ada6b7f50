//! Files as HDF5's own library writes them.

use hdf5_metno::types::{CompoundField, CompoundType, FixedAscii, TypeDescriptor, VarLenAscii};
use hdf5_metno::{File, Result as Written};

use super::*;
use crate::sample::{DType, FieldKind};
use crate::source::npy::tests::{Folder, bytes, opening};
use crate::spec::FieldRole;

/// Writes a file by HDF5's own library.
fn written(path: &Path, write: impl Fn(&File) -> Written<()>) {
    let file = File::create(path).unwrap();
    write(&file).unwrap();
    file.close().unwrap();
}

fn choice(column: &str, role: FieldRole) -> [FieldChoice; 1] {
    [FieldChoice { name: "x".to_owned(), column: column.to_owned(), role: Some(role) }]
}

fn refused(path: &Path, choices: &[FieldChoice]) -> String {
    open(path, choices, &opening()).err().unwrap().to_string()
}

#[test]
fn many_files_keep_their_rows() {
    let folder = Folder::new();
    for number in 0..260_i32 {
        written(&folder.0.join(format!("{number:03}.h5")), |file| {
            let builder = file.new_dataset::<i32>().chunk(2).deflate(1).shape(2);
            builder.create("x")?.write(&[number, -number])
        });
    }
    let source = open(&folder.0, &[], &opening()).unwrap();
    for number in 0..260_i32 {
        let row = bytes(source.as_ref(), number as u64 * 2 + 1, 0).unwrap();
        assert_eq!(row, (-number).to_ne_bytes());
    }
}

#[test]
fn records_in_rows_are_refused() {
    let folder = Folder::new();
    let path = folder.0.join("a.h5");
    written(&path, |file| {
        let field =
            CompoundField::new("a", TypeDescriptor::Float(hdf5_metno::types::FloatSize::U4), 4, 0);
        let padded = TypeDescriptor::Compound(CompoundType { fields: vec![field], size: 16 });
        file.new_dataset_builder().empty_as(&padded).shape((3, 2)).create("x")?;
        Ok(())
    });
    assert!(refused(&path, &[]).contains("records in rows of shape [2]"));
}

#[test]
fn float16_and_bfloat16() {
    let folder = Folder::new();
    let path = folder.0.join("a.h5");
    written(&path, |file| {
        let values = [::half::f16::from_f32(1.5), ::half::f16::from_f32(2.0)];
        file.new_dataset::<::half::f16>().shape(2).create("x")?.write(&values)
    });
    let kind = || open(&path, &[], &opening()).map(|source| source.fields()[0].kind.clone());
    assert_eq!(kind().unwrap(), FieldKind::scalar(DType::F16));
    // The library writes no bfloat16 of its own: place and size of the parts, and the bias.
    let mut file = std::fs::read(&path).unwrap();
    let float16 = [2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0];
    let at = file.windows(16).position(|window| window == float16).unwrap();
    let start = file[..at].windows(4).rposition(|window| window == b"OHDR").unwrap();
    let end = start + half::messages(&file[start..]).unwrap().1;
    let write = |file: &mut Vec<u8>| {
        let sum = hdf5_reader::checksum::jenkins_lookup3(&file[start..end]);
        file[end..end + 4].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, file).unwrap();
    };
    file[at + 8..at + 13].copy_from_slice(&[7, 8, 0, 7, 127]);
    write(&mut file);
    assert_eq!(kind().unwrap(), FieldKind::scalar(DType::BF16));
    file[at + 12] = 99;
    write(&mut file);
    assert!(refused(&path, &[]).contains("write them as float32"));
}

#[test]
fn strings_may_be_bytes_unless_they_are_padded() {
    let folder = Folder::new();
    let path = folder.0.join("a.h5");
    written(&path, |file| {
        let text = VarLenAscii::from_ascii("ab").unwrap();
        file.new_dataset::<VarLenAscii>().shape(1).create("free")?.write(&[text])?;
        let text = FixedAscii::<4>::from_ascii("ab").unwrap();
        file.new_dataset::<FixedAscii<4>>().shape(1).create("fixed")?.write(&[text])
    });
    // ASCII is all that the types allow here; other tools write any bytes.
    let mut file = std::fs::read(&path).unwrap();
    let heap = file.windows(4).position(|window| window == b"GCOL").unwrap();
    let at = heap + file[heap..].windows(2).position(|window| window == b"ab").unwrap();
    file[at] = 0xff;
    std::fs::write(&path, &file).unwrap();
    let as_bytes = open(&path, &choice("free", FieldRole::Bytes), &opening()).unwrap();
    assert_eq!(bytes(as_bytes.as_ref(), 0, 0).unwrap(), b"\xffb");
    let as_text = open(&path, &choice("free", FieldRole::Text), &opening()).unwrap();
    assert!(bytes(as_text.as_ref(), 0, 0).unwrap_err().to_string().contains("UTF-8"));
    for role in [FieldRole::Bytes, FieldRole::Image] {
        assert!(refused(&path, &choice("fixed", role)).contains("zeros at the end are lost"));
    }
    let fixed = open(&path, &choice("fixed", FieldRole::Text), &opening()).unwrap();
    assert_eq!(bytes(fixed.as_ref(), 0, 0).unwrap(), b"ab");
}

#[test]
fn arrays_of_almost_the_same_length_are_told() {
    let folder = Folder::new();
    let path = folder.0.join("a.h5");
    let write = |lengths: [usize; 3]| {
        written(&path, |file| {
            for (name, length) in ["a", "b", "c"].into_iter().zip(lengths) {
                file.new_dataset::<i32>().shape(length).create(name)?.write(&vec![0; length])?;
            }
            Ok(())
        });
    };
    write([20, 20, 19]);
    let told = refused(&path, &[]);
    assert!(told.contains("\"c\"") && told.contains("with fields"), "{told}");
    for other in [1, 10, 1000] {
        write([20, 20, other]);
        assert_eq!(open(&path, &[], &opening()).unwrap().fields().len(), 2);
    }
}
