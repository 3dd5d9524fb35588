//! Runs stages: selection, time limits, logs, verdicts.

mod needs;
mod process;
mod report;

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use process::End;
use report::{Row, Tests, Verdict};

use crate::Result;
use crate::stages::{STAGES, Stage, Step};

/// Lines of a failed stage's log that are printed.
const TAIL_LINES: usize = 60;
/// The seed of everything random in the gates; set it to repeat a run.
const SEED: &str = "RAILHEAD_SEED";

/// What every stage of one run shares.
struct Run<'a> {
    root: &'a Path,
    /// This binary, found before a stage can rebuild it.
    xtask: PathBuf,
    logs: PathBuf,
    seed: String,
    stop: Receiver<i32>,
    /// A signal ended a stage: no other starts.
    interrupted: Cell<bool>,
}

/// `cargo xtask test`.
pub(crate) fn test(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let chosen = match parse(arguments)? {
        Request::List => {
            for stage in STAGES {
                println!("{:<14} {:>5} s", stage.name, stage.limit_s);
            }
            return Ok(ExitCode::SUCCESS);
        }
        Request::Run(names) => select(STAGES, &names)?,
    };
    let run = Run::new(root)?;
    println!("seed {} ({SEED}={} repeats it); logs in {}", run.seed, run.seed, run.logs.display());
    println!("{}", report::HEADER);
    let mut rows: Vec<Row> = Vec::new();
    for stage in chosen {
        let row = run.stage(stage, &rows);
        println!("{row}");
        rows.push(row);
        if run.interrupted.get() {
            break;
        }
    }
    Ok(run.close(&rows))
}

/// `cargo xtask stage LIMIT_S COMMAND..`: one command under the rules of a stage.
pub(crate) fn stage(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let [limit, command @ ..] = arguments else {
        return Err("stage: LIMIT_S and COMMAND are needed".into());
    };
    let limit_s: u64 = limit.parse().map_err(|_| format!("stage: {limit:?} is not a number of seconds"))?;
    if command.is_empty() {
        return Err("stage: COMMAND is needed".into());
    }
    let run = Run::new(root)?;
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let tests = words.starts_with(&["cargo", "test"]);
    let row = run.steps("stage", limit_s, &[(words.as_slice(), &[], tests)]);
    println!("{}\n{row}", report::HEADER);
    Ok(run.close(&[row]))
}

enum Request {
    List,
    /// Names; none means all.
    Run(Vec<String>),
}

fn parse(arguments: &[String]) -> Result<Request> {
    match arguments {
        [] => Ok(Request::Run(Vec::new())),
        [list] if list == "--list" => Ok(Request::List),
        [only, names @ ..] if only == "--only" && !names.is_empty() => {
            let names = names.iter().flat_map(|n| n.split(',')).map(str::to_owned);
            Ok(Request::Run(names.collect()))
        }
        _ => Err(format!("unknown arguments {arguments:?}\n{}", crate::USAGE).into()),
    }
}

/// The stages named, and those that they stand on, in the order of the table.
fn select<'a>(stages: &'a [Stage], names: &[String]) -> Result<Vec<&'a Stage>> {
    let mut wanted: Vec<&str> = Vec::new();
    for name in names {
        let Some(stage) = stages.iter().find(|stage| stage.name == name) else {
            let known: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
            return Err(format!("no stage {name:?}; the stages are {}", known.join(", ")).into());
        };
        wanted.push(stage.name);
        wanted.extend(stage.after);
    }
    Ok(stages.iter().filter(|stage| names.is_empty() || wanted.contains(&stage.name)).collect())
}

/// A step with borrowed parts, so that `stage` can make one from its arguments.
type Parts<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], bool);

