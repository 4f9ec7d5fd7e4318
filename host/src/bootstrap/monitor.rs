//! The thread that serves a PE's connections: on PE 0 the middle of the star, elsewhere one of its ends.

use super::control::Uplink;
use super::error::BootstrapError;
use super::frame::Frame;
use super::link::{Link, LinkEnd, is_ready, wait};
use super::relay::{Envelope, Message, Relay};
use super::seat::Seat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long a PE that is done stays for its last words to arrive, and PE 0 for the others to leave as well.
const LINGER: Duration = Duration::from_secs(1);
/// How long the parts of an incomplete round are held back.
const HOLD: Duration = Duration::from_millis(20);

/// A PE's way to its monitor thread.
pub(super) struct Monitor {
    commands: mpsc::Sender<Command>,
    bell: Arc<OwnedFd>,
}

enum Command {
    Say(Message),
    /// The PE is done. `done` is dropped when nothing is left to be sent.
    Close {
        departed: bool,
        done: mpsc::Sender<()>,
    },
}

impl Monitor {
    /// Starts the thread for the PE at `seat`: with a link to every other PE if it is PE 0, else with one to PE 0.
    pub(super) fn start(seat: Arc<Seat>, links: Vec<(u32, Link)>) -> Result<Self, BootstrapError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(BootstrapError::io("making an event descriptor"))?);
        let (commands, inbox) = mpsc::channel();
        let relay = (seat.pe() == 0).then(|| Relay::new(seat.npes()));
        let star =
            Star { seat, relay, links, inbox, bell: Arc::clone(&bell), closing: None, held_since: None, urgent: true };
        thread::Builder::new()
            .name("congruent-monitor".into())
            .spawn(move || star.serve())
            .map_err(BootstrapError::io("starting the monitor thread"))?;
        Ok(Self { commands, bell })
    }

    /// The thread may be gone already: then there is nobody to talk to, and the seat knows why.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Uplink for Monitor {
    fn send(&self, message: Message) {
        self.tell(Command::Say(message));
    }

    fn close(&self, departed: bool) {
        let (done, finished) = mpsc::channel();
        self.tell(Command::Close { departed, done });
        let _ = finished.recv_timeout(LINGER);
    }
}

struct Star {
    seat: Arc<Seat>,
    /// On PE 0 only.
    relay: Option<Relay>,
    links: Vec<(u32, Link)>,
    inbox: mpsc::Receiver<Command>,
    bell: Arc<OwnedFd>,
    closing: Option<mpsc::Sender<()>>,
    /// Since when parts are held back.
    held_since: Option<Instant>,
    /// Whether something is to be told at once.
    urgent: bool,
}

impl Star {
    /// Ends when the PE is done and so is its part for the others: PE 0 relays until all have left or are lost, for as
    /// long as its process lives.
    fn serve(mut self) {
        // The handshake may have read more than its own frames, so every link is heard once before the first wait.
        let mut ready: Vec<u32> = self.links.iter().map(|(pe, _)| *pe).collect();
        loop {
            for command in self.inbox.try_iter().collect::<Vec<_>>() {
                match command {
                    Command::Say(message) => self.say(message),
                    Command::Close { departed: false, .. } => return self.flush(),
                    Command::Close { departed: true, done } => self.closing = Some(done),
                }
            }
            ready.into_iter().for_each(|pe| self.hear(pe));
            let limit = self.flush_when_due();
            self.finish_writing();
            if self.is_done() {
                return;
            }
            let Ok(woken) = self.wait(limit) else { return };
            ready = woken;
        }
    }

    fn is_done(&self) -> bool {
        self.closing.is_some()
            && self
                .links
                .iter()
                .all(|(pe, link)| link.is_flushed() && self.relay.as_ref().is_some_and(|r| r.has_left(*pe)))
    }

