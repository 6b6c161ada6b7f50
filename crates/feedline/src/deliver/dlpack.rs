//! Hands a batch's arrays to other libraries without a copy, as DLPack describes them.
//!
//! The C structs are those of `dlpack.h` 1.0, in its order and with its names' meaning. A tensor
//! that was handed out keeps its batch alive until the library calls the deleter, from whatever
//! thread it likes.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::DeviceBatch;
use super::{Array, Batch};
use crate::buffer::BatchMemory;
use crate::sample::DType;

/// The device of batches on the host: the CPU, number 0.
pub const CPU: (i32, i32) = (1, 0);

/// The kind of device that a CUDA GPU is.
pub const CUDA: i32 = 2;

/// The version of the structs.
pub const VERSION: (u32, u32) = (1, 0);

/// In `flags`: the producer made a copy for this tensor.
const IS_COPIED: u64 = 2;

/// An array as C sees it (`DLTensor`).
#[repr(C)]
#[derive(Debug)]
pub struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A tensor with its owner (`DLManagedTensor`): what libraries from before DLPack 1.0 take.
#[repr(C)]
#[derive(Debug)]
pub struct Managed {
    tensor: Tensor,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A tensor with its owner, the structs' version and flags (`DLManagedTensorVersioned`).
#[repr(C)]
#[derive(Debug)]
pub struct ManagedVersioned {
    major: u32,
    minor: u32,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// A struct that can be handed out: it frees itself and what it keeps alive.
pub trait Handed: Sized {
    /// Around `tensor`, which `owner` keeps alive.
    fn around(tensor: Tensor, owner: *mut c_void, copied: bool) -> Self;

