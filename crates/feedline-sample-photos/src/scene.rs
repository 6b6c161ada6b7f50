//! One photograph: sky, ground and objects that hide one another.
//!
//! Objects of all sizes that occlude each other ("dead leaves", with as much area in each octave
//! of sizes) give photographs their 1/f amplitude spectrum together with hard edges; the grain of
//! the materials continues it down to single pixels.

use super::noise::{Field, direction, wave};
use super::style::{Colour, Pattern, Shape, Style};
use crate::draws::Draws;

/// Paints photographs, one after another, into the same buffers.
#[derive(Debug, Default)]
pub(super) struct Painter {
    field: Field,
    canvas: Vec<Colour>,
    bytes: Vec<u8>,
    width: usize,
    height: usize,
}

/// The light and the lens of one photograph.
struct Look {
    /// Where the light comes from: right, down, towards the viewer.
    light: [f32; 3],
    /// Strength of all grain.
    detail: f32,
    /// Texels per pixel: below 1 for large photographs, which resolve the same things finer.
    step: f32,
    /// Geometric mean of the sides.
    extent: f32,
}

/// One thing in the photograph.
struct Object {
    shape: Shape,
    centre: (f32, f32),
    radii: (f32, f32),
    turn: f32,
    colour: Colour,
    accent: Colour,
    pattern: Pattern,
    /// Cycles of the pattern across half the object.
    frequency: f32,
    /// Direction of the grain in turns, and how much it is stretched along it.
    grain: f32,
    stretch: f32,
    contrast: f32,
    /// 0 is a flat card, 1 a ball.
    roundness: f32,
    /// Width of the edge in pixels: things out of focus have soft ones.
    softness: f32,
    wobble: f32,
}

impl Painter {
    /// The RGB bytes of a photograph of `style`. `scale` is 1 for photographs 500 pixels wide.
    pub(super) fn paint(
        &mut self,
        style: Style,
        width: usize,
        height: usize,
        scale: f32,
        draws: &mut Draws,
    ) -> &[u8] {
        (self.width, self.height) = (width, height);
        self.canvas.clear();
        self.canvas.resize(width * height, [0.0; 3]);
        // 2048 texels are enough for any size: larger photographs sample them more finely.
        self.field.fill(width.max(height).clamp(256, 2048).next_power_of_two(), draws);
        let (across, up) = direction(real(draws, 0.5, 1.0));
        let look = Look {
            light: [across * 0.7, up * 0.7, 0.7],
            detail: real(draws, 0.45, 1.0) * real(draws, 0.8, 1.5),
            step: 1.0 / scale.max(1.0).sqrt(),
            extent: ((width * height) as f32).sqrt(),
        };
        let surroundings = [mixed(random_colour(draws), style.accent, 0.35), random_colour(draws)];
        self.paint_background(surroundings, &look, draws);
        let things = 40 + draws.below(220);
        let subjects = 1 + draws.below(3);
        for number in 0..things {
            let object = self.bystander(surroundings, &look, draws);
            self.paint_object(&object, &look, draws);
            // The subjects come late, so that only a few small things hide parts of them.
            if number + 6 + subjects >= things && number + 6 < things {
                let object = self.subject(style, &look, draws);
                self.paint_object(&object, &look, draws);
            }
        }
        self.develop(&look, draws)
    }

    fn subject(&self, style: Style, look: &Look, draws: &mut Draws) -> Object {
        let radius = look.extent * real(draws, 0.12, 0.30);
        Object {
            shape: style.shape,
            centre: (
                self.width as f32 * real(draws, 0.2, 0.8),
                self.height as f32 * real(draws, 0.25, 0.75),
            ),
            radii: (radius, radius * real(draws, 0.75, 1.0)),
            turn: real(draws, -0.06, 0.06),
            colour: varied(style.colour, 0.08, draws),
            accent: varied(style.accent, 0.08, draws),
            pattern: style.pattern,
            frequency: real(draws, 2.0, 3.5),
            grain: style.grain + real(draws, -0.03, 0.03),
            stretch: real(draws, 0.3, 0.6),
            contrast: real(draws, 0.2, 0.4),
            roundness: real(draws, 0.3, 1.0),
            softness: real(draws, 0.9, 1.6),
            wobble: real(draws, 0.0, 0.05),
        }
    }

