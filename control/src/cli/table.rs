//! Tables for people: columns that line up, numbers on the right, nothing wider than it has to be.

use crate::output::Tone;

/// On which side of its column a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table under construction.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<(String, Tone)>>,
}

/// Between two columns.
const GAP: &str = "  ";

impl Table {
    /// A table of these columns. Titles are shown in capitals; a table whose titles are all empty has no header.
    pub(crate) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of plain texts.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.toned(cells.map(|cell| (cell, Tone::Plain)));
    }

    /// Adds a row, each text in its tone.
    pub(crate) fn toned<const N: usize>(&mut self, cells: [(String, Tone); N]) {
        debug_assert_eq!(N, self.columns.len(), "one text for each column");
        self.rows.push(cells.into());
    }

    /// The table as text, each line ended.
    pub(crate) fn render(&self) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(at, (title, _))| {
                let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|(cell, _)| width(cell));
                cells.chain([width(title)]).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        if self.columns.iter().any(|(title, _)| !title.is_empty()) {
            let titles: Vec<(String, Tone)> =
                self.columns.iter().map(|(title, _)| (title.to_uppercase(), Tone::Strong)).collect();
            self.line(&titles, &widths, &mut out);
        }
        for row in &self.rows {
            self.line(row, &widths, &mut out);
        }
        out
    }

    fn line(&self, cells: &[(String, Tone)], widths: &[usize], out: &mut String) {
        // Columns that are empty to the end of the line leave no spaces behind.
        let used = cells.iter().rposition(|(cell, _)| !cell.is_empty()).map_or(0, |last| last + 1);
        for (at, (cell, tone)) in cells[..used].iter().enumerate() {
            if at > 0 {
                out.push_str(GAP);
            }
            let padding = " ".repeat(widths[at] - width(cell));
            match self.columns[at].1 {
                Side::Right => out.push_str(&padding),
                Side::Left => {}
            }
            out.push_str(&tone.paint(cell));
            if self.columns[at].1 == Side::Left && at + 1 < used {
                out.push_str(&padding);
            }
        }
        out.push('\n');
    }
}

/// Columns that a text takes on a terminal: everything printed here takes one a character.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A share of a whole as a bar of at most ten blocks, an eighth of a block the least.
pub(crate) fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 80")]
    let eighths = (share.clamp(0.0, 1.0) * 80.0).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Side::Left), ("bytes", Side::Right), ("note", Side::Left)]);
        table.row(["a".to_owned(), "1".to_owned(), "first".to_owned()]);
        table.row(["longer".to_owned(), "1,234,567".to_owned(), String::new()]);
        table.row(["ä".to_owned(), String::new(), "é".to_owned()]);
        let expected = "NAME        BYTES  NOTE\n\
                        a               1  first\n\
                        longer  1,234,567\n\
                        ä                  é\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(0.000_01), "▏");
        assert_eq!(bar(0.5), "█████");
        assert_eq!(bar(0.55), "█████▌");
        assert_eq!(bar(1.0), "██████████");
        assert_eq!(bar(7.0), "██████████");
    }
}
