use std::path::PathBuf;

use super::*;
use crate::error::Error;
use crate::sample::{FieldKind, Room, Value};
use crate::source::Source;
use crate::source::arrays::npy::tests::local;

fn with() -> Opening<'static> {
    Opening {
        store: local(),
        image_extensions: &["jpg", "png"],
        block_memory: 1 << 20,
        memory: 1 << 30,
        is_image: |bytes| bytes.starts_with(b"\xff\xd8"),
    }
}

struct Shelf(PathBuf);

impl Shelf {
    fn new(name: &str) -> Shelf {
        let path = format!("feedline-tar-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        std::fs::create_dir_all(&path).unwrap();
        Shelf(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.0.join(name)
    }

    fn try_open(&self, bytes: &[u8]) -> Result<Spans> {
        open(&self.write("a.tar", bytes), &[], &with())
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

#[derive(Default)]
struct Taken(Vec<u8>, Vec<usize>);

impl Room for Taken {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        self.0 = vec![0; bytes as usize];
        Ok(&mut self.0)
    }

    fn shape(&mut self, shape: &[usize]) {
        self.1 = shape.to_vec();
    }
}

fn shown(source: &Spans, index: u64, field: &str) -> String {
    let field = source.fields().iter().position(|each| each.name == field).unwrap();
    match source.value(index, field) {
        Ok(Value::Int(number)) => number.to_string(),
        Ok(Value::Float(number)) => number.to_string(),
        Ok(Value::File(location)) => {
            let bytes = std::fs::read(location.path).unwrap();
            let (start, length) = location.range.unwrap();
            let bytes = &bytes[start as usize..(start + length) as usize];
            String::from_utf8_lossy(bytes).into_owned()
        }
        Ok(Value::Made) => {
            let mut taken = Taken::default();
            source.read(index, field, &mut taken).unwrap();
            format!("{}{:?}", String::from_utf8_lossy(&taken.0), taken.1)
        }
        other => format!("{other:?}"),
    }
}

fn sample_archive() -> Vec<u8> {
    let long = format!("{}/x.JPG", "d".repeat(150));
    archive(&[
        ("__meta__/x.json", b"{}"),
        ("a/b.c.jpg", b"one"),
        ("a/b.cls", b"7\n"),
        ("a/b.txt", "ü".as_bytes()),
        ("README", b"-"),
        (".hidden.jpg", b"-"),
        (&long, b"two"),
        (&long.replace("JPG", "cls"), b"-3"),
        ("é.png", b""),
        ("é.cls", b"0"),
        ("é.txt", b"t"),
        ("é.json", b"{\"k\": 2, \"f\": 0.5, \"s\": \"x\"}"),
    ])
}

#[test]
fn samples_are_grouped_as_webdataset_does() {
    let shelf = Shelf::new("group");
    let plain = sample_archive();
    let source = shelf.try_open(&plain).unwrap();
    let names: Vec<&str> = source.fields().iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["c", "label", "txt", "image", "json"]);
    assert_eq!(source.len(), 3);
    assert_eq!(source.origin(0).unwrap(), shelf.0.join("a.tar/a/b"));
    assert_eq!([0, 1, 2].map(|at| shown(&source, at, "label")), ["7", "-3", "0"]);
    assert_eq!((shown(&source, 0, "c"), shown(&source, 1, "image")), ("one".into(), "two".into()));
    assert_eq!((shown(&source, 0, "txt"), shown(&source, 2, "image")), ("ü".into(), "".into()));
    assert!(shown(&source, 1, "txt").contains("has no \\\"txt\\\""), "absent");
    let choice = |name: &str, column: &str| FieldChoice {
        name: name.to_owned(),
        column: column.to_owned(),
        role: None,
    };
    let path = shelf.write("a.tar", &plain);
    let fields = [choice("x", "jpg;png;c.jpg"), choice("k", "json.k"), choice("f", "json.f")];
    let source = open(&path, &fields, &with()).unwrap();
    assert_eq!([0, 1, 2].map(|at| shown(&source, at, "x")), ["one", "two", ""]);
    assert_eq!((shown(&source, 2, "k"), shown(&source, 2, "f")), ("2".into(), "0.5".into()));
    let Err(error) = open(&path, &[choice("x", "tsx")], &with()) else { panic!("accepted") };
    assert!(error.to_string().contains("has no field \"tsx\", only c.jpg, cls"), "{error}");
}

#[test]
fn compressed_shards_are_the_same_in_blocks() {
    let shelf = Shelf::new("packed");
    let plain = sample_archive();
    let one = shelf.try_open(&plain).unwrap();
    assert!(one.blocks().is_none());
    let some = [(0, "c"), (0, "txt"), (2, "image"), (1, "label")];
    let expected = some.map(|(index, field)| shown(&one, index, field));
    let gzip = {
        use std::io::Write;
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&plain).unwrap();
        out.finish().unwrap()
    };
    let zstd = zstd::encode_all(&plain[..], 1).unwrap();
    for packed in [gzip, zstd] {
        let two = shelf.try_open(&packed).unwrap();
        assert_eq!(two.fields(), one.fields());
        assert_eq!(two.fingerprint(), one.fingerprint());
        assert_eq!(two.blocks().unwrap().ends, [3]);
        for ((index, field), expected) in some.iter().zip(&expected) {
            assert_eq!(shown(&two, *index, field).trim_end_matches("[]"), expected);
        }
        for end in (0..packed.len() - 1).step_by(11) {
            assert!(shelf.try_open(&packed[..end]).is_err(), "cut at {end}");
        }
        let small = Opening { block_memory: 1000, ..with() };
        let path = shelf.write("b.tar.gz", &packed);
        let Err(error) = open(&path, &[], &small) else { panic!("accepted") };
        assert!(error.to_string().contains("raise memory to 1 MB, or unpack it"), "{error}");
    }
}

#[test]
fn what_is_wrong_with_a_shard_is_said() {
    let shelf = Shelf::new("wrong");
    let message = |bytes: &[u8]| match shelf.try_open(bytes) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    };
    assert!(message(b"").contains("no tar archive"));
    assert!(message(&[7; 600]).contains("no tar archive"));
    assert!(message(&[0; 1024]).contains("has no samples"));
    let twice = archive(&[("a.jpg", b"1"), ("a.jpg", b"2")]);
    assert!(message(&twice).contains("\"a.jpg\" twice"));
    let apart = archive(&[("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"2")]);
    assert!(message(&apart).contains("must follow each other"));
    let pickle = archive(&[("a.jpg", b"1"), ("a.pyd", b"2")]);
    assert!(message(&pickle).contains("reading a pickle runs code"));
    let image = FieldChoice { name: "i".to_owned(), column: "jpg".to_owned(), role: None };
    let path = shelf.write("p.tar", &pickle);
    assert_eq!(open(&path, &[image], &with()).unwrap().fields().len(), 1);
    let whole = archive(&[("a.jpg", &[1; 600]), ("a.cls", b"1")]);
    for end in (1..whole.len() - 1024).step_by(7) {
        match shelf.try_open(&whole[..end]) {
            Err(Error::Source { .. }) => {}
            // Cut between two members.
            Ok(_) => assert!(end == 1536, "{end}"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn bit_flips_never_panic() {
    let shelf = Shelf::new("flips");
    let whole = sample_archive();
    for at in (0..whole.len()).step_by(37) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        if let Ok(source) = shelf.try_open(&changed) {
            for field in 0..source.fields().len() {
                for index in 0..source.len() {
                    let _ = source.value(index, field);
                }
            }
        }
    }
}

#[test]
fn arrays_are_of_one_shape_or_ragged() {
    let shelf = Shelf::new("npy");
    let npy = |descr: &str, shape: &str, data: &[u8]| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend(118u16.to_le_bytes());
        out.extend(format!("{text:<117}\n").as_bytes());
        out.extend(data);
        out
    };
    let kind = |one: &[u8], two: &[u8]| {
        let source = shelf.try_open(&archive(&[("a.npy", one), ("b.npy", two)])).unwrap();
        (source.fields()[0].kind.clone(), shown(&source, 0, "npy"), shown(&source, 1, "npy"))
    };
    let array = |shape: &[usize]| FieldKind::Array {
        dtype: crate::sample::DType::U8,
        shape: shape.to_vec(),
    };
    let ab = npy("|u1", "(2,)", b"ab");
    let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let (of, one, two) = kind(&ab, &npy("|u1", "(2,)", b"cd"));
    assert_eq!((of, (one, two)), (array(&[2]), text("ab", "cd")));
    let (of, one, two) = kind(&ab, &npy("|u1", "(3,)", b"cde"));
    assert!(matches!(of, FieldKind::Ragged { axes: 1, .. }));
    assert_eq!((one, two), text("ab[2]", "cde[3]"));
    let (of, one, _) = kind(&npy("<u2", "(1,)", b"ab"), &npy(">u2", "(1,)", b"cd"));
    assert!(matches!(of, FieldKind::Array { .. }));
    assert_eq!(one, "ab[1]");
    let (of, ..) = kind(&ab, &npy("<f4", "(2,)", b"12345678"));
    assert_eq!(of, FieldKind::Bytes);
    let objects = archive(&[("a.npy", &npy("|O", "(2,)", b"ab"))]);
    assert!(shelf.try_open(&objects).err().unwrap().to_string().contains("runs code"));
}

#[test]
fn a_shard_that_was_replaced_is_not_read_at_the_old_places() {
    let shelf = Shelf::new("replaced");
    let first = archive(&[("a.txt", b"one"), ("a.json", b"{\"k\": \"x\"}")]);
    let other = archive(&[("a.txt", b"three"), ("a.json", b"{\"k\": \"other\"}")]);
    let packed = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, bytes).unwrap();
        gzip.finish().unwrap()
    };
    for (before, after) in [(first.clone(), other.clone()), (packed(&first), packed(&other))] {
        let source = shelf.try_open(&before).unwrap();
        std::fs::remove_file(shelf.0.join("a.tar")).unwrap();
        shelf.write("a.tar", &after);
        for field in 0..source.fields().len() {
            // The store compares the stamp.
            let outcome = match source.value(0, field).unwrap() {
                Value::File(place) => local().reopen(place.path, place.stamp.unwrap()).map(|_| ()),
                _ => source.read(0, field, &mut Taken::default()),
            };
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("has changed since the data set was opened"), "{error}");
        }
    }
}

#[test]
fn an_index_that_says_something_else_than_its_shard_is_made_anew() {
    use crate::source::spans::index::{self, Identity};
    let shelf = Shelf::new("false-index");
    let texts: Vec<String> = (0..50).map(|n| format!("text {n:02} ").repeat(300)).collect();
    let numbers: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let names: Vec<[String; 2]> =
        (0..50).map(|n| [format!("a/{n:03}.txt"), format!("a/{n:03}.cls")]).collect();
    let files: Vec<(&str, &[u8])> = (0..50)
        .flat_map(|n| {
            let [text, class] = &names[n];
            [(text.as_str(), texts[n].as_bytes()), (class.as_str(), numbers[n].as_bytes())]
        })
        .collect();
    let whole = archive(&files);
    let path = shelf.write("a.tar", &whole);
    let open = || open(&path, &[], &with()).unwrap();
    let right = |source: &Spans| {
        (0..50).all(|n| {
            let (text, number) = (&texts[n as usize], &numbers[n as usize]);
            shown(source, n, "txt").trim_end_matches("[]") == text
                && shown(source, n, "label") == *number
        })
    };
    assert!(right(&open()));
    let identity = Identity::of(&*local().open(&path).unwrap(), "tar", 1).unwrap();
    let forged: [&dyn Fn(&mut crate::source::spans::index::Scanned); 4] = [
        // Another sample's bytes, a piece of a member, another label, another name.
        &|scanned| scanned.part.columns[0].places.swap(3, 4),
        &|scanned| scanned.part.columns[0].places[7][1] -= 1,
        &|scanned| scanned.part.columns[1].values = Values::Int(vec![1; 50]),
        &|scanned| {
            let mut names = Names::default();
            (0..50).for_each(|n| names.push(format!("b/{n:03}").as_bytes()));
            scanned.part.names = names;
        },
    ];
    for forge in forged {
        let mut scanned = index::load(&**local(), &path, &identity, u64::MAX).unwrap();
        forge(&mut scanned);
        index::save(&**local(), &path, &identity, &scanned);
        let source = open();
        assert!(right(&source));
        assert!(source.origin(0).unwrap().ends_with("a.tar/a/000"));
        let again = index::load(&**local(), &path, &identity, u64::MAX).unwrap();
        assert_eq!(again.part.names.get(0), Path::new("a/000"), "it was made anew");
    }
    // Of a compressed shard places in another order than a scan's show at once.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    std::io::Write::write_all(&mut packed, &whole).unwrap();
    let path = shelf.write("b.tar.gz", &packed.finish().unwrap());
    let open = || super::open(&path, &[], &with()).unwrap();
    assert!(right(&open()) && right(&open()));
    let identity = Identity::of(&*local().open(&path).unwrap(), "tar", 1).unwrap();
    let mut scanned = index::load(&**local(), &path, &identity, u64::MAX).unwrap();
    scanned.part.columns[0].places.swap(3, 4);
    index::save(&**local(), &path, &identity, &scanned);
    assert!(right(&open()));
    let again = index::load(&**local(), &path, &identity, u64::MAX).unwrap();
    assert!(again.part.columns[0].places[3] < again.part.columns[0].places[4], "it was made anew");
    // What a scan could have found shows when the shard is unpacked.
    scanned.part.columns[0].places.swap(3, 4);
    scanned.part.columns[1].values = Values::Int(vec![1; 50]);
    index::save(&**local(), &path, &identity, &scanned);
    let (source, mut room) = (open(), Taken::default());
    let field = source.fields().iter().position(|each| each.name == "txt").unwrap();
    let error = source.read(3, field, &mut room).unwrap_err().to_string();
    assert!(error.contains("remove") && error.contains("b.tar.gz.feedline-index"), "{error}");
}
