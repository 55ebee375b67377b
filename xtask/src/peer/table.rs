//! The table of `docs/foreign-nodes.md`: what is found without a record, and what is not.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::workspace;

const BEGIN: &str = "<!-- `cargo xtask peer-check --write` writes this table -->\n";
const END: &str = "<!-- end of the table -->\n";
const HEAD: &str = "| case | what | reconstruction | lost, and said so | wrong | problems | the kubelet |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n";

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The case, as `make-tree` names it.
    pub(super) case: String,
    /// The volume, device or leftover.
    pub(super) what: String,
    /// The word of `scan`.
    pub(super) reconstruction: String,
    /// Fields that nobody could tell, as `scan` says too.
    pub(super) lost: String,
    /// What `scan` gets wrong.
    pub(super) wrong: String,
    /// The codes of the problems that `scan` shows.
    pub(super) problems: String,
    /// What the kubelet makes of it; none if it was not asked.
    pub(super) kubelet: Option<String>,
}

impl Row {
    /// Whether it is about the same thing.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.case == other.case && self.what == other.what
    }

    fn line(&self) -> String {
        let kubelet = self.kubelet.clone().unwrap_or_default();
        let cells = [&self.case, &self.what, &self.reconstruction, &self.lost, &self.wrong, &self.problems, &kubelet];
        let cells = cells.map(|cell| cell.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " "));
        format!("| {} |\n", cells.join(" | "))
    }

    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let (mut cells, mut escaped) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                _ if escaped => cells.last_mut()?.push(c),
                '\\' => {}
                '|' => cells.push(String::new()),
                c => cells.last_mut()?.push(c),
            }
            escaped = !escaped && c == '\\';
        }
        let cells: Vec<String> = cells.iter().map(|cell| cell.trim().to_owned()).collect();
        let [case, what, reconstruction, lost, wrong, problems, kubelet] = cells.try_into().ok()?;
        let kubelet = Some(kubelet).filter(|k| !k.is_empty());
        Some(Self { case, what, reconstruction, lost, wrong, problems, kubelet })
    }
}

fn path() -> PathBuf {
    workspace().join("docs/foreign-nodes.md")
}

fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    Some((before, table, after))
}

/// The rows that are written down.
pub(super) fn read() -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path()).context("cannot read docs/foreign-nodes.md")?;
    let (_, table, _) = split(&text).context("docs/foreign-nodes.md has no table")?;
    let lines = table.lines().skip(2);
    lines.map(|line| Row::parse(line).with_context(|| format!("this is no row: {line}"))).collect()
}

/// Writes the rows down.
pub(super) fn write(rows: &[Row]) -> Result<()> {
    let text = std::fs::read_to_string(path()).context("cannot read docs/foreign-nodes.md")?;
    let (before, _, after) = split(&text).context("docs/foreign-nodes.md has no table")?;
    let lines: String = rows.iter().map(Row::line).collect();
    std::fs::write(path(), format!("{before}{BEGIN}{HEAD}{lines}{END}{after}"))
        .context("cannot write docs/foreign-nodes.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let row = Row {
            case: "a | b".into(),
            what: r"c\d\|".into(),
            reconstruction: "Full".into(),
            lost: String::new(),
            wrong: "x = 1, not 2".into(),
            problems: String::new(),
            kubelet: Some("exact".into()),
        };
        assert_eq!(Row::parse(row.line().trim_end()), Some(row));
    }

    #[test]
    fn what_is_no_row_is_none() {
        for line in ["", "| a | b |", "a | b | c | d | e | f | g", "| a | b | c | d | e | f | g | h |"] {
            assert_eq!(Row::parse(line), None, "{line}");
        }
    }
}
