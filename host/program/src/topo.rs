//! `congruent topo`: what the machine is made of, and how PEs and devices reach each other.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use super::failure::Failure;
use super::output::print;
use crate::topology::Topology;
use crate::topology::paths::{Class, Paths};
use crate::topology::xml;
use congruent::bootstrap::{Bootstrap, Job, Launcher};
use congruent::device::Pe;

/// Show NUMA nodes, GPUs, network cards and the PCI tree between them, and the routes between PEs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// PEs, each a thread of this process [default: 4; from the launcher in a job]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "from")]
    pes: Option<u32>,
    /// Read FILE, in NCCL's XML, instead of looking at this machine
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Write FILE for NCCL_TOPO_FILE; - for standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    xml: Option<PathBuf>,
    /// Write all of it to FILE as one JSON document; - for standard output, and nothing else there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  congruent topo                                 this machine, and 4 PEs as threads
  congruent topo --xml topo.xml                  a file for NCCL_TOPO_FILE
  congruent topo --from topo.xml                 another machine, by such a file
  congruent topo --json - | jq .paths            for programs
  congruent run -n 4 -- congruent topo           the routes of a job's PEs";

/// PEs where neither user nor launcher says.
const PES: u32 = 4;

/// Files are a few thousand lines; what is longer is something else.
const LONGEST: u64 = 16 << 20;

/// The most columns of a table that anyone reads.
const WIDEST: usize = 256;

/// What stands for standard output.
const STDOUT: &str = "-";

#[derive(Serialize)]
struct Document {
    version: &'static str,
    #[serde(flatten)]
    topology: Topology,
    paths: Paths,
    /// Null for a file's machine, on which no PE runs.
    pes: Option<Routes>,
}

