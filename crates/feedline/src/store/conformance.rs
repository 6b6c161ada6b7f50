//! What every store promises, as a check that a store of your own can be run through too.
//!
//! ```
//! use std::path::Path;
//! use feedline::store::{Memory, conformance};
//! let memory = Memory::default();
//! let put = |path: &Path, bytes: &[u8]| memory.put(path, bytes);
//! conformance::check(&memory, Path::new("/data"), &put).unwrap();
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;

use super::{EntryKind, Reader, Store};
use crate::sample::{Grown, Location};

/// Puts a file at a path. One that is there already is replaced as a whole, as by a renaming:
/// whoever has it open goes on reading the old one.
pub type Put<'a> = dyn Fn(&Path, &[u8]) + 'a;

fn ensure(holds: bool, what: impl Into<String>) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// Fills `root`, which must be empty, and compares what the store says of it with what was put
/// there. The error names the first promise that is not kept.
pub fn check(store: &dyn Store, root: &Path, put: &Put<'_>) -> Result<(), String> {
    let long: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    for (name, bytes) in [
        ("one", &b"0123456789"[..]),
        ("empty", b""),
        ("a name with ü", b"x"),
        ("folder/two", b"22"),
        ("folder/inner/three", b"333"),
        ("folder.not", b"4444"),
        ("long", &long),
    ] {
        put(&root.join(name), bytes);
    }
    listing(store, root)?;
    finding(store, root)?;
    opening(store, root, &long)?;
    reading(store, root, &long)?;
    together(store, root, &long)?;
    replacing(store, root, put)
}

