//! Which hosts a job runs on, and how many PEs are on each.

use congruent::bootstrap::MAX_PES;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What reaches a host, unless someone says otherwise.
const SSH: &str = "ssh";
/// What it is told behind what the user tells it, which counts where both say the same: without a question that nobody answers, and with
/// an end to silence.
const SSH_OPTIONS: [&str; 10] = [
    "-x",
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];
/// Says otherwise.
const SSH_VARIABLE: &str = "CONGRUENT_SSH";

/// Variables that hold for one PE, host or job, and so are not passed on.
const OWN: [&str; 9] = [
    "CONGRUENT_PE",
    "CONGRUENT_NPES",
    "CONGRUENT_LOCAL_RANK",
    "CONGRUENT_RENDEZVOUS",
    "CONGRUENT_LISTENER",
    "CONGRUENT_JOB_TOKEN",
    "CONGRUENT_HOST_ID",
    SSH_VARIABLE,
    super::ENGINE,
];

/// A job on several hosts.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Across {
    /// Hosts, and how many PEs on each, 1 if not said: a:4,b:4 or user@a:4,[fe80::1]:4
    #[arg(long, value_name = "LIST", group = "list")]
    pub hosts: Option<String>,
    /// A file of them: a line for each host, as `a:4` or `a slots=4`; # begins a comment
    #[arg(long, value_name = "FILE", group = "list")]
    pub hostfile: Option<PathBuf>,
    /// What runs a command on a host [default: CONGRUENT_SSH, or ssh]
    #[arg(long, value_name = "COMMAND", requires = "list")]
    pub ssh: Option<String>,
    /// Where this program is on the hosts, from the home folder there [default: where it is here]
    #[arg(long, value_name = "PATH", requires = "list")]
    pub remote_program: Option<PathBuf>,
    /// Pass a variable on to the hosts, or set it there; those of congruent are passed on
    #[arg(short = 'x', long = "export", value_name = "NAME[=VALUE]", requires = "list")]
    pub export: Vec<OsString>,
}

/// What is wrong with what was said of hosts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostsError {
    /// It is not a host and a number of PEs.
    #[error("{place}: {entry:?} is no host: give a name or an address, and a number of PEs, such as a:4")]
    Malformed {
        /// Where it stands.
        place: String,
        /// What stands there.
        entry: String,
    },
    /// It is not how many PEs there may be.
    #[error("{place}: {entry:?}: give each host between 1 and {MAX_PES} PEs, and all together no more")]
    Slots {
        /// Where it stands.
        place: String,
        /// What stands there.
        entry: String,
    },
    /// A host stands there twice.
    #[error("{place}: {host} is there twice: give it all its PEs at once, such as {host}:{slots}")]
    Twice {
        /// Where it stands.
        place: String,
        /// The host.
        host: String,
        /// How many PEs it was given in all.
        slots: u32,
    },
    /// There is none.
    #[error("{place}: no hosts")]
    Empty {
        /// Where none are.
        place: String,
    },
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not a command.
    #[error("{command:?} is no command: say what runs another on a host, such as \"ssh -p 2222\"")]
    Ssh {
        /// What was given.
        command: String,
    },
    /// A variable to pass on is not there.
    #[error("-x {name}: there is no such variable here; -x {name}=VALUE sets one")]
    Export {
        /// Its name.
        name: String,
    },
}

/// A host, and how many PEs are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// As ssh takes it.
    pub(super) name: String,
    pub(super) slots: u32,
}

impl Across {
    /// The hosts, in the order of their PEs, if there are any.
    pub(super) fn list(&self) -> Result<Option<Vec<Host>>, HostsError> {
        let (place, entries) = match (&self.hosts, &self.hostfile) {
            (Some(list), _) => ("--hosts".to_owned(), list.split(',').map(str::to_owned).collect()),
            (None, Some(file)) => {
                let text = fs::read_to_string(file);
                let text = text.map_err(|source| HostsError::File { file: file.clone(), source })?;
                (file.display().to_string(), entries(&text))
            }
            (None, None) => return Ok(None),
        };
        hosts(&place, &entries).map(Some)
    }

    /// The command that runs another on a host, as words.
    pub(super) fn ssh(&self) -> Result<Vec<String>, HostsError> {
        let said = self.ssh.clone().or_else(|| Some(env::var_os(SSH_VARIABLE)?.to_string_lossy().into_owned()));
        let command = said.unwrap_or_else(|| SSH.to_owned());
        let words = shlex::split(&command).filter(|words| !words.is_empty());
        let mut words = words.ok_or(HostsError::Ssh { command })?;
        if Path::new(&words[0]).file_name().is_some_and(|name| name == SSH) {
            words.extend(SSH_OPTIONS.map(str::to_owned));
        }
        Ok(words)
    }

    /// What the PEs on every host have in their environment.
    pub(super) fn variables(&self) -> Result<Vec<(OsString, OsString)>, HostsError> {
        let ours =
            |name: &OsStr| name.to_string_lossy().starts_with("CONGRUENT_") && !OWN.iter().any(|own| name == *own);
        let mut set: Vec<_> = env::vars_os().filter(|(name, _)| ours(name)).collect();
        for export in &self.export {
            let bytes = export.as_bytes();
            let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (OsStr::from_bytes(&bytes[..at]).into(), Some(OsStr::from_bytes(&bytes[at + 1..]).into())),
                None => (export.clone(), env::var_os(export)),
            };
            let unknown = || HostsError::Export { name: name.to_string_lossy().into_owned() };
            set.push((name.clone(), value.filter(|_| !name.is_empty()).ok_or_else(unknown)?));
        }
        Ok(set)
    }
}