/// How each PE reaches each.
#[derive(Serialize)]
struct Routes {
    started_as: &'static str,
    /// What runs the kernels of PE 0, and by what its proxy reaches others.
    machine: String,
    /// A row for each PE.
    routes: Vec<Vec<Route>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Route {
    /// It is the PE itself.
    Itself,
    /// Loads and stores.
    Direct,
    /// Requests to the proxy.
    Proxied,
}

/// Shows it; in a job, PE 0 does.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let to_stdout = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new(STDOUT));
    if to_stdout(&args.xml) && to_stdout(&args.json) {
        return Err(Failure::Usage("--xml - and --json - at once: write one of them to a file".into()));
    }
    let (topology, pes) = match &args.from {
        Some(file) => (read(file)?, None),
        None => match routes(args.pes)? {
            Some(routes) => (Topology::here(), Some(routes)),
            // Another PE shows it.
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let document = Document { version: env!("CARGO_PKG_VERSION"), paths: Paths::of(&topology), topology, pes };
    if let Some(file) = &args.xml {
        write(file, &xml::write(&document.topology)?)?;
    }
    if let Some(file) = &args.json {
        write(file, &(serde_json::to_string_pretty(&document)? + "\n"))?;
    }
    if !to_stdout(&args.xml) && !to_stdout(&args.json) {
        print(&document.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The machine that a file describes.
fn read(file: &Path) -> Result<Topology, Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::Failed(format!("{}: {reason}", file.display()));
    let mut bytes = Vec::new();
    let opened = File::open(file).and_then(|opened| opened.take(LONGEST + 1).read_to_end(&mut bytes));
    opened.map_err(|error| failed(&format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > LONGEST {
        return Err(failed(&format!("is longer than {} MiB, so it is no machine's topology", LONGEST >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        failed(&format!("is no text after {} bytes; give it an XML file", error.utf8_error().valid_up_to()))
    })?;
    xml::read(&text).map_err(|error| failed(&error))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    if file == Path::new(STDOUT) {
        return print(text);
    }
    std::fs::write(file, text)
        .map_err(|error| Failure::Failed(format!("{} cannot be written: {error}", file.display())))
}

/// Starts the PEs, or joins those of the job, and lets each tell its routes. `None` on PEs other than 0.
fn routes(pes: Option<u32>) -> Result<Option<Routes>, Failure> {
    let bootstrap = Bootstrap::from_env()?;
    let pes = settle_pes(pes, bootstrap.job())?;
    let ended = crate::world().run(pes as usize, |world| {
        let (me, npes) = (world.pe().index(), world.npes());
        let route = |pe: usize| match world.is_direct(Pe::new(pe as u32)) {
            _ if pe == me => Route::Itself,
            true => Route::Direct,
            false => Route::Proxied,
        };
        let mine: String = (0..npes).map(|pe| route(pe).letter()).collect();
        let all = world.exchange("routes of topo", &mine)?;
        let started_as = if world.in_process() { "threads" } else { "processes" };
        let routes = all.iter().map(|row| row.chars().filter_map(Route::from_letter).collect()).collect();
        Ok::<_, Failure>((me == 0).then_some(Routes { started_as, machine: world.machine(), routes }))
    })?;
    Ok(ended.into_iter().flatten().next())
}

fn settle_pes(pes: Option<u32>, job: &Job) -> Result<u32, Failure> {
    match pes {
        Some(pes) if job.launcher != Launcher::None && pes != job.npes => {
            Err(Failure::Usage(format!("-p {pes}: the launcher started {} PEs; leave -p out", job.npes)))
        }
        Some(pes) => Ok(pes),
        None if job.launcher != Launcher::None => Ok(job.npes),
        None => Ok(PES),
    }
}

impl Route {
    const ALL: [Self; 3] = [Self::Itself, Self::Direct, Self::Proxied];

    fn name(self) -> &'static str {
        match self {
            Self::Itself => "-",
            Self::Direct => "direct",
            Self::Proxied => "proxied",
        }
    }

    /// As PEs tell each other.
    fn letter(self) -> char {
        match self {
            Self::Itself => '-',
            Self::Direct => 'd',
            Self::Proxied => 'p',
        }
    }

    fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.letter() == letter)
    }
}

impl Document {
    fn text(&self) -> String {
        let mut text = self.topology.text();
        if self.paths.devices.len() > WIDEST {
            text += "\nPaths between devices: too many to show, see --json\n";
        } else if self.paths.gpus > 0 {
            text += "\nPaths between devices\n";
            text += &matrix(&self.paths.devices, &self.paths.classes, Class::to_string);
            for class in Class::ALL {
                if self.paths.classes.iter().flatten().any(|&found| found == class) {
                    text += &format!("  {class}  {}\n", class.meaning());
                }
            }
        }
        if let Some(Routes { started_as, machine, routes }) = &self.pes {
            let names: Vec<String> = (0..routes.len()).map(|pe| format!("PE {pe}")).collect();
            text += &format!("\nRoutes between {} PEs, {started_as} of this machine\n", names.len());
            text += &matrix(&names, routes, |route| route.name().to_owned());
            text += "  direct   loads and stores on the peer's heap\n  proxied  requests to this PE's proxy\n";
            text += &format!("  PE 0 is on {machine}\n");
        }
        text
    }
}

/// A square of cells, with the names at its top and at its left.
fn matrix<C>(names: &[String], cells: &[Vec<C>], show: impl Fn(&C) -> String) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([""].into_iter().chain(names.iter().map(String::as_str)));
    for (name, row) in names.iter().zip(cells) {
        table.add_row([name.clone()].into_iter().chain(row.iter().map(&show)));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_has_its_names_on_two_sides() {
        let names = ["PE 0".to_owned(), "PE 1".to_owned()];
        let cells = [vec![Route::Itself, Route::Direct], vec![Route::Proxied, Route::Itself]];
        let text = matrix(&names, &cells, |route| route.name().to_owned());
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [vec!["PE", "0", "PE", "1"], vec!["PE", "0", "-", "direct"], vec!["PE", "1", "proxied", "-"]]
        );
    }

    #[test]
    fn threads_reach_each_other_directly() {
        let Routes { started_as, routes, .. } = routes(Some(3)).unwrap().unwrap();
        use Route::{Direct, Itself};
        assert_eq!(started_as, "threads");
        assert_eq!(routes, [[Itself, Direct, Direct], [Direct, Itself, Direct], [Direct, Direct, Itself]]);
    }

    #[test]
    fn a_file_that_is_no_topology_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.xml");
        let refused = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            read(&file).unwrap_err().to_string()
        };
        assert!(refused(b"<system version=\"1\">").contains("machine.xml: line 1, column 21: <system> is not closed"));
        assert!(refused(b"ab\xff").contains("machine.xml: is no text after 2 bytes"));
        let none = read(&folder.path().join("none.xml")).unwrap_err().to_string();
        assert!(none.contains("none.xml: cannot be read"), "{none}");
        assert!(read(Path::new("/dev/zero")).unwrap_err().to_string().contains("longer than 16 MiB"));
    }
}
