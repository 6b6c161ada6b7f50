//! One dataset: what its elements are, and where its rows lie.

use std::cell::Cell;
use std::sync::Arc;

use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::datatype::{Datatype, StringPadding, StringSize, VarLenKind};
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::messages::layout::{ChunkIndexing, DataLayout};
use hdf5_reader::{
    ByteOrder, Dataset, Hdf5File, btree_v1, chunk_index, extensible_array, fixed_array,
};

use super::filters;
use super::half;
use super::heap::Heap;
use crate::buffer;
use crate::error::Fault;
use crate::sample::{DType, FieldKind};
use crate::source::Needs;
use crate::source::arrays::{
    Array, Data, Element, Files, Grid, Maker, check_block, elements, filled, number,
};
use crate::spec::read::{show_bytes, show_count};

/// Bytes of a block of rows of which only the fill value is known.
const FILLED: u64 = 1 << 20;

/// Bytes that a chunk takes while the list of chunks is read.
const LISTED: u64 = 128;

/// A file whose datasets are looked at.
pub(super) struct Opened<'a> {
    /// The structure.
    pub file: &'a Hdf5File,
    /// All files.
    pub files: &'a Arc<Files>,
    /// Its number among them.
    pub number: u32,
    /// Where addresses are counted from.
    pub base: u64,
    /// Bytes that a block may have.
    pub block_memory: u64,
    /// Bytes that are left for lists of chunks, of all files.
    pub room: &'a Cell<u64>,
}

/// One value of an element: what it is, its own shape, and bytes of the element before it.
type DatasetPart = (String, Element, Vec<usize>, u64);

fn is_other(order: ByteOrder, size: usize) -> bool {
    size > 1 && (order == ByteOrder::BigEndian) == cfg!(target_endian = "little")
}

fn plain(dtype: DType, order: ByteOrder) -> Element {
    Element::Number { dtype, swap: is_other(order, dtype.size()) }
}