/// What a file of hosts has, a line for each.
fn entries(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|words| !words.is_empty());
    lines
        .map(|words| match words[..] {
            [host, slots] => match slots.strip_prefix("slots=") {
                Some(slots) => format!("{host}:{slots}"),
                None => words.join(" "),
            },
            _ => words.join(" "),
        })
        .collect()
}

fn hosts(place: &str, entries: &[String]) -> Result<Vec<Host>, HostsError> {
    let place = || place.to_owned();
    let mut hosts: Vec<Host> = Vec::new();
    for entry in entries {
        let (name, slots) =
            split(entry).ok_or_else(|| HostsError::Malformed { place: place(), entry: entry.clone() })?;
        let many = slots.map_or(Some(1), |slots| slots.parse().ok()).filter(|many| (1..=MAX_PES).contains(many));
        let before: u32 = hosts.iter().map(|host| host.slots).sum();
        let many = many.filter(|many| before + many <= MAX_PES);
        let slots = many.ok_or_else(|| HostsError::Slots { place: place(), entry: entry.clone() })?;
        if let Some(host) = hosts.iter().find(|host| host.name == name) {
            return Err(HostsError::Twice { place: place(), host: name.into(), slots: host.slots + slots });
        }
        hosts.push(Host { name: name.into(), slots });
    }
    if hosts.is_empty() { Err(HostsError::Empty { place: place() }) } else { Ok(hosts) }
}

/// A host and what stands behind its colon. A name that begins with a dash would be an option of ssh's.
fn split(entry: &str) -> Option<(&str, Option<&str>)> {
    let (name, slots) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (address, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match entry.split_once(':') {
            Some((name, slots)) if !slots.contains(':') => (name, Some(slots)),
            Some(_) => return None,
            None => (entry, None),
        },
    };
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-@:%".contains(c);
    (!name.is_empty() && !name.starts_with('-') && name.chars().all(letters)).then_some((name, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Vec<(String, u32)>, String> {
        let across = Across { hosts: Some(text.into()), ..Across::default() };
        let hosts = across.list().map_err(|error| error.to_string())?.unwrap();
        Ok(hosts.into_iter().map(|host| (host.name, host.slots)).collect())
    }

    #[test]
    fn hosts_are_in_the_order_of_their_pes() {
        let expected = [("b", 2), ("u@a.example", 1), ("fe80::1%eth0", 3), ("10.0.0.1", 4)];
        let expected: Vec<_> = expected.map(|(name, slots)| (name.to_owned(), slots)).to_vec();
        assert_eq!(list("b:2,u@a.example,[fe80::1%eth0]:3,10.0.0.1:4"), Ok(expected));
        assert_eq!(Across::default().list().unwrap(), None);
    }

    #[test]
    fn a_list_that_is_no_list_is_refused_by_what_is_wrong_with_it() {
        for (text, part) in [
            ("", "\"\" is no host"),
            ("a:2,,b", "\"\" is no host"),
            ("a b", "\"a b\" is no host"),
            (":2", "\":2\" is no host"),
            ("-oProxyCommand=x:2", "is no host"),
            ("a;reboot", "is no host"),
            ("::1:2", "is no host"),
            ("[::1", "is no host"),
            ("[::1]2", "is no host"),
            ("a:0", "between 1 and 4096"),
            ("a:", "between 1 and 4096"),
            ("a:-1", "between 1 and 4096"),
            ("a:4097", "between 1 and 4096"),
            ("a:99999999999", "between 1 and 4096"),
            ("a:4096,b:1", "between 1 and 4096"),
            ("a:2,b:2,a:3", "a is there twice: give it all its PEs at once, such as a:5"),
        ] {
            let said = list(text).expect_err(text);
            assert!(said.starts_with("--hosts: ") && said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_has_a_line_for_each_host() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            let across = Across { hostfile: Some(file.clone()), ..Across::default() };
            across.list().map(Option::unwrap).map_err(|error| error.to_string())
        };
        let host = |name: &str, slots| Host { name: name.into(), slots };
        let text = "# those of ours\n\na slots=2\n  b:3 # the other\nc\n";
        assert_eq!(read(text), Ok(vec![host("a", 2), host("b", 3), host("c", 1)]));
        for (text, part) in [("# none\n", "no hosts"), ("a max_slots=2", "is no host"), ("a slots=0", "between 1")] {
            let said = read(text).expect_err(text);
            assert!(said.starts_with(&file.display().to_string()) && said.contains(part), "{text}: {said}");
        }
        let none = Across { hostfile: Some(folder.path().join("none")), ..Across::default() };
        assert!(none.list().expect_err("no file").to_string().contains("none: No such file"));
    }

    #[test]
    fn variables_are_passed_on_or_set() {
        let export = |names: &[&str]| Across { export: names.iter().map(Into::into).collect(), ..Across::default() };
        let set = export(&["PATH", "MINE=a=b"]).variables().unwrap();
        assert!(set.contains(&("MINE".into(), "a=b".into())));
        assert!(set.contains(&("PATH".into(), env::var_os("PATH").unwrap())));
        for (name, part) in [("NO_SUCH_THING", "-x NO_SUCH_THING:"), ("=x", "-x :")] {
            let said = export(&[name]).variables().expect_err(name).to_string();
            assert!(said.contains(part), "{said}");
        }
        let words = |command: &str| Across { ssh: Some(command.into()), ..Across::default() }.ssh().unwrap();
        assert_eq!(words("/bin/ssh -p 22")[..4], ["/bin/ssh", "-p", "22", "-x"]);
        assert_eq!(words("enter ssh"), ["enter", "ssh"]);
        for command in ["", "ssh 'x"] {
            let across = Across { ssh: Some(command.into()), ..Across::default() };
            assert!(across.ssh().expect_err(command).to_string().contains("is no command"));
        }
    }
}
