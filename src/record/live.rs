//! Curves in the terminal while a run trains: the training loss beside the test accuracy.

use super::event::{Epoch, Step};
use textplots::{Chart, LabelBuilder, LabelFormat, Plot, Shape, TickDisplay, TickDisplayBuilder};

/// Rows of a plot without its title and the labels under it.
const ROWS: usize = 6;
/// The fewest columns and rows of a terminal that has room for plots beside everything else.
const ROOM: [u16; 2] = [64, 20];
/// The most columns of one plot, and those of them that are its labels'.
const WIDEST: usize = 56;
const LABELS: usize = 8;
/// Points that are kept of a curve: of more, neighbours become one.
const KEPT: usize = 1024;
/// Dots of a character in braille: columns, rows.
const DOTS: [usize; 2] = [2, 4];

/// What has been seen of a run.
#[derive(Default)]
pub(super) struct Curves {
    loss: Vec<(f32, f32)>,
    /// Steps that one point of `loss` stands for, and the point that is being added up: its steps,
    /// its sum.
    stride: u64,
    open: (u64, f64),
    accuracy: Vec<(f32, f32)>,
}

impl Curves {
    pub(super) fn step(&mut self, step: &Step) {
        let (steps, sum) = (self.open.0 + 1, self.open.1 + step.loss);
        if steps < self.stride {
            self.open = (steps, sum);
            return;
        }
        self.open = (0, 0.0);
        self.loss.push((step.step as f32, (sum / steps as f64) as f32));
        if self.loss.len() > KEPT {
            let half = |pair: &[(f32, f32)]| (pair[pair.len() - 1].0, mean(pair));
            self.loss = self.loss.chunks(2).map(half).collect();
            self.stride = 2 * self.stride.max(1);
        }
    }

    pub(super) fn epoch(&mut self, epoch: &Epoch) {
        if let Some(accuracy) = epoch.test_accuracy {
            self.accuracy.push((epoch.step as f32, 100.0 * accuracy as f32));
        }
    }

    /// The plots of a run of `steps` steps, each line ended, for a terminal of that many columns and
    /// rows; nothing where there is no room, or nothing to see yet.
    pub(super) fn draw(&self, steps: u64, columns: u16, rows: u16) -> String {
        if columns < ROOM[0] || rows < ROOM[1] || self.loss.len() < 2 {
            return String::new();
        }
        let width = (usize::from(columns) / 2 - 2).min(WIDEST);
        let loss = plot("training loss", &self.loss, steps, width);
        let accuracy = match self.accuracy.len() {
            0 | 1 => Vec::new(),
            _ => plot("test accuracy, %", &self.accuracy, steps, width),
        };
        let beside = |i: usize| accuracy.get(i).map_or("", String::as_str);
        let lines = loss.iter().enumerate().map(|(i, left)| {
            let gap = " ".repeat((width + 2).saturating_sub(console::measure_text_width(left)));
            format!("{left}{gap}{}", beside(i)).trim_end().to_string() + "\n"
        });
        lines.collect()
    }
}

fn mean(points: &[(f32, f32)]) -> f32 {
    points.iter().map(|point| point.1).sum::<f32>() / points.len() as f32
}

/// A title, a plot and the labels under it, `width` columns wide.
fn plot(title: &str, points: &[(f32, f32)], steps: u64, width: usize) -> Vec<String> {
    let dots = [(width - LABELS) * DOTS[0], ROWS * DOTS[1] - 1].map(|dots| dots as u32);
    // As many points as there are dots, each the mean of its neighbours: noise would fill the plot.
    let each = points.len().div_ceil(dots[0] as usize / 2).max(1);
    let thinned = points.chunks(each).map(|some| (some[some.len() - 1].0, mean(some)));
    let finite: Vec<(f32, f32)> = thinned.filter(|point| point.1.is_finite()).collect();
    let values = || finite.iter().map(|point| point.1);
    let (low, high) = (values().fold(f32::MAX, f32::min), values().fold(f32::MIN, f32::max));
    if low > high {
        return vec![title.to_string()];
    }
    let room = (high - low).max(1e-3 * high.abs()).max(1e-6);
    let line = Shape::Lines(&finite);
    let mut chart = Chart::new_with_y_range(dots[0], dots[1], 0.0, steps as f32, low, low + room);
    let chart = chart
        .lineplot(&line)
        .x_label_format(LabelFormat::Custom(Box::new(|step| format!("{step:.0}"))))
        .y_label_format(LabelFormat::Custom(Box::new(|value| format!("{value:.2}"))))
        .y_tick_display(TickDisplay::None);
    chart.axis();
    chart.figures();
    let drawn = chart.to_string();
    let lines = drawn.lines().map(str::to_string);
    [title.to_string()].into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: u64) -> Curves {
        let mut curves = Curves::default();
        for step in 1..=steps {
            let loss = 2.0 / step as f64;
            curves.step(&Step { step, loss, ..Step::default() });
            if step % (steps / 4) == 0 {
                let test_accuracy = Some(step as f64 / steps as f64);
                curves.epoch(&Epoch { step, test_accuracy, ..Epoch::default() });
            }
        }
        curves
    }

    #[test]
    fn both_curves_stand_side_by_side_within_the_terminal() {
        for columns in [64, 80, 140] {
            let drawn = run(400).draw(400, columns, 24);
            let lines: Vec<&str> = drawn.lines().collect();
            assert_eq!(lines.len(), 1 + ROWS + 1, "{drawn}");
            assert!(lines[0].starts_with("training loss"), "{drawn}");
            assert!(lines[0].ends_with("test accuracy, %"), "{drawn}");
            let widest = lines.iter().map(|line| console::measure_text_width(line)).max();
            assert!(widest.unwrap() <= usize::from(columns), "{drawn}");
            // Down from the left, and up to the right.
            assert!(lines[1].contains("100.00") && lines[6].contains("25.00"), "{drawn}");
            assert!(lines[7].contains('0') && lines[7].ends_with("400"), "{drawn}");
        }
    }

    #[test]
    fn without_room_or_points_there_is_nothing() {
        assert_eq!(run(400).draw(400, 80, 19), "");
        assert_eq!(run(400).draw(400, 63, 24), "");
        assert_eq!(Curves::default().draw(400, 80, 24), "");
    }

    #[test]
    fn a_long_run_takes_no_more_memory_than_a_short_one() {
        let curves = run(1_000_000);
        assert!(curves.loss.len() <= KEPT, "{}", curves.loss.len());
        let last = curves.loss.last().unwrap().0;
        assert!(last > 990_000.0, "{last}");
        // Means of neighbours, and not one of them.
        let (step, loss) = curves.loss[curves.loss.len() / 2];
        assert!((loss * step - 2.0).abs() < 0.1, "{step} {loss}");
    }

    #[test]
    fn losses_that_are_no_numbers_are_passed_over() {
        let mut curves = run(40);
        curves.step(&Step { step: 41, loss: f64::NAN, ..Step::default() });
        assert!(curves.draw(50, 80, 24).starts_with("training loss"));
        let mut none = Curves::default();
        for step in 1..4 {
            none.step(&Step { step, loss: f64::INFINITY, ..Step::default() });
        }
        assert_eq!(none.draw(4, 80, 24), "training loss\n");
    }
}
