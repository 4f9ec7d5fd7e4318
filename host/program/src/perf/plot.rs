//! Latency and bandwidth against message size, one line per algorithm and protocol, as an SVG picture.
//!
//! The backend writes text as text, so it needs no fonts: who shows the picture brings them.

mod axis;

use std::fmt::Display;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::{CoordTranslate, Shift};
use plotters::element::{Circle, Cross, Rectangle, Text, TriangleMarker};
use plotters::prelude::{BindKeyPoints, DrawingArea, IntoDrawingArea, IntoLogRange};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, TextStyle, WHITE};

use crate::failure::Failure;

/// One line of each panel.
pub(super) struct Series {
    /// Algorithm and protocol, for the legend.
    pub(super) label: String,
    /// By ascending size.
    pub(super) points: Vec<Point>,
}

/// One measurement.
pub(super) struct Point {
    /// Size of the message; 0 has no place on a logarithmic axis and is left out.
    pub(super) bytes: u64,
    /// Time of one operation.
    pub(super) seconds: f64,
    /// Bus bandwidth, GB/s.
    pub(super) busbw: f64,
    /// Whether the selector takes this algorithm and protocol at this size.
    pub(super) chosen: bool,
}

/// The colours of Okabe and Ito, which colour-blind readers tell apart, without the yellow that is lost on white. Each of the
/// others is as far as can be from all before it, both as most readers see them and as red-green-blind ones do.
#[rustfmt::skip]
const COLOURS: [u32; 24] = [
    0x0072B2, 0xD55E00, 0x009E73, 0xE69F00, 0xCC79A7, 0x56B4E9, 0x000000,
    0x5A1E00, 0x2D0096, 0x690FFF, 0xA5005A, 0x87D296, 0x8778FF, 0x5A005A, 0x874B00, 0xD200B4, 0x005A69,
    0xFF4B69, 0x000FD2, 0x4B3C87, 0xFF78D2, 0x786987, 0xB4A596, 0xB44B4B,
];
const AXIS: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xE2, 0xE2, 0xE2);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

// All in pixels.
const WIDTH: i32 = 1240;
const PANEL_HEIGHT: i32 = 460;
const TITLE_LINE: i32 = 26;
const LEGEND_LINE: i32 = 24;
const MARGIN: i32 = 16;
/// Size of an ordinary point's marker.
const SMALL: i32 = 3;
/// Size of a chosen point's dot.
const LARGE: i32 = 7;

const LEGEND_COLUMNS: usize = 4;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One of the two plots of a picture.
struct Panel<'a> {
    name: &'a str,
    series: &'a [Series],
    sizes: Range<f64>,
    value: fn(&Point) -> f64,
}

/// Draws the series to an SVG file. The title may have several lines; the first is in bold.
///
/// # Errors
/// Where there is nothing to draw, or the file cannot be written. The table is printed by then, so neither loses what was
/// measured; and a picture that cannot be drawn leaves an older file as it was.
pub(super) fn draw(path: &Path, title: &str, series: &[Series]) -> Result<(), Failure> {
    let picture = render(title, series)?;
    fs::write(path, picture).map_err(|error| {
        let path = path.display();
        Failure::Failed(format!(
            "cannot write the plot to '{path}': {error}; the results above are complete, name a file for the plot that can \
             be written"
        ))
    })
}

/// The same while more is to come: a picture takes the place of the one before at once, whenever this process is stopped. What
/// is no file cannot be replaced, and what goes wrong is told by the last picture.
pub(super) fn draw_so_far(path: &Path, title: &str, series: &[Series]) {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let part = path.with_added_extension("part");
    if path.exists() && !path.is_file() {
        return;
    }
    if let Ok(picture) = render(title, series)
        && fs::write(&part, picture).and_then(|()| fs::rename(&part, &path)).is_err()
    {
        let _ = fs::remove_file(part);
    }
}