impl Opened<'_> {
    fn heap(&self, dtype: Option<DType>, swap: bool, kind: FieldKind) -> Element {
        let superblock = self.file.superblock();
        let heap = Heap {
            files: self.files.clone(),
            file: self.number,
            base: self.base,
            offset_size: superblock.offset_size,
            length_size: superblock.length_size,
            dtype,
            swap,
        };
        let width = 8 + usize::from(superblock.offset_size);
        Element::Reference { width, kind, resolve: Arc::new(heap) }
    }

    /// The parts of an element of that type and its bytes.
    fn parts(
        &self,
        name: &str,
        datatype: &Datatype,
        half: DType,
    ) -> Result<(Vec<DatasetPart>, u64), String> {
        if let Datatype::Compound { size, fields } = datatype {
            let mut parts = Vec::new();
            for field in fields {
                let (element, shape) = self.element(&field.datatype, half)?;
                let bytes = elements(&shape).and_then(|n| n.checked_mul(element.width() as u64));
                let end = bytes.and_then(|bytes| bytes.checked_add(field.byte_offset.into()));
                if end.is_none_or(|end| end > u64::from(*size)) {
                    return Err("has records whose fields are outside of them".to_owned());
                }
                let name = format!("{name}.{}", field.name);
                parts.push((name, element, shape, u64::from(field.byte_offset)));
            }
            return Ok((parts, u64::from(*size)));
        }
        let (element, shape) = self.element(datatype, half)?;
        let bytes = elements(&shape).and_then(|n| n.checked_mul(element.width() as u64));
        let bytes = bytes.ok_or("has elements of an impossible size")?;
        Ok((vec![(name.to_owned(), element, shape, 0)], bytes))
    }

    /// A simple type and the shape that it brings along; numbers of two bytes are of type `half`.
    fn element(&self, datatype: &Datatype, half: DType) -> Result<(Element, Vec<usize>), String> {
        let refused = |what: &str| {
            Err(format!(
                "has elements that are {what}, which cannot be in a batch: numbers, booleans, texts and lists of numbers can"
            ))
        };
        let element = match datatype {
            Datatype::FixedPoint { size, signed, byte_order } => {
                let kind = if *signed { b'i' } else { b'u' };
                match number(kind, usize::from(*size)) {
                    Some(dtype) => plain(dtype, *byte_order),
                    None => return refused("integers of an odd size"),
                }
            }
            Datatype::FloatingPoint { size: 2, byte_order } => plain(half, *byte_order),
            Datatype::FloatingPoint { size, byte_order } => {
                match number(b'f', usize::from(*size)) {
                    Some(dtype) => plain(dtype, *byte_order),
                    None => return refused("numbers of an odd size"),
                }
            }
            Datatype::Enum { base, members } => {
                let boolean = members.len() == 2
                    && members.iter().any(|member| member.name == "FALSE" && member.value == [0])
                    && members.iter().any(|member| member.name == "TRUE" && member.value == [1]);
                match &**base {
                    Datatype::FixedPoint { size: 1, .. } if boolean => {
                        Element::Number { dtype: DType::Bool, swap: false }
                    }
                    base @ Datatype::FixedPoint { .. } => return self.element(base, half),
                    _ => return refused("enumerations of something else than integers"),
                }
            }
            Datatype::Array { base, dims } => {
                if !matches!(
                    **base,
                    Datatype::FixedPoint { .. }
                        | Datatype::FloatingPoint { .. }
                        | Datatype::Enum { .. }
                ) {
                    return refused("arrays of something else than numbers");
                }
                let (element, _) = self.element(base, half)?;
                return Ok((element, dims.iter().map(|axis| *axis as usize).collect()));
            }
            Datatype::String { size: StringSize::Fixed(width), padding, .. } => {
                let pad = if *padding == StringPadding::SpacePad { b' ' } else { 0 };
                Element::Chars { width: *width as usize, pad }
            }
            Datatype::String { size: StringSize::Variable, .. }
            | Datatype::VarLen { kind: VarLenKind::String, .. } => {
                self.heap(None, false, FieldKind::Text)
            }
            Datatype::VarLen { base, .. } => match (&**base, self.element(base, half)?.0) {
                (
                    Datatype::FixedPoint { .. } | Datatype::FloatingPoint { .. },
                    Element::Number { dtype, swap },
                ) => {
                    let kind = match dtype {
                        DType::U8 => FieldKind::Bytes,
                        dtype => FieldKind::Ragged { dtype, axes: 1 },
                    };
                    self.heap(Some(dtype), swap, kind)
                }
                _ => return refused("lists of something else than numbers"),
            },
            Datatype::Compound { .. } => return refused("records within records"),
            Datatype::Opaque { .. } => return refused("opaque bytes"),
            Datatype::Reference { .. } => return refused("references"),
            Datatype::Bitfield { .. } => return refused("bit fields"),
        };
        Ok((element, Vec::new()))
    }

    /// What numbers of two bytes are in a dataset.
    fn half(&self, dataset: &Dataset) -> Result<DType, String> {
        if !half::is_in(dataset.dtype()) {
            return Ok(DType::F16);
        }
        let start = dataset.address().saturating_add(self.base);
        let left = self.files.bytes(self.number).saturating_sub(start);
        let take = |bytes: u64| self.files.take(self.number, start, bytes.min(left)).ok();
        let ends = take(half::PREFIX).and_then(|prefix| half::messages(&prefix));
        let header = ends.and_then(|(_, end)| take((end as u64).min(super::LARGEST_HEADER as u64)));
        header.and_then(|header| half::declared_type(&header)).ok_or_else(|| {
            "has floating-point numbers of two bytes that are not known to be float16 or bfloat16: write them as float32".to_owned()
        })
    }

    /// The arrays that a dataset is: one, or one for each part of its records. None if it has no
    /// axis.
    pub(super) fn arrays(
        &self,
        name: &str,
        dataset: &Dataset,
        maker: u64,
    ) -> Result<Vec<Array>, String> {
        let Some((rows, axes)) = dataset.shape().split_first() else { return Ok(Vec::new()) };
        let shape: Vec<usize> = axes.iter().map(|axis| *axis as usize).collect();
        let (parts, size) = self.parts(name, dataset.dtype(), self.half(dataset)?)?;
        let stride = elements(&shape).and_then(|all| all.checked_mul(size));
        let stride = stride.filter(|stride| stride.checked_mul(*rows).is_some());
        let stride = stride.ok_or("has an impossible shape")?;
        if matches!(dataset.dtype(), Datatype::Compound { .. }) && !shape.is_empty() {
            return Err(format!(
                "has records in rows of shape {shape:?}: only one record a sample can be read"
            ));
        }
        let data = self.data(dataset, *rows, stride, size)?;
        let mut arrays = Vec::new();
        for (name, element, own, skip) in parts {
            let shape = [&shape[..], &own[..]].concat();
            let mut array = Array::new(name, *rows, shape, element, data.clone())?;
            (array.stride, array.skip, array.maker) = (stride, skip, maker);
            arrays.push(array);
        }
        Ok(arrays)
    }

    fn data(&self, dataset: &Dataset, rows: u64, stride: u64, size: u64) -> Result<Data, String> {
        let failed = |error: hdf5_reader::error::Error| error.to_string();
        let header = self.file.get_or_parse_header(dataset.address()).map_err(failed)?;
        let mut layout = None;
        let mut pipeline: Vec<FilterDescription> = Vec::new();
        for message in &header.messages {
            match message {
                HdfMessage::DataLayout(found) => layout = Some(&found.layout),
                HdfMessage::FilterPipeline(found) => pipeline.clone_from(&found.filters),
                HdfMessage::ExternalFiles(_) => {
                    return Err("keeps its elements in other files (external storage), which are not opened: copy them into it".to_owned());
                }
                _ => {}
            }
        }
        filters::check(&pipeline)?;
        let fill = dataset.fill_value().and_then(|fill| fill.value.clone()).unwrap_or_default();
        let fill = if fill.len() as u64 == size { fill } else { Vec::new() };
        let undefined = |address: u64| {
            address == u64::MAX >> (64 - 8 * u32::from(self.file.superblock().offset_size).min(8))
        };
        let made = |each: u64, maker: Arc<dyn Maker>| Data::Made { each: each.max(1), maker };
        let filled = |fill: Vec<u8>| {
            let each = (FILLED / stride.max(1)).clamp(1, rows.max(1));
            made(each, Arc::new(Filled { fill }))
        };
        let inside = |address: u64, bytes: u64| {
            let place = address.checked_add(self.base)?;
            (place.checked_add(bytes)? <= self.files.bytes(self.number)).then_some(place)
        };
        match layout {
            None => Err("has no layout".to_owned()),
            Some(DataLayout::Compact { data }) => {
                if (data.len() as u64) < rows * stride {
                    return Err("has fewer elements than its shape says".to_owned());
                }
                Ok(made(rows, Arc::new(HeaderRows(data.clone()))))
            }
            Some(DataLayout::Contiguous { address, .. }) if undefined(*address) => Ok(filled(fill)),
            Some(DataLayout::Contiguous { address, .. }) => {
                let offset = inside(*address, rows * stride)
                    .ok_or("has elements beyond the file's end: it was cut short")?;
                Ok(Data::File { file: self.number, offset })
            }
            Some(DataLayout::Chunked { address, .. }) if undefined(*address) => Ok(filled(fill)),
            Some(DataLayout::Chunked { address, dims, element_size, chunk_indexing }) => {
                // Newer layouts have the element's size as one axis more.
                let axes = dataset.shape().len();
                let (dims, element_size) = match (dims.get(axes), dims.get(..axes)) {
                    (Some(size), Some(dims)) => (dims, size),
                    _ => (&dims[..], element_size),
                };
                if u64::from(*element_size) != size {
                    return Err("has chunks of elements of another size".to_owned());
                }
                let chunk = dims.iter().map(|axis| u64::from(*axis)).collect();
                let grid = Grid::new(dataset.shape().to_vec(), chunk, size)?;
                let entries =
                    self.entries(dataset, *address, dims, chunk_indexing.as_ref(), &grid)?;
                let whole = grid.chunk_bytes().unwrap_or(0);
                if pipeline.is_empty()
                    && grid.whole_rows()
                    && entries.len() as u64 == grid.counts().next().unwrap_or(0)
                {
                    let places = entries.iter().map(|entry| {
                        inside(entry.address, whole).map(|place| (self.number, place))
                    });
                    let places = places.collect::<Option<Vec<_>>>();
                    let places =
                        places.ok_or("has elements beyond the file's end: it was cut short")?;
                    return Ok(Data::Pieces { each: grid.chunk[0], places: Arc::new(places) });
                }
                let each = grid.chunk[0];
                let chunks = Chunks {
                    files: self.files.clone(),
                    file: self.number,
                    base: self.base,
                    grid,
                    entries,
                    pipeline,
                    fill,
                    block_memory: self.block_memory,
                };
                Ok(made(each, Arc::new(chunks)))
            }
        }
    }

    /// Where the chunks are, sorted by their numbers in the grid.
    fn entries(
        &self,
        dataset: &Dataset,
        address: u64,
        dims: &[u32],
        indexing: Option<&ChunkIndexing>,
        grid: &Grid,
    ) -> Result<Vec<ChunkPlace>, String> {
        let storage = self.file.storage();
        let superblock = self.file.superblock();
        let too_many = |count: u64| {
            format!(
                "has {} chunks, whose list takes more than the {} that are left: give more memory, or write it with larger chunks",
                show_count(count),
                show_bytes(self.room.get())
            )
        };
        // Such lists are as long as the shape says, however few chunks were written.
        let by_shape =
            matches!(indexing, Some(ChunkIndexing::Implicit | ChunkIndexing::FixedArray { .. }));
        let count = grid.counts().fold(1, u64::saturating_mul);
        if by_shape && count.saturating_mul(LISTED) > self.room.get() {
            return Err(too_many(count));
        }
        let (offset_size, length_size) = (superblock.offset_size, superblock.length_size);
        let (shape, axes) = (dataset.shape(), dims.len() as u32);
        let found = match indexing {
            None => {
                let leaves = btree_v1::collect_btree_v1_leaves_storage(
                    storage,
                    address,
                    offset_size,
                    length_size,
                    Some(axes),
                    dims,
                    None,
                );
                leaves.map(|leaves| {
                    leaves
                        .into_iter()
                        .filter_map(|(key, address)| match key {
                            btree_v1::BTreeV1Key::RawData { chunk_size, filter_mask, offsets } => {
                                Some(chunk_index::ChunkEntry {
                                    address,
                                    size: u64::from(chunk_size),
                                    filter_mask,
                                    offsets,
                                })
                            }
                            btree_v1::BTreeV1Key::Group { .. } => None,
                        })
                        .collect()
                })
            }
            Some(ChunkIndexing::SingleChunk { filtered_size, filters }) => {
                Ok(vec![chunk_index::single_chunk_entry(
                    address,
                    *filtered_size,
                    *filters,
                    shape.len(),
                )])
            }
            Some(ChunkIndexing::BTreeV2) => chunk_index::collect_v2_chunk_entries_storage(
                storage,
                address,
                offset_size,
                length_size,
                axes,
                dims,
                None,
            ),
            Some(ChunkIndexing::Implicit) => chunk_index::collect_implicit_chunk_entries(
                address,
                shape,
                dims,
                grid.size as usize,
                None,
                storage.len(),
            ),
            Some(ChunkIndexing::FixedArray { .. }) => {
                fixed_array::collect_fixed_array_chunk_entries_storage(
                    storage,
                    address,
                    offset_size,
                    length_size,
                    shape,
                    dims,
                    None,
                )
            }
            Some(ChunkIndexing::ExtensibleArray { .. }) => {
                extensible_array::collect_extensible_array_chunk_entries_storage(
                    storage,
                    address,
                    offset_size,
                    length_size,
                    shape,
                    dataset.max_dims(),
                    dims,
                    None,
                )
            }
        };
        let found: Vec<chunk_index::ChunkEntry> =
            found.map_err(|error| format!("has a damaged list of chunks: {error}"))?;
        let whole = grid.chunk_bytes().unwrap_or(0);
        let count = found.len() as u64;
        let left =
            self.room.get().checked_sub(count.saturating_mul(size_of::<ChunkPlace>() as u64));
        self.room.set(left.ok_or_else(|| too_many(count))?);
        let mut entries = Vec::new();
        buffer::reserve(&mut entries, count).map_err(|fault| fault.to_string())?;
        for chunk in found {
            let mut place = Vec::with_capacity(shape.len());
            for ((offset, chunk), axis) in chunk.offsets.iter().zip(&grid.chunk).zip(shape) {
                // A chunk outside of the array was left there when it became smaller.
                if offset < axis {
                    place.push(offset / chunk);
                }
            }
            if place.len() == shape.len() {
                let size = if chunk.size == 0 { whole } else { chunk.size };
                let (address, mask) = (chunk.address, chunk.filter_mask);
                entries.push(ChunkPlace { number: grid.number(&place), address, size, mask });
            }
        }
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.dedup_by_key(|entry| entry.number);
        Ok(entries)
    }
}

