//! Where the PEs meet: PE 0 listens there, the others look there.

use super::error::BootstrapError;
use super::handshake::Secret;
use super::job::{Job, Rendezvous};
use super::token::Token;
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// PE 0's side: a socket to listen at, and the file that tells of it, which goes when this does.
pub(super) struct Meeting {
    pub(super) listener: TcpListener,
    pub(super) secret: Secret,
    _notice: Option<Posted>,
}

/// The others' side: addresses to try, and the secret that PE 0 must know.
#[derive(Debug)]
pub(super) struct Directions {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) secret: Secret,
}

impl Meeting {
    pub(super) fn open(job: &Job) -> Result<Self, BootstrapError> {
        let secret = Secret { token: job.token.clone(), job: job.name.clone() };
        match &job.rendezvous {
            Rendezvous::Alone => Err(BootstrapError::NoRendezvous),
            Rendezvous::Address { host, port, ports } => {
                let place = place(host, *port, *ports);
                let addresses =
                    resolve(host, *port, *ports).map_err(BootstrapError::io(format!("looking up {place}")))?;
                let listener = TcpListener::bind(&addresses[..]).map_err(BootstrapError::io(format!(
                    "listening at {place} (CONGRUENT_RENDEZVOUS can name another place on PE 0's host)"
                )))?;
                Ok(Self { listener, secret, _notice: None })
            }
            Rendezvous::Inherited { descriptor } => {
                let listener = inherited(*descriptor).map_err(BootstrapError::io(format!(
                    "listening at {} (CONGRUENT_LISTENER, which `congruent run` sets)",
                    describe(&job.rendezvous)
                )))?;
                Ok(Self { listener, secret, _notice: None })
            }
            Rendezvous::File { name } => {
                let doing = || BootstrapError::io::<io::Error>(format!("meeting at {}", describe(&job.rendezvous)));
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing())?;
                let address = listener.local_addr().map_err(doing())?;
                let token = Token::random()?;
                let notice = Posted::post(name, &format!("{address} {}", token.reveal())).map_err(doing())?;
                let token = Token::derive(token.reveal().as_bytes());
                Ok(Self { listener, secret: Secret { token, ..secret }, _notice: Some(notice) })
            }
        }
    }
}

impl Directions {
    /// Where to go now. A file may not be there yet, or still be that of a job that died: ask again before each attempt.
    pub(super) fn find(job: &Job) -> io::Result<Self> {
        let secret = Secret { token: job.token.clone(), job: job.name.clone() };
        match &job.rendezvous {
            Rendezvous::Alone | Rendezvous::Inherited { .. } => Err(io::Error::other(BootstrapError::NoRendezvous)),
            Rendezvous::Address { host, port, ports } => Ok(Self { addresses: resolve(host, *port, *ports)?, secret }),
            Rendezvous::File { name } => {
                let text = Posted::read(name)?;
                let (address, token) = text.split_once(' ').ok_or(ErrorKind::InvalidData)?;
                let address = address.parse().map_err(|_| ErrorKind::InvalidData)?;
                let token = Token::derive(token.as_bytes());
                Ok(Self { addresses: vec![address], secret: Secret { token, ..secret } })
            }
        }
    }
}

/// For people: where a job meets.
pub(super) fn describe(rendezvous: &Rendezvous) -> String {
    match rendezvous {
        Rendezvous::Alone => "no place".into(),
        Rendezvous::Address { host, port, ports } => place(host, *port, *ports),
        Rendezvous::Inherited { descriptor } => format!("descriptor {descriptor}"),
        Rendezvous::File { name } => format!("file {} in {}", file_name(name), directory().display()),
    }
}

/// The socket that a launcher has left open for PE 0: a copy, as a process may join one job after another.
fn inherited(descriptor: RawFd) -> io::Result<TcpListener> {
    if descriptor < 0 || !Path::new("/proc/self/fd").join(descriptor.to_string()).exists() {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: it is open, as was just seen, and it is borrowed for one call. Nobody else closes it meanwhile: its number is known
    // from the environment only, and there it means that it is left to this function.
    let left = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let copy = rustix::io::fcntl_dupfd_cloexec(left, 3)?;
    // Programs that this one starts are no PEs.
    rustix::io::fcntl_setfd(left, rustix::io::FdFlags::CLOEXEC)?;
    if !rustix::net::sockopt::socket_acceptconn(copy.as_fd())? {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(TcpListener::from(copy))
}

fn place(host: &str, port: u16, ports: u16) -> String {
    if ports <= 1 { format!("{host}:{port}") } else { format!("{host}:{port}-{}", port + (ports - 1)) }
}

/// All addresses of the host at the first port, then at the second, and so on.
fn resolve(host: &str, port: u16, ports: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    let at = |port| addresses.iter().map(move |address| SocketAddr::new(address.ip(), port));
    Ok((0..ports.max(1)).filter_map(|offset| port.checked_add(offset)).flat_map(at).collect())
}

/// A file that only this user can read or replace.
struct Posted {
    directory: OwnedFd,
    file: String,
}

impl Posted {
    /// Appears whole or not at all, in place of what a job of the same name may have left.
    fn post(name: &str, text: &str) -> io::Result<Self> {
        let directory = open_directory()?;
        let file = file_name(name);
        let draft = format!("{file}.{}.draft", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&directory, &draft, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(fd).write_all(text.as_bytes())?;
        rustix::fs::renameat(&directory, &draft, &directory, &file)?;
        Ok(Self { directory, file })
    }

    fn read(name: &str) -> io::Result<String> {
        let directory = open_directory()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&directory, file_name(name), flags, Mode::empty())?;
        private(&fd)?;
        let mut text = String::new();
        File::from(fd).take(256).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.directory, &self.file, AtFlags::empty());
    }
}

/// The user's own directory for meetings.
fn directory() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Nobody else can make a folder there, but not every system has it, and not every launcher tells.
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let runtime = given.into_iter().chain([usual]).find(|path| rustix::fs::access(path, Access::WRITE_OK).is_ok());
    runtime.unwrap_or_else(std::env::temp_dir).join(format!("congruent-{uid}"))
}

