//! The rules, one function each: a file goes in, findings come out as `path:line: text`.

use std::collections::BTreeMap;

use super::source::{Source, words};

/// One text file of the tree.
#[derive(Debug)]
pub(crate) struct Text {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    body: String,
    /// Present when it is Rust.
    pub(crate) source: Option<Source>,
}

impl Text {
    pub(crate) fn new(path: String, body: String) -> Self {
        let source = path.ends_with(".rs").then(|| Source::new(&body));
        Self { path, body, source }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.source.is_some()
    }

    /// Test code: it has no length limits, may print, and may read clocks.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.ends_with("_tests.rs")
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.path.starts_with(folder))
    }

    fn at(&self, line: usize, text: &str) -> String {
        format!("{}:{}: {text}", self.path, line + 1)
    }
}

/// Words that may stand nowhere. Assembled, so that this file passes its own rule.
const UNFINISHED: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// First folders of paths that exist on one machine only.
const PRIVATE_FOLDERS: [&str; 3] = ["work", "root", "home"];
/// Where packages come from is for the machine that builds to say.
const REGISTRY_HOSTS: [&str; 6] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted.org"),
    concat!("proxy.", "golang.org"),
    concat!("registry.", "npmjs.org"),
];
const LOCK_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// The one file that may name the atomics of core or std.
const SYNC: &str = "dataplane/ring/src/sync.rs";
/// Crates without any unsafe code, and crates without std.
const FORBID_UNSAFE: [&str; 7] = [
    "dataplane/abi/",
    "dataplane/core/",
    "dataplane/sim/",
    "control/",
    "benches/loadgen/",
    "benches/micro/",
    "ops/xtask/",
];
const NO_STD: [&str; 3] = ["dataplane/ring/", "dataplane/abi/", "dataplane/core/"];
/// Where time is a value that is handed in.
const NO_CLOCK: [&str; 8] = [
    "dataplane/ring/",
    "dataplane/abi/",
    "dataplane/core/",
    "dataplane/shm/",
    "dataplane/memory/",
    "dataplane/sim/",
    "dataplane/host/",
    "dataplane/tcp/",
];
/// Registrar code of an adapter, and measuring programs: these have a clock.
const MAY_READ_CLOCK: [&str; 2] = ["dataplane/tcp/src/channel/", "dataplane/tcp/examples/"];
/// Where printing is the purpose: `sim` is for tests, and what it says of a failed run is all there is to go by.
const MAY_PRINT: [&str; 5] = ["ops/", "benches/", "control/src/cli/", "control/src/bin/", "dataplane/sim/"];
/// How far above its use a SAFETY comment may begin.
const SAFETY_REACH: usize = 12;

/// Every finding of every rule in `text`.
pub(crate) fn check(text: &Text) -> Vec<String> {
    let rules: [fn(&Text) -> Vec<String>; 11] = [
        whitespace,
        unfinished,
        private_paths,
        registries,
        scripts,
        printing,
        atomics,
        safety,
        crate_roots,
        clocks,
        dispatch,
    ];
    rules.iter().flat_map(|rule| rule(text)).collect()
}

fn whitespace(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    // Expected output is as its program printed it.
    if text.path.ends_with(".stderr") || text.path.ends_with(".stdout") {
        return findings;
    }
    for (at, line) in text.body.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(text.at(at, "space at the end of the line"));
        }
        if text.is_rust() && line.contains('\t') {
            findings.push(text.at(at, "tab"));
        }
    }
    if !text.body.is_empty() && !text.body.ends_with('\n') {
        findings
            .push(text.at(text.body.lines().count().saturating_sub(1), "no newline at the end of the file"));
    }
    findings
}

fn unfinished(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, line) in text.body.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| words(line).any(|(_, found)| found == **word)) {
            findings.push(text.at(at, &format!("{word}: finish it, or write down where it is tracked")));
        }
    }
    findings.extend(code_words(text, |word| {
        let left = UNFINISHED_MACROS.contains(&word.text) && word.after.starts_with('!');
        left.then(|| format!("{}! left in the code", word.text))
    }));
    findings
}

fn private_paths(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, line) in text.body.lines().enumerate() {
        for (offset, word) in words(line).filter(|(_, word)| PRIVATE_FOLDERS.contains(word)) {
            let before = line[..offset].strip_suffix('/');
            // Only the first folder of an absolute path: neither `a/work` nor `{dir}/work` nor `https://work`.
            let absolute = before.is_some_and(|text| {
                !text.ends_with(|c: char| c.is_alphanumeric() || "._-/})>~*]$".contains(c))
            });
            let ends = !line[offset + word.len()..].starts_with(['-', '.']);
            if absolute && ends {
                findings.push(text.at(at, &format!("a path of one machine (/{word})")));
            }
        }
    }
    findings
}

fn registries(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, line) in text.body.lines().enumerate() {
        for host in REGISTRY_HOSTS.iter().filter(|host| line.contains(**host)) {
            findings.push(text.at(at, &format!("names a registry host ({host})")));
        }
        if text.path.ends_with("Cargo.lock") && line.starts_with("source = ") && line != LOCK_SOURCE {
            findings.push(text.at(at, "a package from elsewhere than crates.io"));
        }
        if text.path.contains(".cargo/config") && line.starts_with("replace-with") {
            findings.push(text.at(at, "replaces a registry for everybody"));
        }
    }
    findings
}

