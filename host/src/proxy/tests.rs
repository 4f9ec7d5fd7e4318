use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use congruent_heap::abi::{AtomicOp, NumberKind, Ring, RingLayout, Route};
use congruent_transports::PeerState;

use super::*;
use crate::rings::Shape;

const NPES: u32 = 3;
const TABLE: [Route; 3] = [Route::Direct, Route::Proxied, Route::Proxied];
const SHAPE: Shape = Shape { log2_rings: 1, log2_slots: 1 };
const PATIENCE: Duration = Duration::from_millis(20);

#[repr(align(64))]
#[derive(Clone)]
#[expect(dead_code, reason = "accessed through its address")]
struct Cells([u64; 8]);

/// A proxy over rings in which the test is the producer.
struct Bench {
    server: Server,
    failures: Arc<Mutex<Vec<ProxyFailure>>>,
    memory: *mut u8,
    _lines: Vec<Cells>,
}

impl Bench {
    fn new() -> Self {
        let mut lines = vec![Cells([0; 8]); Rings::lines(NPES, SHAPE)];
        let memory = lines.as_mut_ptr().cast();
        // SAFETY: so many zeroed lines, which live as long as the server.
        let rings = unsafe { Rings::new(memory, &TABLE, SHAPE) };
        let context = abi::Context {
            base: 0,
            stride: 0,
            heap_bytes: 0,
            control: 0,
            routes: 0,
            ring: 0,
            deadline_ns: 2 * PATIENCE.as_nanos() as u64,
            world_sync: 0,
            multicast: 0,
            pe: 0,
            npes: NPES,
            block_slots: 1,
            version: abi::VERSION,
            windows: 0,
            launch: 0,
            rings: 0,
            log2_slots: 0,
        };
        let transport = Box::new(Deaf { to: Pe::new(1), done: Vec::new() });
        let failures = Arc::new(Mutex::new(Vec::new()));
        let failed = Arc::clone(&failures);
        let failed = move |failure| failed.lock().unwrap().push(failure);
        let server = Server::new(context, rings, Sleep::Never, transport, Box::new(failed));
        Self { server, failures, memory, _lines: lines }
    }

    /// Whether the proxy had anything to do, in a turn without failure.
    fn turn(&mut self) -> bool {
        let busy = self.server.turn().busy;
        assert_eq!(*self.failures.lock().unwrap(), []);
        busy
    }

    fn word(&self, ring: usize, offset: u64) -> &AtomicU64 {
        let at = ring as u64 * Self::layout().bytes() + offset;
        // SAFETY: a word of the rings, aligned.
        unsafe { AtomicU64::from_ptr(self.memory.add(at as usize).cast()) }
    }

    fn layout() -> RingLayout {
        RingLayout::new(SHAPE.log2_slots, NPES)
    }

    fn reserve(&self, ring: usize) -> u64 {
        self.word(ring, offset_of!(Ring, reserved) as u64).fetch_add(1, Ordering::Relaxed)
    }

    /// Asks for a word to be stored at a peer.
    fn publish(&self, ring: usize, ticket: u64, verb: Verb, peer: u64) {
        let (slot, layout) = (Self::layout().request(ticket), Self::layout());
        self.word(ring, slot + offset_of!(Request, peer) as u64).store(peer, Ordering::Relaxed);
        let header = Request::header(verb, Then::Nothing, AtomicOp::Add, NumberKind::Unsigned);
        self.word(ring, slot).store(header | Request::parity(layout.lap(ticket)), Ordering::Release);
    }

    fn ask(&self, ring: usize, verb: Verb, peer: u64) {
        self.publish(ring, self.reserve(ring), verb, peer);
    }

    /// How many are taken and complete, and how far each peer is.
    fn told(&self, ring: usize) -> (u64, u64, [u64; 3]) {
        let count = |offset| self.word(ring, offset).load(Ordering::Acquire);
        let (taken, complete) = (offset_of!(Ring, taken) as u64, offset_of!(Ring, complete) as u64);
        (count(taken), count(complete), [0, 1, 2].map(|peer| count(Self::layout().through(peer))))
    }
}

/// A network on which everything is done at once, but for what one peer is asked.
struct Deaf {
    to: Pe,
    done: Vec<u64>,
}

impl Transport for Deaf {
    fn start(&mut self, ticket: u64, peer: Pe, _: Operation) -> Result<(), TransportError> {
        self.done.extend((peer != self.to).then_some(ticket));
        Ok(())
    }
    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        self.done.drain(..).for_each(|ticket| tell(ticket, Progress::Ended(Ok(5))));
        false
    }
    fn state(&self, _: Pe) -> PeerState {
        PeerState::Up
    }
}

#[test]
fn each_peer_is_told_of_by_itself() {
    let mut bench = Bench::new();
    for (verb, peer) in [(Verb::PutValue, 1), (Verb::PutValue, 2)] {
        bench.ask(0, verb, peer);
    }
    assert!(bench.turn());
    assert_eq!(bench.told(0), (2, 0, [0, 0, 2]), "PE 1 answers nothing, and its slot is free all the same");
    assert_eq!(bench.server.oldest(), 1);
    // Who wants to know how far a peer is, asks.
    for peer in [1, 2] {
        bench.ask(0, Verb::Signal, peer);
    }
    assert!(bench.turn());
    assert_eq!(bench.told(0), (4, 0, [0, 0, 4]));
    assert_eq!(bench.told(1), (0, 0, [0; 3]));
}

