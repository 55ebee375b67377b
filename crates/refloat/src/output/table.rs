//! Tables without lines, as `kubectl` prints them, that fit the terminal.

use std::io::{IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table};

use super::shown::shown;
use crate::cli::ColorWhen;
use crate::exit::Failure;
use crate::logging::wants_color;

/// Words that say that something needs attention.
const BAD: &[&str] =
    &["Uncertain", "Damaged", "Newer", "Failed", "Missing!", "No", "StaleMount", "PodDirWithData", "Conflict"];
/// Words that say that all is well.
const GOOD: &[&str] = &["Mounted", "Ok", "Full", "Yes"];

/// How to print to standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// The terminal's width, if it is one.
    pub(crate) width: Option<u16>,
    /// Whether to use colours.
    pub(crate) color: bool,
}

impl Look {
    /// How to print to this process's standard output.
    pub(crate) fn of_stdout(when: ColorWhen) -> Self {
        let stdout = std::io::stdout();
        let width = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
        Self { width: width.map(|size| size.ws_col).filter(|&columns| columns > 0), color: wants_color(when, &stdout) }
    }

    /// The text in this style, where colours are used.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.color { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Prints rows under a header. Cells are wrapped where the terminal is too narrow; without a terminal a row is a line.
pub(crate) fn print(out: &mut impl Write, look: Look, header: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)).collect::<Vec<_>>());
    }
    if let Some(width) = look.width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    for (number, line) in table.lines().enumerate() {
        let line = line.trim_end();
        let line = match (look.color, number) {
            (false, _) => line.to_owned(),
            (true, 0) => look.paint(Style::new().bold(), line),
            (true, _) => colored(line),
        };
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// The text without control characters and what else is not seen: a name on the node must not be able to move the cursor.
pub(crate) fn printable(text: &str) -> String {
    shown(text).into_owned()
}

/// A row with the words that matter coloured.
fn colored(line: &str) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for word in line.split_inclusive(' ') {
        let bare = word.trim_end();
        let style = if BAD.contains(&bare) {
            Style::new().fg_color(Some(AnsiColor::Red.into()))
        } else if GOOD.contains(&bare) {
            Style::new().fg_color(Some(AnsiColor::Green.into()))
        } else {
            text.push_str(word);
            continue;
        };
        let _ = write!(text, "{style}{bare}{style:#}{}", &word[bare.len()..]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(look: Look, rows: &[&[&str]]) -> String {
        let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(|c| (*c).to_owned()).collect()).collect();
        let mut out = Vec::new();
        print(&mut out, look, &["POD", "STATE"], &rows).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_is_a_line_without_a_terminal() {
        let long = "x".repeat(300);
        let text = printed(Look { width: None, color: false }, &[&[&long, "Mounted"]]);
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn lines_fit_the_terminal() {
        let long = "x".repeat(300);
        let text = printed(Look { width: Some(60), color: false }, &[&[&long, "Mounted"]]);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert_eq!(text.matches('x').count(), 300);
    }

    #[test]
    fn colours_and_control_characters() {
        let text = printed(Look { width: None, color: true }, &[&["a\x1b[2Jb", "Uncertain"]]);
        assert!(text.contains("\x1b[31mUncertain"), "{text:?}");
        assert!(!text.contains("\x1b[2J"), "{text:?}");
    }
}