    /// Calls the deleter.
    ///
    /// # Safety
    /// `this` came from [`export`] and its deleter has not been called.
    unsafe fn delete(this: NonNull<Self>);
}

/// What a tensor points into, and the axes that its pointers point to.
struct Owner {
    /// Never read: it is here to be dropped with the tensor.
    _memory: TensorMemory,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

enum TensorMemory {
    Batch { _batch: Arc<Batch> },
    Copy { _memory: BatchMemory },
    Device { _batch: Arc<DeviceBatch> },
}

/// Frees the struct and what it kept alive.
///
/// # Safety
/// `this` came from [`export`], so it and its owner are boxes that nobody else frees.
unsafe fn free<T: Handed>(this: *mut T, owner: *mut c_void) {
    // SAFETY: both were made by `Box::into_raw` in `export`, and a consumer calls a deleter once.
    unsafe {
        drop(Box::from_raw(owner.cast::<Owner>()));
        drop(Box::from_raw(this));
    }
}

macro_rules! handed {
    ($type:ident, $make:expr) => {
        impl Handed for $type {
            fn around(tensor: Tensor, owner: *mut c_void, copied: bool) -> Self {
                unsafe extern "C" fn delete(this: *mut $type) {
                    if !this.is_null() {
                        // SAFETY: a consumer passes the pointer it was given, once.
                        unsafe { free(this, (*this).owner) }
                    }
                }
                let make: fn(Tensor, *mut c_void, u64, unsafe extern "C" fn(*mut $type)) -> $type =
                    $make;
                make(tensor, owner, if copied { IS_COPIED } else { 0 }, delete)
            }

            unsafe fn delete(this: NonNull<Self>) {
                // SAFETY: `this` is alive by the caller's promise.
                if let Some(deleter) = unsafe { this.as_ref() }.deleter {
                    // SAFETY: as above, and called once.
                    unsafe { deleter(this.as_ptr()) }
                }
            }
        }
    };
}
handed!(Managed, |tensor, owner, _, deleter| Managed { tensor, owner, deleter: Some(deleter) });
handed!(ManagedVersioned, |tensor, owner, flags, deleter| ManagedVersioned {
    major: VERSION.0,
    minor: VERSION.1,
    owner,
    deleter: Some(deleter),
    flags,
    tensor,
});

/// Field number `field` of `batch`, kept alive until the deleter of the result is called. With
/// `copy` it is a copy of its own. `None` if there is no such field; the error is the system's
/// refusal of memory for the copy.
pub fn export<T: Handed>(
    batch: &Arc<Batch>,
    field: usize,
    copy: bool,
) -> std::io::Result<Option<NonNull<T>>> {
    let Some(array) = batch.array(field) else { return Ok(None) };
    let (memory, data) = if copy {
        let memory = BatchMemory::new(array.bytes.len())?;
        // SAFETY: the memory is new, so nobody else uses it.
        unsafe { memory.range_mut(0, array.bytes.len()) }.copy_from_slice(array.bytes);
        let data = memory.as_ptr();
        (TensorMemory::Copy { _memory: memory }, data)
    } else {
        (TensorMemory::Batch { _batch: batch.clone() }, batch.address(field))
    };
    Ok(Some(hand_out(memory, data.cast(), CPU, &array, copy)))
}

/// Field number `field` of a batch on a device, kept alive until the deleter of the result is
/// called; `None` if there is no such field. [`DeviceBatch::hand_to`] comes first.
pub fn export_device<T: Handed>(batch: &Arc<DeviceBatch>, field: usize) -> Option<NonNull<T>> {
    let (about, address) = (batch.fields().get(field)?, batch.address(field)?);
    let array = Array {
        name: &about.name,
        dtype: about.dtype,
        rows: batch.rows(),
        row_shape: &about.shape,
        row_strides: &about.strides,
        bytes: &[],
    };
    let device = (CUDA, batch.device().number());
    let kept = TensorMemory::Device { _batch: batch.clone() };
    Some(hand_out(kept, address as usize as *mut c_void, device, &array, false))
}

fn hand_out<T: Handed>(
    memory: TensorMemory,
    data: *mut c_void,
    (device_type, device_id): (i32, i32),
    array: &Array<'_>,
    copied: bool,
) -> NonNull<T> {
    let (code, bits) = data_type(array.dtype);
    // A batch in memory has fewer elements than an i64 can count.
    let shape: Vec<i64> = array.shape().iter().map(|n| *n as i64).collect();
    let row: usize = array.row_shape.iter().product();
    let strides =
        std::iter::once(row as i64).chain(array.row_strides.iter().map(|n| *n as i64)).collect();
    let mut owner = Box::new(Owner { _memory: memory, shape, strides });
    let tensor = Tensor {
        data,
        device_type,
        device_id,
        ndim: owner.shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: owner.shape.as_mut_ptr(),
        strides: owner.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let owner = Box::into_raw(owner).cast();
    NonNull::from(Box::leak(Box::new(T::around(tensor, owner, copied))))
}

/// DLPack's code and the bits of an element.
fn data_type(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
    };
    (code, (dtype.size() * 8) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::Home;
    use crate::layout::BatchLayout;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Returned(AtomicUsize);

    impl Home for Returned {
        fn take_back(&self, _: Arc<BatchMemory>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn batch(home: &Arc<Returned>) -> Arc<Batch> {
        let mut layout = BatchLayout::new(2);
        layout.push_strided("image", DType::F32, &[3, 4, 5], vec![1, 15, 3]).unwrap();
        layout.push("label", DType::I64, &[]).unwrap();
        let memory = Arc::new(BatchMemory::new(layout.bytes()).unwrap());
        // SAFETY: nobody writes to the memory.
        Arc::new(unsafe { Batch::new(Arc::new(layout), memory, home.clone(), 2, (0, 0), 0) })
    }

    #[test]
    fn a_tensor_keeps_its_batch_until_it_is_deleted() {
        let home = Arc::new(Returned::default());
        let batch = batch(&home);
        let address = batch.address(0);
        let old = export::<Managed>(&batch, 0, false).unwrap().unwrap();
        let new = export::<ManagedVersioned>(&batch, 1, false).unwrap().unwrap();
        assert!(export::<Managed>(&batch, 2, false).unwrap().is_none());
        drop(batch);
        // SAFETY: not deleted yet; the shape and strides have `ndim` elements.
        unsafe {
            let tensor = &old.as_ref().tensor;
            assert_eq!(tensor.data.cast(), address);
            assert_eq!(std::slice::from_raw_parts(tensor.shape, 4), [2, 3, 4, 5]);
            assert_eq!(std::slice::from_raw_parts(tensor.strides, 4), [60, 1, 15, 3]);
            assert_eq!((tensor.code, tensor.bits, tensor.lanes), (2, 32, 1));
            assert_eq!((new.as_ref().tensor.ndim, new.as_ref().flags), (1, 0));
        }
        // SAFETY: each is deleted once.
        unsafe { Handed::delete(old) };
        assert_eq!(home.0.load(Ordering::SeqCst), 0);
        // SAFETY: as above.
        unsafe { Handed::delete(new) };
        assert_eq!(home.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_copy_lets_its_batch_go() {
        let home = Arc::new(Returned::default());
        let batch = batch(&home);
        let copy = export::<ManagedVersioned>(&batch, 0, true).unwrap().unwrap();
        // SAFETY: not deleted yet.
        let (data, flags) = unsafe { (copy.as_ref().tensor.data, copy.as_ref().flags) };
        assert!(data.cast() != batch.address(0) && flags == IS_COPIED);
        drop(batch);
        assert_eq!(home.0.load(Ordering::SeqCst), 1);
        // SAFETY: deleted once.
        unsafe { Handed::delete(copy) };
    }
}