impl<'a> Run<'a> {
    fn new(root: &'a Path) -> Result<Self> {
        let logs = root.join("target/gates");
        std::fs::create_dir_all(&logs)?;
        process::adopt_orphans()?;
        let (sender, stop) = channel();
        let mut signals = signal_hook::iterator::Signals::new([
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ])?;
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // The receiver lives as long as the process.
                let _ = sender.send(signal);
            }
        });
        let seed = std::env::var(SEED).unwrap_or_else(|_| fresh_seed());
        Ok(Self { root, xtask: std::env::current_exe()?, logs, seed, stop, interrupted: Cell::new(false) })
    }

    /// Runs `stage`, unless something that it needs is absent or what it stands on has failed.
    fn stage(&self, stage: &Stage, before: &[Row]) -> Row {
        let unrun = |verdict| Row {
            name: stage.name.to_owned(),
            verdict,
            seconds: 0.0,
            limit_s: stage.limit_s,
            tests: None,
        };
        let broken = before
            .iter()
            .find(|row| stage.after.contains(&row.name.as_str()) && !matches!(row.verdict, Verdict::Ok));
        if let Some(row) = broken {
            return unrun(Verdict::Failed(format!("not run: {} did not pass", row.name)));
        }
        if let Some(reason) = stage.needs.iter().find_map(|need| needs::missing(self.root, need)) {
            return unrun(Verdict::Skipped(reason));
        }
        let steps: Vec<Parts<'_>> = stage.steps.iter().map(Step::parts).collect();
        self.steps(stage.name, stage.limit_s, &steps)
    }

    /// Runs `steps` one after the other under one limit, until one fails.
    fn steps(&self, name: &str, limit_s: u64, steps: &[Parts<'_>]) -> Row {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(limit_s);
        let mut tests: Option<Tests> = None;
        let verdict = self.logged(name, |log, path| {
            for step in steps {
                let from = log.metadata()?.len();
                let verdict = self.step(step, log, deadline, limit_s)?;
                if step.2 {
                    let output = read_from(path, from)?;
                    let counted = Tests::count(&output);
                    let sum = tests.get_or_insert_default();
                    sum.run += counted.run;
                    sum.ignored += counted.ignored;
                    if verdict == Verdict::Ok && counted.run == 0 {
                        return Ok(Verdict::Failed(format!("no test ran: {}", step.0.join(" "))));
                    }
                }
                if verdict != Verdict::Ok {
                    return Ok(verdict);
                }
            }
            Ok(Verdict::Ok)
        });
        Row { name: name.to_owned(), verdict, seconds: start.elapsed().as_secs_f64(), limit_s, tests }
    }

    fn logged(&self, name: &str, body: impl FnOnce(&File, &Path) -> std::io::Result<Verdict>) -> Verdict {
        let path = self.log(name);
        let outcome = File::options().create(true).append(true).open(&path).and_then(|log| {
            log.set_len(0)?;
            body(&log, &path)
        });
        outcome.unwrap_or_else(|error| Verdict::Failed(error.to_string()))
    }

    fn step(
        &self,
        step: &Parts<'_>,
        mut log: &File,
        deadline: Instant,
        limit_s: u64,
    ) -> std::io::Result<Verdict> {
        let (words, environment, _) = step;
        writeln!(log, "$ {}{}", shown(environment), words.join(" "))?;
        let (program, arguments) = words.split_first().unwrap_or((&"false", &[]));
        let mut command = match *program {
            "xtask" => Command::new(&self.xtask),
            program => Command::new(program),
        };
        command
            .args(arguments)
            .current_dir(self.root)
            .env(SEED, &self.seed)
            .env("CARGO_TERM_COLOR", "never")
            .envs(environment.iter().copied());
        let end = process::run(&mut command, log, deadline, &self.stop)
            .map_err(|error| std::io::Error::other(format!("{program} does not start: {error}")))?;
        Ok(match end {
            End::Exited(status) if status.success() => Verdict::Ok,
            End::Exited(status) => Verdict::Failed(status.to_string()),
            End::TimedOut => Verdict::Failed(format!("killed after its limit of {limit_s} s")),
            End::Interrupted => {
                self.interrupted.set(true);
                Verdict::Failed("interrupted".to_owned())
            }
            End::LeftBehind(names) => Verdict::Failed(format!("left processes behind: {}", names.join(", "))),
        })
    }

    /// Prints the end of each failed log and the closing line.
    fn close(&self, rows: &[Row]) -> ExitCode {
        let failed: Vec<&Row> = rows.iter().filter(|row| matches!(row.verdict, Verdict::Failed(_))).collect();
        for row in &failed {
            println!("\n---- {} ({})", row.name, self.log(&row.name).display());
            // A stage that did not run wrote no log; an old one would mislead.
            if row.seconds > 0.0 {
                let output = std::fs::read(self.log(&row.name)).unwrap_or_default();
                println!("{}", report::tail(&String::from_utf8_lossy(&output), TAIL_LINES));
            }
        }
        println!("\n{}", report::closing(rows));
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}

impl Step {
    fn parts(&self) -> Parts<'_> {
        (self.command, self.environment, self.tests)
    }
}

fn shown(environment: &[(&str, &str)]) -> String {
    environment.iter().map(|(name, value)| format!("{name}='{value}' ")).collect()
}

fn read_from(path: &Path, from: u64) -> std::io::Result<String> {
    let bytes = std::fs::read(path)?;
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[from..]).into_owned())
}

fn fresh_seed() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Decimal, so that every reader parses it with `str::parse::<u64>`.
    (u64::from(now.subsec_nanos()) << 32 ^ now.as_secs() ^ u64::from(std::process::id())).to_string()
}

#[cfg(test)]
mod tests;
