//! A GPU through the CUDA driver.

#![allow(unsafe_code)]

mod driver;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use self::driver::{Driver, NOT_READY, Opaque};
use super::{Device, Handle, LEGACY_STREAM, Result};
use crate::error::DeviceError;

/// `CU_MEMHOSTREGISTER_PORTABLE`: locked for all devices.
const PORTABLE: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream, nor it for this.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: a thread that waits sleeps.
const PLAIN_EVENT: u32 = 1 | 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: our calls disturb no graph that the program is capturing.
const RELAXED: c_int = 2;

/// A GPU with its primary context, which the CUDA runtime (torch, JAX) uses too.
pub struct Cuda {
    driver: &'static Driver,
    device: c_int,
    number: i32,
    name: String,
    context: Context,
    process: u32,
}

struct Context(Opaque);

// SAFETY: a context may be made current in any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Context {}

/// Why GPU number `number` cannot be used; `None` if it can. Makes no context.
#[must_use]
pub fn problem(number: i32) -> Option<DeviceError> {
    find(number).err()
}

fn find(number: i32) -> Result<(&'static Driver, c_int)> {
    let driver = Driver::get()?;
    let (mut count, mut device) = (0, 0);
    // SAFETY: the driver is initialised, and both results are stored where there is room.
    unsafe {
        driver.device_count(&mut count)?;
        if !(0..count).contains(&number) {
            return Err(DeviceError::Missing { number, count });
        }
        driver.device(&mut device, number)?;
    }
    Ok((driver, device))
}

/// The GPU to lock host memory with, if the program names none: one that it uses already, as a
/// context takes hundreds of megabytes of the device's memory.
pub fn preferred() -> Result<i32> {
    let (driver, _) = find(0)?;
    let mut count = 0;
    // SAFETY: as in `find`.
    unsafe {
        driver.device_count(&mut count)?;
        for number in 0..count {
            let (mut device, mut flags, mut active) = (0, 0, 0);
            driver.device(&mut device, number)?;
            driver.context_state(device, &mut flags, &mut active)?;
            if active != 0 {
                return Ok(number);
            }
        }
    }
    Ok(0)
}

/// Those in use, so that a GPU is opened once.
static OPEN: Mutex<Vec<Weak<Cuda>>> = Mutex::new(Vec::new());

impl Cuda {
    /// GPU number `number`.
    pub fn open(number: i32) -> Result<Arc<Cuda>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|cuda| cuda.strong_count() > 0);
        let process = std::process::id();
        let known = open.iter().filter_map(Weak::upgrade).find(|cuda| cuda.number == number);
        if let Some(cuda) = known {
            return if cuda.process == process { Ok(cuda) } else { Err(DeviceError::Forked) };
        }
        let (driver, device) = find(number)?;
        let mut name: [c_char; 256] = [0; 256];
        let mut context = std::ptr::null_mut();
        // SAFETY: as in `find`; the name's length is passed, and its last byte stays zero.
        let name = unsafe {
            driver.device_name(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        // SAFETY: as in `find`.
        unsafe { driver.retain(&mut context, device)? };
        let context = Context(context);
        let cuda = Arc::new(Cuda { driver, device, number, name, context, process });
        open.push(Arc::downgrade(&cuda));
        Ok(cuda)
    }

    /// Makes the context current in this thread as long as the result lives.
    fn enter(&self) -> Result<Current<'_>> {
        if self.process != std::process::id() {
            return Err(DeviceError::Forked);
        }
        let mut mode = RELAXED;
        // SAFETY: the context is retained as long as this lives.
        unsafe {
            self.driver.push(self.context.0)?;
            if let Err(error) = self.driver.capture_mode(&mut mode) {
                let _ = self.driver.pop(&mut std::ptr::null_mut());
                return Err(error);
            }
        }
        Ok(Current { driver: self.driver, mode })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: retained once by `open`.
            let _ = unsafe { self.driver.release(self.device) };
        }
    }
}

/// The context is current.
struct Current<'a> {
    driver: &'a Driver,
    /// The thread's capture mode before.
    mode: c_int,
}

impl std::ops::Deref for Current<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: undoes `enter` in the same thread.
        unsafe {
            let _ = self.driver.capture_mode(&mut self.mode);
            let _ = self.driver.pop(&mut std::ptr::null_mut());
        }
    }
}

fn opaque(handle: Handle) -> Opaque {
    handle as usize as Opaque
}

impl Device for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn number(&self) -> i32 {
        self.number
    }

    unsafe fn lock(&self, address: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise, as in all that follow.
        unsafe { self.enter()?.lock(address.cast(), bytes, PORTABLE) }
    }

    unsafe fn unlock(&self, address: *mut u8) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.unlock(address.cast()) }
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        let mut memory = 0;
        // SAFETY: the result is stored where there is room.
        unsafe { self.enter()?.allocate(&mut memory, bytes)? };
        Ok(memory)
    }

    unsafe fn free(&self, memory: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.free(memory) }
    }

    fn create_stream(&self) -> Result<Handle> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the result is stored where there is room.
        unsafe { self.enter()?.create_stream(&mut stream, NON_BLOCKING)? };
        Ok(stream as Handle)
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.destroy_stream(opaque(stream)) }
    }

    unsafe fn copy_in(
        &self,
        to: Handle,
        from: *const u8,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.copy_in(to, from.cast(), bytes, opaque(stream)) }
    }

    unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: Handle,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.copy_out(to.cast::<c_void>(), from, bytes, opaque(stream)) }
    }

    fn create_event(&self) -> Result<Handle> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the result is stored where there is room.
        unsafe { self.enter()?.create_event(&mut event, PLAIN_EVENT)? };
        Ok(event as Handle)
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.destroy_event(opaque(event)) }
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.record(opaque(event), opaque(stream)) }
    }

    unsafe fn record_all(&self, event: Handle) -> Result<()> {
        let driver = self.enter()?;
        // SAFETY: as above. Drivers before CUDA 12.5 have no such call; the default stream then
        // stands for all: it waits for every stream but those made non-blocking.
        unsafe {
            if !driver.record_all(self.context.0, opaque(event))? {
                driver.record(opaque(event), opaque(LEGACY_STREAM))?;
            }
        }
        Ok(())
    }

    unsafe fn has_passed(&self, event: Handle) -> Result<bool> {
        // SAFETY: as above.
        match unsafe { self.enter()?.query(opaque(event)) } {
            Err(error) if error.code() == Some(NOT_READY) => Ok(false),
            asked => asked.map(|()| true),
        }
    }

    unsafe fn wait(&self, event: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.wait(opaque(event)) }
    }

    unsafe fn make_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.enter()?.make_wait(opaque(stream), opaque(event), 0) }
    }

    fn settle(&self) -> Result<()> {
        // SAFETY: no conditions.
        unsafe { self.enter()?.synchronize() }
    }
}