/// Job names come from launchers and may hold anything; a digest is always a file name.
fn file_name(name: &str) -> String {
    Sha256::digest(name.as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn open_directory() -> io::Result<OwnedFd> {
    open_private(&directory())
}

fn open_private(path: &Path) -> io::Result<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(not_ours(path, error.into())),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| not_ours(path, error.into()))?;
    private(&directory).map_err(|error| not_ours(path, error))?;
    Ok(directory)
}

/// Says what to do where someone else was there first, or nobody can be.
fn not_ours(path: &Path, error: io::Error) -> io::Error {
    let advice = "set XDG_RUNTIME_DIR to a folder that is yours alone, the same for every PE";
    io::Error::new(ErrorKind::PermissionDenied, format!("{}: {error}: {advice}", path.display()))
}

/// In a shared temporary directory someone else may have been there first.
fn private(fd: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    let strangers = Mode::RWXG | Mode::RWXO;
    if stat.st_uid != rustix::process::getuid().as_raw() || Mode::from_raw_mode(stat.st_mode).intersects(strangers) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it is not this user's alone"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn job(name: &str) -> Job {
        Job { rendezvous: Rendezvous::File { name: name.into() }, npes: 2, ..Job::single() }
    }

    #[test]
    fn a_file_tells_its_user_where_to_go_and_disappears() {
        let job = job("a file tells");
        assert_eq!(Directions::find(&job).unwrap_err().kind(), ErrorKind::NotFound);
        let meeting = Meeting::open(&job).unwrap();
        let path = directory().join(file_name("a file tells"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(directory().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let directions = Directions::find(&job).unwrap();
        assert_eq!(directions.addresses, [meeting.listener.local_addr().unwrap()]);
        assert_eq!(directions.secret.token, meeting.secret.token);
        drop(meeting);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_others_could_have_written_is_not_believed() {
        let meeting = Meeting::open(&job("not believed")).unwrap();
        let path = directory().join(file_name("not believed"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Directions::find(&job("not believed")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        drop(meeting);
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(Directions::find(&job("not believed")).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let squatted = folder.path().join("squatted");
        std::fs::create_dir(&squatted).unwrap();
        std::fs::set_permissions(&squatted, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        for path in [squatted, folder.path().join("link")] {
            let error = open_private(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "which ends the search");
            let said = error.to_string();
            assert!(said.contains(&path.display().to_string()) && said.contains("XDG_RUNTIME_DIR"), "{said}");
        }
    }

    #[test]
    fn only_a_listening_socket_is_inherited() {
        use std::os::fd::AsRawFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inherited =
            |descriptor| Meeting::open(&Job { rendezvous: Rendezvous::Inherited { descriptor }, ..Job::single() });
        let meeting = inherited(listener.as_raw_fd()).unwrap();
        assert_eq!(meeting.listener.local_addr().unwrap(), listener.local_addr().unwrap());
        drop(meeting);
        assert!(inherited(listener.as_raw_fd()).is_ok(), "again, for the next job");
        let file = tempfile::tempfile().unwrap();
        let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for descriptor in [-1, i32::MAX, file.as_raw_fd(), connected.as_raw_fd()] {
            let error = inherited(descriptor).map(drop).unwrap_err().to_string();
            assert!(error.contains("CONGRUENT_LISTENER"), "{error}");
        }
    }

    #[test]
    fn a_taken_port_gives_way_to_the_next() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let rendezvous = |ports| Rendezvous::Address { host: "127.0.0.1".into(), port, ports };
        let job = Job { rendezvous: rendezvous(1), npes: 2, ..Job::single() };
        assert!(matches!(Meeting::open(&job), Err(BootstrapError::Io { .. })));
        let job = Job { rendezvous: rendezvous(16), ..job };
        let meeting = Meeting::open(&job).unwrap();
        let found = meeting.listener.local_addr().unwrap();
        assert!(found.port() > port && Directions::find(&job).unwrap().addresses.contains(&found));
    }
}
