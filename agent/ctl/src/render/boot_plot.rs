//! A boot as a picture (SVG 1.1): a bar for each phase of the ledger. Pure.
//!
//! In: a ledger. Out: a document that a browser shows. Invariant: texts of the ledger are text in it, and never elements.

use orlop_config::ledger::{Ledger, LedgerEntry};

use super::amounts::milliseconds;
use super::plain;

/// Width of the time, pixels.
const WIDTH: u64 = 900;
/// Room at the left, and for the words at the right.
const LEFT: u64 = 20;
const RIGHT: u64 = 420;
/// Height of a row, and of what is above the first one.
const ROW: u64 = 18;
const TOP: u64 = 56;
/// Marks of the axis, at most.
const MARKS_MAX: u64 = 12;
/// Characters of a detail.
const DETAIL_CHARS_MAX: usize = 80;
/// Rows; a ledger has some forty phases.
const ROWS_MAX: usize = 500;
/// Colours by the beginning of the phase's name; another one has the last.
const COLOURS: [(&str, &str); 5] = [
    ("kernel", "#7a7a7a"),
    ("init", "#3b73b9"),
    ("bringup", "#2a9d8f"),
    ("agent", "#8a5cb8"),
    ("", "#c9822b"),
];
const FAILED: &str = "#c62828";

/// The picture.
pub(crate) fn svg(title: &str, ledger: &Ledger) -> String {
    let entries = ledger.entries.get(..ROWS_MAX).unwrap_or(&ledger.entries);
    let end = entries.iter().map(|entry| entry.at_ms).max().unwrap_or(0).max(1);
    let rows = u64::try_from(entries.len()).unwrap_or(0);
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + rows * ROW + ROW);
    let x = |ms: u64| LEFT + scaled(ms.min(end), end);
    let mut lines = vec![
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">"
        ),
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>".to_owned(),
        format!("<text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>", text(title)),
    ];
    let step = step(end);
    for ms in (0..=end / step).map(|mark| mark * step) {
        let (x, bottom) = (x(ms), height - ROW);
        lines.push(format!("<path d=\"M{x} {}V{bottom}\" stroke=\"#dddddd\"/>", TOP - 8));
        lines.push(format!("<text x=\"{x}\" y=\"{}\" fill=\"#666666\">{}</text>", TOP - 12, seconds(ms)));
    }
    for (entry, row) in entries.iter().zip(0..) {
        lines.push(bar(entry, TOP + row * ROW, &x));
    }
    lines.push("</svg>\n".to_owned());
    lines.join("\n")
}

/// A phase's row. One that has no start of its own is a mark at its end.
fn bar(entry: &LedgerEntry, y: u64, x: &impl Fn(u64) -> u64) -> String {
    let (from, to) = (x(entry.at_ms.saturating_sub(entry.took_ms.unwrap_or(0))), x(entry.at_ms));
    let width = (to - from).max(2);
    let colour = if entry.ok { colour(&entry.phase) } else { FAILED };
    let took = entry.took_ms.map_or_else(String::new, |ms| format!(", took {}", milliseconds(ms)));
    let words = format!("{} at {}{took}", entry.phase, milliseconds(entry.at_ms));
    let failed = if entry.ok { "" } else { " FAILED" };
    let detail: String = entry.detail.chars().take(DETAIL_CHARS_MAX).collect();
    format!(
        "<rect x=\"{from}\" y=\"{}\" width=\"{width}\" height=\"{}\" fill=\"{colour}\"><title>{}</title></rect>\
         <text x=\"{}\" y=\"{}\">{}{failed}</text>",
        y + 3,
        ROW - 6,
        text(&format!("{words}: {detail}")),
        from + width + 6,
        y + ROW - 5,
        text(&words),
    )
}

fn colour(phase: &str) -> &'static str {
    COLOURS.iter().find(|(start, _)| phase.starts_with(start)).map_or(FAILED, |(_, colour)| colour)
}

/// Pixels of a time within `end`; numbers of a ledger may be any.
fn scaled(ms: u64, end: u64) -> u64 {
    u64::try_from(u128::from(ms) * u128::from(WIDTH) / u128::from(end)).unwrap_or(WIDTH)
}

/// Milliseconds between two marks.
fn step(end: u64) -> u64 {
    let mut unit = 10_u64;
    loop {
        for step in [unit, unit.saturating_mul(2), unit.saturating_mul(5)] {
            if end / step < MARKS_MAX {
                return step;
            }
        }
        unit = unit.saturating_mul(10);
    }
}

/// A mark's words.
fn seconds(ms: u64) -> String {
    format!("{}.{:02}s", ms / 1000, ms % 1000 / 10)
}

/// A text of an XML document.
fn text(text: &str) -> String {
    plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, at_ms: u64, took_ms: Option<u64>, ok: bool) -> LedgerEntry {
        LedgerEntry { phase: name.to_owned(), at_ms, took_ms, detail: String::new(), ok }
    }

    fn of(entries: Vec<LedgerEntry>) -> Ledger {
        Ledger { boot_id: "b".to_owned(), entries }
    }

    #[test]
    fn a_ledger_is_this_picture() {
        let entries = vec![
            phase("kernel", 900, None, true),
            phase("init.verity", 1200, Some(300), true),
            LedgerEntry {
                detail: "no <x>\u{1b}".to_owned(),
                ..phase("bringup.modules", 1800, Some(60), false)
            },
        ];
        assert_eq!(svg("edge-7 & b", &of(entries)), include_str!("boot_plot/golden.svg"));
    }

    #[test]
    fn any_ledger_has_a_picture() {
        for entries in [
            Vec::new(),
            vec![phase("x", 0, Some(7), true)],
            vec![phase("x", u64::MAX, Some(u64::MAX), true), phase("y", 1, Some(u64::MAX), false)],
            (0..2000).map(|ms| phase("agent.x", ms, None, true)).collect(),
        ] {
            let picture = svg("t", &of(entries));
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
            assert!(picture.matches("<path").count() <= 12 && picture.matches("<title>").count() <= ROWS_MAX);
        }
    }

    #[test]
    fn marks_are_round_and_few() {
        for (end, expected) in [(1, 10), (119, 10), (120, 20), (9_900, 1000), (100_000, 10_000)] {
            assert_eq!(step(end), expected, "{end}");
        }
        assert!(u64::MAX / step(u64::MAX) < MARKS_MAX);
    }
}
