use super::*;
use crate::stages::Need;

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn the_table_is_sound() {
    for (index, stage) in STAGES.iter().enumerate() {
        assert!(stage.limit_s > 0 && !stage.steps.is_empty(), "{}", stage.name);
        assert!(STAGES[..index].iter().all(|other| other.name != stage.name), "{} twice", stage.name);
        for name in stage.after {
            assert!(STAGES[..index].iter().any(|other| other.name == *name), "{} after {name}", stage.name);
        }
        for step in stage.steps {
            let is_test =
                step.command.starts_with(&["cargo", "test"]) || step.command[0] == "ops/lab/run-tests";
            assert_eq!(step.tests, is_test, "{}: what runs tests must count them", stage.name);
        }
    }
}

#[test]
fn selecting_brings_what_a_stage_stands_on() {
    let chosen = select(STAGES, &words(&["two-node"])).unwrap();
    let names: Vec<&str> = chosen.iter().map(|stage| stage.name).collect();
    assert_eq!(names, ["build", "two-node"]);
}

#[test]
fn selecting_nothing_is_everything() {
    assert_eq!(select(STAGES, &[]).unwrap().len(), STAGES.len());
}

#[test]
fn an_unknown_stage_is_an_error_that_names_the_known() {
    let error = select(STAGES, &words(&["tow-node"])).unwrap_err().to_string();
    assert!(error.contains("tow-node") && error.contains("two-node"), "{error}");
}

#[test]
fn arguments_are_strict() {
    assert!(matches!(parse(&words(&["--only", "fmt,tidy", "edges"])), Ok(Request::Run(n)) if n.len() == 3));
    assert!(matches!(parse(&words(&["--list"])), Ok(Request::List)));
    assert!(parse(&words(&["--only"])).is_err());
    assert!(parse(&words(&["fmt"])).is_err());
}

/// The row of a stage that stands on `first` and needs `program`, when `first` ended with `verdict`.
fn row_after(verdict: Verdict, program: &'static str) -> Row {
    // Should the stage run after all, its only step fails.
    static STEPS: [Step; 1] =
        [Step { command: &["railhead-no-such-program"], environment: &[], tests: false }];
    let need: &'static Need = Box::leak(Box::new(Need { program, arguments: &[], refused: "x" }));
    let stage = Stage {
        name: "second",
        limit_s: 5,
        needs: std::slice::from_ref(need),
        after: &["first"],
        steps: &STEPS,
    };
    let logs = tempfile::tempdir().unwrap();
    let (_sender, stop) = channel();
    let run = Run {
        root: logs.path(),
        xtask: PathBuf::new(),
        logs: logs.path().to_path_buf(),
        seed: String::new(),
        stop,
        interrupted: Cell::new(false),
    };
    let first = Row { name: "first".to_owned(), verdict, seconds: 1.0, limit_s: 5, tests: None };
    run.stage(&stage, &[first])
}

#[test]
fn a_stage_whose_need_is_absent_is_skipped_with_the_reason() {
    let row = row_after(Verdict::Ok, "railhead-no-such-program");
    assert_eq!(row.verdict, Verdict::Skipped("railhead-no-such-program is not installed".to_owned()));
}

#[test]
fn a_stage_fails_unrun_when_what_it_stands_on_did_not_pass() {
    for verdict in [Verdict::Failed("x".to_owned()), Verdict::Skipped("x".to_owned())] {
        let row = row_after(verdict, "true");
        assert_eq!(row.verdict, Verdict::Failed("not run: first did not pass".to_owned()));
    }
}

#[test]
fn a_stage_whose_needs_are_met_runs() {
    let row = row_after(Verdict::Ok, "true");
    assert!(matches!(&row.verdict, Verdict::Failed(reason) if reason.contains("does not start")), "{row}");
}
