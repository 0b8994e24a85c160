//! Figures for a page that is read with the mouse, by plotly.js: its data and layout as JSON.

use super::style::{HUES, Mark, Style};
use super::{Axis, Figure, Quantity, Series, escape};
use plotly::color::Rgba;
use plotly::common::{
    ErrorData, ErrorType, Fill, HoverInfo, Line, Marker, MarkerSymbol, Mode, Orientation,
};
use plotly::layout::{Axis as PlotlyAxis, AxisType, HoverMode, Legend};
use plotly::{Layout, Plot, Scatter};

/// The script that draws them, as an element of a page: it needs no network.
pub fn script() -> String {
    // Behind it comes one for formulas, of which there are none.
    let scripts = Plot::offline_js_sources();
    let end = scripts.find("</script>").map_or(scripts.len(), |end| end + "</script>".len());
    scripts[..end].to_string()
}

impl Figure {
    /// Data and layout as JSON that can stand in an element of a page.
    pub fn interactive(&self) -> String {
        let mut plot = Plot::new();
        let template = self.hover();
        for series in &self.series {
            self.add(&mut plot, series, &template);
        }
        let legend = Legend::new().orientation(Orientation::Horizontal).y(-0.22).x(0.0);
        let layout = Layout::new().x_axis(axis(&self.x)).y_axis(axis(&self.y)).legend(legend);
        plot.set_layout(layout.hover_mode(HoverMode::Closest).show_legend(true));
        // Nothing in it ends the element that it stands in.
        plot.to_json().replace('<', "\\u003c")
    }

    /// What is shown of a point under the mouse.
    fn hover(&self) -> String {
        let value = |letter: char, axis: &Axis| {
            let [_, format, unit] = formats(axis.quantity);
            format!("{}: %{{{letter}:{format}}}{unit}", escape(&axis.title))
        };
        format!("{}<br>{}", value('y', &self.y), value('x', &self.x))
    }

    fn add(&self, plot: &mut Plot, series: &Series, template: &str) {
        let Style { hue, mark } = series.style;
        let [colour, _] = HUES[hue];
        let name = escape(&series.name);
        let mut around = ErrorData::new(ErrorType::Data).visible(false);
        if series.joined && !series.spread.is_empty() {
            let high = series.spread.iter().map(|[x, _, high]| (*x, *high));
            let low = series.spread.iter().rev().map(|[x, low, _]| (*x, low.max(self.y.ends[0])));
            let band = trace(&high.chain(low).collect::<Vec<_>>(), Mode::None);
            let fill = band.fill(Fill::ToSelf).fill_color(faint(colour)).legend_group(&name);
            plot.add_trace(fill.show_legend(false).hover_info(HoverInfo::Skip));
        } else if series.spread.len() == series.points.len() {
            let by = series.spread.iter().map(|[_, low, high]| (high - low) / 2.0).collect();
            around = ErrorData::new(ErrorType::Data).array(by).color(colour).width(0);
        }
        for stray in &series.strays {
            let line = Line::new().color(colour).width(1.0);
            let lone = trace(stray, Mode::Lines).name(&name).line(line).legend_group(&name);
            plot.add_trace(lone.show_legend(false).hover_template(template));
            let cross = Marker::new().symbol(MarkerSymbol::X).color(colour).size(9);
            let end = trace(&stray[stray.len().saturating_sub(1)..], Mode::Markers).name(&name);
            let end = end.marker(cross).legend_group(&name).show_legend(false);
            plot.add_trace(end.hover_template(format!("stopped here<br>{template}")));
        }
        let symbol = match mark {
            Mark::Circle => MarkerSymbol::Circle,
            Mark::Triangle => MarkerSymbol::TriangleUp,
            Mark::Square => MarkerSymbol::Square,
            Mark::Inverted => MarkerSymbol::TriangleDown,
            Mark::Diamond => MarkerSymbol::Diamond,
            Mark::Cross | Mark::None => MarkerSymbol::X,
        };
        let (mode, size) = match (series.joined, mark) {
            (_, Mark::None) => (Mode::Lines, 0),
            (true, _) => (Mode::LinesMarkers, 5),
            (false, _) => (Mode::Markers, 10),
        };
        let marker = Marker::new().symbol(symbol).color(colour).size(size);
        let line = Line::new().color(colour).width(if mark == Mark::None { 1.0 } else { 2.0 });
        let main = trace(&series.points, mode).name(&name).legend_group(&name).marker(marker);
        plot.add_trace(
            main.line(line).error_y(around).hover_template(template).clip_on_axis(false),
        );
    }
}

fn trace(points: &[(f64, f64)], mode: Mode) -> Box<Scatter<f64, f64>> {
    let (x, y) = points.iter().copied().unzip();
    Scatter::new(x, y).mode(mode)
}

/// A colour of which what is behind it shows through.
fn faint(colour: &str) -> Rgba {
    let part = |at: usize| u8::from_str_radix(&colour[at..at + 2], 16).unwrap_or(0);
    Rgba::new(part(1), part(3), part(5), 0.18)
}

/// How plotly.js writes a quantity at an axis, under the mouse, and the unit behind it.
fn formats(quantity: Quantity) -> [&'static str; 3] {
    match quantity {
        Quantity::Count => ["~s", ",", ""],
        Quantity::Number => ["", ".4~r", ""],
        Quantity::Fraction => [".3~p", ".2%", ""],
        Quantity::Bytes => ["~s", ".3~s", "B"],
        Quantity::Bandwidth => ["~s", ".3~s", "bit/s"],
        Quantity::Seconds => ["", ".3~r", " s"],
    }
}

fn axis(axis: &Axis) -> PlotlyAxis {
    let [format, _, unit] = formats(axis.quantity);
    let kind = if axis.logarithmic { AxisType::Log } else { AxisType::Linear };
    let ends = axis.ends.map(|end| if axis.logarithmic { end.log10() } else { end });
    let new = PlotlyAxis::new().title(escape(&axis.title)).type_(kind).range(ends.to_vec());
    let new = new.tick_suffix(unit).auto_margin(true).zero_line(false);
    if format.is_empty() { new } else { new.tick_format(format) }
}