    fn bystander(&self, surroundings: [Colour; 2], look: &Look, draws: &mut Draws) -> Object {
        // As much area in every octave of radii: the density of radii falls with their cube.
        let (least, most) = (0.012_f32, 0.32_f32);
        let part = real(draws, 0.0, 1.0) * (1.0 - (least / most) * (least / most));
        let radius = look.extent * least / (1.0 - part).sqrt() * real(draws, 1.0, 2.2);
        let base = mixed(surroundings[0], surroundings[1], real(draws, 0.0, 1.0));
        let light = real(draws, 0.35, 1.45);
        let colour = varied(base.map(|channel| channel * light), 0.10, draws);
        Object {
            shape: if draws.chance(0.5) { Shape::Disc } else { Shape::number(draws.below(10)) },
            centre: (
                self.width as f32 * real(draws, -0.05, 1.05),
                self.height as f32 * real(draws, -0.05, 1.05),
            ),
            radii: (radius, radius * real(draws, 0.35, 1.0)),
            turn: real(draws, 0.0, 1.0),
            colour,
            accent: varied(colour, 0.2, draws),
            pattern: Pattern::Plain,
            frequency: 1.0,
            grain: real(draws, 0.0, 1.0),
            stretch: real(draws, 0.3, 1.0),
            contrast: real(draws, 0.05, 0.55),
            roundness: real(draws, 0.0, 1.0),
            softness: real(draws, 0.8, 1.8)
                + if draws.chance(0.25) { real(draws, 1.0, 6.0) } else { 0.0 },
            wobble: real(draws, 0.0, 0.14),
        }
    }

    fn paint_background(&mut self, colours: [Colour; 2], look: &Look, draws: &mut Draws) {
        let (width, height) = (self.width, self.height as f32);
        let horizon = height * real(draws, 0.25, 0.75);
        let sky = mixed(colours[0], [0.72, 0.80, 0.90], real(draws, 0.2, 0.8));
        let zenith = sky.map(|channel| channel * 0.7);
        let (ground, far) = (colours[1], mixed(colours[1], sky, 0.6));
        let (clouds, soil) =
            (real(draws, 0.03, 0.2) * look.detail, real(draws, 0.15, 0.45) * look.detail);
        let origin = (draws.bits() as i32, draws.bits() as i32);
        for (y, row) in self.canvas.chunks_exact_mut(width).enumerate() {
            let above = horizon - y as f32;
            // The ground is seen in perspective: towards the horizon its grain shrinks to a texel
            // per pixel at most, and fades.
            let nearness = (-above / (height - horizon + 1.0)).clamp(0.0, 1.0);
            let (step, down, from, to, part, contrast) = if above > 0.0 {
                (0.6, y as f32 * 0.8, sky, zenith, above / horizon, clouds)
            } else {
                (
                    1.0 - 0.6 * nearness,
                    320.0 / (nearness + 0.25),
                    far,
                    ground,
                    nearness,
                    soil * (0.3 + nearness),
                )
            };
            let colour = mixed(from, to, part);
            let (step, down) =
                (fixed(step * look.step), origin.1.wrapping_add(fixed(down * look.step)));
            let mut along = origin.0.wrapping_add(step.wrapping_mul(width as i32 / -2));
            for pixel in row {
                let gain = 1.0 + contrast * self.field.at(along, down);
                *pixel = colour.map(|channel| channel * gain);
                along = along.wrapping_add(step);
            }
        }
    }

