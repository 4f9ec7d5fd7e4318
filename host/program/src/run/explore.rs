//! `congruent run --seeds`: runs a program again and again on virtual GPUs, each time with another seed, until one of them shows a
//! mistake.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use super::{Args, Kept, Launch, Output, RunError, Share, code};
use crate::output::Progress;

/// Where the run that shows a mistake is kept, if nobody says otherwise.
const RECORD: &str = "congruent.record";

/// How the virtual driver begins a report. Lines of it that follow are indented.
const REPORT: &str = "congruent virtual GPU: ";

/// Runs the job with one seed after the other: a failure if one shows a mistake, which is told.
pub(super) fn explore(args: &Args, seeds: NonZeroU64) -> Result<ExitCode, RunError> {
    let first = args.look.seed.unwrap_or(0);
    let last = first.saturating_add(seeds.get() - 1);
    let record = args.look.record.clone().unwrap_or_else(|| RECORD.into());
    let trial = trial(&record);
    for seed in first..=last {
        let mut args = args.clone();
        (args.look.seed, args.look.seeds, args.look.record) = (Some(seed), None, Some(trial.clone()));
        let kept = Kept::default();
        let progress = Progress::show(format_args!("seed {seed} of {first} to {last}"));
        let mut launch = Launch::start(&args, Share::whole(args.npes())?, Output::Kept(kept.clone()))?;
        let failure = launch.supervise()?;
        drop(progress);
        let tried = seed - first + 1;
        if launch.interrupted {
            let _removed = fs::remove_file(&trial);
            eprintln!("congruent run: ended after {tried} seeds, {first} to {seed}");
            return Ok(ExitCode::from(failure.map_or(1, code)));
        }
        let said = kept.text();
        let report = report(&said);
        if report.is_some() || failure.is_some() {
            let found = if report.is_some() { "a mistake" } else { "a failure" };
            eprint!("{}", report.unwrap_or(said));
            eprintln!("congruent run: {found} with seed {seed}, the {tried}. of {seeds}; to see it again:");
            args.look.record = keep(&trial, &record)?;
            eprintln!("  {}", line(&args));
            return Ok(ExitCode::FAILURE);
        }
    }
    // It shows nothing. Where programs run without an engine there is none.
    let _removed = fs::remove_file(&trial);
    println!("congruent run: no mistake with {seeds} seeds, {first} to {last}");
    Ok(ExitCode::SUCCESS)
}

/// Where the run that is tried is recorded. What an earlier search has found stays until another run shows something.
fn trial(record: &Path) -> PathBuf {
    let mut name = record.as_os_str().to_owned();
    name.push(".trial");
    name.into()
}

/// Puts the record of a trial where records are kept; nowhere if there is none, as where programs run without an engine.
fn keep(trial: &Path, record: &Path) -> Result<Option<PathBuf>, RunError> {
    match fs::rename(trial, record) {
        Ok(()) => Ok(Some(record.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RunError::System { doing: "keeping the record, which stays in its .trial file", source }),
    }
}

/// The first report among the lines of all PEs.
fn report(said: &str) -> Option<String> {
    let mut lines = said.lines();
    let (label, begin) = lines.find_map(|line| line.split_once("] ").filter(|(_, rest)| rest.starts_with(REPORT)))?;
    let own = lines.filter_map(|line| line.strip_prefix(label)?.strip_prefix("] "));
    let rest = own.take_while(|line| line.starts_with("  "));
    Some([begin].into_iter().chain(rest).flat_map(|line| [line, "\n"]).collect())
}

/// The command that runs a recorded job once more, for a shell.
fn line(args: &Args) -> String {
    let mut words = vec!["congruent run".to_owned()];
    words.extend(args.on.map(|on| format!("--virtual {on}")));
    words.extend(args.look.seed.map(|seed| format!("--seed {seed}")));
    words.extend(
        [("--races", args.look.races), ("--weak", args.look.weak)]
            .iter()
            .filter(|(_, asked)| *asked)
            .map(|(word, _)| (*word).to_owned()),
    );
    let quoted = |word: Cow<'_, str>| shlex::try_quote(&word).map_or_else(|_| word.clone().into_owned(), Into::into);
    words.extend(args.look.record.iter().map(|file| format!("--replay {}", quoted(file.to_string_lossy()))));
    words.push("--".to_owned());
    words.extend(args.command.iter().map(|word| quoted(word.to_string_lossy())));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::Look;
    use super::*;

    #[test]
    fn the_first_report_is_found_among_the_lines_of_others() {
        let said = "[0] hello\n[1] congruent virtual GPU: data race: nothing\n[0]   not this\n[1]   write by kernel k\n\
                    [0] congruent virtual GPU: another\n[1]   in kernel k\n[1] the end\n[1]   nor this\n";
        let expected = "congruent virtual GPU: data race: nothing\n  write by kernel k\n  in kernel k\n";
        assert_eq!(report(said).as_deref(), Some(expected));
        assert_eq!(report("[0] hello\n"), None);
    }

    #[test]
    fn the_line_that_shows_it_again_is_one_for_a_shell() {
        let record = Some("a record".into());
        let look = Look { races: true, seed: Some(7), record, ..Look::default() };
        let command = ["./a program", "--size=4", "it's"].map(Into::into).to_vec();
        let args = Args { on: "2x4".parse().ok(), look, command, ..Args::default() };
        let expected =
            "congruent run --virtual 2x4 --seed 7 --races --replay 'a record' -- './a program' '--size=4' \"it's\"";
        assert_eq!(line(&args), expected);
        assert_eq!(args.look.settings(), "schedule=priorities,seed=7,races=1");
        assert_eq!(args.look.engine_settings(), "schedule=priorities,seed=7,races=1,record=a record");
    }
}