fn scripts(text: &Text) -> Vec<String> {
    let first = text.body.lines().next().unwrap_or_default();
    if !first.starts_with("#!") || !first.ends_with("sh") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !text.body.lines().any(|line| line == "set -euo pipefail") {
        findings.push(text.at(0, "a script without `set -euo pipefail`"));
    }
    findings
}

fn printing(text: &Text) -> Vec<String> {
    let is_bin = text.path.ends_with("/main.rs") || text.path.contains("/bin/");
    let is_aside = text.path.contains("/examples/") || text.path.ends_with("build.rs");
    if text.is_test() || text.is_in(&MAY_PRINT) || is_bin || is_aside {
        return Vec::new();
    }
    code_words(text, |word| {
        let prints = matches!(word.text, "println" | "print" | "eprintln" | "eprint");
        (prints && word.after.starts_with('!')).then(|| format!("{}! in a library", word.text))
    })
}

fn atomics(text: &Text) -> Vec<String> {
    let Some(source) = &text.source else { return Vec::new() };
    // An exemption stands just above, with its reason; or at the top, for the whole file.
    let excuses = |line: &String| line.contains("disallowed_types") && line.contains("reason");
    if text.path == SYNC || source.raw.iter().any(|line| line.starts_with("#![") && excuses(line)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        let named = line.contains("sync::atomic") || (line.contains("sync::{") && line.contains("atomic"));
        // The name of an ordering alone reaches no atomic.
        let named = named && !line.trim_end().ends_with("sync::atomic::Ordering;");
        if named && !source.raw[at.saturating_sub(4)..=at].iter().any(excuses) {
            findings.push(text.at(at, "atomics outside railhead_ring::sync, which loom cannot see"));
        }
    }
    findings
}

fn safety(text: &Text) -> Vec<String> {
    let Some(source) = &text.source else { return Vec::new() };
    code_words(text, |word| {
        let after = word.after.trim_start();
        // `unsafe fn` states its conditions under `# Safety`, which clippy demands; `unsafe(..)` is an attribute.
        let opens = after.starts_with('{') || after.is_empty();
        if word.text != "unsafe" || !(opens || after.starts_with("impl")) {
            return None;
        }
        let above = &source.raw[word.line.saturating_sub(SAFETY_REACH)..=word.line];
        let said = above.iter().any(|raw| raw.contains("SAFETY:"));
        (!said).then(|| "unsafe without a SAFETY comment".to_owned())
    })
}

fn crate_roots(text: &Text) -> Vec<String> {
    let Some(source) = &text.source else { return Vec::new() };
    let is_lib = text.path.ends_with("src/lib.rs");
    if !is_lib && !text.path.ends_with("/main.rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let header = source.raw.iter().take_while(|line| line.starts_with("//!")).count();
    if header < if is_lib { 3 } else { 1 } {
        findings
            .push(text.at(0, "no //! header that says what the crate owns, never does, and who calls it"));
    }
    let has =
        |attribute: &str| source.code.iter().any(|line| line.starts_with("#![") && line.contains(attribute));
    if text.is_in(&FORBID_UNSAFE) && !has("forbid(unsafe_code)") {
        findings.push(text.at(0, "#![forbid(unsafe_code)] is missing"));
    }
    if text.is_in(&NO_STD) && !has("no_std") {
        findings.push(text.at(0, "#![no_std] is missing"));
    }
    findings
}

fn clocks(text: &Text) -> Vec<String> {
    if text.is_test() || !text.is_in(&NO_CLOCK) || text.is_in(&MAY_READ_CLOCK) {
        return Vec::new();
    }
    code_words(text, |word| {
        let reads = matches!(word.text, "Instant" | "SystemTime") && word.after.starts_with("::now");
        (reads || word.text == "clock_gettime").then(|| "reads a clock: here time is an argument".to_owned())
    })
}

fn dispatch(text: &Text) -> Vec<String> {
    if !text.is_in(&["dataplane/core/"]) {
        return Vec::new();
    }
    code_words(text, |word| (word.text == "dyn").then(|| "dyn in core: be generic".to_owned()))
}

/// One word of a file's code.
struct Word<'a> {
    text: &'a str,
    line: usize,
    /// The rest of its line.
    after: &'a str,
}

/// Runs `rule` on each word of the code of `text`.
fn code_words(text: &Text, rule: impl Fn(Word<'_>) -> Option<String>) -> Vec<String> {
    let Some(source) = &text.source else { return Vec::new() };
    let mut findings = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        for (offset, word) in words(line) {
            let finding = rule(Word { text: word, line: at, after: &line[offset + word.len()..] });
            findings.extend(finding.map(|finding| text.at(at, &finding)));
        }
    }
    findings
}

/// Architecture decisions are `NNNN-title.md`, each number once.
pub(crate) fn adr_numbers<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut numbers: BTreeMap<&str, &str> = BTreeMap::new();
    for path in paths {
        let Some(name) = path.strip_prefix("ops/adr/").filter(|name| *name != "README.md") else { continue };
        match name.split_once('-') {
            Some((number, _)) if number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()) => {
                if let Some(other) = numbers.insert(number, path) {
                    findings.push(format!("{path}: the number of {other}"));
                }
            }
            _ => findings.push(format!("{path}: a decision is named NNNN-title.md")),
        }
    }
    findings
}

#[cfg(test)]
mod tests;
