//! The main plots as files for papers: SVG with text as text, PNG at twice the size.
//!
//! They are drawn by `plotters`, on white, in the colours of the page's light theme. The font that
//! texts are measured with, and drawn with in PNG, is part of the crate: no system has to have one.

mod bars;
mod lines;
mod timeline;

use std::fmt;
use std::sync::OnceLock;

use crate::benchmark::Interval;
use feedline::internals::spec as numbers;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::findings::{Compared, MemoryLine, Recorded, Scaling, drawable};
use crate::report::Report;

/// A picture's kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Scalable, for print.
    Svg,
    /// Pixels, twice as many as the SVG's size says.
    Png,
}

/// A picture, ready to be written to a file.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The file's name without its folder.
    pub name: String,
    /// The file's content.
    pub content: Vec<u8>,
}

/// A picture could not be drawn.
#[derive(Debug)]
pub struct PictureError {
    picture: &'static str,
    reason: String,
}

impl fmt::Display for PictureError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot draw the picture {:?}: {}", self.picture, self.reason)
    }
}

impl std::error::Error for PictureError {}

/// What is drawn.
enum Plot<'a> {
    Configurations(Vec<(Compared<'a>, Interval)>),
    /// And whether there is a step, between which the trainer waits.
    Stall(&'a feedline::internals::tune::StallBar, bool),
    Throughput(Vec<Scaling>),
    Wait(Vec<Scaling>),
    Memory(Vec<MemoryLine<'a>>),
    Timeline(Recorded<'a>),
}

/// A name in a legend, and what stands before it.
struct Entry {
    name: String,
    colour: RGBColor,
    sample: Sample,
}

/// A piece of what the name stands for.
#[derive(Debug, Clone, Copy)]
enum Sample {
    Area,
    Line(Option<Dash>),
}

/// The length of a dash and of the gap after it, in pixels of the page.
type Dash = (f64, f64);

/// Where a plot is drawn, and how much larger than its size says.
struct Paper<'a, B: DrawingBackend> {
    area: &'a DrawingArea<B, Shift>,
    scale: f64,
    /// How far below its place a line of text must be put to stand in the middle: rows of pixels
    /// are counted from the font's highest mark, which few texts have.
    drop: i32,
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Sizes of text.
const SMALL: f64 = 13.5;
const NORMAL: f64 = 14.5;

const BLACK_TEXT: RGBColor = RGBColor(26, 29, 35);
const GRID: RGBColor = RGBColor(230, 232, 236);
/// Lines, in this order; those of the page's light theme.
const LINES: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(194, 84, 0),
    RGBColor(0, 131, 97),
    RGBColor(171, 76, 130),
    RGBColor(154, 101, 0),
    RGBColor(58, 124, 165),
    RGBColor(107, 114, 128),
    RGBColor(111, 75, 178),
];
/// Activities, in the order of `findings::ACTIVITIES`.
const ACTIVITY_COLOURS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(189, 122, 0),
    RGBColor(2, 138, 237),
    RGBColor(0, 158, 115),
    RGBColor(196, 106, 156),
    RGBColor(102, 95, 0),
    RGBColor(95, 101, 112),
];

impl<B: DrawingBackend> Paper<'_, B> {
    /// So many pixels of the page.
    fn px(&self, size: f64) -> i32 {
        (size * self.scale).round() as i32
    }

    fn text(&self, size: f64, colour: &RGBColor) -> TextStyle<'static> {
        ("sans-serif", size * self.scale).into_font().color(colour)
    }

    /// Writes a text whose middle is at the height of `at`.
    fn write(&self, text: String, at: (i32, i32), side: HPos, style: &TextStyle<'_>) -> Drawn<B> {
        let style = style.pos(Pos::new(side, VPos::Center));
        self.area.draw(&Text::new(text, (at.0, at.1 + self.drop), style))
    }

    fn line(&self, colour: RGBColor, width: f64) -> ShapeStyle {
        colour.stroke_width((width * self.scale).round().max(1.0) as u32)
    }

    /// The width of a text; a font that cannot measure it counts as half its height each.
    fn width(&self, text: &str, style: &TextStyle<'_>) -> i32 {
        let guess = (text.chars().count() as f64 * style.font.get_size() / 2.0) as u32;
        self.area.estimate_text_size(text, style).map_or(guess, |(width, _)| width) as i32
    }

    /// The text, without its middle if it is wider than `room`: names differ at their ends.
    fn cut(&self, text: &str, style: &TextStyle<'_>, room: i32) -> String {
        let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if self.width(&clean, style) <= room {
            return clean;
        }
        let letters: Vec<char> = clean.chars().collect();
        for kept in (2..letters.len().min(200)).rev() {
            let (head, tail) = (&letters[..kept.div_ceil(2)], &letters[letters.len() - kept / 2..]);
            let text: String = head.iter().chain(&['…']).chain(tail).collect();
            if self.width(&text, style) <= room {
                return text;
            }
        }
        "…".to_owned()
    }

    /// A line of a legend, drawn as the line of the plot is.
    fn line_sample(
        &self,
        from: (i32, i32),
        length: i32,
        style: ShapeStyle,
        dash: Option<Dash>,
    ) -> Drawn<B> {
        let (dash, gap) = dash.map_or((length, 0), |(dash, gap)| (self.px(dash), self.px(gap)));
        let (end, each) = (from.0 + length, (dash + gap).max(1));
        for begin in (from.0..end).step_by(each as usize) {
            let points = [(begin, from.1), ((begin + dash).min(end), from.1)];
            self.area.draw(&PathElement::new(points, style))?;
        }
        Ok(())
    }

    /// Samples with names in rows from `at`, within `room`; gives the height that they took.
    fn legend(
        &self,
        entries: &[Entry],
        at: (i32, i32),
        room: i32,
    ) -> Result<i32, DrawingAreaErrorKind<B::ErrorType>> {
        let style = self.text(SMALL, &BLACK_TEXT);
        let (mut x, mut y) = at;
        for Entry { name, colour, sample } in entries {
            let wide = self.px(match sample {
                Sample::Area => 12.0,
                Sample::Line(_) => 24.0,
            });
            let text_at = wide + self.px(6.0);
            let name = self.cut(name, &style, room - text_at - self.px(6.0));
            let width = text_at + self.width(&name, &style) + self.px(18.0);
            if x > at.0 && x + width - self.px(18.0) > at.0 + room {
                (x, y) = (at.0, y + self.px(19.0));
            }
            match sample {
                Sample::Area => {
                    let swatch = [(x, y + self.px(2.0)), (x + wide, y + self.px(13.0))];
                    self.area.draw(&Rectangle::new(swatch, colour.filled()))?;
                }
                Sample::Line(dash) => {
                    let from = (x, y + self.px(7.5));
                    self.line_sample(from, wide, self.line(*colour, 2.0), *dash)?;
                }
            }
            self.write(name, (x + text_at, y + self.px(7.5)), HPos::Left, &style)?;
            x += width;
        }
        Ok(y + self.px(19.0) - at.1)
    }
}

