//! Where each field stands in the text, so that every error can name its line.

use std::ops::Range;
use std::path::Path;

use railhead_abi::Code;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Problem};

/// The fields of a file in order of appearance.
#[derive(Debug)]
pub(crate) struct Outline {
    fields: Vec<Field>,
    /// Byte offset of each line's start.
    lines: Vec<usize>,
}

#[derive(Debug)]
struct Field {
    /// Dotted, with the place in an array in brackets: `peer[0].name`.
    path: String,
    key: Range<usize>,
    value: Range<usize>,
}

impl Outline {
    /// Reads the text as TOML, without a look at the meaning of any field.
    pub(crate) fn of(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut outline = Self { fields: Vec::new(), lines };
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| outline.line_at(span.start));
            // The library's message may span lines; ours is one.
            let what = format!("not valid TOML: {}", error.message().replace('\n', ", "));
            ConfigError { line, ..Problem::new(Code::ConfigSyntax, "", what).in_file(file) }
        })?;
        outline.add_table("", table.get_ref());
        Ok(outline)
    }

    fn add_table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = if prefix.is_empty() {
                key.get_ref().to_string()
            } else {
                format!("{prefix}.{}", key.get_ref())
            };
            self.fields.push(Field { path: path.clone(), key: key.span(), value: value.span() });
            self.add_value(&path, value.get_ref());
        }
    }

    fn add_value(&mut self, path: &str, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => self.add_table(path, table),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    self.fields.push(Field { path: path.clone(), key: item.span(), value: item.span() });
                    self.add_value(&path, item.get_ref());
                }
            }
            _ => {}
        }
    }

    /// The line of a field; of the nearest table around it when the field itself is not written.
    pub(crate) fn line_of(&self, path: &str) -> Option<usize> {
        let mut path = path;
        while !path.is_empty() {
            if let Some(field) = self.fields.iter().find(|field| field.path == path) {
                return Some(self.line_at(field.key.start));
            }
            path = path.rfind(['.', '[']).map_or("", |end| &path[..end]);
        }
        None
    }

    /// The field that a span of the text belongs to: the innermost one whose key or value covers its start.
    pub(crate) fn path_at(&self, span: &Range<usize>) -> &str {
        let covers =
            |range: &Range<usize>| range.start <= span.start && span.start < range.end.max(range.start + 1);
        self.fields
            .iter()
            .filter(|field| covers(&field.key) || covers(&field.value))
            .max_by_key(|field| field.path.matches(['.', '[']).count())
            .map_or("", |field| field.path.as_str())
    }

    /// The line, from 1, of a byte of the text.
    pub(crate) fn line_at(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}
