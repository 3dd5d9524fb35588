use super::*;

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
            let is_test = step.command.starts_with(&["cargo", "test"]);
            assert_eq!(step.tests, is_test, "{}: a cargo test must count its tests", stage.name);
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