    fn paint_object(&mut self, object: &Object, look: &Look, draws: &mut Draws) {
        let (radius, narrow) = object.radii;
        if radius > look.extent * 0.04 {
            self.cast_shadow(object, look);
        }
        let (cosine, sine) = direction(object.turn);
        let origin = (draws.bits() as i32, draws.bits() as i32);
        let (grain_cosine, grain_sine) = direction(object.grain);
        // Down the grain the texture is stretched, across it it is as fine as the pixels.
        let (fine, coarse) = (look.step, look.step * object.stretch);
        let along = (fixed(grain_cosine * coarse), fixed(grain_sine * coarse));
        let across = (fixed(-grain_sine * fine), fixed(grain_cosine * fine));
        // Light in the object's own axes.
        let light_u = look.light[0] * cosine + look.light[1] * sine;
        let light_v = look.light[1] * cosine - look.light[0] * sine;
        let flat = 0.55 + 0.6 * look.light[2];
        let sharpness = narrow / object.softness;
        let contrast = object.contrast * look.detail;
        let (rows, columns) = self.bounds(object.centre, object.radii, (cosine, sine), 1.2);
        for y in rows {
            let dy = y as f32 + 0.5 - object.centre.1;
            for x in columns.clone() {
                let dx = x as f32 + 0.5 - object.centre.0;
                let u = (cosine * dx + sine * dy) / radius;
                let v = (cosine * dy - sine * dx) / narrow;
                let (column, line) = (x as i32, y as i32);
                let level = object.shape.level(u, v);
                if level > 1.35 {
                    continue;
                }
                let texel_x = along.0.wrapping_mul(column).wrapping_add(along.1.wrapping_mul(line));
                let texel_y =
                    across.0.wrapping_mul(column).wrapping_add(across.1.wrapping_mul(line));
                let (texel_x, texel_y) =
                    (texel_x.wrapping_add(origin.0), texel_y.wrapping_add(origin.1));
                let broad = self.field.at((texel_x >> 3).wrapping_add(origin.1), texel_y >> 3);
                let level = level + object.wobble * broad;
                let cover = ((1.0 - level) * sharpness + 0.5).clamp(0.0, 1.0);
                if cover <= 0.0 {
                    continue;
                }
                let texture = self.field.at(texel_x, texel_y);
                let painted = match object.pattern {
                    Pattern::Plain => 0.5 + 0.35 * broad,
                    Pattern::Stripes => 0.5 + 2.0 * wave(u * object.frequency + 0.08 * broad),
                    Pattern::Spots => {
                        4.0 * wave(u * object.frequency) * wave(v * object.frequency) - 0.6
                    }
                    Pattern::Rings => 0.5 + 2.0 * wave((u * u + v * v).sqrt() * object.frequency),
                };
                let bulge = (1.0 - (u * u + v * v).min(1.0)).sqrt();
                let lit = 0.5 + 0.6 * (light_u * u + light_v * v + look.light[2] * bulge).max(-0.4);
                let gain = (flat + (lit - flat) * object.roundness) * (1.0 + contrast * texture);
                let colour = mixed(object.colour, object.accent, painted.clamp(0.0, 1.0));
                let glance = (lit - 0.85).max(0.0) * object.roundness;
                let pixel = &mut self.canvas[y * self.width + x];
                for (channel, value) in pixel.iter_mut().zip(colour) {
                    *channel += (value * gain + glance * glance * 4.0 - *channel) * cover;
                }
            }
        }
    }

