//! Just enough of Rust's lexis to tell code from comments and literals, and to find where a function ends.

/// A source file with what is not code blanked out; same lines, same columns in bytes.
#[derive(Debug)]
pub(crate) struct Source {
    /// Code only: comments and the insides of literals are spaces.
    pub(crate) code: Vec<String>,
    /// The file as it is.
    pub(crate) raw: Vec<String>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let masked = mask(text);
        Self {
            code: masked.lines().map(str::to_owned).collect(),
            raw: text.lines().map(str::to_owned).collect(),
        }
    }

    /// Lines that belong to a `#[cfg(test)] mod name { .. }`, as (first, past the last).
    pub(crate) fn test_modules(&self) -> Vec<(usize, usize)> {
        let mut spans = Vec::new();
        for (at, line) in self.code.iter().enumerate() {
            let rest = line.trim_start();
            if !rest.starts_with("#[cfg(test)]") && !rest.starts_with("#[cfg(all(test") {
                continue;
            }
            let opens = |line: &String| line.trim_start().starts_with("mod ") && line.contains('{');
            // Other attributes may stand between.
            if let Some(start) = (at + 1..self.code.len().min(at + 5)).find(|i| opens(&self.code[*i])) {
                spans.push((at, self.block_end(start)));
            }
        }
        spans
    }

    /// Functions as (line, name, lines from signature to closing brace).
    pub(crate) fn functions(&self) -> Vec<(usize, String, usize)> {
        let mut found = Vec::new();
        for (at, line) in self.code.iter().enumerate() {
            if let Some(name) = function_name(line)
                && self.has_body(at)
            {
                found.push((at, name.to_owned(), self.block_end(at) - at));
            }
        }
        found
    }

    /// Whether what starts at line `at` reaches `{` before `;` (a trait's method, a foreign function do not).
    fn has_body(&self, at: usize) -> bool {
        let mut depth = 0_i32;
        for byte in self.code[at..].iter().flat_map(|line| line.bytes()) {
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth -= 1,
                b'{' if depth == 0 => return true,
                b';' if depth == 0 => return false,
                _ => {}
            }
        }
        false
    }

    /// The line after the one that closes the first brace opened at or after line `at`.
    fn block_end(&self, at: usize) -> usize {
        let mut depth = 0_i32;
        for (index, line) in self.code.iter().enumerate().skip(at) {
            for byte in line.bytes() {
                match byte {
                    b'{' => depth += 1,
                    b'}' => {
                        depth -= 1;
                        if depth == 0 {
                            return index + 1;
                        }
                    }
                    _ => {}
                }
            }
        }
        self.code.len()
    }
}

/// The name in a line that begins a function.
fn function_name(line: &str) -> Option<&str> {
    let at = words(line).find(|(_, word)| *word == "fn")?.0;
    let before = line[..at].trim();
    let qualifiers = ["pub", "const", "async", "unsafe", "extern", "default", "\"", ""];
    let plain = before.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '"').all(|word| {
        qualifiers.contains(&word) || matches!(word, "crate" | "super" | "self" | "in") || word == "\"\""
    });
    let name = line[at + 2..].trim_start();
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (plain && end > 0).then(|| &name[..end])
}

/// Identifier-like words of a line with their offsets.
pub(crate) fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line[at..].find(is_word)?;
        let end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |len| start + len);
        at = end;
        Some((start, &line[start..end]))
    })
}

/// `text` with comments and the insides of string and character literals as spaces; newlines stay.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (skip, keep) = if rest.starts_with(b"//") {
            (rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()), 0)
        } else if rest.starts_with(b"/*") {
            (block_comment(rest), 0)
        } else if let Some((length, quote)) = raw_string(rest, at.checked_sub(1).map(|i| bytes[i])) {
            (length, quote)
        } else if rest[0] == b'"' {
            (quoted(rest, b'"'), 1)
        } else if rest[0] == b'\'' {
            match character(rest) {
                Some(length) => (length, 1),
                None => (1, 1),
            }
        } else {
            at += 1;
            continue;
        };
        // The delimiters of a literal stay, so that `""` is still seen as one.
        let inside = at + keep.min(skip)..(at + skip).saturating_sub(keep.min(skip)).max(at + keep.min(skip));
        for byte in &mut out[inside] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += skip.max(1);
    }
    // Only whole literals and comments were blanked, byte by byte with ASCII, so this is valid UTF-8 still.
    String::from_utf8_lossy(&out).into_owned()
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a raw string and of its closing delimiter, when one begins here.
fn raw_string(rest: &[u8], before: Option<u8>) -> Option<(usize, usize)> {
    if before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    let prefix = [b"br".as_slice(), b"cr", b"r"].into_iter().find(|p| rest.starts_with(p))?.len();
    let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = prefix + hashes + 1;
    let length =
        rest[body..].windows(end.len()).position(|w| w == end).map_or(rest.len(), |p| body + p + end.len());
    Some((length, body.min(end.len())))
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a character literal; `None` for a lifetime or label.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(quoted(rest, b'\''));
    }
    // One character of up to four bytes, then the quote.
    let close = rest.iter().skip(2).take(4).position(|b| *b == b'\'')? + 2;
    let inside = std::str::from_utf8(&rest[1..close]).ok()?;
    (inside.chars().count() == 1).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        mask(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        assert_eq!(code("a // unsafe\nb"), "a b");
        assert_eq!(code("a /* x /* y */ unsafe */ b"), "a b");
        assert_eq!(code(r#"f("unsafe \" {"); g"#), r#"f(" "); g"#);
        assert_eq!(code("f(r#\"un\"safe\"#); g"), "f(r# \"#); g");
        assert_eq!(code(r"if c == '{' || c == '\'' { }"), "if c == ' ' || c == ' ' { }");
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("let é = 'é'; //é"), "let é = ' ';");
    }

    #[test]
    fn lines_and_columns_stay() {
        let text = "let a = \"x\ny\"; // c\nlet b = 1;\n";
        let masked = mask(text);
        assert_eq!(masked.len(), text.len());
        assert_eq!(masked.lines().count(), text.lines().count());
        assert!(masked.ends_with("let b = 1;\n"));
    }

    #[test]
    fn functions_are_measured() {
        let text = "trait T {\n    fn none(&self);\n}\npub(crate) const unsafe fn two<const N: usize>(x: [u8; 3]) {\n}\n\
                    extern \"C\" fn three() {\n    let f = |x: u8| { x };\n}\nlet p: fn(u8) = q;\n";
        let found: Vec<(String, usize)> =
            Source::new(text).functions().into_iter().map(|(_, name, lines)| (name, lines)).collect();
        assert_eq!(found, [("two".to_owned(), 2), ("three".to_owned(), 3)]);
    }

    #[test]
    fn test_modules_are_found() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(Source::new(text).test_modules(), [(1, 6)]);
    }
}
