//! Collectives in one launch of many rounds, by the algorithm that the selector chooses or by a given one.

use std::error::Error;

use congruent::collectives::{Algorithm, Collective, Datatype, Op, Protocol, Reduction};
use congruent::select::Circumstances;
use congruent::{FixedArgs, FixedKernel, Grid, SymVec};

use crate::ours::Ours;

/// Algorithm and protocol.
pub(crate) type Way = (Algorithm, Protocol);

/// Bytes of an element: all are f32.
const ELEMENT: usize = 4;

/// Bytes of a PE's buffers.
struct Lengths {
    dst: usize,
    src: usize,
}

impl Ours {
    /// The way that a call of so many bytes takes.
    pub(crate) fn chosen(&self, collective: Collective, bytes: u64) -> Result<Way, Box<dyn Error>> {
        let choice = self.comm.chosen(collective, bytes, reduction(collective))?;
        Ok((choice.algorithm, choice.protocol))
    }

    /// What is known of a call of so many bytes.
    pub(crate) fn circumstances(&self, collective: Collective, bytes: u64) -> Circumstances {
        self.comm.circumstances(bytes, reduction(collective))
    }

    /// The time of one of `n` calls, whose larger buffer has `bytes` bytes.
    pub(crate) fn collective(
        &self,
        collective: Collective,
        (algorithm, protocol): Way,
        bytes: u64,
        n: u64,
    ) -> Result<f64, Box<dyn Error>> {
        let lengths = self.lengths(collective, bytes);
        let (dst, src) = (self.output(collective).slice(..lengths.dst)?, self.src.slice(..lengths.src)?);
        let plan = self.plan.view().over(protocol);
        let sum = || Reduction::new::<f32>(Op::Sum, None).ok_or("there is no sum of f32");
        let reduction = if collective.reduces() { Some(sum()?) } else { None };
        let kernel = FixedKernel::of(collective, algorithm);
        let kernel = kernel.ok_or_else(|| format!("there is no kernel for {collective} by {algorithm}"))?;
        let args = FixedArgs { dst, src, reduction, root: 0, plan, rounds: u32::try_from(n)? };
        self.clocked(n, || Ok(kernel.launch(&self.world, &self.stream, Grid::one(256), args)?))
    }

    /// One call on known numbers must give what it should, at the ends of the buffer and in its middle.
    pub(crate) fn check(&self, collective: Collective, way: Way, bytes: u64) -> Result<(), Box<dyn Error>> {
        let lengths = self.lengths(collective, bytes);
        let count = lengths.dst / ELEMENT;
        let me = self.world.pe().index();
        let source: Vec<u8> = (0..lengths.src / ELEMENT).flat_map(|i| number(me, i).to_ne_bytes()).collect();
        self.src.write(0, &source)?;
        let looked_at = [0, count / 2, count - 1];
        let output = self.output(collective);
        if collective != Collective::Broadcast {
            for i in looked_at {
                output.write(i * ELEMENT, &f32::NAN.to_ne_bytes())?;
            }
        }
        self.collective(collective, way, bytes, 1)?;
        for i in looked_at {
            let mut word = [0; ELEMENT];
            output.read(i * ELEMENT, &mut word)?;
            let (is, expected) = (f32::from_ne_bytes(word), expected(collective, self.world.npes(), me, count, i));
            if is != expected {
                let (algorithm, protocol) = way;
                return Err(format!(
                    "{collective} of {bytes} bytes by {algorithm} with {protocol}: element {i} of PE {me} is {is}, not {expected}"
                )
                .into());
            }
        }
        Ok(())
    }

    /// Where the result is: a broadcast is in place, as MPI's always is.
    fn output(&self, collective: Collective) -> &SymVec<u8> {
        if collective == Collective::Broadcast { &self.src } else { &self.dst }
    }

    fn lengths(&self, collective: Collective, bytes: u64) -> Lengths {
        let (whole, part) = (bytes as usize, bytes as usize / self.world.npes());
        match collective {
            Collective::AllGather => Lengths { dst: whole, src: part },
            Collective::ReduceScatter => Lengths { dst: part, src: whole },
            _ => Lengths { dst: whole, src: whole },
        }
    }
}

fn reduction(collective: Collective) -> Option<(Op, Datatype)> {
    collective.reduces().then_some((Op::Sum, Datatype::F32))
}

/// Element `i` of a PE's source.
fn number(pe: usize, i: usize) -> f32 {
    (i % 7 + 10 * pe) as f32
}

/// Element `i` of the `count` of PE `me`'s destination.
fn expected(collective: Collective, npes: usize, me: usize, count: usize, i: usize) -> f32 {
    let sum = |i| (0..npes).map(|pe| number(pe, i)).sum();
    let part = (count / npes).max(1);
    match collective {
        Collective::Broadcast => number(0, i),
        Collective::AllGather => number(i / part, i % part),
        Collective::AllToAll => number(i / part, me * part + i % part),
        Collective::ReduceScatter => sum(me * count + i),
        _ => sum(i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pes_of_four_elements() {
        let of = |collective, me, count| (0..count).map(|i| expected(collective, 2, me, count, i)).collect::<Vec<_>>();
        assert_eq!(of(Collective::AllReduce, 1, 4), [10.0, 12.0, 14.0, 16.0]);
        assert_eq!(of(Collective::Broadcast, 1, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(of(Collective::AllGather, 1, 4), [0.0, 1.0, 10.0, 11.0]);
        assert_eq!(of(Collective::AllToAll, 1, 4), [2.0, 3.0, 12.0, 13.0]);
        assert_eq!(of(Collective::ReduceScatter, 1, 2), [14.0, 16.0]);
    }
}