impl Plot<'_> {
    fn name(&self) -> &'static str {
        match self {
            Plot::Configurations(_) => "configurations",
            Plot::Stall(..) => "stall",
            Plot::Throughput(_) => "throughput",
            Plot::Wait(_) => "wait",
            Plot::Memory(_) => "memory",
            Plot::Timeline(_) => "timeline",
        }
    }

    fn size(&self) -> (u32, u32) {
        match self {
            Plot::Configurations(rows) => (720, 64 + 32 * rows.len() as u32),
            Plot::Stall(..) => (720, 116),
            Plot::Throughput(lines) | Plot::Wait(lines) => (480, 330 + 19 * lines.len() as u32),
            Plot::Memory(lines) => (720, 330 + 19 * (lines.len() as u32).div_ceil(3)),
            Plot::Timeline(recorded) => (720, 92 + timeline::height(recorded.run)),
        }
    }

    fn draw<B: DrawingBackend>(&self, paper: &Paper<'_, B>) -> Drawn<B> {
        paper.area.fill(&WHITE)?;
        match self {
            Plot::Configurations(rows) => bars::configurations(paper, rows),
            Plot::Stall(stall, has_step) => bars::stall(paper, stall, *has_step),
            Plot::Throughput(found) => lines::throughput(paper, found),
            Plot::Wait(found) => lines::wait(paper, found),
            Plot::Memory(found) => lines::memory(paper, found),
            Plot::Timeline(recorded) => timeline::first_seconds(paper, recorded.run),
        }?;
        paper.area.present()
    }

    fn picture(&self, format: Format) -> Result<Picture, PictureError> {
        let failed = |reason: String| PictureError { picture: self.name(), reason };
        let (width, height) = self.size();
        let content = match format {
            Format::Svg => {
                let mut text = String::new();
                {
                    let area =
                        SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
                    self.draw(&Paper { area: &area, scale: 1.0, drop: 0 })
                        .map_err(|e| failed(e.to_string()))?;
                }
                text.into_bytes()
            }
            Format::Png => {
                let (width, height) = (width * 2, height * 2);
                let mut pixels = vec![255; width as usize * height as usize * 3];
                {
                    let area = BitMapBackend::with_buffer(&mut pixels, (width, height))
                        .into_drawing_area();
                    self.draw(&Paper { area: &area, scale: 2.0, drop: 5 })
                        .map_err(|e| failed(e.to_string()))?;
                }
                encoded(&pixels, width, height).map_err(|e| failed(e.to_string()))?
            }
        };
        let ending = if format == Format::Svg { "svg" } else { "png" };
        Ok(Picture { name: format!("{}.{ending}", self.name()), content })
    }
}

