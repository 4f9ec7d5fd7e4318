//! All-to-all in as many steps as a logarithm of the team (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", 1997): for small messages in large teams.
//!
//! What a member sends to the one at distance `j` after it is its block `j`. In step `k` every member gives those of the
//! blocks it holds whose distance has bit `k` to the member at distance `2^k`, in one message, so each block travels its
//! distance bit by bit; up to half of the blocks go in each step.
//!
//! The blocks that a member holds are in two pieces of the plan's scratch, and those of one message in a third. So parts
//! longer than `2/n` of a piece go in several rounds, each of all steps; the direct all-to-all is better for those.

use congruent_device::{Ctx, Group, Pod, Sym, Tag, Team};

use crate::call::Call;
use crate::link::{Incoming, Outgoing, largest_piece};
use crate::names::Operation;
use crate::plan::View;
use crate::{check, scratch};

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
/// Where the lengths differ or do not divide by `n`, the buffers overlap without being the same, the plan is for another team
/// or fewer blocks, or its buffer has no room for an element of each member.
#[inline(always)]
#[track_caller]
pub fn all_to_all<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    plan: &View,
) {
    check::parted(dst, src, team.size());
    let call = Call::enter(group, ctx, team, plan, Operation::AllToAllBruck, src.bytes());
    let part = |parts: Sym<T>, i| call.mine(call.part(parts, i));
    if call.n == 1 {
        if dst != src {
            ctx.copy(group, part(dst, 0), part(src, 0));
        }
    } else {
        let scratch = scratch::whole(&call);
        let (held, message) = (scratch.slice(..scratch.bytes() / 3 * 2), scratch.slice(scratch.bytes() / 3 * 2..));
        let most = scratch::each::<T>(held.bytes(), call.n);
        let len = part(src, 0).len();
        for start in (0..len).step_by(most) {
            let range = start..(start + most).min(len);
            let held = held.slice(..call.n * range.len() * size_of::<T>()).cast::<T>();
            for distance in 0..call.n {
                let from = part(src, call.wrap(call.me + distance)).slice(range.clone());
                ctx.copy(group, call.part(held, distance), from);
            }
            travel(&call, group, held, message);
            for distance in 0..call.n {
                let to = part(dst, call.wrap(call.me + call.n - distance)).slice(range.clone());
                ctx.copy(group, to, call.part(held, distance));
            }
        }
    }
    call.leave(group);
}

/// Moves every block by its distance: on return block `j` is from the member at distance `j` before this one.
#[inline(always)]
#[track_caller]
fn travel<T: Pod, G: Tag>(call: &Call<'_, G>, group: &impl Group, held: Sym<T>, message: Sym<u8>) {
    let steps = call.n.next_power_of_two().trailing_zeros() as usize;
    for step in 0..steps {
        let bit = 1 << step;
        let blocks = || (bit..call.n).filter(|distance| distance & bit != 0);
        let message = message.slice(..blocks().count() * held.bytes() / call.n).cast::<T>();
        let packed = |i| message.slice(i * held.len() / call.n..(i + 1) * held.len() / call.n);
        let (to, from) = (call.after(bit), call.after(call.n - bit));
        let _step = call.step("travel", (step, steps), to, message.bytes());
        for (i, distance) in blocks().enumerate() {
            call.ctx.copy(group, packed(i), call.part(held, distance));
        }
        let mut way = Outgoing::open(call, to);
        for piece in pieces(call, message) {
            way.pass(group, piece);
        }
        way.close(group);
        let mut way = Incoming::open(call, from);
        for piece in pieces(call, message) {
            way.receive(group, piece);
        }
        way.close(group);
        for (i, distance) in blocks().enumerate() {
            call.ctx.copy(group, call.part(held, distance), packed(i));
        }
    }
}

/// The pieces of a message: one in the simple protocol, and no more than a queue holds in the others. An iterator, and no function
/// that takes what is done with each: a wait in a closure would name the closure's line as the program's.
#[inline(always)]
fn pieces<T: Pod, G: Tag>(call: &Call<'_, G>, message: Sym<T>) -> impl Iterator<Item = Sym<T>> {
    let most = largest_piece::<T, G>(call);
    (0..message.len()).step_by(most).map(move |start| message.slice(start..(start + most).min(message.len())))
}
