use super::*;

const SMALL: &[Rule] = &[
    Rule { package: "ring", own: &[], own_in_tests: &[], external: &[], external_in_tests: &["loom"] },
    Rule { package: "core", own: &["ring"], own_in_tests: &[], external: &[], external_in_tests: &[] },
    Rule {
        package: "tcp",
        own: &["core"],
        own_in_tests: &["sim"],
        external: &["snow"],
        external_in_tests: &[],
    },
    Rule { package: "sim", own: &["core"], own_in_tests: &[], external: &[], external_in_tests: &[] },
];

fn manifest(leaf: &str, rest: &str) -> Manifest {
    let text = format!("[package]\nname = \"railhead-{leaf}\"\n{rest}");
    Manifest::new(format!("{leaf}/Cargo.toml"), text.parse().unwrap())
}

/// Findings about the small workspace in which the manifest of `leaf` says `rest`.
fn findings(leaf: &str, rest: &str) -> Vec<String> {
    let manifests: Vec<Manifest> = SMALL
        .iter()
        .map(|rule| manifest(rule.package, if rule.package == leaf { rest } else { "" }))
        .collect();
    check(SMALL, &manifests)
}

#[test]
fn allowed_edges_pass() {
    let tcp = "[dependencies]\nrailhead-core.workspace = true\nsnow = \"0.10\"\n\
               [dev-dependencies]\nrailhead-sim.workspace = true\n";
    assert_eq!(findings("tcp", tcp), Vec::<String>::new());
    assert_eq!(findings("ring", "[target.'cfg(loom)'.dependencies]\nloom = \"0.7\"\n"), Vec::<String>::new());
}

#[test]
fn an_edge_upwards_or_sideways_is_named() {
    assert_eq!(
        findings("core", "[dependencies]\nrailhead-tcp.workspace = true\n"),
        ["core/Cargo.toml: railhead-core -> railhead-tcp is not allowed"]
    );
    assert_eq!(findings("tcp", "[dependencies]\nrailhead-sim.workspace = true\n").len(), 1);
    assert_eq!(findings("sim", "[dev-dependencies]\nrailhead-tcp.workspace = true\n").len(), 1);
}

#[test]
fn no_section_hides_an_edge() {
    for section in ["build-dependencies", "target.'cfg(unix)'.dependencies", "target.x86.build-dependencies"]
    {
        let rest = format!("[{section}]\nrailhead-tcp.workspace = true\n");
        assert_eq!(findings("core", &rest).len(), 1, "{section}");
    }
}

#[test]
fn a_renamed_dependency_is_judged_by_its_package() {
    let rest = "[dependencies]\nwire = { path = \"../tcp\", package = \"railhead-tcp\" }\n";
    assert_eq!(findings("core", rest), ["core/Cargo.toml: railhead-core -> railhead-tcp is not allowed"]);
}

#[test]
fn test_only_crates_do_not_reach_what_is_shipped() {
    assert_eq!(findings("ring", "[dependencies]\nloom = \"0.7\"\n").len(), 1);
    assert_eq!(findings("ring", "[target.'cfg(unix)'.dependencies]\nloom = \"0.7\"\n").len(), 1);
    assert_eq!(findings("core", "[dependencies]\nserde = \"1\"\n").len(), 1);
}

#[test]
fn features_are_banned() {
    assert_eq!(findings("ring", "[features]\nstd = []\n").len(), 1);
    assert_eq!(findings("tcp", "[dependencies]\nsnow = { version = \"1\", optional = true }\n").len(), 1);
    let rest = "[dependencies]\nrailhead-core = { workspace = true, features = [\"std\"] }\n";
    assert_eq!(findings("tcp", rest).len(), 1);
}

#[test]
fn every_crate_has_a_rule_and_every_rule_a_crate() {
    let manifests = [manifest("ring", ""), manifest("core", ""), manifest("tcp", ""), manifest("verbs", "")];
    let found = check(SMALL, &manifests);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("verbs has no rule") && found[1].contains("sim: a rule"), "{found:?}");
}

#[test]
fn every_external_crate_has_its_reason() {
    let manifests = [manifest("tcp", "[dependencies]\nsnow = \"0.10\"\nrailhead-core.workspace = true\n")];
    let declared = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let adr = "# 1\n| `axum` | not in the section |\n## In use\n\n| crate | reason |\n|---|---|\n| `snow` | Noise |\n\
               ## Left out\n| `nix` | no |\n";
    assert_eq!(check_reasons(&declared(&["snow"]), &manifests, adr), Vec::<String>::new());
    let without = adr.replace(" Noise ", "  ");
    assert!(check_reasons(&declared(&["snow"]), &manifests, &without)[0].contains("no reason for snow"));
    assert!(check_reasons(&declared(&[]), &manifests, adr).iter().any(|f| f.contains("not declared")));
    assert!(check_reasons(&declared(&["snow", "nix"]), &manifests, adr)[0].contains("used by no crate"));
    assert!(check_reasons(&declared(&["snow"]), &[], adr).iter().any(|f| f.contains("used by no crate")));
    let stale = adr.replace("| `snow`", "| `tide` | gone |\n| `snow`");
    assert!(check_reasons(&declared(&["snow"]), &manifests, &stale)[0].contains("tide"));
}

#[test]
fn core_abi_and_ring_ship_nothing_from_outside() {
    for rule in RULES.iter().filter(|rule| ["ring", "abi", "core"].contains(&rule.package)) {
        assert!(rule.external.is_empty(), "{}", rule.package);
    }
}

#[test]
fn only_the_dataplane_and_its_tests_know_core() {
    let may = [
        "core", "shm", "memory", "sim", "host", "tcp", "cuda", "verbs", "daemon", "loadgen", "micro", "proof",
    ];
    for rule in RULES.iter().filter(|rule| rule.own.contains(&"core") || rule.own_in_tests.contains(&"core"))
    {
        assert!(may.contains(&rule.package), "{}", rule.package);
    }
}

#[test]
fn the_tree_is_read_from_its_manifests() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    assert!(run(folder.path()).unwrap_err().to_string().starts_with("Cargo.toml: "));
    write("Cargo.toml", "[workspace]\nmembers = []\n");
    assert!(run(folder.path()).unwrap_err().to_string().contains("no workspace members"));
    write("Cargo.toml", "[workspace]\nmembers = [\"ring\"]\n");
    write("ops/proof/Cargo.toml", "[package]\nname = \"railhead-proof\"\n");
    write(REASONS, "## In use\n");
    write("ring/Cargo.toml", "[package\n");
    assert!(run(folder.path()).unwrap_err().to_string().starts_with("ring/Cargo.toml: "));
    // Well formed now, but most crates of the table are not there.
    write("ring/Cargo.toml", "[package]\nname = \"railhead-ring\"\n");
    assert!(run(folder.path()).unwrap_err().to_string().starts_with("edges: "));
}
