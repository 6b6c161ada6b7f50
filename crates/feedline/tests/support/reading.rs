//! Opens a file as a loader would and reads some of it, for those who damage files.

use std::path::Path;
use std::sync::Arc;

use feedline::Fault;
use feedline::internals::engine::opening;
use feedline::sample::{Room, Value};
use feedline::source;
use feedline::spec::{SourceFormat, SourceKind, Spec};
use feedline::store::{Files, Store};

/// Bytes that a source may take for blocks, and more than a small damaged file may ask for.
pub(crate) const MEMORY: u64 = 64 << 20;

/// Bytes of one field, within a limit as the engine has one.
#[derive(Default)]
struct Taken(Vec<u8>);

impl Room for Taken {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes > MEMORY / 4 {
            return Err(Fault::TooLarge("more than this test gives".to_owned()));
        }
        self.0.clear();
        self.0.resize(bytes as usize, 0);
        Ok(&mut self.0)
    }
}

/// Opens what is at `path` and reads some of it; how many values could be had.
pub(crate) fn read(format: SourceFormat, path: &Path) -> usize {
    let kind = SourceKind::Format { format, path: path.to_owned(), fields: Vec::new() };
    let spec = Spec::default().with(|spec| spec.memory = Some(MEMORY));
    let store: Arc<dyn Store> = Arc::new(Files::default());
    let Ok(source) = source::open(&kind, &opening(&spec, &store)) else { return 0 };
    let mut room = Taken::default();
    let mut values = 0;
    let len = source.len();
    let _ = (source.fingerprint(), source.name(), source.blocks().map(|b| b.ends.len()));
    for index in (0..len.min(8)).chain(len.saturating_sub(2)..len) {
        let _ = source.origin(index);
        for field in 0..source.fields().len() {
            let read = match source.value(index, field) {
                Ok(Value::File(location)) => store.read(&location, &mut room).is_ok(),
                Ok(Value::Made) => source.read(index, field, &mut room).is_ok(),
                Ok(_) => true,
                Err(_) => false,
            };
            values += usize::from(read);
        }
    }
    values
}