    /// Darkens what lies behind an object, away from the light.
    fn cast_shadow(&mut self, object: &Object, look: &Look) {
        let (cosine, sine) = direction(object.turn);
        let reach = object.radii.1 * 0.35;
        let centre =
            (object.centre.0 - look.light[0] * reach, object.centre.1 - look.light[1] * reach);
        let (rows, columns) = self.bounds(centre, object.radii, (cosine, sine), 1.2);
        for y in rows {
            let dy = y as f32 + 0.5 - centre.1;
            let row = &mut self.canvas[y * self.width..][columns.clone()];
            for (pixel, x) in row.iter_mut().zip(columns.clone()) {
                let dx = x as f32 + 0.5 - centre.0;
                let u = (cosine * dx + sine * dy) / object.radii.0;
                let v = (cosine * dy - sine * dx) / object.radii.1;
                let dark = (1.35 - (u * u + v * v)).clamp(0.0, 1.0);
                let gain = 1.0 - 0.45 * dark * dark;
                *pixel = pixel.map(|channel| channel * gain);
            }
        }
    }

    /// Rows and columns that a turned object can touch; `margin` is for shapes that reach beyond
    /// the ellipse of their radii.
    fn bounds(
        &self,
        centre: (f32, f32),
        radii: (f32, f32),
        (cosine, sine): (f32, f32),
        margin: f32,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let half =
            |first: f32, second: f32| (first * first + second * second).sqrt() * margin + 2.0;
        let half_width = half(radii.0 * cosine, radii.1 * sine);
        let half_height = half(radii.0 * sine, radii.1 * cosine);
        let range = |centre: f32, half: f32, side: usize| {
            let start = (centre - half).max(0.0) as usize;
            let end = ((centre + half).max(0.0) as usize).min(side);
            start.min(end)..end
        };
        (range(centre.1, half_height, self.height), range(centre.0, half_width, self.width))
    }

    /// Lens and sensor: darker corners, exposure, a little noise, 8 bits.
    fn develop(&mut self, look: &Look, draws: &mut Draws) -> &[u8] {
        let exposure = real(draws, 0.75, 1.15) * 255.0;
        let noise = real(draws, 0.2, 3.2) * look.step / 127.5;
        let corners = real(draws, 0.0, 0.35);
        let (width, height) = (self.width as f32, self.height as f32);
        self.bytes.resize(self.canvas.len() * 3, 0);
        let rows =
            self.bytes.chunks_exact_mut(self.width * 3).zip(self.canvas.chunks_exact(self.width));
        for (y, (bytes, row)) in rows.enumerate() {
            let down = y as f32 / height - 0.5;
            let mut grains = [0_u8; 4];
            for (x, (rgb, pixel)) in bytes.chunks_exact_mut(3).zip(row).enumerate() {
                if x % 4 == 0 {
                    grains = draws.bits().to_le_bytes();
                }
                let along = x as f32 / width - 0.5;
                let gain = exposure * (1.0 - corners * (along * along + down * down));
                let grain = (f32::from(grains[x % 4]) - 127.5) * noise;
                for (byte, channel) in rgb.iter_mut().zip(pixel) {
                    // A float to integer cast saturates.
                    *byte = (channel * gain + grain + 0.5) as u8;
                }
            }
        }
        &self.bytes
    }
}

fn real(draws: &mut Draws, low: f32, high: f32) -> f32 {
    draws.uniform(f64::from(low), f64::from(high)) as f32
}

fn mixed(from: Colour, to: Colour, part: f32) -> Colour {
    std::array::from_fn(|channel| from[channel] + (to[channel] - from[channel]) * part)
}

fn varied(colour: Colour, amount: f32, draws: &mut Draws) -> Colour {
    colour.map(|channel| (channel + real(draws, -amount, amount)).clamp(0.02, 1.0))
}

/// Mostly earthy and greyish, as surroundings are.
fn random_colour(draws: &mut Draws) -> Colour {
    let grey = real(draws, 0.2, 0.75);
    let warmth = real(draws, -0.12, 0.18);
    let green = real(draws, -0.08, 0.12);
    [grey + warmth, grey + green, grey - warmth].map(|channel: f32| channel.clamp(0.03, 0.97))
}

/// With 16 fractional bits.
fn fixed(value: f32) -> i32 {
    (value * 65536.0) as i32
}
