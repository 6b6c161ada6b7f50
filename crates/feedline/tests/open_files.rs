//! A process that may have few open files, alone in its own program: the limit is the process's.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

mod support;

use feedline::spec::{OnError, OpSpec};
use feedline::{Error, Loader};
use support::{Folder, jpeg};

const SHARDS: usize = 122;

fn tar_shard(number: usize) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in [("jpg", jpeg(number as u64, 20, 20)), ("txt", b"words".to_vec())] {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        out.append_data(&mut header, format!("{number:04}.{name}"), &bytes[..]).unwrap();
    }
    out.into_inner().unwrap()
}

fn npy(number: usize) -> Vec<u8> {
    let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";
    let mut out = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    out.extend_from_slice(format!("{text:<117}\n").as_bytes());
    out.extend_from_slice(&[number as u8; 6]);
    out
}

#[test]
fn many_shards_are_read_with_few_open_files() {
    let few = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
    // SAFETY: the struct is ours and lives until the call is over.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
    let folder = Folder::new("few-files");
    for number in 0..SHARDS {
        folder.write(&format!("tar/{number:04}.tar"), &tar_shard(number));
        folder.write(&format!("npy/{number:04}.npy"), &npy(number));
    }
    let crop = OpSpec::new("CenterCrop").with("size", 16);
    let tars = Loader::builder(folder.path().join("tar")).transform(crop);
    let arrays = Loader::builder(folder.path().join("npy"));
    let mut loaders: Vec<_> = [tars, arrays]
        .into_iter()
        .map(|builder| builder.batch_size(4).shuffle(true).num_workers(4).build().unwrap())
        .collect();
    for epoch in 0..3 {
        for (loader, rows) in loaders.iter_mut().zip([SHARDS, 2 * SHARDS]) {
            let found: usize = loader.epoch().map(|batch| batch.unwrap().rows()).sum();
            assert_eq!(found, rows, "epoch {epoch}");
        }
    }
    drop(loaders);
    a_process_without_files_to_give_skips_no_sample(&folder);
}

/// Which samples could be opened would be a matter of the moment.
fn a_process_without_files_to_give_skips_no_sample(folder: &Folder) {
    let mut loader = Loader::builder(folder.path().join("tar"))
        .transform(OpSpec::new("CenterCrop").with("size", 16))
        .on_error(OnError::Skip)
        .num_workers(0)
        .build()
        .unwrap();
    let all: Vec<_> =
        std::iter::from_fn(|| std::fs::File::open(folder.path().join("tar/0000.tar")).ok())
            .collect();
    assert!(all.len() > 10);
    let error = loader.epoch().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::System(_)), "{error:?}");
    assert!(error.to_string().contains("raise ulimit -n"), "{error}");
    drop(all);
    assert_eq!(loader.stats().work.failed, 0);
}
