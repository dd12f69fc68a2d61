//! A step as a picture: a row for each thread, a box for each launch, and the time it waits.

use super::{measure::us, report::Bucket};
use codegen_cpu::device::Span;
use std::fmt::Write;

/// Pixels. A step goes over as many lines as it needs for its launches to be seen.
const LINE: f64 = 1500.0;
const LEFT: f64 = 90.0;
const ROW: f64 = 26.0;
const AXIS: f64 = 22.0;
const LEGEND: f64 = 18.0;
/// The width of a launch that is shorter than half of them.
const MIDDLE: f64 = 7.0;
/// About the most lines.
const MOST_LINES: f64 = 40.0;
/// The width of a letter, at most.
const LETTER: f64 = 6.2;
/// Colours of the kernels that take the longest; the others have the last one.
const COLOURS: [&str; 11] = [
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#ff9da7", "#9c755f",
    "#e15759", "#8cd17d", "#79706e",
];

/// The steps of `buckets`, one below the other.
pub(super) fn svg(buckets: &[Bucket]) -> String {
    let mut body = String::new();
    let mut top = 10.0;
    for bucket in buckets {
        top = Drawing { bucket, out: &mut body }.draw(top) + 30.0;
    }
    let width = LEFT + LINE + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{top}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>.wait{{fill:#ccc}}.in{{fill:#fff;pointer-events:none}}</style>\n\
         <rect width=\"{width}\" height=\"{top}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// A step that is drawn.
struct Drawing<'a> {
    bucket: &'a Bucket,
    out: &'a mut String,
}

impl Drawing<'_> {
    /// Draws below `top`; returns where it ends.
    fn draw(&mut self, mut top: f64) -> f64 {
        let (b, t) = (self.bucket, &self.bucket.typical);
        let head = format!(
            "{}: {} rows, context {}, {:.3} ms, {} launches; boxes are work, grey is waiting for the \
             other threads, times are in us",
            b.plan,
            b.rows,
            b.context,
            b.timed_step_us / 1e3,
            b.launches.len()
        );
        self.text((10.0, top + 14.0), "font-size=\"14\"", &head);
        top += 24.0;
        for (i, kind) in b.kinds.iter().enumerate() {
            let (colour, share) = (colour(i), kind.part.us / b.total.us * 100.0);
            self.push(&format!(
                "<rect x=\"10\" y=\"{top:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
            ));
            let text = format!("{share:.1}%, {} launches: {}", kind.launches, kind.kernel);
            self.text((28.0, top + 10.0), "", &text);
            top += LEGEND;
        }
        top += 8.0;
        for line in self.lines() {
            self.axis(&line, top);
            for thread in 0..t.threads() {
                let y = top + AXIS + thread as f64 * ROW;
                self.text((10.0, y + ROW / 2.0 + 4.0), "", &format!("thread {thread}"));
                for launch in line.launches.clone() {
                    if let Some(span) = t.launch(launch).nth(thread) {
                        self.launch(&line, launch, (thread, span), y);
                    }
                }
            }
            top += AXIS + t.threads() as f64 * ROW + 10.0;
        }
        top
    }

    /// Which launches are on which line.
    fn lines(&self) -> Vec<Line> {
        let t = &self.bucket.typical;
        let begins = |l| us(t.launch(l).map(|s| s.began).min().unwrap_or_default());
        let ends = |l| us(t.launch(l).map(|s| s.passed).max().unwrap_or_default());
        let all: Vec<(f64, f64)> = (0..t.launches()).map(|l| (begins(l), ends(l))).collect();
        let mut lengths: Vec<f64> = all.iter().map(|(begin, end)| end - begin).collect();
        lengths.sort_by(f64::total_cmp);
        let at = |i: usize| lengths.get(i).copied().unwrap_or(1.0).max(1e-3);
        let step = all.last().map_or(1.0, |last| last.1);
        let scale = (MIDDLE / at(lengths.len() / 2)).min(LINE * MOST_LINES / step);
        let mut lines: Vec<Line> = Vec::new();
        for (launch, &(begin, end)) in all.iter().enumerate() {
            match lines.last_mut() {
                Some(line) if (end - line.begin) * line.scale <= LINE && line.scale == scale => {
                    line.launches.end = launch + 1;
                    line.end = end;
                }
                _ => {
                    // A launch that is longer than a line is drawn smaller.
                    let scale = scale.min(LINE / (end - begin).max(1e-3));
                    lines.push(Line { launches: launch..launch + 1, begin, end, scale });
                }
            }
        }
        lines
    }

    /// The axis above the rows: a mark every 1, 2 or 5 times a power of ten.
    fn axis(&mut self, line: &Line, top: f64) {
        let about = 80.0 / line.scale;
        let power = 10f64.powf(about.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&s| s >= about);
        let step = step.unwrap_or(10.0 * power);
        let rows = self.bucket.typical.threads() as f64 * ROW;
        let mut at = (line.begin / step).ceil() * step;
        while at <= line.end {
            let x = line.x(at);
            self.push(&format!(
                "<path d=\"M{x:.2} {:.1}v{:.1}\" stroke=\"#bbb\"/>",
                top + AXIS - 6.0,
                rows + 6.0
            ));
            let digits = if step < 1.0 { 1 } else { 0 };
            let text = format!("{at:.digits$}");
            self.text((x, top + AXIS - 8.0), "text-anchor=\"middle\" fill=\"#555\"", &text);
            at += step;
        }
    }

    /// What `thread` did with a launch.
    fn launch(&mut self, line: &Line, launch: usize, (thread, span): (usize, Span), y: f64) {
        let of = &self.bucket.launches[launch];
        let kind =
            self.bucket.kinds.iter().position(|k| k.kernel == of.kernel).unwrap_or(usize::MAX);
        let [began, ended, passed] = [span.began, span.ended, span.passed].map(us);
        let title = format!(
            "#{launch} {}: {}\nthread {thread}: {:.1} us of work from {began:.1} us on, then {:.1} us of \
             waiting{}",
            of.kernel,
            of.shape,
            ended - began,
            passed - ended,
            of.part.of_limit().map_or(String::new(), |l| format!("\n{l:.2} of the limit")),
        );
        let (y, height) = (y + 2.0, ROW - 4.0);
        let (x, width) = (line.x(began), (ended - began) * line.scale);
        self.push(&format!(
            "<rect class=\"wait\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\"/>\
             <rect class=\"work\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" \
             fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.4\"><title>{}</title></rect>",
            line.x(ended),
            y + height / 3.0,
            (passed - ended) * line.scale,
            height / 3.0,
            colour(kind),
            escaped(&title),
        ));
        let label = if of.shape.is_empty() { &of.kernel } else { &of.shape };
        for text in [format!("{}: {}", of.kernel, of.shape), label.clone()] {
            if text.len() as f64 * LETTER < width {
                self.text((x + 4.0, y + height / 2.0 + 4.0), "class=\"in\"", &text);
                return;
            }
        }
    }

    fn text(&mut self, (x, y): (f64, f64), how: &str, text: &str) {
        let text = escaped(text);
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {how}>{text}</text>"));
    }

    fn push(&mut self, element: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{element}");
    }
}

/// A part of a step that is drawn from left to right.
struct Line {
    launches: std::ops::Range<usize>,
    /// Microseconds.
    begin: f64,
    end: f64,
    /// Pixels of a microsecond.
    scale: f64,
}

impl Line {
    fn x(&self, at: f64) -> f64 {
        LEFT + (at - self.begin) * self.scale
    }
}

fn colour(kind: usize) -> &'static str {
    COLOURS[kind.min(COLOURS.len() - 1)]
}

/// As text of XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