fn render(title: &str, series: &[Series]) -> Result<String, Failure> {
    let points = || series.iter().flat_map(drawable);
    let sizes = axis::ends(points().map(|point| point.bytes as f64));
    let times = axis::ends(points().map(microseconds));
    let (Some(sizes), Some(times)) = (sizes, times) else {
        return Err(Failure::Failed("there is nothing to plot: no message of a byte or more was measured".to_owned()));
    };
    let (sizes, times) = (axis::widen(sizes), axis::widen(times));
    let fastest = points().map(|point| point.busbw).fold(0.0, f64::max);
    // Where an operation has no bandwidth, the axis still has a length.
    let fastest = if fastest > 0.0 { fastest * 1.08 } else { 1.0 };

    let title_height = TITLE_LINE * title.lines().count() as i32 + MARGIN;
    // One entry more: what a large dot means.
    let legend_rows = (series.len() + 1).div_ceil(LEGEND_COLUMNS) as i32;
    let legend_height = LEGEND_LINE * legend_rows + MARGIN;
    let height = title_height + PANEL_HEIGHT + legend_height;

    let mut picture = String::new();
    {
        let area = SVGBackend::with_string(&mut picture, (WIDTH as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(undrawn)?;
        let (head, rest) = area.split_vertically(title_height);
        let (panels, foot) = rest.split_vertically(PANEL_HEIGHT);
        let (left, right) = panels.split_horizontally(WIDTH / 2);
        heading(&head, title)?;
        let latency = Panel { name: "latency (us)", series, sizes: sizes.clone(), value: microseconds };
        let marks = axis::decades(&times);
        latency.draw(&left, times.log_scale().with_key_points(marks))?;
        let bandwidth = Panel { name: "bus bandwidth (GB/s)", series, sizes, value: |point| point.busbw };
        bandwidth.draw(&right, 0.0..fastest)?;
        legend(&foot, series)?;
        area.present().map_err(undrawn)?;
    }
    Ok(picture)
}

impl Panel<'_> {
    fn draw<Y>(&self, area: &Area<'_>, values: Y) -> Result<(), Failure>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let marks = axis::powers_of_two(&self.sizes);
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(self.sizes.clone().log_scale().with_key_points(marks), values)
            .map_err(undrawn)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .label_style(text(15))
            .axis_desc_style(text(17))
            .x_desc("message size")
            .y_desc(self.name)
            .x_label_formatter(&axis::bytes)
            .y_label_formatter(&axis::plain)
            .y_labels(8)
            .draw()
            .map_err(undrawn)?;
        let place = |point: &Point| (point.bytes as f64, (self.value)(point));
        for (i, series) in self.series.iter().enumerate() {
            let line = LineSeries::new(drawable(series).map(place), colour(i).stroke_width(2));
            chart.draw_series(line).map_err(undrawn)?;
            for point in drawable(series) {
                mark(chart.plotting_area(), i, place(point))?;
            }
        }
        // Above all lines, so that none hides what was chosen.
        for (i, series) in self.series.iter().enumerate() {
            for point in drawable(series).filter(|point| point.chosen) {
                mark_chosen(chart.plotting_area(), colour(i), place(point))?;
            }
        }
        Ok(())
    }
}

fn heading(area: &Area<'_>, title: &str) -> Result<(), Failure> {
    for (i, line) in (0..).zip(title.lines()) {
        let style = if i == 0 { ("sans-serif", 24, FontStyle::Bold).into_font().color(&INK) } else { text(17) };
        let place = (WIDTH / 2, MARGIN + TITLE_LINE * i + TITLE_LINE / 2);
        area.draw(&Text::new(line, place, style.pos(Pos::new(HPos::Center, VPos::Center)))).map_err(undrawn)?;
    }
    Ok(())
}

/// What stands for what, in columns under both panels.
fn legend(area: &Area<'_>, series: &[Series]) -> Result<(), Failure> {
    let style = text(16).pos(Pos::new(HPos::Left, VPos::Center));
    let column = (WIDTH - 4 * MARGIN) / LEGEND_COLUMNS as i32;
    let labels = series.iter().map(|series| &*series.label).chain(["large dot: the selector's choice"]);
    for (i, label) in labels.enumerate() {
        let x = 4 * MARGIN + column * (i % LEGEND_COLUMNS) as i32;
        let y = LEGEND_LINE * (i / LEGEND_COLUMNS) as i32 + LEGEND_LINE / 2;
        if i < series.len() {
            let line = Rectangle::new([(x, y - 1), (x + 30, y + 1)], colour(i).filled());
            area.draw(&line).map_err(undrawn)?;
            mark(area, i, (x + 15, y))?;
        } else {
            mark_chosen(area, AXIS, (x + 15, y))?;
        }
        area.draw(&Text::new(label, (x + 40, y), style.clone())).map_err(undrawn)?;
    }
    Ok(())
}

/// An ordinary point. The shapes go round in threes.
fn mark<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, C>,
    series: usize,
    place: C::From,
) -> Result<(), Failure> {
    let colour = colour(series);
    match series % 3 {
        0 => area.draw(&Circle::new(place, SMALL, colour.filled())),
        1 => area.draw(&TriangleMarker::new(place, SMALL + 2, colour.filled())),
        _ => area.draw(&Cross::new(place, SMALL, colour.stroke_width(2))),
    }
    .map_err(undrawn)
}

/// A point that the selector takes.
fn mark_chosen<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, C>,
    colour: RGBColor,
    place: C::From,
) -> Result<(), Failure> {
    area.draw(&Circle::new(place, LARGE, colour.filled())).map_err(undrawn)
}

