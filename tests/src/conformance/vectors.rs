//! Collectives with parts of any length, and sends and receives.

use std::num::NonZeroU32;

use congruent::collectives::exchange::Parts;
use congruent::{CommOptions, Error, World};

use super::pattern::{assert_same, value, values};

/// Elements of the longest part.
const LONGEST: usize = 300;

/// All-to-all-v, all-gather-v and sends and receives, in turn and several times without a pause.
pub(super) fn parts(world: &mut World) -> Result<(), Error> {
    let (me, n) = (world.pe().index(), world.npes());
    for blocks in [1, 3] {
        let options = CommOptions { blocks: NonZeroU32::new(blocks), buffer: Some(0), ..CommOptions::default() };
        let (comm, stream) = (world.comm_with(world.team(), options)?, world.stream()?);
        let room = n * (LONGEST + 1);
        let (src, lists) = (world.alloc::<u32>(room)?, world.alloc::<u64>(6 * n)?);
        let (all, each, sent) = (world.alloc::<u32>(room)?, world.alloc::<u32>(room)?, world.alloc::<u32>(room)?);
        src.write(0, &values(1, me, room))?;
        // Sent one after the other, with a gap between them; received in the reverse order.
        let to = |peer| (0..n).map(|i| count(peer, i)).collect::<Vec<_>>();
        let from = |peer| (0..n).map(|i| count(i, peer)).collect::<Vec<_>>();
        let mine: Vec<usize> = (0..n).map(|i| count(i, i)).collect();
        let entries = [to(me), starts(&to(me)), from(me), backwards(&from(me)), mine.clone(), backwards(&mine)];
        lists.write(0, &entries.concat().iter().map(|&entry| entry as u64).collect::<Vec<_>>())?;
        let list = |i: usize| lists.view().slice(i * n..(i + 1) * n);
        let pair = |i: usize| Parts::new(list(i), list(i + 1));
        for buffer in [&all, &each, &sent] {
            buffer.fill(u32::MAX)?;
        }
        for _ in 0..3 {
            comm.all_to_all_v(&stream, all.view(), src.view(), pair(2), pair(0))?;
            comm.all_gather_v(&stream, each.view(), src.slice(..mine[me])?, pair(4))?;
            comm.group(&stream, |group| {
                for peer in 0..n {
                    let part = |starts: &[usize], count: usize| starts[peer]..starts[peer] + count;
                    comm.send(group, src.view().slice(part(&starts(&to(me)), count(me, peer))), peer)?;
                    comm.recv(group, sent.view().slice(part(&backwards(&from(me)), count(peer, me))), peer)?;
                }
                Ok(())
            })?;
        }
        world.synchronize(&stream)?;
        let case = |what: &str| format!("{what} by {blocks} blocks, {n} PEs, PE {me}");
        let exchanged = placed(room, &backwards(&from(me)), |peer, i| {
            (i < count(peer, me)).then(|| value(1, peer, starts(&to(peer))[me] + i))
        });
        assert_same(&all.to_vec()?, &exchanged, || case("all-to-all-v"));
        assert_same(&sent.to_vec()?, &exchanged, || case("sends and receives"));
        let gathered = placed(room, &backwards(&mine), |peer, i| (i < mine[peer]).then(|| value(1, peer, i)));
        assert_same(&each.to_vec()?, &gathered, || case("all-gather-v"));
    }
    Ok(())
}

/// How many elements `from` sends `to`: any number, and none one time in four.
fn count(from: usize, to: usize) -> usize {
    let mixed = value::<u32>(0, from, to) as usize;
    if mixed.is_multiple_of(4) { 0 } else { mixed / 4 % LONGEST }
}

/// Where parts begin that lie one after the other, one element apart.
fn starts(counts: &[usize]) -> Vec<usize> {
    (0..counts.len()).map(|i| counts[..i].iter().map(|count| count + 1).sum()).collect()
}

/// The same where the last part comes first.
fn backwards(counts: &[usize]) -> Vec<usize> {
    (0..counts.len()).map(|i| counts[i + 1..].iter().map(|count| count + 1).sum()).collect()
}

/// A buffer that holds parts, and between them what it held before.
fn placed(room: usize, starts: &[usize], part: impl Fn(usize, usize) -> Option<u32>) -> Vec<u32> {
    let mut whole = vec![u32::MAX; room];
    for (peer, &start) in starts.iter().enumerate() {
        for (i, value) in (0..).map_while(|i| part(peer, i)).enumerate() {
            whole[start + i] = value;
        }
    }
    whole
}
