//! Loops that are compiled twice: for any processor, and for AVX2 with fused multiply-add.
//!
//! Both give the same bits: Rust fuses nothing by itself, and `mul_add` rounds once on either
//! path. The colour ops use it where torch's own loops do, which is what makes them equal.

#![allow(unsafe_code)]

/// Functions whose bodies are compiled for wide lanes too, and chosen at run time.
macro_rules! lanes {
    ($($(#[$note:meta])* $sight:vis fn $name:ident $([$($generic:tt)*])?
        ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        $(#[$note])*
        #[allow(unsafe_code, clippy::too_many_arguments, clippy::needless_range_loop)]
        $sight fn $name $(<$($generic)*>)? ($($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn plain $(<$($generic)*>)? ($($arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide $(<$($generic)*>)? ($($arg: $type),*) $(-> $result)? {
                    plain($($arg),*)
                }
                if $crate::transform::lanes::wide() {
                    // SAFETY: the processor has what the function is compiled for.
                    return unsafe { wide($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    )*};
}
pub(super) use lanes;

/// Whether the wide versions can run here.
#[cfg(target_arch = "x86_64")]
pub(super) fn wide() -> bool {
    #[cfg(test)]
    if NARROW.get() {
        return false;
    }
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(test)]
thread_local! {
    /// Keeps a test's thread on the path for any processor.
    pub(super) static NARROW: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
