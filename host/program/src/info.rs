//! `congruent info`: the version, the job, the machine, and every variable with its value and meaning.

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use congruent_device::abi;
use serde::Serialize;

use super::failure::Failure;
use super::output::{print, print_json};
use congruent::bootstrap::{Bootstrap, Launcher};
use congruent::program::CONNECTIONS;
use congruent::tunables::{Source, TABLE, TEXTS, TextTunable, Tunable};
use congruent::{Tunables, World};

/// Show the version, the job this is started in, the machine, and every setting
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  congruent info                             this process alone
  congruent info --env                       the environment variables, without building a world
  congruent run -n 4 -- congruent info       a job of 4 PEs, as PE 0 sees it")]
pub(super) struct Args {
    /// Only the environment variables
    #[arg(long)]
    env: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Variables that are not tunables: what launchers set, and what the tools that build kernels read.
const OTHERS: [(&str, &str); 14] = [
    ("CONGRUENT_PE", "index of this PE; set by `congruent run`"),
    ("CONGRUENT_NPES", "number of PEs; set by `congruent run`"),
    ("CONGRUENT_LOCAL_RANK", "index of this PE among those of its host; set by `congruent run`"),
    (
        "CONGRUENT_RENDEZVOUS",
        "host:port where the PEs meet; set by `congruent run`, and to be set where others lack one",
    ),
    ("CONGRUENT_LISTENER", "descriptor of the socket that PE 0 listens at; set by `congruent run`"),
    (
        SECRET,
        "the job's secret, the same on all PEs; set by `congruent run`, and to be set where PEs are on several hosts",
    ),
    ("CONGRUENT_BOOTSTRAP_DEADLINE", "seconds that a PE waits for the others, 1 to 86400; 60 unless set"),
    ("CONGRUENT_HOST_ID", "a name for this host, where one is to be taken for several; not passed on to others"),
    (
        "CONGRUENT_SSH",
        "the command by which `congruent run --hosts` reaches a host, before the host and a command for it",
    ),
    (CONNECTIONS, "hardware queues for the streams of a process on a GPU, 8 unless set; `congruent run` sets it to 32"),
    ("CUDA_MODULE_LOADING", "when the CUDA driver loads kernels; `congruent run` sets it to EAGER, at once"),
    ("CONGRUENT_DEVICE_RUSTC", "the rustc that `congruent-build` compiles kernels with"),
    ("CONGRUENT_CACHE", "the folder where `congruent-build` keeps what it compiles; ~/.cache/congruent unless set"),
    ("CONGRUENT_PTXAS", "the ptxas that `congruent-build` assembles with"),
];

/// The source of a value that nobody gave.
const UNSET: &str = "unset";

/// Never shown.
const SECRET: &str = "CONGRUENT_JOB_TOKEN";

#[derive(Serialize)]
struct Info {
    version: &'static str,
    abi_version: u32,
    launcher: String,
    pes: usize,
    pe: usize,
    machine: String,
    cores: usize,
    heap_bytes: u64,
    heap_max_bytes: u64,
    heap_free_bytes: u64,
    /// What the world took of a GPU beyond the heap.
    beyond_heap_bytes: Option<u64>,
    multicast: String,
    #[serde(flatten)]
    variables: Variables,
}

#[derive(Serialize)]
struct Variables {
    tunables: Vec<Row>,
    texts: Vec<TextRow>,
    others: Vec<Other>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: u64,
    source: String,
    default: u64,
    range: (u64, u64),
    meaning: &'static str,
    #[serde(skip)]
    is_size: bool,
}

#[derive(Serialize)]
struct TextRow {
    name: &'static str,
    value: Option<String>,
    source: String,
    form: &'static str,
    meaning: &'static str,
}

#[derive(Serialize)]
struct Other {
    name: &'static str,
    value: Option<String>,
    meaning: &'static str,
}

/// Shows it; in a job, PE 0 does.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.env {
        // Who misspelt a variable was sent here, so the list comes even then, and the complaint after it.
        let read = Tunables::from_env();
        let variables = Variables::of(read.as_ref().unwrap_or(&Tunables::default()));
        if args.json {
            print_json(&variables)?
        } else {
            print(&variables.text())?
        };
        read?;
        return Ok(ExitCode::SUCCESS);
    }
    let launcher = Bootstrap::from_env()?.job().launcher;
    crate::world().run(1, |world| {
        if world.pe().index() != 0 {
            return Ok(());
        }
        let info = Info::of(world, launcher);
        if args.json { print_json(&info) } else { print(&info.text()) }
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Info {
    fn of(world: &World, launcher: Launcher) -> Self {
        let (heap, memory) = (world.heap_stats(), world.memory());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            abi_version: abi::VERSION,
            launcher: match launcher {
                Launcher::None => "none".to_owned(),
                Launcher::Congruent => "congruent run".to_owned(),
                other => format!("{other:?}"),
            },
            pes: world.npes(),
            pe: world.pe().index(),
            machine: world.machine(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            heap_bytes: memory.heap_bytes,
            heap_max_bytes: memory.heap_max_bytes,
            heap_free_bytes: heap.free,
            beyond_heap_bytes: memory.beyond_bytes,
            multicast: world.multicast(),
            variables: Variables::of(world.tunables()),
        }
    }

    fn text(&self) -> String {
        let Self { version, abi_version, launcher, pes, pe, machine, cores, multicast, .. } = self;
        let (heap, free) = (size(self.heap_bytes), self.heap_free_bytes >> 10);
        let grows = self.heap_max_bytes > self.heap_bytes;
        let grows = if grows { format!(", grows up to {}", size(self.heap_max_bytes)) } else { String::new() };
        let beyond = self
            .beyond_heap_bytes
            .map_or_else(String::new, |bytes| format!(", {}K of the GPU beyond it", bytes.div_ceil(1 << 10)));
        format!(
            "congruent {version}, kernel ABI {abi_version}\n\
             job       PE {pe} of {pes}, launcher: {launcher}\n\
             machine   {machine}, {cores} cores\n\
             heap      {heap} on each PE, {free}K free{grows}{beyond}\n\
             multicast {multicast}\n\n{}",
            self.variables.text()
        )
    }
}

impl Variables {
    fn of(tunables: &Tunables) -> Self {
        let row = |row: &Tunable| {
            let setting = tunables.setting(row.key);
            Row {
                name: row.name,
                value: setting.value,
                source: setting.source.to_string(),
                default: row.default,
                range: row.range,
                meaning: row.meaning,
                is_size: row.is_size,
            }
        };
        let text = |row: &TextTunable| {
            let setting = tunables.text_setting(row.key);
            TextRow {
                name: row.name,
                value: setting.map(|setting| setting.value.clone()),
                source: setting.map_or(UNSET.to_owned(), |setting| setting.source.to_string()),
                form: row.form,
                meaning: row.meaning,
            }
        };
        let value = |name| match std::env::var_os(name) {
            Some(_) if name == SECRET => Some("(set)".to_owned()),
            other => other.map(|value| value.to_string_lossy().into_owned()),
        };
        Self {
            tunables: TABLE.iter().map(row).collect(),
            texts: TEXTS.iter().map(text).collect(),
            others: OTHERS.iter().map(|&(name, meaning)| Other { name, value: value(name), meaning }).collect(),
        }
    }

    fn text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["variable", "value", "from", "range", "meaning"]);
        for row in &self.tunables {
            let show = |value| if row.is_size { size(value) } else { value.to_string() };
            let range = format!("{} to {}", show(row.range.0), show(row.range.1));
            table.add_row([row.name, &show(row.value), &row.source, &range, row.meaning]);
        }
        for row in &self.texts {
            table.add_row([row.name, row.value.as_deref().unwrap_or("-"), &row.source, row.form, row.meaning]);
        }
        for other in &self.others {
            let source = other.value.as_ref().map_or(UNSET.to_owned(), |_| Source::Environment.to_string());
            table.add_row([other.name, other.value.as_deref().unwrap_or("-"), &source, "", other.meaning]);
        }
        table.lines().map(|line| line.trim().to_owned() + "\n").collect()
    }
}

/// As the variables take it: 64M.
fn size(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        30.. if bytes > 0 => format!("{}G", bytes >> 30),
        20.. if bytes > 0 => format!("{}M", bytes >> 20),
        10.. if bytes > 0 => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_listed_exists() {
        for (name, _) in OTHERS {
            let read = Tunables::from_vars([(name.to_owned(), "1".to_owned())]);
            assert_eq!(read.unwrap(), Tunables::default(), "{name}");
        }
    }

    #[test]
    fn sizes_read_as_variables_take_them() {
        for (bytes, text) in [(64 << 20, "64M"), (1 << 30, "1G"), (3 << 10, "3K"), (1000, "1000"), (0, "0")] {
            assert_eq!(size(bytes), text);
        }
    }
}
