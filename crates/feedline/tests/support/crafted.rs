//! Parquet footers and Arrow schemas written by hand, to say what no writer would.

/// A number in Thrift's compact encoding.
pub(crate) fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 & 0x7f | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn zigzag(number: i64) -> Vec<u8> {
    varint((number << 1 ^ number >> 63) as u64)
}

/// A struct of Thrift.
#[derive(Default)]
pub(crate) struct Thrift {
    out: Vec<u8>,
    last: u8,
}

impl Thrift {
    fn field(mut self, number: u8, kind: u8, data: &[u8]) -> Self {
        self.out.push((number - self.last) << 4 | kind);
        self.out.extend_from_slice(data);
        self.last = number;
        self
    }

    pub(crate) fn int(self, number: u8, value: i64) -> Self {
        self.field(number, 5, &zigzag(value))
    }

    pub(crate) fn long(self, number: u8, value: i64) -> Self {
        self.field(number, 6, &zigzag(value))
    }

    pub(crate) fn text(self, number: u8, text: &[u8]) -> Self {
        self.field(number, 8, &[&varint(text.len() as u64), text].concat())
    }

    pub(crate) fn inner(self, number: u8, inner: &[u8]) -> Self {
        self.field(number, 12, inner)
    }

    pub(crate) fn list(self, number: u8, kind: u8, items: &[Vec<u8>]) -> Self {
        let head = [&[0xf0 | kind], &varint(items.len() as u64)[..]].concat();
        self.field(number, 9, &[head, items.concat()].concat())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.out.push(0);
        self.out
    }
}

/// An element of a schema: a leaf of type `kind`, or a group of `children`; one called `l` is a
/// list.
pub(crate) fn element(
    name: &[u8],
    kind: Option<i64>,
    repetition: i64,
    children: Option<i64>,
) -> Vec<u8> {
    let mut out = Thrift::default();
    if let Some(kind) = kind {
        out = out.int(1, kind);
    }
    out = out.int(3, repetition).text(4, name);
    if let Some(children) = children {
        out = out.int(5, children);
    }
    match (kind, name) {
        // Text, and a list.
        (Some(6), _) => out = out.int(6, 0),
        (None, b"l") => out = out.int(6, 3),
        _ => {}
    }
    out.end()
}

/// A column chunk.
pub(crate) struct Chunk<'a> {
    pub path: &'a [&'a [u8]],
    pub kind: i64,
    pub codec: i64,
    pub values: i64,
    pub uncompressed: i64,
    pub compressed: i64,
    pub offset: i64,
}

impl Chunk<'_> {
    fn write(&self) -> Vec<u8> {
        let path: Vec<_> =
            self.path.iter().map(|part| [&varint(part.len() as u64), *part].concat()).collect();
        let metadata = Thrift::default()
            .int(1, self.kind)
            .list(2, 5, &[zigzag(0), zigzag(3)])
            .list(3, 8, &path)
            .int(4, self.codec)
            .long(5, self.values)
            .long(6, self.uncompressed)
            .long(7, self.compressed)
            .long(9, self.offset)
            .end();
        Thrift::default().long(2, self.offset).inner(3, &metadata).end()
    }
}

/// A footer, with the file's end.
pub(crate) fn footer(schema: &[Vec<u8>], groups: &[(Vec<Chunk<'_>>, i64)]) -> Vec<u8> {
    let rows = groups.iter().fold(0, |sum: i64, (_, rows)| sum.wrapping_add(*rows));
    let groups: Vec<_> = groups
        .iter()
        .map(|(chunks, rows)| {
            let chunks: Vec<_> = chunks.iter().map(Chunk::write).collect();
            Thrift::default().list(1, 12, &chunks).long(2, 100).long(3, *rows).end()
        })
        .collect();
    let footer =
        Thrift::default().int(1, 1).list(2, 12, schema).long(3, rows).list(4, 12, &groups).end();
    [&footer[..], &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// The header of a page of plain values.
pub(crate) fn page(uncompressed: i64, compressed: i64, values: i64) -> Vec<u8> {
    let data = Thrift::default().int(1, values).int(2, 0).int(3, 3).int(4, 3).end();
    Thrift::default().int(1, 0).int(2, uncompressed).int(3, compressed).inner(5, &data).end()
}

/// A file of one page or more and a footer.
pub(crate) fn parquet(body: &[u8], footer: &[u8]) -> Vec<u8> {
    [b"PAR1", body, footer].concat()
}

/// An Arrow stream whose schema has `count` times the same field, with a name of `length` bytes.
pub(crate) fn repeated_field(count: u32, length: u32) -> Vec<u8> {
    let mut b: Vec<u8> = vec![0; 4];
    let align = |b: &mut Vec<u8>, to: usize| b.resize(b.len().next_multiple_of(to), 0);
    let mut links: Vec<(usize, &str)> = Vec::new();
    let mut places: Vec<(&str, usize)> = Vec::new();
    // Offset in the table, bytes of a number, number or where it leads.
    type Slot = Option<(u16, usize, u64, &'static str)>;
    let tables: [(&str, u16, Vec<Slot>); 4] = [
        (
            "message",
            24,
            vec![
                Some((4, 2, 4, "")),
                Some((6, 1, 1, "")),
                Some((8, 4, 0, "schema")),
                Some((16, 8, 0, "")),
            ],
        ),
        ("schema", 12, vec![Some((4, 2, 0, "")), Some((8, 4, 0, "fields"))]),
        (
            "field",
            20,
            vec![
                Some((4, 4, 0, "name")),
                Some((8, 1, 1, "")),
                Some((9, 1, 5, "")),
                Some((12, 4, 0, "utf8")),
                None,
                Some((16, 4, 0, "children")),
            ],
        ),
        ("utf8", 4, Vec::new()),
    ];
    for (name, size, slots) in tables {
        align(&mut b, 8);
        let begin = b.len();
        b.extend_from_slice(&(4 + 2 * slots.len() as u16).to_le_bytes());
        b.extend_from_slice(&size.to_le_bytes());
        for slot in &slots {
            b.extend_from_slice(&slot.map_or(0, |slot| slot.0).to_le_bytes());
        }
        align(&mut b, 8);
        let table = b.len();
        places.push((name, table));
        b.resize(table + usize::from(size), 0);
        b[table..table + 4].copy_from_slice(&((table - begin) as i32).to_le_bytes());
        for (offset, bytes, number, leads) in slots.into_iter().flatten() {
            let at = table + usize::from(offset);
            match leads {
                "" => b[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]),
                leads => links.push((at, leads)),
            }
        }
        if name == "schema" {
            align(&mut b, 4);
            places.push(("fields", b.len()));
            b.extend_from_slice(&count.to_le_bytes());
            for _ in 0..count {
                links.push((b.len(), "field"));
                b.extend_from_slice(&[0; 4]);
            }
        }
    }
    align(&mut b, 4);
    places.push(("children", b.len()));
    b.extend_from_slice(&[0; 4]);
    places.push(("name", b.len()));
    b.extend_from_slice(&length.to_le_bytes());
    b.resize(b.len() + length as usize, b'n');
    b.push(0);
    align(&mut b, 8);
    links.push((0, "message"));
    for (at, leads) in links {
        let to = places.iter().find(|(name, _)| *name == leads).map_or(0, |(_, to)| *to);
        b[at..at + 4].copy_from_slice(&((to - at) as u32).to_le_bytes());
    }
    let length = (b.len() as u32).to_le_bytes();
    [&[0xff; 4], &length[..], &b, &[0xff; 4], &[0; 4]].concat()
}
