//! `congruent run-share`: one host's part of a job on several. It is started by the launcher on another host, which [`super::ssh`] is, and
//! hears and says everything by its standard input and output; nothing of the job is in its arguments.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::process::ExitCode;

use super::wire::{self, Job, Report};
use super::{Args, Launch, Output, RunError, Share, system};

/// The subcommand.
pub(crate) const NAME: &str = "run-share";

/// A port that means nothing.
const DISCARD: u16 = 9;

/// What sshd says of the connection: the other's address and port, and its own.
const CONNECTION: &str = "SSH_CONNECTION";

/// Runs a share of a job, told by the standard input, to its end.
pub(crate) fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            wire::report(&Report::Refuses { why: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), RunError> {
    let hearing = system("hearing from the launcher");
    writeln!(io::stdout(), "\n{}", wire::GREETING).map_err(system("greeting the launcher"))?;
    let orders = io::stdin().as_fd().try_clone_to_owned().map_err(hearing)?;
    // Nothing is read ahead: what follows is for `Launch`.
    let mut orders = File::from(orders);
    let job: Job = wire::read_message(&mut orders).map_err(system("hearing of the job"))?;
    let folder = job.folder.display();
    std::env::set_current_dir(&job.folder)
        .map_err(|error| RunError::Folder { folder: folder.to_string(), source: error })?;
    let listener = match &job.meets_at {
        Some(hosts) => {
            let listener = listen(hosts)?;
            let place = listener.local_addr().map_err(system("listening for PE 0"))?.to_string();
            wire::report(&Report::Meets { place });
            Some(listener)
        }
        None => None,
    };
    let place = wire::read_message(&mut orders).map_err(system("hearing where PEs meet"))?;
    let Job { first, count, npes, token, label, set, command, .. } = job;
    let share = Share { first, count, npes, place, listener, token, set, orders: Some(orders.into()) };
    let args = Args { command, ..Args::default() };
    Launch::start(&args, share, Output::Sent { label })?.supervise()?;
    wire::report(&Report::Done);
    Ok(())
}

/// Listens where PEs of other hosts come: at the address that the first one's name, which is this one, stands for, or that ssh has
/// reached, or that leads to another host.
fn listen(hosts: &[String]) -> Result<TcpListener, RunError> {
    let mut names = hosts.iter().map(|host| host.rsplit('@').next().unwrap_or(host));
    let name = names.next().unwrap_or_default();
    if hosts.len() == 1 {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("listening for PE 0"));
    }
    let named = (name, 0).to_socket_addrs().into_iter().flatten();
    let reached = std::env::var(CONNECTION).ok().and_then(|said| said.split(' ').nth(2)?.parse().ok());
    let reached = reached.map(|address: IpAddr| SocketAddr::new(address, 0));
    // Where this host is known to itself by a loopback address, as Debian has it, and ssh came from here.
    let mut outward = named
        .chain(reached)
        .chain(names.filter_map(toward))
        .filter(|address| !address.ip().to_canonical().is_loopback());
    // A name may stand for another host here than where it was given; there is no listening at that one's address.
    let listener = outward.find_map(|address| TcpListener::bind(address).ok());
    listener.ok_or_else(|| RunError::Unreached { name: name.to_owned() })
}

/// This host's address on the way to another. Nothing is sent.
fn toward(host: &str) -> Option<SocketAddr> {
    let own = |to: SocketAddr| {
        let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(to).ok()?;
        Some(SocketAddr::new(socket.local_addr().ok()?.ip(), 0))
    };
    (host, DISCARD).to_socket_addrs().ok()?.find_map(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_of_other_hosts_do_not_come_to_a_loopback_address() {
        let listen = |names: &[&str]| listen(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert!(listen(&["localhost"]).unwrap().local_addr().unwrap().ip().is_loopback());
        for name in ["localhost", "me@127.0.0.1", "192.0.2.1"] {
            let said = listen(&[name, "127.0.0.1"]).expect_err(name).to_string();
            assert!(said.contains(name.rsplit('@').next().unwrap()) && said.contains("other hosts"), "{said}");
        }
    }
}