/// Whoever waits for the source of a put does not wait for its peer.
#[test]
fn a_put_is_locally_complete_before_it_is_at_its_peer() {
    let mut bench = Bench::new();
    let local = |bench: &Bench| [1, 2].map(|peer| bench.word(0, Bench::layout().local(peer)).load(Ordering::Acquire));
    for verb in [Verb::Put, Verb::Put] {
        bench.ask(0, verb, 1);
    }
    assert!(bench.turn());
    let [first, second] = [0, 1].map(|ticket| bench.server.rings.number(0, ticket));
    bench.server.local(second);
    assert_eq!((bench.told(0), local(&bench)), ((2, 0, [0; 3]), [0, 0]), "one ahead of it is not");
    bench.server.local(first);
    assert_eq!((bench.told(0), local(&bench)), ((2, 0, [0; 3]), [2, 0]));
    bench.ask(0, Verb::Put, 2);
    assert!(bench.turn());
    assert_eq!((bench.told(0), local(&bench)), ((3, 0, [0, 0, 3]), [2, 3]), "what is complete is locally so, too");
}

#[test]
fn a_lane_serves_unless_somebody_does_or_the_proxy_has_ended() {
    let bench = Bench::new();
    bench.ask(0, Verb::PutValue, 1);
    let Bench { server, failures, memory, _lines } = bench;
    let shared = SharedServer { server: Mutex::new(Some(server)), asked: AtomicU64::new(0) };
    assert!(matches!(shared.serve(), Served::Something));
    // PE 1 answers nothing, so it is under way.
    assert!(matches!(shared.serve(), Served::NothingYet));
    let other = shared.lock();
    assert!(matches!(shared.serve(), Served::NothingYet));
    drop(other);
    let ended = shared.lock().take();
    assert!(matches!(shared.serve(), Served::Nothing));
    assert_eq!(shared.asked.load(Ordering::Relaxed), 4);
    drop((ended, failures, memory));
}

#[test]
fn a_reply_is_not_written_over_one_that_is_not_read() {
    let mut bench = Bench::new();
    let read = Bench::layout().reply(0) + 8;
    // Two slots: the third reply goes where the first is.
    for verb in [Verb::Atomic, Verb::Post] {
        bench.ask(0, verb, 2);
    }
    bench.turn();
    bench.ask(0, Verb::GetValue, 2);
    assert!(!bench.turn());
    assert_eq!(bench.server.look_for_lost(), None);
    thread::sleep(2 * PATIENCE);
    assert_eq!(bench.server.look_for_lost(), None, "it is there, and waits for its place");
    assert_eq!(bench.told(0), (2, 2, [0, 0, 2]));
    assert_eq!(bench.word(0, read - 8).load(Ordering::Relaxed), 5);
    bench.word(0, read).store(1, Ordering::Release);
    assert!(bench.turn());
    assert_eq!(bench.told(0), (3, 3, [0, 0, 3]));
}

#[test]
fn a_lost_request_is_named_and_ends_its_ring_alone() {
    let mut bench = Bench::new();
    bench.ask(1, Verb::PutValue, 2);
    let lost = bench.reserve(1);
    bench.turn();
    assert_eq!(bench.server.look_for_lost(), None, "it may come yet");
    thread::sleep(2 * PATIENCE);
    assert_eq!(bench.server.look_for_lost(), Some(ProxyFailure::Lost { ring: 1, request: lost }));
    assert_eq!(bench.server.look_for_lost(), None, "once");
    assert!(!bench.server.is_behind(), "nobody waits for that ring to be served");
    bench.publish(1, lost, Verb::PutValue, 2);
    bench.ask(0, Verb::PutValue, 2);
    assert!(bench.turn());
    assert_eq!(bench.told(1), (1, 1, [0, 0, 1]));
    assert_eq!(bench.told(0), (1, 1, [0, 0, 1]));
}

#[test]
fn a_request_that_was_late_once_is_not_taken_for_lost() {
    let mut bench = Bench::new();
    let late = bench.reserve(0);
    assert_eq!(bench.server.look_for_lost(), None);
    thread::sleep(2 * PATIENCE);
    bench.publish(0, late, Verb::PutValue, 2);
    bench.turn();
    bench.reserve(0);
    assert_eq!(bench.server.look_for_lost(), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (verb, peer) in [(Verb::PutValue, u64::from(NPES)), (Verb::Get, u64::MAX)] {
        let mut bench = Bench::new();
        bench.ask(0, verb, peer);
        // What another peer is asked goes on.
        bench.ask(0, Verb::PutValue, 2);
        bench.server.turn();
        let failures = bench.failures.lock().unwrap();
        assert!(matches!(failures[..], [ProxyFailure::Transport(TransportError::Malformed { .. })]), "{peer}");
        assert_eq!(bench.told(0), (2, 0, [0, 0, 2]), "{peer}");
    }
}

#[test]
fn a_long_rest_follows_a_short_one_in_which_lanes_asked() {
    let mut pauses = Pauses::NEW;
    let times = [true, true, true, false, true, true].map(|asked| pauses.next(asked));
    assert_eq!(times, [REST, LONG_REST, REST, REST, REST, LONG_REST]);
}
