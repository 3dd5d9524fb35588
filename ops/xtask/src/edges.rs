//! Which crate may depend on which, and on what from outside: read from the manifests, checked against a table.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use table::{RULES, Rule};

use crate::Result;

const REASONS: &str = "ops/adr/0001-dependencies.md";
const PREFIX: &str = "railhead-";

/// Checks the manifests below `root`.
///
/// # Errors
/// There was a finding, or a manifest could not be read.
pub(crate) fn run(root: &Path) -> Result<()> {
    let workspace = parse(root, "Cargo.toml")?;
    let members = strings(workspace.get("workspace").and_then(|w| w.get("members")));
    if members.is_empty() {
        return Err("Cargo.toml: no workspace members".into());
    }
    let mut manifests = Vec::new();
    for folder in members.iter().map(String::as_str).chain(["ops/proof"]) {
        let path = format!("{folder}/Cargo.toml");
        let table = parse(root, &path)?;
        manifests.push(Manifest::new(path, table));
    }
    let reasons = std::fs::read_to_string(root.join(REASONS))?;
    let mut findings = check(RULES, &manifests);
    findings.extend(check_reasons(&declared(&workspace), &manifests, &reasons));
    crate::conclude("edges", &findings)
}

fn parse(root: &Path, path: &str) -> Result<toml::Table> {
    let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
    Ok(text.parse().map_err(|error| format!("{path}: {error}"))?)
}

/// One crate's manifest, as far as the rules ask.
#[derive(Debug)]
struct Manifest {
    path: String,
    package: String,
    edges: Vec<Edge>,
    /// Why it is not free of cargo features.
    features: Vec<String>,
}

/// One dependency.
#[derive(Debug)]
struct Edge {
    /// The package depended on, whatever it is called here.
    package: String,
    /// Never part of what is shipped: a dev-dependency, or one under `cfg(loom)`.
    in_tests: bool,
}

impl Manifest {
    fn new(path: String, table: toml::Table) -> Self {
        let package = table.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str);
        let mut manifest = Self {
            package: package.unwrap_or_default().to_owned(),
            path,
            edges: Vec::new(),
            features: strings_of_keys(table.get("features")),
        };
        manifest.read_sections(&table, false);
        for (condition, section) in table.get("target").and_then(toml::Value::as_table).into_iter().flatten()
        {
            if let Some(section) = section.as_table() {
                manifest.read_sections(section, condition == "cfg(loom)");
            }
        }
        manifest
    }

    fn read_sections(&mut self, table: &toml::Table, in_tests: bool) {
        let sections = [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)];
        for (section, dev) in sections {
            for (name, value) in table.get(section).and_then(toml::Value::as_table).into_iter().flatten() {
                let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
                if value.get("optional").and_then(toml::Value::as_bool) == Some(true) {
                    self.features.push(format!("optional {name}"));
                }
                if package.starts_with(PREFIX) && value.get("features").is_some() {
                    self.features.push(format!("features of {name}"));
                }
                self.edges.push(Edge { package: package.to_owned(), in_tests: dev || in_tests });
            }
        }
    }
}

/// Every way in which `manifests` do not keep to `rules`.
fn check(rules: &[Rule], manifests: &[Manifest]) -> Vec<String> {
    let mut findings = Vec::new();
    for manifest in manifests {
        let leaf = manifest.package.strip_prefix(PREFIX).unwrap_or(&manifest.package);
        for feature in &manifest.features {
            findings.push(format!("{}: cargo features are banned ({feature})", manifest.path));
        }
        let Some(rule) = rules.iter().find(|rule| rule.package == leaf) else {
            findings.push(format!("{}: {leaf} has no rule in ops/xtask/src/edges/table.rs", manifest.path));
            continue;
        };
        findings.extend(manifest.edges.iter().filter(|edge| !allows(rule, edge)).map(|edge| {
            let kind = if edge.in_tests { " (in tests)" } else { "" };
            format!("{}: {} -> {}{kind} is not allowed", manifest.path, manifest.package, edge.package)
        }));
    }
    for rule in rules {
        let named = format!("{PREFIX}{}", rule.package);
        // rdma-core-sys alone has a name of its own.
        let names = [named.as_str(), rule.package];
        if !manifests.iter().any(|manifest| names.contains(&manifest.package.as_str())) {
            findings.push(format!("{}: a rule, but no such crate", rule.package));
        }
    }
    findings
}

fn allows(rule: &Rule, edge: &Edge) -> bool {
    let (always, in_tests, name) = match edge.package.strip_prefix(PREFIX) {
        Some(leaf) => (rule.own, rule.own_in_tests, leaf),
        None => (rule.external, rule.external_in_tests, edge.package.as_str()),
    };
    always.contains(&name) || (edge.in_tests && in_tests.contains(&name))
}

/// External packages that the workspace declares.
fn declared(workspace: &toml::Table) -> BTreeSet<String> {
    let dependencies = workspace.get("workspace").and_then(|w| w.get("dependencies"));
    strings_of_keys(dependencies).into_iter().filter(|name| !name.starts_with(PREFIX)).collect()
}

/// Every external crate is declared once for the workspace, used, and has a reason; every reason has its crate.
fn check_reasons(declared: &BTreeSet<String>, manifests: &[Manifest], adr: &str) -> Vec<String> {
    let reasons = reasons(adr);
    let edges = manifests.iter().flat_map(|manifest| &manifest.edges);
    let used: BTreeSet<&str> =
        edges.map(|edge| edge.package.as_str()).filter(|name| !name.starts_with(PREFIX)).collect();
    let mut findings = Vec::new();
    for name in declared.iter().filter(|name| !used.contains(name.as_str())) {
        findings.push(format!("Cargo.toml: {name} is declared and used by no crate"));
    }
    for name in used {
        match reasons.get(name) {
            Some(reason) if !reason.is_empty() => {}
            _ => findings.push(format!("{REASONS}: no reason for {name}")),
        }
        if !declared.contains(name) {
            findings
                .push(format!("Cargo.toml: {name} is used, but not declared in [workspace.dependencies]"));
        }
    }
    for name in reasons.keys().filter(|name| !declared.contains(**name)) {
        findings.push(format!("{REASONS}: a reason for {name}, which nothing depends on"));
    }
    findings
}

/// Rows `| name | reason |` of the table below the heading `## In use`.
fn reasons(adr: &str) -> BTreeMap<&str, &str> {
    let lines = adr.lines().skip_while(|line| *line != "## In use").skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter_map(|line| {
        let (name, reason) = line.strip_prefix('|')?.strip_suffix('|')?.split_once('|')?;
        let name = name.trim().strip_prefix('`')?.strip_suffix('`')?;
        Some((name, reason.trim()))
    });
    rows.collect()
}

fn strings(value: Option<&toml::Value>) -> Vec<String> {
    let items = value.and_then(toml::Value::as_array).into_iter().flatten();
    items.filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

fn strings_of_keys(value: Option<&toml::Value>) -> Vec<String> {
    value.and_then(toml::Value::as_table).into_iter().flat_map(|table| table.keys().cloned()).collect()
}

#[cfg(test)]
mod tests;
