//! What nobody's library writes; what h5py writes is read in `tests/python/formats/test_hdf5.py`.

use super::*;
use crate::sample::{DType, FieldKind};
use crate::source::arrays::npy::tests::{Folder, opening};

fn refused(path: &Path, choices: &[FieldChoice]) -> String {
    open(path, choices, &opening()).err().unwrap().to_string()
}

#[test]
fn float16_and_bfloat16() {
    let folder = Folder::new();
    let path = folder.write("a.h5", include_bytes!("../../../../tests/fixtures/half.h5"));
    let kind = || open(&path, &[], &opening()).map(|source| source.fields()[0].kind.clone());
    assert_eq!(kind().unwrap(), FieldKind::scalar(DType::F16));
    // No bfloat16 is written: place and size of the parts, and the bias.
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
