//! What launchers say in the environment, and how it becomes a [`Job`].
//!
//! | launcher | PE, number of PEs | meeting place |
//! |---|---|---|
//! | `congruent run`, on one host or by ssh on several | `CONGRUENT_PE`, `CONGRUENT_NPES` | `CONGRUENT_RENDEZVOUS=host:port`; PE 0 listens there at descriptor `CONGRUENT_LISTENER` |
//! | torchrun | `RANK`, `WORLD_SIZE` | the 16 ports after `MASTER_PORT`, which torch itself uses, at `MASTER_ADDR` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | a file, on one host |
//! | PMI | `PMI_RANK`, `PMI_SIZE` | a file, on one host |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | the step's first node, at a port made of the step's number |
//!
//! Where torchrun or Slurm say that all PEs are on one host, they too meet by a file. `CONGRUENT_RENDEZVOUS` and
//! `CONGRUENT_JOB_TOKEN` hold with every launcher. Who meets at a port proves itself by that token, so without it there is no
//! such job: PEs that would meet at a loopback address meet by a file instead, for which PE 0 makes a secret, and others are
//! told what to export. No launcher has a secret of its own that could do: what torchrun's store and Slurm's environment tell,
//! they tell everyone.
//! A launcher often runs inside a Slurm step, so Slurm is asked last; all others must agree.

use super::error::BootstrapError;
use super::job::{Job, Launcher, Rendezvous};
use super::token::Token;
use super::{DEFAULT_DEADLINE, MAX_PES};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// What of a value is repeated in an error.
const SHOWN: usize = 64;

/// How many ports after torch's own are tried.
const TORCH_PORTS: u16 = 16;

/// Reads the job out of the environment.
pub(super) fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Job, BootstrapError> {
    let env = Environment { variable };
    let mut seats = [congruent(&env)?, torchrun(&env)?, open_mpi(&env)?, pmi(&env)?].into_iter().flatten();
    let seat = match seats.next() {
        Some(seat) => seat,
        None => match slurm(&env)? {
            Some(seat) => seat,
            None => return Ok(Job { deadline: env.deadline()?, ..Job::single() }),
        },
    };
    seats.try_for_each(|other| seat.agrees_with(&other))?;
    seat.into_job(&env)
}

struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A number, and the variable that said it.
type Said = (&'static str, u32);

/// A launcher's word.
struct Seat {
    launcher: Launcher,
    pe: Said,
    npes: Said,
    local_rank: Option<u32>,
    name: String,
    /// Where to meet when `CONGRUENT_RENDEZVOUS` does not say.
    rendezvous: Option<Rendezvous>,
}

impl Seat {
    fn agrees_with(&self, other: &Self) -> Result<(), BootstrapError> {
        for (mine, theirs) in [(self.pe, other.pe), (self.npes, other.npes)] {
            if mine.1 != theirs.1 {
                return Err(BootstrapError::Contradiction {
                    first: format!("{}={}", mine.0, mine.1),
                    second: format!("{}={}", theirs.0, theirs.1),
                });
            }
        }
        Ok(())
    }

    fn into_job(self, env: &Environment<'_>) -> Result<Job, BootstrapError> {
        let rendezvous = match (env.rendezvous()?, self.rendezvous) {
            _ if self.npes.1 == 1 => Rendezvous::Alone,
            (Some(given), _) | (None, Some(given)) => given,
            (None, None) => return Err(BootstrapError::NoRendezvous),
        };
        let (rendezvous, token) = match (env.token()?, rendezvous) {
            (Some(token), rendezvous) => (rendezvous, token),
            // On one host there is a way to meet that tells a secret to nobody else.
            (None, Rendezvous::Address { host, port, .. }) if is_loopback(&host) => {
                (Rendezvous::File { name: format!("{} {host} {port}", self.name) }, Token::random()?)
            }
            (None, Rendezvous::Address { host, port, .. }) => {
                return Err(BootstrapError::NoToken { place: format!("{host}:{port}") });
            }
            (None, rendezvous) => (rendezvous, Token::random()?),
        };
        let rendezvous = match (self.launcher, self.pe.1, env.number("CONGRUENT_LISTENER")?, rendezvous) {
            (Launcher::Congruent, 0, Some(descriptor), Rendezvous::Address { .. }) => {
                Rendezvous::Inherited { descriptor }
            }
            (.., rendezvous) => rendezvous,
        };
        Ok(Job {
            pe: self.pe.1,
            npes: self.npes.1,
            local_rank: self.local_rank,
            name: self.name,
            rendezvous,
            token,
            deadline: env.deadline()?,
            launcher: self.launcher,
        })
    }
}

fn congruent(env: &Environment<'_>) -> Result<Option<Seat>, BootstrapError> {
    let Some((pe, npes)) = env.place("CONGRUENT_PE", "CONGRUENT_NPES")? else { return Ok(None) };
    if npes.1 > 1 && env.token()?.is_none() {
        return Err(BootstrapError::MissingVariable { name: "CONGRUENT_JOB_TOKEN", because: "CONGRUENT_PE" });
    }
    let name = "congruent".to_string();
    let local_rank = env.number("CONGRUENT_LOCAL_RANK")?;
    Ok(Some(Seat { launcher: Launcher::Congruent, pe, npes, local_rank, name, rendezvous: None }))
}

fn torchrun(env: &Environment<'_>) -> Result<Option<Seat>, BootstrapError> {
    let Some((pe, npes)) = env.place("RANK", "WORLD_SIZE")? else { return Ok(None) };
    let (host, port) = match (env.text("MASTER_ADDR"), env.number::<u16>("MASTER_PORT")?) {
        (Some(_), Some(0)) if npes.1 > 1 => return Err(bad("MASTER_PORT", "0".into(), "between 1 and 65535")),
        (Some(host), Some(port)) => (host, port),
        _ if npes.1 == 1 => (String::new(), 0),
        (None, _) => return Err(BootstrapError::MissingVariable { name: "MASTER_ADDR", because: pe.0 }),
        (_, None) => return Err(BootstrapError::MissingVariable { name: "MASTER_PORT", because: pe.0 }),
    };
    let run = env.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let restart = env.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let name = format!("torchrun {run} {restart} {host} {port}");
    let rendezvous = if env.number("LOCAL_WORLD_SIZE")? == Some(npes.1) {
        Rendezvous::File { name: name.clone() }
    } else {
        let after = port.checked_add(1).filter(|first| *first <= u16::MAX - TORCH_PORTS);
        let port = after.unwrap_or_else(|| port - TORCH_PORTS);
        Rendezvous::Address { host, port, ports: TORCH_PORTS }
    };
    let local_rank = env.number("LOCAL_RANK")?;
    Ok(Some(Seat { launcher: Launcher::Torchrun, pe, npes, local_rank, name, rendezvous: Some(rendezvous) }))
}

fn open_mpi(env: &Environment<'_>) -> Result<Option<Seat>, BootstrapError> {
    let Some((pe, npes)) = env.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")? else { return Ok(None) };
    let name = env.job_of_parent("open-mpi", "PMIX_NAMESPACE");
    let one_host = env.number("OMPI_COMM_WORLD_LOCAL_SIZE")?.is_none_or(|local: u32| local == npes.1);
    let rendezvous = one_host.then(|| Rendezvous::File { name: name.clone() });
    let local_rank = env.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    Ok(Some(Seat { launcher: Launcher::OpenMpi, pe, npes, local_rank, name, rendezvous }))
}

fn pmi(env: &Environment<'_>) -> Result<Option<Seat>, BootstrapError> {
    let Some((pe, npes)) = env.place("PMI_RANK", "PMI_SIZE")? else { return Ok(None) };
    let name = env.job_of_parent("pmi", "PMI_JOBID");
    let one_host = env.number("MPI_LOCALNRANKS")?.is_none_or(|local: u32| local == npes.1);
    let rendezvous = one_host.then(|| Rendezvous::File { name: name.clone() });
    let local_rank = env.number("MPI_LOCALRANKID")?;
    Ok(Some(Seat { launcher: Launcher::Pmi, pe, npes, local_rank, name, rendezvous }))
}

/// A batch script carries Slurm's variables too, but only a step has its number and its tasks.
fn slurm(env: &Environment<'_>) -> Result<Option<Seat>, BootstrapError> {
    let Some(step) = env.number::<u32>("SLURM_STEP_ID")? else { return Ok(None) };
    let size = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"].into_iter().find(|name| env.text(name).is_some());
    let Some((pe, npes)) = env.place("SLURM_PROCID", size.unwrap_or("SLURM_NTASKS"))? else { return Ok(None) };
    let Some(job) = env.number::<u32>("SLURM_JOB_ID")? else {
        return Err(BootstrapError::MissingVariable { name: "SLURM_JOB_ID", because: "SLURM_STEP_ID" });
    };
    let name = format!("slurm {job}.{step}");
    let nodes = match env.number::<u32>("SLURM_STEP_NUM_NODES")? {
        Some(nodes) => Some(nodes),
        None => env.number("SLURM_NNODES")?,
    };
    let first_node = env.text("SLURM_STEP_NODELIST").map(|list| first_host(&list));
    let rendezvous = match (nodes, first_node.or_else(|| env.text("SLURM_LAUNCH_NODE_IPADDR"))) {
        (Some(1), _) => Some(Rendezvous::File { name: name.clone() }),
        (_, Some(host)) => Some(Rendezvous::Address { host, port: slurm_port(job, step), ports: 1 }),
        (_, None) => None,
    };
    let local_rank = env.number("SLURM_LOCALID")?;
    Ok(Some(Seat { launcher: Launcher::Slurm, pe, npes, local_rank, name, rendezvous }))
}

/// A port that steps of the same node are unlikely to share, below those the system gives out itself.
fn slurm_port(job: u32, step: u32) -> u16 {
    20_000 + (u64::from(job) * 37 + u64::from(step)).rem_euclid(10_000) as u16
}

/// The first host of a list such as `gpu[01-04,07],login`.
fn first_host(list: &str) -> String {
    let mut host = String::new();
    let mut inside = false;
    let mut chosen = false;
    for letter in list.chars() {
        match letter {
            '[' => (inside, chosen) = (true, false),
            ']' => inside = false,
            ',' if !inside => break,
            ',' | '-' if inside => chosen = true,
            _ if inside && chosen => {}
            _ => host.push(letter),
        }
    }
    host
}

impl Environment<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// The job's secret, byte for byte. It is never repeated, not even in an error.
    fn token(&self) -> Result<Option<Token>, BootstrapError> {
        const NAME: &str = "CONGRUENT_JOB_TOKEN";
        match (self.variable)(NAME) {
            Some(secret) if secret.is_empty() => Err(bad(NAME, String::new(), "a secret, the same on every PE")),
            secret => Ok(secret.map(|secret| Token::derive(secret.as_bytes()))),
        }
    }

    fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, BootstrapError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(bad(name, value, "a whole number, not negative")),
        }
    }

    /// PE and number of PEs, each with the variable that said so: both, or neither.
    fn place(&self, pe: &'static str, npes: &'static str) -> Result<Option<(Said, Said)>, BootstrapError> {
        let (index, size) = match (self.number::<u32>(pe)?, self.number::<u32>(npes)?) {
            (Some(index), Some(size)) => (index, size),
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(BootstrapError::MissingVariable { name: pe, because: npes }),
            (Some(_), None) => return Err(BootstrapError::MissingVariable { name: npes, because: pe }),
        };
        if !(1..=MAX_PES).contains(&size) {
            return Err(bad(npes, size.to_string(), &format!("between 1 and {MAX_PES}")));
        }
        if index >= size {
            return Err(bad(pe, index.to_string(), &format!("less than {npes}={size}")));
        }
        Ok(Some(((pe, index), (npes, size))))
    }

    /// The job's name as `variable` tells it; else the PEs know each other by the process that started them.
    fn job_of_parent(&self, launcher: &str, variable: &str) -> String {
        let job = self.text(variable).unwrap_or_else(|| format!("parent {}", std::os::unix::process::parent_id()));
        format!("{launcher} {job}")
    }

    fn rendezvous(&self) -> Result<Option<Rendezvous>, BootstrapError> {
        const NAME: &str = "CONGRUENT_RENDEZVOUS";
        let Some(value) = self.text(NAME) else { return Ok(None) };
        let parts = value.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match parts.map(|(host, port)| (host.trim_start_matches('[').trim_end_matches(']'), port)) {
            Some((host, port)) if !host.is_empty() && port != 0 => {
                Ok(Some(Rendezvous::Address { host: host.to_string(), port, ports: 1 }))
            }
            _ => Err(bad(NAME, value, "host:port")),
        }
    }

    fn deadline(&self) -> Result<Duration, BootstrapError> {
        const NAME: &str = "CONGRUENT_BOOTSTRAP_DEADLINE";
        match self.number::<u64>(NAME)? {
            None => Ok(DEFAULT_DEADLINE),
            Some(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
            Some(seconds) => Err(bad(NAME, seconds.to_string(), "seconds, between 1 and 86400")),
        }
    }
}