    /// The PEs whose links have something.
    fn wait(&self, limit: Option<Duration>) -> std::io::Result<Vec<u32>> {
        let mut interests = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        interests.extend(self.links.iter().map(|(_, link)| link.interest()));
        wait(&mut interests, limit)?;
        if is_ready(&interests[0]) {
            // Only resets the bell; the commands themselves wait in the inbox.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
        let links = self.links.iter().zip(&interests[1..]);
        Ok(links.filter(|(_, interest)| is_ready(interest)).map(|((pe, _), _)| *pe).collect())
    }

    /// This PE speaks.
    fn say(&mut self, message: Message) {
        let from = self.seat.pe();
        match &mut self.relay {
            Some(relay) => {
                let envelope = relay.admit(from, message);
                self.pass_on(envelope);
            }
            None => {
                let frame: Arc<[u8]> = Frame::from(&Envelope { from, message }).encode().into();
                self.links.iter_mut().for_each(|(_, link)| link.send(Arc::clone(&frame)));
                self.urgent = true;
            }
        }
    }

    fn hear(&mut self, pe: u32) {
        let Some((_, link)) = self.links.iter_mut().find(|(peer, _)| *peer == pe) else { return };
        let mut frames = Vec::new();
        let end = link.receive(&mut frames);
        frames.into_iter().for_each(|frame| self.take_in(pe, frame));
        if let Err(end) = end {
            self.lose(pe, &end);
        }
    }

    /// A PE speaks for itself only, and PE 0 for all.
    fn take_in(&mut self, pe: u32, frame: Frame) {
        match (Envelope::try_from(frame), &mut self.relay) {
            (Ok(envelope), None) => self.seat.deliver(envelope),
            (Ok(Envelope { from, message }), Some(relay))
                if from == pe && !matches!(message, Message::Failed { .. }) =>
            {
                let envelope = relay.admit(from, message);
                self.pass_on(envelope);
            }
            _ => tracing::warn!(pe, "a frame out of place was ignored"),
        }
    }

    fn lose(&mut self, pe: u32, end: &LinkEnd) {
        self.links.retain(|(peer, _)| *peer != pe);
        match &mut self.relay {
            Some(relay) => {
                let envelope = relay.lost(pe, end.to_string());
                self.pass_on(envelope);
            }
            None if self.seat.has_departed(pe) => self.seat.relay_left(),
            None if self.closing.is_some() => {}
            None => self.seat.deliver(Envelope { from: pe, message: Message::Failed { evidence: end.to_string() } }),
        }
    }

    /// The others first: once this PE hears that the job has ended, its process may be gone before it says another word.
    fn pass_on(&mut self, envelope: Option<Envelope>) {
        let Some(envelope) = envelope else { return };
        self.urgent |= self.relay.as_ref().is_none_or(|relay| !relay.can_wait(&envelope.message));
        let frame: Arc<[u8]> = Frame::from(&envelope).encode().into();
        for (pe, link) in &mut self.links {
            if envelope.is_for(*pe) {
                link.send(Arc::clone(&frame));
            }
        }
        if envelope.is_for(self.seat.pe()) {
            if self.urgent {
                self.flush();
            }
            self.seat.deliver(envelope);
        }
    }

    /// Parts are held back until their round is complete, and then go out together: of use to a PE are only all of them.
    /// But after a while those that came are told, so that a PE which gives up can name those that did not. Says how long
    /// to wait at most until then.
    fn flush_when_due(&mut self) -> Option<Duration> {
        let idle = self.links.iter().all(|(_, link)| link.is_flushed());
        if !self.urgent && !idle {
            let since = *self.held_since.get_or_insert_with(Instant::now);
            let left = HOLD.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Some(left);
            }
        }
        self.held_since = None;
        self.flush();
        // What a socket did not take goes on as soon as it does.
        self.urgent = !self.links.iter().all(|(_, link)| link.is_flushed());
        None
    }

    /// A link that cannot be written to is found lost when it is read, which keeps what its peer said last.
    fn flush(&mut self) {
        self.links.iter_mut().for_each(|(_, link)| drop(link.flush()));
    }

    /// A PE that has said its last word waits for PE 0 to hang up; PE 0 still speaks for the others.
    fn finish_writing(&self) {
        if self.closing.is_some() && self.relay.is_none() {
            self.links.iter().filter(|(_, link)| link.is_flushed()).for_each(|(_, link)| link.finish_writing());
        }
    }
}
