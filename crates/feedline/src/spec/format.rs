//! The formats of data sets: one table of what is known of each by its name.
//!
//! A new format is a variant and a row here, an arm in `source::open_format`, and an arm in
//! `pack::create` if it is written too.

/// A format in which people keep samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceFormat {
    /// Whatever is found at the path.
    Auto,
    /// Tar shards as the webdataset package reads them, also compressed.
    Tar,
    /// TensorFlow's records of examples.
    Tfrecord,
    /// An LMDB environment.
    Lmdb,
    /// Datasets of an HDF5 file.
    Hdf5,
    /// NumPy's .npy and .npz.
    Npy,
    /// Parquet files.
    Parquet,
    /// Arrow IPC files and streams, and Feather.
    Arrow,
    /// CSV or TSV of numbers and text.
    Csv,
    /// A JSON object a line.
    Jsonl,
    /// Zarr arrays, version 2 or 3.
    Zarr,
    /// MosaicML's streaming shards.
    Mds,
    /// LitData's chunks.
    Litdata,
    /// A zip archive of images.
    Zip,
}

/// How a format is written.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    No,
    /// As shards of a limited size.
    Shards,
    /// As one file or folder by nature.
    Whole,
}

struct Row {
    format: SourceFormat,
    /// In a spec.
    name: &'static str,
    /// What names of files end in; the first is the one that we write.
    endings: &'static [&'static str],
    /// The bytes that a file has at a place.
    magic: &'static [(usize, &'static [u8])],
    written: Written,
}

const TABLE: [Row; 13] = [
    Row {
        format: SourceFormat::Tar,
        name: "tar",
        endings: &["tar", "tar.gz", "tgz", "tar.zst", "tar.zstd"],
        magic: &[(257, b"ustar")],
        written: Written::Shards,
    },
    Row {
        format: SourceFormat::Tfrecord,
        name: "tfrecord",
        endings: &["tfrecord", "tfrecords", "tfrec", "tfrecord.gz", "tfrecords.gz"],
        magic: &[],
        written: Written::Shards,
    },
    Row {
        format: SourceFormat::Lmdb,
        name: "lmdb",
        endings: &["lmdb", "mdb"],
        magic: &[(16, &0xBEEF_C0DEu32.to_le_bytes())],
        written: Written::Whole,
    },
    Row {
        format: SourceFormat::Hdf5,
        name: "hdf5",
        endings: &["h5", "hdf5", "hdf", "he5"],
        magic: &[(0, b"\x89HDF\r\n\x1a\n")],
        written: Written::Whole,
    },
    Row {
        format: SourceFormat::Npy,
        name: "npy",
        endings: &["npy", "npz"],
        magic: &[(0, b"\x93NUMPY")],
        written: Written::Whole,
    },
    Row {
        format: SourceFormat::Parquet,
        name: "parquet",
        endings: &["parquet", "pq"],
        magic: &[(0, b"PAR1")],
        written: Written::Shards,
    },
    Row {
        format: SourceFormat::Arrow,
        name: "arrow",
        endings: &["arrow", "arrows", "feather", "ipc"],
        magic: &[(0, b"ARROW1")],
        written: Written::Shards,
    },
    Row {
        format: SourceFormat::Csv,
        name: "csv",
        endings: &["csv", "tsv", "tab", "csv.gz", "tsv.gz", "csv.zst"],
        magic: &[],
        written: Written::No,
    },
    Row {
        format: SourceFormat::Jsonl,
        name: "jsonl",
        endings: &["jsonl", "ndjson", "jsonl.gz", "jsonl.zst"],
        magic: &[],
        written: Written::No,
    },
    Row {
        format: SourceFormat::Zarr,
        name: "zarr",
        endings: &["zarr"],
        magic: &[],
        written: Written::Whole,
    },
    Row {
        format: SourceFormat::Mds,
        name: "mds",
        endings: &["mds", "mds.zstd"],
        magic: &[],
        written: Written::No,
    },
    Row {
        format: SourceFormat::Litdata,
        name: "litdata",
        endings: &[],
        magic: &[],
        written: Written::No,
    },
    Row {
        format: SourceFormat::Zip,
        name: "zip",
        endings: &["zip"],
        magic: &[(0, b"PK\x03\x04"), (0, b"PK\x05\x06")],
        written: Written::No,
    },
];

impl SourceFormat {
    /// What names of files and folders of data sets end in, without the first dot.
    pub fn endings() -> impl Iterator<Item = &'static str> {
        TABLE.iter().flat_map(|row| row.endings.iter().copied())
    }

    /// Every format but [`SourceFormat::Auto`].
    pub fn all() -> impl Iterator<Item = SourceFormat> {
        TABLE.iter().map(|row| row.format)
    }

    /// Every format that samples are written to.
    pub fn writable() -> impl Iterator<Item = SourceFormat> {
        SourceFormat::all().filter(|format| format.is_written())
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.format == self)
    }

    /// The name in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("auto", |row| row.name)
    }

    /// What the names of such files end in when we write them, without the dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        self.row().and_then(|row| row.endings.first().copied()).unwrap_or_else(|| self.name())
    }

    /// The same with what says how a file is compressed as a whole.
    #[must_use]
    pub fn ending(self, compression: Option<&str>) -> String {
        let outer = match (self, compression) {
            (SourceFormat::Tar, Some("gzip" | "gz")) => ".gz",
            (SourceFormat::Tar, Some("zstd" | "zst")) => ".zst",
            _ => "",
        };
        format!(".{}{outer}", self.extension())
    }

    /// Whether samples are written to it.
    #[must_use]
    pub(crate) fn is_written(self) -> bool {
        self.row().is_some_and(|row| row.written != Written::No)
    }

    /// True when a set is one file or folder by nature, rather than shards.
    #[must_use]
    pub fn is_one_file(self) -> bool {
        self.row().is_some_and(|row| row.written == Written::Whole)
    }

    /// The format of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<SourceFormat> {
        SourceFormat::all().find(|format| format.name() == name)
    }

    /// The format to write that a name or an extension means.
    #[must_use]
    pub fn to_write(text: &str) -> Option<SourceFormat> {
        SourceFormat::writable().find(|format| format.name() == text || format.extension() == text)
    }

    /// The feature that a build lacks to read and write it.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        match self {
            SourceFormat::Hdf5 if !cfg!(feature = "hdf5") => Some("hdf5"),
            SourceFormat::Parquet | SourceFormat::Arrow if !cfg!(feature = "parquet") => {
                Some("parquet")
            }
            _ => None,
        }
    }

    /// The format that a file's name in lower case stands for.
    pub(crate) fn of_file_name(name: &[u8]) -> Option<SourceFormat> {
        let ends = |ending: &&str| {
            name.strip_suffix(ending.as_bytes()).is_some_and(|start| start.ends_with(b"."))
        };
        TABLE.iter().find(|row| row.endings.iter().any(ends)).map(|row| row.format)
    }

    /// The format that a file's first bytes stand for.
    pub(crate) fn of_first_bytes(start: &[u8]) -> Option<SourceFormat> {
        let has = |(at, magic): &(usize, &[u8])| {
            start.get(*at..).is_some_and(|bytes| bytes.starts_with(magic))
        };
        TABLE.iter().find(|row| row.magic.iter().any(has)).map(|row| row.format)
    }

    /// Names of formats, for a sentence.
    #[must_use]
    pub fn names(formats: impl Iterator<Item = SourceFormat>) -> String {
        formats.map(SourceFormat::name).collect::<Vec<_>>().join(", ")
    }
}
