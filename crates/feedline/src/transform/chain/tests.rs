use super::super::lanes;
use super::*;
use crate::image::{Pixels, Pointwise, Scratch};
use serde_json::json;

fn ops(list: Value) -> Vec<OpSpec> {
    let Value::Array(list) = list else { panic!("a list of ops") };
    list.into_iter()
        .map(|op| {
            let Value::Object(mut params) = op else { panic!("an op") };
            let op = params.shift_remove("op").unwrap().as_str().unwrap().to_owned();
            OpSpec { op, params }
        })
        .collect()
}

fn chain(list: Value) -> Chain {
    Chain::build(&ops(list), Layout::Chw).unwrap()
}

fn run(chain: &Chain, pixels: Pixels<'_>, view: View) -> Vec<u8> {
    let pixel_type = match pixels {
        Pixels::U8(_) => PixelType::U8,
        Pixels::F32(_) => PixelType::F32,
    };
    let mut out = vec![0; chain.output(ImageShape::of(view), pixel_type).unwrap().bytes()];
    let mut scratch = Scratch::default();
    let mut image = Image::borrowed(&mut scratch, pixels, view).unwrap();
    chain.run(&mut image, 7, 3, &mut out).unwrap();
    let bound = chain.scratch(ImageShape::of(view), pixel_type);
    // Slabs are whole pages.
    assert!(scratch.held() <= bound + 2 * 4096, "{} held, {bound} announced", scratch.held());
    out
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

#[test]
fn mistakes_are_named() {
    let build = |list| Chain::build(&ops(list), Layout::Chw).unwrap_err().to_string();
    let error = build(json!([{"op": "ToDtype"}, {"op": "centercrop", "size": 3}]));
    assert!(error.starts_with("transforms[1].op = \"centercrop\": unknown op"), "{error}");
    assert!(error.ends_with("did you mean CenterCrop?"), "{error}");
    let error = build(json!([{"op": "Resize", "size": "big"}]));
    assert!(error.starts_with("transforms[0].size = \"big\""), "{error}");
    let error = build(json!([{"op": "Resize", "size": 3, "interpolate": "nearest"}]));
    assert!(error.contains("did you mean interpolation?"), "{error}");
    let error = build(json!([{"op": "CenterCrop"}]));
    assert!(error.starts_with("transforms[0].size: is missing"), "{error}");
    let error = build(json!([{"op": "CenterCrop", "sice": 3}]));
    assert_eq!(error, "transforms[0].sice = 3: unknown key; did you mean size?");
    for wrong in [
        json!({"op": "RandomCrop", "size": 0}),
        json!({"op": "RandomCrop", "size": [1, 2, 3]}),
        json!({"op": "RandomCrop", "size": 4, "padding": [1, 2, 3]}),
        json!({"op": "RandomHorizontalFlip", "p": 1.5}),
        json!({"op": "RandomResizedCrop", "size": 4, "scale": [0.5]}),
        json!({"op": "RandomResizedCrop", "size": 4, "ratio": [2.0, 1.0]}),
        json!({"op": "Resize", "size": 4, "max_size": 4}),
        json!({"op": "Resize", "size": 4, "interpolation": "lanczos", "antialias": false}),
        json!({"op": "Normalize", "mean": [0.0], "std": [0.0]}),
        json!({"op": "Normalize", "mean": [0.0, 1.0, 2.0], "std": [1.0, 1.0]}),
        json!({"op": "ToDtype", "dtype": "int64"}),
    ] {
        assert!(Chain::build(&ops(json!([wrong])), Layout::Chw).is_err(), "{wrong}");
    }
}

#[test]
fn normalising_integers_is_refused_with_advice() {
    let normalize = json!({"op": "Normalize", "mean": [0.5], "std": [0.5]});
    let chain = chain(json!([normalize]));
    assert!(chain.check(3, PixelType::F32).is_ok());
    let error = chain.check(3, PixelType::U8).unwrap_err().to_string();
    assert!(
        error.starts_with("transforms[0]") && error.contains("ToDtype(\"float32\", scale=True)"),
        "{error}"
    );
    let later = json!([{"op": "ToDtype", "dtype": "uint8"}, normalize]);
    assert!(Chain::build(&ops(later), Layout::Chw).is_err());
}

#[test]
fn the_manual_names_every_op() {
    let manual = include_str!("../../lib.rs");
    for (name, _) in OPS {
        assert!(manual.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn two_spellings_of_a_chain_are_equal() {
    let short = chain(json!([
        {"op": "CenterCrop", "size": 224},
        {"op": "RandomCrop", "size": [8], "padding": 2},
        {"op": "Resize", "size": 5},
        {"op": "ToDtype"},
        {"op": "Normalize", "mean": 1, "std": 2},
    ]));
    let long = chain(json!([
        {"op": "CenterCrop", "size": [224, 224]},
        {"op": "RandomCrop", "size": [8, 8], "padding": [2, 2, 2, 2], "fill": 0.0, "padding_mode": "constant"},
        {"op": "Resize", "size": [5], "antialias": true, "interpolation": "bilinear", "max_size": null},
        {"op": "ToDtype", "dtype": "float32", "scale": false},
        {"op": "Normalize", "mean": [1.0], "std": [2.0]},
    ]));
    assert_eq!(short.canonical(), long.canonical());
    let again = Chain::build(&short.canonical(), Layout::Chw).unwrap();
    assert_eq!(again.canonical(), short.canonical());
}

#[test]
fn the_size_is_known_before_running() {
    let shape = ImageShape { height: 375, width: 500, channels: 3 };
    let fixed = chain(
        json!([{"op": "Resize", "size": 256}, {"op": "CenterCrop", "size": [224, 200]}, {"op": "ToDtype"}]),
    );
    let output = fixed.fixed_output(3, PixelType::U8).unwrap();
    assert_eq!((output.shape.clone(), output.dtype), (vec![3, 224, 200], DType::F32));
    assert_eq!(fixed.output(shape, PixelType::U8).unwrap(), output);
    let open = chain(json!([{"op": "Resize", "size": 256}]));
    assert_eq!(open.fixed_output(3, PixelType::U8), None);
    assert_eq!(open.output(shape, PixelType::U8).unwrap().shape, [3, 256, 341]);
    let small = chain(json!([{"op": "RandomCrop", "size": 400}]));
    assert!(matches!(small.output(shape, PixelType::U8), Err(Fault::Shape(_))));
}

#[test]
fn fused_equals_stepwise() {
    let elements: Vec<u8> = (0..5 * 7 * 3).map(|i| (i * 37 % 256) as u8).collect();
    let normalize =
        json!({"op": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]});
    let fused = chain(json!([{"op": "ToDtype", "dtype": "float32", "scale": true}, normalize]));
    for view in [View::interleaved(5, 7, 3), View::planar(5, 7, 3)] {
        let got = floats(&run(&fused, Pixels::U8(&elements), view));
        let mut wanted = Vec::new();
        for c in 0..3 {
            for y in 0..5 {
                for x in 0..7 {
                    let scaled = f32::from(elements[view.at(y, x, c)]) * (1.0 / 255.0);
                    let (mean, std) = ([0.485f32, 0.456, 0.406][c], [0.229f32, 0.224, 0.225][c]);
                    wanted.push((scaled - mean) / std);
                }
            }
        }
        assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {wanted:?}");
    }
}

#[test]
fn pointwise_then_geometric_then_pointwise() {
    let elements = [10u8, 20, 30, 40];
    // Padding after scaling must be 0, not a scaled 0.
    let list = json!([
        {"op": "ToDtype", "dtype": "float32"},
        {"op": "Normalize", "mean": [10.0], "std": [10.0]},
        {"op": "CenterCrop", "size": 4},
        {"op": "Normalize", "mean": [-1.0], "std": [1.0]},
    ]);
    let got = floats(&run(&chain(list), Pixels::U8(&elements), View::interleaved(2, 2, 1)));
    assert_eq!(got, [1., 1., 1., 1., 1., 1., 2., 1., 1., 3., 4., 1., 1., 1., 1., 1.]);
    // Cut to integers in between: 0.9 becomes 0.
    let list = json!([{"op": "ToDtype", "dtype": "uint8"}, {"op": "ToDtype", "dtype": "float32"}]);
    assert_eq!(
        floats(&run(&chain(list), Pixels::F32(&[0.9, 1.9]), View::interleaved(1, 2, 1))),
        [0.0, 1.0]
    );
}

#[test]
fn a_flip_after_scaling_moves_no_pixel() {
    let list = json!([{"op": "ToDtype"}, {"op": "RandomHorizontalFlip", "p": 1.0}, {"op": "RandomVerticalFlip", "p": 1.0}]);
    let chain = chain(list);
    assert_eq!(chain.scratch(ImageShape { height: 2, width: 2, channels: 1 }, PixelType::U8), 0);
    assert_eq!(
        floats(&run(&chain, Pixels::U8(&[1, 2, 3, 4]), View::planar(2, 2, 1))),
        [4., 3., 2., 1.]
    );
}

#[test]
fn a_resize_of_any_view_is_the_resize_of_its_copy() {
    let (height, width) = (23, 31);
    for channels in [1, 3, 4] {
        let elements: Vec<u8> =
            (0..height * width * channels).map(|i| (i * i % 251) as u8).collect();
        for turn in 0..16 {
            let mut view = match turn & 1 {
                0 => View::interleaved(height, width, channels),
                _ => View::planar(height, width, channels),
            };
            view.crop(2, 3, 17, 21);
            if turn & 2 != 0 {
                view.flip_horizontal()
            }
            if turn & 4 != 0 {
                view.flip_vertical()
            }
            if turn & 8 != 0 {
                view.transpose()
            }
            let mut copy = vec![0; view.elements()];
            convert(
                Pixels::U8(&elements),
                view,
                &Pointwise::cast(DType::U8),
                Layout::Hwc,
                &mut copy,
            )
            .unwrap();
            let plain = View::interleaved(view.height, view.width, channels);
            for interpolation in ["nearest", "bilinear", "bicubic"] {
                for first in [json!({"op": "RandomVerticalFlip", "p": 0}), json!({"op": "ToDtype"})]
                {
                    let chain = chain(
                        json!([first, {"op": "Resize", "size": [9, 40], "interpolation": interpolation}, {"op": "ToDtype"}]),
                    );
                    let a = floats(&run(&chain, Pixels::U8(&elements), view));
                    let b = floats(&run(&chain, Pixels::U8(&copy), plain));
                    // A mirrored pass rounds its coefficients the other way round.
                    assert!(
                        a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1.0),
                        "{channels} {turn} {interpolation}"
                    );
                }
            }
        }
    }
}

/// What each op makes of a picture, by the code for any processor and by the wide one.
#[test]
fn golden_hashes_of_both_paths() {
    let (height, width) = (70, 93);
    let mut draws = Draws::new(1, 2, 3, 4);
    let bytes: Vec<u8> = (0..height * width * 3)
        .map(|i| ((i / 3 % width * 2 + i / 3 / width) as u64 + draws.below(90)).min(255) as u8)
        .collect();
    let scaled: Vec<f32> = bytes.iter().map(|x| f32::from(*x) / 255.0).collect();
    let golden: &[(Value, u64)] = &[
        (
            json!({"op": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}),
            0xfc20_b23c_e1f4_2fda,
        ),
        (json!({"op": "ColorJitter", "hue": [0.3, 0.3]}), 0x1270_3974_7d3e_8ad2),
        (json!({"op": "Grayscale"}), 0x8855_4563_5584_0976),
        (json!({"op": "RandomGrayscale", "p": 1}), 0x3e83_84bb_2498_587b),
        (json!({"op": "GaussianBlur", "kernel_size": [5, 9], "sigma": 1.5}), 0x8a46_7432_013d_ddfa),
        (json!({"op": "RandomErasing", "p": 1, "value": [1, 2, 3]}), 0x00ef_3ee0_6e06_93db),
        (json!({"op": "RandomErasing", "p": 1, "value": "random"}), 0xd091_8ffe_803b_e84d),
        (
            json!({"op": "RandomRotation", "degrees": [17, 17], "fill": [9, 8, 7]}),
            0x785f_d307_bf2a_d227,
        ),
        (
            json!({"op": "RandomRotation", "degrees": [17, 17], "interpolation": "bilinear", "expand": true}),
            0x742e_19f6_9572_5f52,
        ),
        (
            json!({"op": "RandomAffine", "degrees": 30, "translate": [0.1, 0.2], "scale": [0.7, 1.4], "shear": 10, "interpolation": "bilinear", "fill": 3}),
            0xf6e9_29e2_528f_0177,
        ),
        (
            json!({"op": "Pad", "padding": [1, 2, 3, 4], "padding_mode": "reflect"}),
            0x2615_6bc8_1741_333d,
        ),
        (json!({"op": "RandAugment", "num_ops": 30, "magnitude": 5}), 0x72ce_4551_3e42_24ae),
        (
            json!({"op": "RandAugment", "num_ops": 30, "magnitude": 5, "interpolation": "bilinear"}),
            0xf6d8_120d_c38c_2911,
        ),
        (json!({"op": "TrivialAugmentWide"}), 0x68c8_6827_d1e8_3489),
    ];
    let mut found = Vec::new();
    for (op, wanted) in golden {
        let chain = chain(json!([op]));
        let hash = |narrow: bool| {
            lanes::NARROW.set(narrow);
            let mut hash = 0;
            let (whole, planar) =
                (View::interleaved(height, width, 3), View::planar(height, width, 3));
            let mut flipped = whole;
            flipped.flip_horizontal();
            let mut turned = planar;
            turned.transpose();
            for view in [whole, planar, flipped, turned] {
                let made = run(&chain, Pixels::U8(&bytes), view);
                hash = xxhash_rust::xxh3::xxh3_64_with_seed(&made, hash);
                if chain.check(3, PixelType::F32).is_ok() {
                    let made = run(&chain, Pixels::F32(&scaled), view);
                    hash = xxhash_rust::xxh3::xxh3_64_with_seed(&made, hash);
                }
            }
            lanes::NARROW.set(false);
            hash
        };
        let (wide, narrow) = (hash(false), hash(true));
        assert_eq!(wide, narrow, "{op}");
        found.push((op.clone(), *wanted, wide));
    }
    let changed: Vec<_> = found.iter().filter(|(_, wanted, got)| wanted != got).collect();
    assert!(changed.is_empty(), "{changed:#x?}");
}

#[test]
fn new_mistakes_are_named() {
    for wrong in [
        json!({"op": "RandomRotation", "degrees": 30, "expand": true}),
        json!({"op": "GaussianBlur", "kernel_size": 2}),
        json!({"op": "RandAugment", "num_ops": 1_000_000}),
        json!({"op": "CutMix"}),
    ] {
        assert!(Chain::build(&ops(json!([wrong])), Layout::Chw).is_err(), "{wrong}");
    }
    let expands = json!([{"op": "RandomRotation", "degrees": 30, "expand": true}, {"op": "CenterCrop", "size": 20}]);
    let chain = chain(expands);
    assert_eq!(chain.fixed_output(3, PixelType::U8).unwrap().shape, [3, 20, 20]);
    let gray = Chain::build(
        &ops(json!([{"op": "CenterCrop", "size": 4}, {"op": "Grayscale"}, {"op": "ToDtype"}, {"op": "Normalize", "mean": [0.5], "std": [0.5]}])),
        Layout::Chw,
    )
    .unwrap();
    assert_eq!(gray.fixed_output(3, PixelType::U8).unwrap().shape, [1, 4, 4]);
}