fn colour(series: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[series % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// The points that have a place on the axes.
fn drawable(series: &Series) -> impl Iterator<Item = &Point> {
    let positive = |value: f64| value > 0.0 && value.is_finite();
    let has_place = move |point: &&Point| point.bytes > 0 && positive(point.seconds) && point.busbw.is_finite();
    series.points.iter().filter(has_place)
}

fn microseconds(point: &Point) -> f64 {
    point.seconds * 1e6
}

fn undrawn(error: impl Display) -> Failure {
    Failure::Failed(format!("cannot draw the plot: {error}; the results above are complete"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use congruent_collectives::{Algorithm, Protocol};

    use super::*;

    /// Series as a cost model gives them: a start-up time and a bandwidth each.
    fn example() -> Vec<Series> {
        let models = [
            ("one-shot LL", 0.3e-6, 1.5e9),
            ("two-shot simple", 0.9e-6, 9e9),
            ("ring LL", 1.2e-6, 3e9),
            ("ring simple", 2.5e-6, 11e9),
            ("tree LL128", 1.0e-6, 4e9),
            ("tree simple", 2.1e-6, 7e9),
            ("recursive-doubling LL", 0.7e-6, 2e9),
            ("recursive-halving simple", 1.9e-6, 8e9),
        ];
        let seconds = |(_, latency, bandwidth): (&str, f64, f64), bytes: u64| latency + bytes as f64 / bandwidth;
        let series = models.into_iter().map(|model| Series {
            label: model.0.to_owned(),
            points: (2..=26)
                .map(|power| {
                    let bytes = 1 << power;
                    let mine = seconds(model, bytes);
                    let chosen = models.iter().all(|&other| mine <= seconds(other, bytes));
                    Point { bytes, seconds: mine, busbw: 1.5 * bytes as f64 / mine / 1e9, chosen }
                })
                .collect(),
        });
        series.collect()
    }

    fn texts(picture: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(picture).unwrap();
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
    }

    #[test]
    fn each_panel_has_a_line_for_each_series_with_its_label() {
        let series = example();
        let picture = render("all-reduce, 4 PEs as threads\nCPU, 2 cores", &series).unwrap();
        let document = roxmltree::Document::parse(&picture).unwrap();
        let lines: Vec<_> = document
            .descendants()
            .filter(|node| node.has_tag_name("polyline") && node.attribute("stroke-width") == Some("2"))
            .map(|node| node.attribute("points").unwrap().split_whitespace().count())
            .collect();
        assert_eq!(lines, vec![25; 2 * series.len()], "points of the lines");
        let dots = document.descendants().filter(|node| node.attribute("r") == Some(&*LARGE.to_string())).count();
        assert_eq!(dots, 2 * 25 + 1, "a choice at each size in each panel, and the legend's");
        let texts = texts(&picture);
        let expected = ["all-reduce, 4 PEs as threads", "CPU, 2 cores", "latency (us)", "bus bandwidth (GB/s)"];
        for label in series.iter().map(|series| &*series.label).chain(expected).chain(["4 B", "1 KiB", "64 MiB"]) {
            assert!(texts.iter().any(|text| text == label), "{label} is not in {texts:?}");
        }
    }

    #[test]
    fn no_two_lines_of_a_panel_share_a_colour() {
        let most = Algorithm::ALL.len() * Protocol::ALL.len();
        let point = |bytes| Point { bytes, seconds: 1e-6, busbw: 1.0, chosen: false };
        let series = |i: usize| Series { label: i.to_string(), points: vec![point(8), point(64)] };
        let picture = render("", &(0..most).map(series).collect::<Vec<_>>()).unwrap();
        let document = roxmltree::Document::parse(&picture).unwrap();
        let lines = document.descendants().filter(|node| node.has_tag_name("polyline"));
        let lines = lines.filter(|line| line.attribute("stroke-width") == Some("2"));
        let mut of_colours = BTreeMap::<_, usize>::new();
        for line in lines {
            *of_colours.entry(line.attribute("stroke")).or_default() += 1;
        }
        assert_eq!(of_colours.len(), most, "{of_colours:?}");
        assert!(of_colours.values().all(|&lines| lines == 2), "one in each panel: {of_colours:?}");
    }

    #[test]
    fn labels_may_hold_what_xml_reserves() {
        let point = || Point { bytes: 8, seconds: 1e-6, busbw: 0.0, chosen: false };
        let series = [Series { label: "<ring> & \"tree\"".to_owned(), points: vec![point()] }];
        let texts = texts(&render("a < b", &series).unwrap());
        assert!(texts.contains(&series[0].label) && texts.iter().any(|text| text == "a < b"), "{texts:?}");
    }

    #[test]
    fn points_without_a_place_are_left_out() {
        let point = |bytes, seconds, busbw| Point { bytes, seconds, busbw, chosen: true };
        let nowhere = || {
            let bandwidths = [f64::NAN, f64::INFINITY].map(|busbw| point(8, 1e-6, busbw));
            [point(0, 1e-6, 1.0), point(8, 0.0, 1.0), point(8, f64::NAN, 1.0)].into_iter().chain(bandwidths)
        };
        let series = |points| [Series { label: String::new(), points }];
        let picture = render("", &series(nowhere().chain([point(8, 2e-6, 1.0)]).collect())).unwrap();
        let dots = picture.matches(&format!("r=\"{LARGE}\"")).count();
        assert_eq!(dots, 2 + 1, "one in each panel, and the legend's");
        let refused = render("", &series(nowhere().collect())).unwrap_err();
        assert!(refused.to_string().contains("nothing to plot"), "{refused}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = std::env::temp_dir().join("congruent-no-such-folder").join("plot.svg");
        let refused = draw(&path, "title", &example()).unwrap_err().to_string();
        assert!(refused.contains(&*path.to_string_lossy()) && refused.contains("results above"), "{refused}");
    }
}
