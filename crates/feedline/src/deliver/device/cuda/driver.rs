//! The CUDA driver's library: found when a program asks for a device, never before.
//!
//! Only the driver (`libcuda.so.1`, which comes with the kernel module) is used, not the toolkit's
//! runtime. `FEEDLINE_CUDA_LIBRARY` names another file.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use super::Result;
use crate::error::DeviceError;

/// The environment variable that names another library.
pub(crate) const LIBRARY: &str = "FEEDLINE_CUDA_LIBRARY";

/// Work is not done yet; no error.
pub(super) const NOT_READY: c_int = 600;
const OUT_OF_MEMORY: c_int = 2;
const ALREADY_REGISTERED: c_int = 712;

/// A context, stream or event of the driver.
pub(super) type Opaque = *mut c_void;

macro_rules! driver {
    ($($name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {
        struct Symbols { $($name: unsafe extern "C" fn($($type),*) -> c_int,)* }

        impl Symbols {
            fn load(library: &Library) -> Result<Symbols> {
                Ok(Symbols { $($name: {
                    let address = library.find($symbol)?;
                    // SAFETY: the driver's header declares the function of this name so.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(address)
                    }
                },)* })
            }
        }

        impl Driver {
            $(
                #[doc = concat!("`", $symbol, "`, as the driver's header describes it.")]
                ///
                /// # Safety
                /// As the driver's documentation says.
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<()> {
                    // SAFETY: the caller's promise.
                    self.check($symbol, unsafe { (self.symbols.$name)($($argument),*) })
                }
            )*
        }
    };
}

driver! {
    init = "cuInit" (flags: c_uint);
    device_count = "cuDeviceGetCount" (count: *mut c_int);
    device = "cuDeviceGet" (device: *mut c_int, number: c_int);
    device_name = "cuDeviceGetName" (name: *mut c_char, bytes: c_int, device: c_int);
    context_state = "cuDevicePrimaryCtxGetState" (device: c_int, flags: *mut c_uint, active: *mut c_int);
    retain = "cuDevicePrimaryCtxRetain" (context: *mut Opaque, device: c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (device: c_int);
    push = "cuCtxPushCurrent_v2" (context: Opaque);
    pop = "cuCtxPopCurrent_v2" (context: *mut Opaque);
    synchronize = "cuCtxSynchronize" ();
    capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    lock = "cuMemHostRegister_v2" (address: *mut c_void, bytes: usize, flags: c_uint);
    unlock = "cuMemHostUnregister" (address: *mut c_void);
    allocate = "cuMemAlloc_v2" (memory: *mut u64, bytes: usize);
    free = "cuMemFree_v2" (memory: u64);
    create_stream = "cuStreamCreate" (stream: *mut Opaque, flags: c_uint);
    destroy_stream = "cuStreamDestroy_v2" (stream: Opaque);
    copy_in = "cuMemcpyHtoDAsync_v2" (to: u64, from: *const c_void, bytes: usize, stream: Opaque);
    copy_out = "cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: u64, bytes: usize, stream: Opaque);
    create_event = "cuEventCreate" (event: *mut Opaque, flags: c_uint);
    destroy_event = "cuEventDestroy_v2" (event: Opaque);
    record = "cuEventRecord" (event: Opaque, stream: Opaque);
    query = "cuEventQuery" (event: Opaque);
    wait = "cuEventSynchronize" (event: Opaque);
    make_wait = "cuStreamWaitEvent" (stream: Opaque, event: Opaque, flags: c_uint);
}

/// The library of the driver with its functions.
pub(super) struct Driver {
    symbols: Symbols,
    error_name: ErrorText,
    error_text: ErrorText,
    /// Since CUDA 12.5.
    record_all: Option<unsafe extern "C" fn(Opaque, Opaque) -> c_int>,
}

type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

impl Driver {
    /// The driver of this machine, loaded and initialised by the first call.
    pub(super) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        let driver = DRIVER.get_or_init(|| {
            let driver = Driver::load(std::env::var_os(LIBRARY))?;
            // SAFETY: no conditions; the flags must be 0.
            unsafe { driver.init(0)? };
            Ok(driver)
        });
        driver.as_ref().map_err(Clone::clone)
    }

    fn load(named: Option<OsString>) -> Result<Driver> {
        let named = named.filter(|name| !name.is_empty());
        let library = Library::open(&named.unwrap_or_else(|| "libcuda.so.1".into()))?;
        let symbols = Symbols::load(&library)?;
        let error_name = library.find("cuGetErrorName")?;
        let error_text = library.find("cuGetErrorString")?;
        let record_all = library.find("cuCtxRecordEvent").ok();
        // SAFETY: the driver's header declares the functions of these names so.
        unsafe {
            Ok(Driver {
                symbols,
                error_name: std::mem::transmute::<*mut c_void, ErrorText>(error_name),
                error_text: std::mem::transmute::<*mut c_void, ErrorText>(error_text),
                record_all:
                    record_all.map(|address| {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn(Opaque, Opaque) -> c_int,
                        >(address)
                    }),
            })
        }
    }

    /// `cuCtxRecordEvent`; false if the driver has none.
    ///
    /// # Safety
    /// As the driver's documentation says.
    pub(super) unsafe fn record_all(&self, context: Opaque, event: Opaque) -> Result<bool> {
        let Some(record) = self.record_all else { return Ok(false) };
        // SAFETY: the caller's promise.
        self.check("cuCtxRecordEvent", unsafe { record(context, event) }).map(|()| true)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let advice = match (call, code) {
            ("cuMemAlloc_v2", OUT_OF_MEMORY) => {
                "; lower device_prefetch or batch_size, or drop batches sooner"
            }
            ("cuMemHostRegister_v2", ALREADY_REGISTERED) => "",
            ("cuMemHostRegister_v2", _) => {
                "; raise the limit of locked memory (ulimit -l), or set pin_memory=False"
            }
            _ => "",
        };
        Err(DeviceError::Call {
            call,
            code,
            name: self.describe(self.error_name, code),
            text: self.describe(self.error_text, code),
            advice,
        })
    }

    fn describe(&self, of: ErrorText, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: on success the driver stores the address of a text that is never freed.
        unsafe {
            if of(code, &mut text) == 0 && !text.is_null() {
                return CStr::from_ptr(text).to_string_lossy().into_owned();
            }
        }
        "unknown to the driver".to_owned()
    }
}

/// A shared library. It stays loaded: the driver starts threads of its own.
struct Library {
    name: String,
    handle: *mut c_void,
}

impl Library {
    fn open(name: &OsString) -> Result<Library> {
        let shown = name.to_string_lossy().into_owned();
        let failed = |reason: String| DeviceError::Library { library: shown.clone(), reason };
        let path = CString::new(name.as_bytes())
            .map_err(|_| failed("its name has a zero byte".to_owned()))?;
        // SAFETY: the path ends with a zero byte. Loading runs the library's own code, which is
        // what the user of a driver asks for.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the text is valid until this thread's next call of the loader.
            let reason = unsafe { libc::dlerror() };
            let reason = if reason.is_null() {
                "it cannot be loaded".to_owned()
            } else {
                // SAFETY: not null, and ends with a zero byte.
                unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
            };
            return Err(failed(reason));
        }
        Ok(Library { name: shown, handle })
    }

    fn find(&self, symbol: &str) -> Result<*mut c_void> {
        let missing = || DeviceError::Library {
            library: self.name.clone(),
            reason: format!("it has no {symbol}, so the driver is too old or no driver"),
        };
        let text = CString::new(symbol).map_err(|_| missing())?;
        // SAFETY: the library is loaded and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        if address.is_null() { Err(missing()) } else { Ok(address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_named() {
        let error = Driver::load(Some("libfeedline-has-none.so".into())).err().unwrap();
        assert!(error.to_string().contains("libfeedline-has-none.so"), "{error}");
        // Any library that is not a driver: the C library.
        let error = Driver::load(Some("libc.so.6".into())).err().unwrap();
        assert!(error.to_string().contains("libc.so.6"), "{error}");
        assert!(error.to_string().contains("it has no cu"), "{error}");
        assert!(Driver::load(Some(OsString::from("a\0b"))).is_err());
    }
}