fn encoded(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, png::EncodingError> {
    let mut content = Vec::new();
    let mut encoder = png::Encoder::new(&mut content, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // 192 dots an inch: the picture has the size of the SVG when it is put into a text.
    let dots = Some(png::PixelDimensions { xppu: 7559, yppu: 7559, unit: png::Unit::Meter });
    encoder.set_pixel_dims(dots);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(content)
}

/// Makes the font known to plotters, once.
fn font_is_ready() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    let register = |style| register_font("sans-serif", style, epaint_default_fonts::UBUNTU_LIGHT);
    *READY.get_or_init(|| register(FontStyle::Normal).is_ok())
}

impl Report<'_> {
    /// The main plots, as far as there is something to draw: configurations, stall, throughput,
    /// wait, memory, timeline.
    pub fn pictures(&self, format: Format) -> Result<Vec<Picture>, PictureError> {
        if !font_is_ready() {
            return Err(PictureError {
                picture: "text",
                reason: "the font cannot be read".to_owned(),
            });
        }
        let found = self.findings;
        let ran: Vec<_> = found
            .compared()
            .into_iter()
            .filter_map(|row| {
                let rate = drawable(row.summary?.samples_per_second)?;
                Some((row, rate))
            })
            .collect();
        let (scaling, memory) = (found.scaling(), found.memory());
        let has_step = found.has_step();
        let mut plots = Vec::new();
        if !ran.is_empty() {
            plots.push(Plot::Configurations(ran));
        }
        plots.extend(
            found.verdict().map(|found| &found.stall).map(|stall| Plot::Stall(stall, has_step)),
        );
        if !scaling.is_empty() {
            plots.push(Plot::Throughput(scaling.clone()));
            plots.extend(has_step.then_some(Plot::Wait(scaling)));
        }
        if !memory.is_empty() {
            plots.push(Plot::Memory(memory));
        }
        plots.extend(found.recorded().first().copied().map(Plot::Timeline));
        plots.iter().map(|plot| plot.picture(format)).collect()
    }
}

/// 12,345; a fraction only below ten.
fn show_count(value: f64) -> String {
    if value.abs() < 9.95 && value.fract().abs() > 1e-9 {
        return format!("{value:.1}");
    }
    let sign = if value < -0.5 { "-" } else { "" };
    format!("{sign}{}", numbers::show_count(value.abs().round_ties_even() as u64))
}

fn show_percent(share: f64) -> String {
    let digits = usize::from(share > 0.0 && share < 0.0995);
    format!("{:.digits$} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::ACTIVITIES;

    #[test]
    fn figures_for_people() {
        assert_eq!(
            [show_count(0.0), show_count(1234567.4), show_count(2.25)],
            ["0", "1,234,567", "2.2"]
        );
        assert_eq!(
            [show_percent(0.0), show_percent(0.004), show_percent(0.31)],
            ["0 %", "0.4 %", "31 %"]
        );
    }

    /// The colour of this name in a part of the stylesheet.
    fn colour(css: &str, name: &str) -> RGBColor {
        let (_, rest) = css.split_once(&format!("--{name}: #")).unwrap();
        let part = |place: usize| u8::from_str_radix(&rest[place..place + 2], 16).unwrap();
        RGBColor(part(0), part(2), part(4))
    }

    /// How light it is, as WCAG 2 counts.
    fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
        let linear = |part: u8| match f64::from(part) / 255.0 {
            part if part <= 0.03928 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    #[test]
    fn colours_of_activities_stand_out_from_the_panel() {
        let css = include_str!("../../web/base.css");
        let (light, dark) = css.split_once("data-theme=\"dark\"").unwrap();
        for (theme, css) in [("light", light), ("dark", dark)] {
            let panel = luminance(colour(css, "panel"));
            for (_, name) in ACTIVITIES {
                let own = luminance(colour(css, name));
                let contrast = (own.max(panel) + 0.05) / (own.min(panel) + 0.05);
                assert!(contrast >= 3.0, "{name} in the {theme} theme: {contrast:.2}");
            }
        }
        assert_eq!(ACTIVITIES.map(|(_, name)| colour(light, name)), ACTIVITY_COLOURS);
    }

    #[test]
    fn the_fonts_bytes_are_a_font() {
        assert!(font_is_ready());
    }
}