fn names(store: &dyn Store, folder: &Path) -> std::io::Result<BTreeMap<OsString, EntryKind>> {
    let mut found = BTreeMap::new();
    store.list(folder, &mut |entry| {
        found.insert(entry.name, entry.kind);
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn listing(store: &dyn Store, root: &Path) -> Result<(), String> {
    use EntryKind::{File, Folder};
    let failed = |error: std::io::Error| format!("list fails: {error}");
    let expected = [
        ("one", File),
        ("empty", File),
        ("a name with ü", File),
        ("folder", Folder),
        ("folder.not", File),
        ("long", File),
    ];
    let expected: BTreeMap<OsString, EntryKind> =
        expected.into_iter().map(|(name, kind)| (name.into(), kind)).collect();
    let found = names(store, root).map_err(failed)?;
    ensure(found == expected, format!("list gives {found:?}, not {expected:?}"))?;
    let found = names(store, &root.join("folder")).map_err(failed)?;
    let expected: BTreeMap<OsString, EntryKind> =
        [("two".into(), File), ("inner".into(), Folder)].into_iter().collect();
    ensure(found == expected, format!("list of a folder inside gives {found:?}"))?;
    let mut count = 0;
    let stopped = store.list(root, &mut |_| {
        count += 1;
        ControlFlow::Break(())
    });
    ensure(stopped.is_ok() && count == 1, "list goes on after a break")?;
    let missing = names(store, &root.join("missing")).map_err(|error| error.kind());
    ensure(missing == Err(ErrorKind::NotFound), "list of what is not there is not NotFound")?;
    ensure(names(store, &root.join("one")).is_err(), "a file can be listed")
}

fn finding(store: &dyn Store, root: &Path) -> Result<(), String> {
    let find = |name: &str| store.find(&root.join(name));
    let one = find("one").map_err(|error| format!("find fails: {error}"))?;
    ensure((one.kind, one.len) == (EntryKind::File, 10), format!("find gives {one:?}"))?;
    let folder = find("folder").map_err(|error| format!("find of a folder fails: {error}"))?;
    ensure(folder.kind == EntryKind::Folder, format!("find gives {folder:?} for a folder"))?;
    let missing = find("missing").map_err(|error| error.kind());
    ensure(missing == Err(ErrorKind::NotFound), "find of what is not there is not NotFound")?;
    ensure(find("one/below").is_err(), "something is found below a file")?;
    let kind = |name: &str| store.kind(&root.join(name)).ok().flatten();
    ensure(kind("long") == Some(EntryKind::File), "kind does not know a file")?;
    ensure(kind("folder") == Some(EntryKind::Folder), "kind does not know a folder")?;
    ensure(
        ["missing", "one/below"]
            .iter()
            .all(|name| store.kind(&root.join(name)).is_ok_and(|k| k.is_none())),
        "kind does not say that nothing is there",
    )
}

fn opening(store: &dyn Store, root: &Path, long: &[u8]) -> Result<(), String> {
    let open = |name: &str| store.open(&root.join(name));
    let failed = |error: std::io::Error| format!("open or a read of it fails: {error}");
    let one = open("one").map_err(failed)?;
    ensure(one.len() == 10 && !one.is_empty(), "an object has another length")?;
    ensure(open("one").map_err(failed)?.stamp() == one.stamp(), "a stamp changes by itself")?;
    ensure(open("long").map_err(failed)?.stamp() != one.stamp(), "two files have one stamp")?;
    ensure(one.revision().map_err(failed)?.len == 10, "a revision has another length")?;
    let mut four = [0; 4];
    one.read_exact_at(&mut four, 3).map_err(failed)?;
    ensure(&four == b"3456", format!("four bytes from 3 on are {four:?}"))?;
    let mut read = 0;
    // Any number of bytes may come at once.
    while read < 2 {
        let more = one.read_at(&mut four[read..], 8 + read as u64).map_err(failed)?;
        ensure(more > 0 && read + more <= 2, "a read at the end gives other than what is there")?;
        read += more;
    }
    ensure(four[..2] == *b"89", "the last bytes are others")?;
    for at in [10, 11, u64::MAX] {
        let none = one.read_at(&mut four, at).unwrap_or(0);
        ensure(none == 0, format!("there are bytes at {at}, beyond the end"))?;
    }
    let beyond = one.read_exact_at(&mut four, 7).map_err(|error| error.kind());
    ensure(beyond == Err(ErrorKind::UnexpectedEof), "a read over the end is not UnexpectedEof")?;
    ensure(one.read_exact_at(&mut [], 10).is_ok(), "no bytes at the end cannot be read")?;
    ensure(open("empty").map_err(failed)?.is_empty(), "an empty file has bytes")?;
    let missing = open("missing").map(|_| ()).map_err(|error| error.kind());
    ensure(missing == Err(ErrorKind::NotFound), "open of what is not there is not NotFound")?;
    ensure(open("folder").is_err() && open("one/below").is_err(), "a folder can be opened")?;
    let mut reader = Reader::new(open("long").map_err(failed)?);
    let mut all = Vec::new();
    reader.read_to_end(&mut all).map_err(failed)?;
    ensure(all == long, "a reader gives other bytes")?;
    all.clear();
    reader.seek(SeekFrom::End(-4)).map_err(failed)?;
    reader.read_to_end(&mut all).map_err(failed)?;
    ensure(all == long[long.len() - 4..], "a reader gives other bytes after a seek")
}

fn reading(store: &dyn Store, root: &Path, long: &[u8]) -> Result<(), String> {
    let stamp = |name: &str| store.open(&root.join(name)).ok().map(|object| object.stamp());
    let read = |name: &str, range, stamp| {
        let location = Location { root, path: Path::new(name), range, stamp };
        let mut room = Grown::default();
        store.read(&location, &mut room).map(|()| room.bytes).map_err(|fault| fault.to_string())
    };
    ensure(read("one", None, None)? == b"0123456789", "read gives other bytes of a file")?;
    ensure(read("long", None, None)? == long, "read gives other bytes of a long file")?;
    ensure(read("empty", None, None)?.is_empty(), "read gives bytes of an empty file")?;
    for stamp in [None, stamp("one")] {
        ensure(read("one", Some((3, 4)), stamp)? == b"3456", "read gives another part")?;
        ensure(read("one", Some((10, 0)), stamp)?.is_empty(), "read gives bytes of an empty part")?;
        for range in [(8, 3), (11, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let refused = read_within(store, root, range, stamp);
            ensure(refused.is_err(), format!("read gives {range:?}, which is not in the file"))?;
        }
    }
    let other = stamp("long");
    ensure(read("one", Some((0, 1)), other).is_err(), "read gives a file of another stamp")?;
    ensure(store.reopen(&root.join("one"), stamp("one").unwrap_or(0)).is_ok(), "reopen fails")?;
    let refused = store.reopen(&root.join("one"), other.unwrap_or(0)).err();
    let refused = refused.map(|fault| fault.to_string()).unwrap_or_default();
    ensure(refused.contains("has changed"), "reopen gives a file of another stamp")?;
    ensure(read("missing", None, None).is_err(), "read gives what is not there")?;
    ensure(read("folder", None, None).is_err(), "read gives a folder")?;
    let location = |name, range| Location { root, path: Path::new(name), range, stamp: None };
    let size = |name, range| store.size(&location(name, range)).ok();
    ensure(size("one", None) == Some(10) && size("one", Some((2, 3))) == Some(3), "size is wrong")?;
    ensure(size("missing", None).is_none(), "there is a size of what is not there")?;
    // Whatever they say, they change nothing.
    let _ = store.hint(&location("missing", None));
    let _ = store.hint(&location("one", Some((u64::MAX, u64::MAX))));
    let _ = store.hint(&location("long", None));
    ensure(read("long", Some((40, 4)), None)? == 10_u32.to_le_bytes(), "a hint changes a read")
}

/// A part of a file of ten bytes into a room of a thousand: what it declares is bounded.
fn read_within(
    store: &dyn Store,
    root: &Path,
    range: (u64, u64),
    stamp: Option<u64>,
) -> Result<(), String> {
    let location = Location { root, path: Path::new("one"), range: Some(range), stamp };
    let mut room = Grown::at_most(1000);
    store.read(&location, &mut room).map_err(|fault| fault.to_string())
}

fn together(store: &dyn Store, root: &Path, long: &[u8]) -> Result<(), String> {
    let object = store.open(&root.join("long")).map_err(|error| error.to_string())?;
    let same = |thread: usize| {
        (0..50).all(|turn| {
            let at = (thread * 50 + turn) * 1000;
            let mut bytes = [0; 1000];
            object.read_exact_at(&mut bytes, at as u64).is_ok() && bytes == long[at..at + 1000]
        })
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || same(thread))).collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    ensure(all, "threads that read at once get other bytes")
}

fn replacing(store: &dyn Store, root: &Path, put: &Put<'_>) -> Result<(), String> {
    let path = root.join("replaced");
    let failed = |error: std::io::Error| format!("open fails: {error}");
    put(&path, b"before");
    let before = store.open(&path).map_err(failed)?;
    put(&path, b"afterwards");
    let after = store.open(&path).map_err(failed)?;
    ensure(before.stamp() != after.stamp(), "a file that is replaced keeps its stamp")?;
    let mut bytes = [0; 6];
    let old = before.read_exact_at(&mut bytes, 0).is_err() || &bytes == b"before";
    ensure(old, "what is open gives bytes of what was put in its place")?;
    after.read_exact_at(&mut bytes, 0).map_err(failed)?;
    ensure(&bytes == b"afterw", "what was replaced is still found")?;
    let mixed = store
        .reopen(&path, before.stamp())
        .is_ok_and(|object| object.read_exact_at(&mut bytes, 0).is_ok() && &bytes != b"before");
    ensure(!mixed, "reopen gives another file")
}