/// Where a chunk is.
struct ChunkPlace {
    number: u64,
    address: u64,
    size: u64,
    mask: u32,
}

/// Makes rows of chunks that are filtered, or cut along other axes than the first.
struct Chunks {
    files: Arc<Files>,
    file: u32,
    base: u64,
    grid: Grid,
    entries: Vec<ChunkPlace>,
    pipeline: Vec<FilterDescription>,
    fill: Vec<u8>,
    block_memory: u64,
}

impl Maker for Chunks {
    fn make(&self, block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        let whole = self.grid.chunk_bytes().unwrap_or(u64::MAX);
        let stored = self.files.bytes(self.file);
        check_block(bytes, self.block_memory, stored)?;
        check_block(whole, self.block_memory, stored)?;
        self.grid.block(block, bytes, &self.fill, |place| {
            let number = self.grid.number(place);
            let found = self.entries.binary_search_by_key(&number, |entry| entry.number);
            let Ok(found) = found else { return Ok(None) };
            let entry = &self.entries[found];
            // No filter makes a chunk much larger.
            if entry.size > whole.saturating_mul(2).saturating_add(64 << 10) {
                return Err(Fault::corrupt("hdf5", "a chunk is larger as stored than it can be"));
            }
            let offset = entry.address.saturating_add(self.base);
            let stored = self.files.take(self.file, offset, entry.size)?;
            let size = self.grid.size as usize;
            filters::undo(&self.pipeline, entry.mask, stored, size, whole as usize).map(Some)
        })
    }

    fn needs(&self, block: u64, each: &mut Needs<'_>) {
        self.grid.chunks_of(block, |place| {
            let number = self.grid.number(place);
            let found = self.entries.binary_search_by_key(&number, |entry| entry.number);
            if let Ok(ChunkPlace { address, size, .. }) = found.map(|found| &self.entries[found]) {
                each(&self.files.location(self.file, (address.saturating_add(self.base), *size)));
            }
        });
    }

    fn held(&self) -> u64 {
        (self.entries.len() * size_of::<ChunkPlace>()) as u64
    }
}

/// Rows that were never written.
struct Filled {
    fill: Vec<u8>,
}

impl Maker for Filled {
    fn make(&self, _block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        check_block(bytes, u64::MAX, 0)?;
        filled(bytes, &self.fill)
    }
}

/// Rows that lie in the dataset's header.
struct HeaderRows(Vec<u8>);

impl Maker for HeaderRows {
    fn make(&self, _block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        Ok(self.0[..self.0.len().min(bytes as usize)].to_vec())
    }
}
