//! Images in files of their own, and what describes them: folders, tables of paths, packed sets.

pub(in crate::source) mod folder;
pub(in crate::source) mod manifest;
pub(in crate::source) mod packed;
pub(in crate::source) mod raw;
