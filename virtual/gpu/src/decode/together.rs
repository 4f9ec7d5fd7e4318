//! What threads do together: barriers, the operations of a warp, and matrices.

use congruent_verify::ptx::{self, Operand};

use super::access::space;
use super::names::combination;
use super::{Decoded, Decoder, unknown};
use crate::alu::matrix;
use crate::instruction::{Access, BarrierResult, Matrix, Operation, Shuffle, Source, Strength, Together, Truth, Where};

impl Decoder<'_> {
    pub(super) fn barrier(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        if instruction.has("cluster") {
            return Err("clusters are not executed".to_owned());
        }
        let is_aligned = instruction.opcode == "bar" || instruction.has("aligned");
        let reduces = instruction.has("red");
        let (results, rest) = instruction.operands.split_at(usize::from(reduces).min(instruction.operands.len()));
        let mut rest = rest.iter();
        let id = rest.next().map_or(Ok(Source::Immediate(0)), |id| self.source(id, "u32"))?;
        if instruction.has("arrive") {
            return Ok(Operation::Arrive { id });
        }
        let (count, value) = match (reduces, rest.as_slice()) {
            (false, []) => (None, None),
            (false, [count]) => (Some(count), None),
            (true, [value]) => (None, Some(value)),
            (true, [count, value]) => (Some(count), Some(value)),
            _ => return Err("it has too many operands".to_owned()),
        };
        let count = count.map(|count| self.source(count, "u32")).transpose()?;
        let value = value.map_or(Ok(Truth::Constant(false)), |value| self.truth(value))?;
        let result = match results {
            [] => BarrierResult::None,
            [result, ..] if instruction.has("popc") => BarrierResult::Count(self.one_target(result)?),
            [result, ..] if instruction.has("and") => BarrierResult::And(self.one_predicate(result)?),
            [result, ..] => BarrierResult::Or(self.one_predicate(result)?),
        };
        Ok(Operation::Barrier { id, count, is_aligned, result, value })
    }

    pub(super) fn together(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let operands = &instruction.operands[..];
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let (Some(result), Some(last)) = (operands.first(), operands.last()) else {
            return Err("an operand is missing".to_owned());
        };
        let value = operands.get(1).ok_or_else(|| "an operand is missing".to_owned());
        let what = match instruction.opcode.as_str() {
            "shfl" => {
                let [_, value, lane, clamp, _] = operands else { return Err("five operands are needed".to_owned()) };
                let (to, valid) = Self::pair(result)?;
                let kind = match instruction.modifiers.get(1).map_or("", String::as_str) {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Butterfly,
                    _ => Shuffle::Index,
                };
                Together::Shuffle {
                    kind,
                    to: self.target(to)?,
                    valid: valid.map(|valid| self.predicate(valid)).transpose()?.flatten(),
                    value: self.source(value, "b32")?,
                    lane: self.source(lane, "b32")?,
                    clamp: self.source(clamp, "b32")?,
                }
            }
            "vote" => {
                let value = self.truth(value?)?;
                match instruction.modifiers.get(1).map_or("", String::as_str) {
                    "all" => Together::VoteAll { to: self.one_predicate(result)?, value },
                    "any" => Together::VoteAny { to: self.one_predicate(result)?, value },
                    "uni" => Together::VoteUniform { to: self.one_predicate(result)?, value },
                    _ => Together::Ballot { to: self.one_target(result)?, value },
                }
            }
            "match" => {
                let (to, valid) = Self::pair(result)?;
                let value = self.source(value?, type_name)?;
                match instruction.has("any") {
                    true => Together::MatchAny { to: self.one_target(to)?, value },
                    false => {
                        let valid = valid.map(|valid| self.predicate(valid)).transpose()?.flatten();
                        Together::MatchAll { to: self.target(to)?, valid, value }
                    }
                }
            }
            "redux" => {
                let combine = combination(instruction)?;
                Together::Reduce { to: self.one_target(result)?, value: self.source(value?, type_name)?, combine }
            }
            _ => {
                let (to, chosen) = Self::pair(result)?;
                let chosen = chosen.map(|chosen| self.predicate(chosen)).transpose()?.flatten();
                Together::Elect { to: self.target(to)?, chosen }
            }
        };
        Ok(Operation::Together { what, mask: self.source(last, "b32")?, name: instruction.full_name() })
    }

    pub(super) fn matrix(&mut self, instruction: &ptx::Instruction) -> Decoded<Matrix> {
        let rows = |decoder: &mut Self, address: &Operand| {
            let space = instruction.modifiers.iter().find_map(|modifier| space(modifier)).unwrap_or(Where::Generic);
            let address = decoder.address(address, space)?;
            Ok::<_, String>(Access { address, unit: 2, count: 8, strength: Strength::Weak, is_noncoherent: false })
        };
        let expect = |wanted: &[usize], found: &[usize]| match wanted == found {
            true => Ok(()),
            false => Err(format!("{wanted:?} registers are needed here, and there are {found:?}")),
        };
        match (instruction.opcode.as_str(), &instruction.operands[..]) {
            ("mma", [to, a, b, c]) => {
                let Some(mma) = matrix::mma(&instruction.modifiers) else { return unknown() };
                let to = self.targets(to)?;
                let from = [self.values(a, "b32")?, self.values(b, "b32")?, self.values(c, "b32")?];
                expect(&mma.registers(), &[to.len(), from[0].len(), from[1].len(), from[2].len()])?;
                Ok(Matrix::Multiply { mma, to, from })
            }
            ("ldmatrix", [to, address]) => {
                let Some(tiles) = matrix::tiles(&instruction.modifiers) else { return unknown() };
                let to = self.targets(to)?;
                expect(&[tiles.count()], &[to.len()])?;
                Ok(Matrix::Load { tiles, to, rows: rows(self, address)? })
            }
            ("stmatrix", [address, from]) => {
                let Some(tiles) = matrix::tiles(&instruction.modifiers) else { return unknown() };
                let from = self.values(from, "b32")?;
                expect(&[tiles.count()], &[from.len()])?;
                Ok(Matrix::Store { tiles, from, rows: rows(self, address)? })
            }
            ("movmatrix", [to, from]) => {
                Ok(Matrix::Transpose { to: self.targets(to)?, from: self.source(from, "b32")? })
            }
            _ => Err("an operand is missing".to_owned()),
        }
    }
}
