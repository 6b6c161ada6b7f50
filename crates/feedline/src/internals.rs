//! What only this project's own crates (command, pages, Python package), tests and benchmarks use.
//! It may change in any release.

pub mod output_file {
    pub use crate::output_file::{Replacement, append, create};
}

/// What a packed set says of itself.
pub mod catalog {
    pub use crate::catalog::{Catalog, PackedField, PackedKind};
}

pub mod decode {
    pub use crate::decode::{ColorMode, DecodeOptions, Decoder, probe};
    pub use crate::sample::image_format::{EXTENSIONS, ImageFormat};
}

pub mod device {
    pub mod cuda {
        pub use crate::deliver::device::cuda::{Cuda, preferred, problem};
    }
    pub use crate::deliver::device::measure::{Measured, copies, measure};
    pub use crate::deliver::device::{Event, PageLock};
}

/// Batches as DLPack tensors.
pub mod dlpack {
    pub use crate::deliver::batch::hash_arrays;
    pub use crate::deliver::dlpack::{
        CPU, CUDA, Handed, Managed, ManagedVersioned, VERSION, export, export_device,
    };
}

pub mod engine {
    pub use crate::engine::{
        Diagnose, Expectation, FieldFacts, Gain, Given, Inspect, Inspection, LoaderFeed,
        MOST_INFLATION, Mixing, Pack, PackOptions, Packed, Rate, Ready, Schedule, Seen,
        SourceFacts, Stages, Verify, Workbench, auto_workers, opening, transforms_until,
    };
}

pub mod image {
    pub use crate::image::{
        Excerpt, Image, Layout, PixelType, Pixels, Pointwise, Region, Scratch, View, convert,
    };
}

pub mod observe {
    pub use crate::observe::{Timeline, Usage, thread_cpu};
}

pub mod order {
    pub use crate::order::{MOST_EPOCHS, Permutation, Pick, Row, VERSION};
}

pub mod pack {
    pub use crate::pack::create;
    pub use crate::pack::files::check;
    pub use crate::pack::jpeg::{Encoder, Subsampling};
    pub use crate::pack::record::{Given, Record};
    pub use crate::pack::recut::Recutter;
    pub use crate::pack::shards::SHARD_BYTES;
    pub use crate::pack::temporary::TemporaryFolder;
}

pub mod random {
    pub use crate::random::{Draws, key};
}

pub mod source {
    pub use crate::source::{Opening, files_of, open};
}

pub mod spec {
    pub use crate::spec::file::{read_file, read_toml};
    pub use crate::spec::read::{parse_bytes, parse_duration, show_bytes, show_count};
    pub use crate::spec::show::{counted, show_percent, show_rate, show_time};
}

pub mod transform {
    pub use crate::transform::{Chain, ImageShape, Mix, Output};
}

pub mod tune {
    pub use crate::tune::{
        Advice, Budget, Cause, Ceilings, Controller, Diagnosis, Evidence, Executor, Feed, GoingOn,
        LEAST_MEMORY, Machine, MeasuredPart, Reading, Resource, Run, Spread, StageCost, StageRow,
        StallBar, TrainStep, Verdict, WorkerTime, Workload, cores, diagnose_feed, judge,
        judge_beside, measure, memory_available, next_limit, shell_word, stage_rows,
    };
}