/// Whether a name or address can only mean the host that it is said on.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

fn bad(name: &'static str, mut value: String, expected: &str) -> BootstrapError {
    if let Some((end, _)) = value.char_indices().nth(SHOWN) {
        value.truncate(end);
        value.push_str("...");
    }
    BootstrapError::BadVariable { name, value, expected: expected.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Result<Job, BootstrapError> {
        read(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    fn complaint(variables: &[(&str, &str)]) -> String {
        job(variables).expect_err("refused").to_string()
    }

    const TORCH: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("CONGRUENT_JOB_TOKEN", "s"),
    ];

    fn torch_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        more.iter().chain(&TORCH).copied().collect()
    }

    #[test]
    fn nobody_is_one_pe() {
        let job = job(&[("PATH", "/bin")]).unwrap();
        assert_eq!((job.pe, job.npes, job.launcher), (0, 1, Launcher::None));
        assert_eq!(job.rendezvous, Rendezvous::Alone);
    }

    #[test]
    fn our_own_launcher() {
        let ours = [
            ("CONGRUENT_PE", "1"),
            ("CONGRUENT_NPES", "2"),
            ("CONGRUENT_RENDEZVOUS", "[::1]:4000"),
            ("CONGRUENT_JOB_TOKEN", "s"),
            ("CONGRUENT_BOOTSTRAP_DEADLINE", "5"),
            ("CONGRUENT_LOCAL_RANK", "0"),
        ];
        let found = job(&ours).unwrap();
        assert_eq!((found.pe, found.npes, found.deadline), (1, 2, Duration::from_secs(5)));
        assert_eq!((found.local_rank, job(&ours[..5]).unwrap().local_rank), (Some(0), None));
        assert_eq!(found.rendezvous, Rendezvous::Address { host: "::1".into(), port: 4000, ports: 1 });
        assert!(complaint(&ours[..3]).contains("CONGRUENT_JOB_TOKEN"));
        assert!(complaint(&[ours[0], ours[1], ours[3]]).contains("CONGRUENT_RENDEZVOUS"));
    }

    #[test]
    fn pe_0_listens_where_its_launcher_does() {
        let ours = [
            ("CONGRUENT_NPES", "2"),
            ("CONGRUENT_RENDEZVOUS", "127.0.0.1:4000"),
            ("CONGRUENT_JOB_TOKEN", "s"),
            ("CONGRUENT_LISTENER", "7"),
        ];
        let meets = |pe| job(&[&[("CONGRUENT_PE", pe)], &ours[..]].concat()).unwrap().rendezvous;
        assert_eq!(meets("0"), Rendezvous::Inherited { descriptor: 7 });
        assert_eq!(meets("1"), Rendezvous::Address { host: "127.0.0.1".into(), port: 4000, ports: 1 });
    }

    #[test]
    fn without_a_token_nobody_meets_at_a_port() {
        let torch = |host| [TORCH[0], TORCH[1], ("MASTER_ADDR", host), TORCH[3]];
        for host in ["127.0.0.1", "localhost", "::1", "127.3.2.1", "::ffff:127.0.0.1"] {
            let found = job(&torch(host)).unwrap();
            let Rendezvous::File { name } = &found.rendezvous else { panic!("{host}: {found:?}") };
            assert!(name.contains(host) && name.contains("29500"), "{name}");
        }
        for host in ["node0", "10.0.0.1", "0.0.0.0"] {
            let said = complaint(&torch(host));
            assert!(said.contains("export CONGRUENT_JOB_TOKEN") && said.contains(host), "{said}");
        }
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-09]"),
        ];
        assert!(complaint(&slurm).contains("CONGRUENT_JOB_TOKEN"));
        let one_host = [&slurm[..], &[("SLURM_NNODES", "1")]].concat();
        assert!(matches!(job(&one_host).unwrap().rendezvous, Rendezvous::File { .. }));
        let mpi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("CONGRUENT_RENDEZVOUS", "gpu07:4000")];
        assert!(complaint(&mpi).contains("CONGRUENT_JOB_TOKEN"));
    }

    #[test]
    fn tokens_are_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let token = |secret: &[u8]| {
            let lookup = |name: &str| match name {
                "CONGRUENT_JOB_TOKEN" => Some(OsString::from_vec(secret.to_vec())),
                _ => TORCH.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()),
            };
            read(&lookup).unwrap().token
        };
        assert!(token(b"\xff") != token(b"\xfe"), "neither is UTF-8");
        assert!(token(b"\xff") == token(b"\xff"));
    }

    #[test]
    fn giant_values_are_not_repeated() {
        let giant = "9".repeat(100_000);
        let said = complaint(&torch_and(&[("MASTER_PORT", Box::leak(giant.into_boxed_str()))]));
        assert!(said.starts_with("MASTER_PORT=999") && said.len() < 200, "{} bytes", said.len());
    }

    #[test]
    fn torchrun_across_hosts_meets_beside_its_own_port() {
        let found = job(&torch_and(&[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")])).unwrap();
        assert_eq!((found.pe, found.npes, found.local_rank), (3, 8, Some(1)));
        assert_eq!(found.rendezvous, Rendezvous::Address { host: "node0".into(), port: 29501, ports: 16 });
        let last = job(&torch_and(&[("MASTER_PORT", "65535")])).unwrap();
        assert_eq!(last.rendezvous, Rendezvous::Address { host: "node0".into(), port: 65519, ports: 16 });
        assert_eq!(job(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().rendezvous, Rendezvous::Alone);
    }

    #[test]
    fn torchrun_on_one_host_meets_by_a_file() {
        let found = job(&torch_and(&[("LOCAL_WORLD_SIZE", "8")])).unwrap();
        assert!(matches!(found.rendezvous, Rendezvous::File { .. }));
        let restarted = job(&torch_and(&[("LOCAL_WORLD_SIZE", "8"), ("TORCHELASTIC_RESTART_COUNT", "1")])).unwrap();
        assert_ne!(found.rendezvous, restarted.rendezvous);
    }

    #[test]
    fn mpi_on_one_host_meets_by_a_file_and_elsewhere_asks() {
        let ompi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("PMIX_NAMESPACE", "job@1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let found = job(&ompi).unwrap();
        assert_eq!(found.rendezvous, Rendezvous::File { name: "open-mpi job@1".into() });
        let mut spread = ompi;
        spread[3].1 = "1";
        assert!(complaint(&spread).contains("CONGRUENT_RENDEZVOUS"));
        let hydra = job(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap();
        assert!(matches!(hydra.rendezvous, Rendezvous::File { name } if name.starts_with("pmi parent ")));
    }

    #[test]
    fn slurm_speaks_only_in_a_step_and_only_when_alone() {
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-09],x"),
            ("CONGRUENT_JOB_TOKEN", "s"),
        ];
        let found = job(&slurm).unwrap();
        assert_eq!((found.pe, found.npes, found.launcher), (1, 4, Launcher::Slurm));
        assert!(matches!(found.rendezvous, Rendezvous::Address { host, ports: 1, .. } if host == "gpu07"));
        assert_eq!(job(&slurm[..3]).unwrap().launcher, Launcher::None);
        let nested: Vec<_> = slurm.iter().chain(&TORCH).copied().collect();
        assert_eq!(job(&nested).unwrap().launcher, Launcher::Torchrun);
    }

    #[test]
    fn first_hosts() {
        for (list, first) in
            [("a", "a"), ("a,b", "a"), ("n[3-5]", "n3"), ("n[07,9],m", "n07"), ("r[1-2]n[3-4]-x", "r1n3-x"), ("", "")]
        {
            assert_eq!(first_host(list), first, "{list}");
        }
    }

    #[test]
    fn every_bad_value_is_named() {
        for (variables, name) in [
            (vec![("RANK", "x"), ("WORLD_SIZE", "2")], "RANK=x"),
            (vec![("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK=-1"),
            (vec![("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE=0"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "9999")], "WORLD_SIZE=9999"),
            (vec![("RANK", ""), ("WORLD_SIZE", "2")], "RANK="),
            (vec![("RANK", "0")], "WORLD_SIZE"),
            (vec![("WORLD_SIZE", "2")], "RANK"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
            (vec![("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], "MASTER_PORT"),
            (torch_and(&[("MASTER_PORT", "65536")]), "MASTER_PORT=65536"),
            (torch_and(&[("CONGRUENT_RENDEZVOUS", "host")]), "CONGRUENT_RENDEZVOUS=host"),
            (torch_and(&[("CONGRUENT_RENDEZVOUS", "host:0")]), "CONGRUENT_RENDEZVOUS=host:0"),
            (torch_and(&[("CONGRUENT_BOOTSTRAP_DEADLINE", "0")]), "CONGRUENT_BOOTSTRAP_DEADLINE=0"),
            (torch_and(&[("LOCAL_RANK", "one")]), "LOCAL_RANK=one"),
            (torch_and(&[("MASTER_PORT", "0")]), "MASTER_PORT=0"),
            (torch_and(&[("CONGRUENT_JOB_TOKEN", "")]), "CONGRUENT_JOB_TOKEN="),
            (torch_and(&[("CONGRUENT_LISTENER", "x")]), "CONGRUENT_LISTENER=x"),
        ] {
            let complaint = complaint(&variables);
            assert!(complaint.contains(name), "{variables:?}: {complaint}");
        }
    }

    #[test]
    fn launchers_that_disagree_are_both_named() {
        let both = torch_and(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "8")]);
        let complaint = complaint(&both);
        assert!(complaint.contains("RANK=3") && complaint.contains("OMPI_COMM_WORLD_RANK=2"), "{complaint}");
        let agreeing = torch_and(&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")]);
        assert_eq!(job(&agreeing).unwrap().launcher, Launcher::Torchrun);
    }

    proptest::proptest! {
        #[test]
        fn no_environment_panics(rank in ".{0,6}", size in ".{0,6}", port in ".{0,6}", place in ".{0,12}") {
            let _ = job(&[("RANK", &rank), ("WORLD_SIZE", &size), ("MASTER_PORT", &port), ("MASTER_ADDR", &place)]);
            let _ = job(&[("CONGRUENT_PE", "0"), ("CONGRUENT_NPES", "2"), ("CONGRUENT_JOB_TOKEN", "t"), ("CONGRUENT_RENDEZVOUS", &place)]);
            let _ = first_host(&place);
        }
    }
}
