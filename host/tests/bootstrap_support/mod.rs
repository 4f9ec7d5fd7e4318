//! What the bootstrap suites share: jobs on loopback, with a port that nobody else is given meanwhile.
#![allow(dead_code, reason = "each suite uses its own part")]

use congruent::bootstrap::{Control, Job, Launcher, Notice, Rendezvous, Token};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

/// A loopback port that is bound but not listened at, so PE 0 can have it and nobody else is given it by chance.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&held, true).unwrap();
        bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddr::try_from(getsockname(&held).unwrap()).unwrap();
        Self { number: address.port(), _held: held }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }

    /// PE `pe` of a job of `npes` that meets here.
    pub(crate) fn job(&self, pe: u32, npes: u32) -> Job {
        Job {
            pe,
            npes,
            local_rank: Some(pe),
            name: "test".into(),
            rendezvous: Rendezvous::Address { host: "127.0.0.1".into(), port: self.number, ports: 1 },
            token: Token::derive(b"test"),
            deadline: Duration::from_secs(20),
            launcher: Launcher::Congruent,
        }
    }
}

/// The first notice, or none within `limit`.
pub(crate) fn notice_within(control: &Control, limit: Duration) -> Option<Notice> {
    let (told, heard) = mpsc::channel();
    control.watch(move |notice| drop(told.send(notice)));
    heard.recv_timeout(limit).ok()
}
