//! All-to-all in as many steps as a logarithm of the team (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", 1997): for small messages in large teams.
//!
//! What a member sends to the one at distance `j` after it is its block `j`. In step `k` every member gives those of the
//! blocks it holds whose distance has bit `k` to the member at distance `2^k`, in one message, so each block travels its
//! distance bit by bit; up to half of the blocks go in each step.
//!
//! The blocks that a member holds are in two slots of the plan's scratch, and those of one message in a third. So parts
//! longer than `2/n` of a slot go in several rounds, each of all steps; the direct all-to-all is better for those.

use congruent_device::{Group, Pod, Sym};

use crate::descriptor::{Descriptor, Work};
use crate::names::Operation;
use crate::session::Coll;
use crate::step::{Link, Step};
use crate::{Algorithm, Collective, Protocol, check, scratch};

/// The name of its steps.
const HOP: &str = "hop";

/// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`.
///
/// # Collective
/// Over the team; both buffers have one part of the same length for each member, and `dst` may be `src`. In each of
/// `log2 n` steps, rounded up, a member sends those parts whose distance has the step's bit: in all `(log2 n)/2` times the
/// buffer's bytes where `n` is a power of two.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is sent; on return this block's share of `dst`
/// is complete, and `src` and `dst` may be overwritten.
///
/// # Panics
/// Where the lengths differ or do not divide by `n`, the buffers overlap without being the same, or the plan's buffer has no room for an element of each member.
#[inline(always)]
#[track_caller]
pub fn all_to_all<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    check::parted(dst, src, coll.n());
    let _call = coll.begin(Operation::AllToAllBruck, src.bytes());
    let part = |coll: &Coll<'_, B>, parts: Sym<T>, i| coll.mine(coll.part(parts, i));
    if coll.n() == 1 {
        if dst != src {
            coll.copy(part(coll, dst, 0), part(coll, src, 0));
        }
        return;
    }
    let scratch = scratch::whole(coll);
    let (held, message) = (scratch.slice(..scratch.bytes() / 3 * 2), scratch.slice(scratch.bytes() / 3 * 2..));
    let most = scratch::each::<T>(held.bytes(), coll.n());
    let len = part(coll, src, 0).len();
    for start in (0..len).step_by(most) {
        let range = start..(start + most).min(len);
        let held = held.slice(..coll.n() * range.len() * size_of::<T>()).cast::<T>();
        for distance in 0..coll.n() {
            let from = part(coll, src, coll.wrap(coll.me() + distance)).slice(range.clone());
            coll.start_copy(coll.part(held, distance), from);
        }
        coll.group().sync();
        hop(coll, held, message);
        for distance in 0..coll.n() {
            let to = part(coll, dst, coll.before(distance)).slice(range.clone());
            coll.start_copy(to, coll.part(held, distance));
        }
        coll.group().sync();
    }
}

/// Moves every block by its distance: on return block `j` is from the member at distance `j` before this one.
#[inline(always)]
#[track_caller]
fn hop<T: Pod, B: Group>(coll: &mut Coll<'_, B>, held: Sym<T>, message: Sym<u8>) {
    let n = coll.n();
    let steps = n.next_power_of_two().trailing_zeros() as usize;
    for step in 0..steps {
        let bit = 1 << step;
        let blocks = || (bit..n).filter(|distance| distance & bit != 0);
        let message = message.slice(..blocks().count() * held.bytes() / n).cast::<T>();
        let packed = |i| message.slice(i * held.len() / n..(i + 1) * held.len() / n);
        let _step = coll.step(HOP, (step, steps), coll.wrap(coll.me() + bit), message.bytes());
        for (i, distance) in blocks().enumerate() {
            coll.start_copy(packed(i), coll.part(held, distance));
        }
        // One slot in the simple protocol, and no more than a queue holds in the others.
        let rounds = message.len().div_ceil(coll.plan.slot_elements::<T>());
        // There is a round, in which the group meets before any but the leader looks at the link, and at what was copied.
        coll.open(Link::A, coll.wrap(coll.me() + bit));
        for round in 0..rounds {
            let chunk = coll.cut(message, round);
            coll.moves(Step::NEW.reduce().send(Link::A), chunk);
        }
        coll.close_sender(Link::A);
        coll.group().sync();
        coll.open(Link::A, coll.before(bit));
        for round in 0..rounds {
            let chunk = coll.cut(message, round);
            coll.moves(Step::NEW.recv(Link::A).copy(), chunk);
        }
        coll.close_receiver(Link::A);
        for (i, distance) in blocks().enumerate() {
            coll.start_copy(coll.part(held, distance), packed(i));
        }
        coll.group().sync();
    }
}

/// [`all_to_all`].
pub static ALL_TO_ALL: Descriptor = Descriptor { queued: true, ..DESCRIBED }.scheduled(|schedule| {
    let (n, me, steps) = (schedule.n(), schedule.me(), schedule.n().next_power_of_two().trailing_zeros() as usize);
    // Blocks are held in the first two thirds of the scratch, and packed in the last.
    schedule.in_scratch(scratch::SLOTS / 3 * 2, |schedule, len| {
        for (step, bit) in (0..steps).map(|step| (step, 1 << step)) {
            let blocks = (bit..n).filter(|distance| distance & bit != 0).count();
            schedule.queued(HOP, (step, steps), schedule.wrap(me + bit), blocks * len);
        }
    });
});

const DESCRIBED: Descriptor = Descriptor::new(Collective::AllToAll, Algorithm::BRUCK, Protocol::ALL, |call| {
    // Blocks are turned before and after.
    Work { hops: call.log_n, moved: call.log_n * call.bytes / 2.0 + 2.0 * call.bytes, ..Work::NONE }
});
