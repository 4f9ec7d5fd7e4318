//! What accesses memory, and what orders accesses.

use congruent_verify::ptx::{self, Operand};

use super::names::{bits, combination};
use super::{Decoded, Decoder, Meaning, is_signed};
use crate::alu;
use crate::instruction::{Access, Change, Combine, Operation, Scope, Source, Strength, Target, Where};

impl Decoder<'_> {
    /// What is accessed, as the modifiers say; the type is the last of them.
    fn access(&mut self, instruction: &ptx::Instruction, address: &Operand) -> Decoded<Access> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let bits = bits(type_name).ok_or_else(|| format!("the type {type_name} is not executed"))?;
        let vector = ["v2", "v4", "v8"].into_iter().find(|vector| instruction.has(vector));
        let count = vector.map_or(1, |vector| u64::from(vector.as_bytes()[1] - b'0'));
        // 128 bits are two units of 64.
        let (unit, count) = if bits == 128 { (8, 2 * count) } else { (u64::from(bits) / 8, count) };
        let space = match instruction.modifiers.iter().find_map(|modifier| space(modifier)) {
            Some(space) => space,
            None if instruction.opcode == "multimem" => Where::Global,
            None => Where::Generic,
        };
        let address = self.address(address, space)?;
        Ok(Access { address, unit, count, strength: strength(instruction), is_noncoherent: instruction.has("nc") })
    }

    /// The place of `units` words of a parameter in the frame, if an address is one.
    fn in_frame(&mut self, address: &Operand, unit: u64, units: usize) -> Decoded<Option<u64>> {
        let Operand::Address(base, offset) = address else { return Ok(None) };
        let Operand::Symbol(name, more) = base.as_ref() else { return Ok(None) };
        match self.meaning(name)? {
            Meaning::Frame(slot) => {
                let inside = u64::try_from(offset.saturating_add(*more)).ok();
                let fits = |at: &u64| at.saturating_add(unit * units as u64) <= slot.bytes;
                let place = inside.filter(fits).map(|inside| slot.offset + inside);
                let place = place.filter(|place| place.is_multiple_of(unit));
                place.map(Some).ok_or_else(|| format!("it is outside the {} bytes of `{name}`", slot.bytes))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn load(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let [result, address, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let (to, is_signed) = (self.targets(result)?, is_signed(type_name));
        let unit = unit(type_name)?;
        if let Some(offset) = self.in_frame(address, unit, to.len())? {
            return Ok(Operation::LoadParam { offset, unit, to, is_signed });
        }
        let access = self.access(instruction, address)?;
        expect_count(&access, to.len())?;
        Ok(Operation::Load { access, to, is_signed })
    }

    pub(super) fn store(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let [address, value, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let from = self.values(value, type_name)?;
        let unit = unit(type_name)?;
        if let Some(offset) = self.in_frame(address, unit, from.len())? {
            return Ok(Operation::StoreParam { offset, unit, from });
        }
        let access = self.access(instruction, address)?;
        expect_count(&access, from.len())?;
        Ok(Operation::Store { access, from })
    }

    pub(super) fn atomic(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let gives = instruction.opcode == "atom";
        let (result, rest) =
            if gives { instruction.operands.split_at(1) } else { (&[][..], &instruction.operands[..]) };
        let [address, value, more @ ..] = rest else { return Err("an operand is missing".to_owned()) };
        let access = atomic(instruction, self.access(instruction, address)?);
        if type_name == "b128" {
            return Err("atomics of 128 bits are not executed".to_owned());
        }
        let from = self.values(value, type_name)?;
        expect_count(&access, from.len())?;
        let is_swap = instruction.has("cas");
        let second = match (is_swap, more) {
            (true, [new, ..]) => Some(self.source(new, type_name)?),
            (true, []) => return Err("the new value is missing".to_owned()),
            (false, _) => None,
        };
        let change = if is_swap { Change::CompareAndSwap } else { Change::Combine(combination(instruction)?) };
        let to = result.iter().map(|result| self.targets(result)).collect::<Decoded<Vec<_>>>()?.concat();
        Ok(Operation::Atomic { access, to, change, from, second })
    }

    pub(super) fn multimem(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        let type_name = instruction.modifiers.last().map_or("", String::as_str);
        let [first, second, ..] = &instruction.operands[..] else { return Err("an operand is missing".to_owned()) };
        if instruction.has("ld_reduce") {
            let access = self.access(instruction, second)?;
            let to: Option<Vec<_>> = self.targets(first)?.into_iter().collect();
            let to = to.ok_or("a result is ignored")?;
            expect_count(&access, to.len())?;
            let wide = alu::sum_in_f32(type_name).filter(|_| instruction.has("add") && instruction.has("acc::f32"));
            let combine = wide.map(Combine::All).map_or_else(|| combination(instruction).map(Combine::Two), Ok)?;
            return Ok(Operation::MultimemReduce { access, to, combine });
        }
        let access = self.access(instruction, first)?;
        let from = self.values(second, type_name)?;
        expect_count(&access, from.len())?;
        if instruction.has("st") {
            return Ok(Operation::MultimemStore { access, from });
        }
        let access = atomic(instruction, access);
        Ok(Operation::MultimemAdd { access, combine: combination(instruction)?, from })
    }

    pub(super) fn copy(&mut self, instruction: &ptx::Instruction) -> Decoded<Operation> {
        if instruction.has("bulk") || instruction.has("mbarrier") {
            return Err("asynchronous bulk copies (TMA) and their barriers are not executed".to_owned());
        }
        let operands = &instruction.operands[..];
        if instruction.has("commit_group") {
            return Ok(Operation::CopyCommit);
        }
        if instruction.has("wait_all") {
            return Ok(Operation::CopyWait(None));
        }
        if instruction.has("wait_group") {
            return match operands {
                [Operand::Integer(left)] => Ok(Operation::CopyWait(Some(*left))),
                _ => Err("the number of groups is missing".to_owned()),
            };
        }
        let [to, from, Operand::Integer(bytes), rest @ ..] = operands else {
            return Err("an operand is missing".to_owned());
        };
        let filled = rest.first().map(|filled| self.source(filled, "u32")).transpose()?;
        let (to, from) = (self.address(to, Where::Shared)?, self.address(from, Where::Global)?);
        Ok(Operation::CopyLater { to, from, bytes: *bytes, filled })
    }

    /// Generic addresses of shared and local memory and of parameters lie behind their space's own base.
    pub(super) fn converted_address(
        &self,
        instruction: &ptx::Instruction,
        to: Target,
        from: Source,
    ) -> Decoded<Operation> {
        let space = instruction.modifiers.iter().find_map(|modifier| space(modifier)).ok_or("a space is missing")?;
        let base = Source::Immediate(base_of(space));
        let function = if instruction.has("to") { alu::two(u64::wrapping_sub) } else { alu::two(u64::wrapping_add) };
        Ok(match space {
            Where::Global | Where::Generic => Operation::Move { to, from },
            _ => Operation::Compute { function, to: Some(to), from: vec![from, base] },
        })
    }
}

fn expect_count(access: &Access, registers: usize) -> Decoded<()> {
    if access.count != registers as u64 {
        return Err(format!("{} registers are needed, {registers} are there", access.count));
    }
    Ok(())
}

fn unit(type_name: &str) -> Decoded<u64> {
    let bits = bits(type_name).ok_or("this type is not executed")?;
    Ok(u64::from(bits.min(64)) / 8)
}

fn scope(instruction: &ptx::Instruction) -> Option<Scope> {
    instruction.modifiers.iter().find_map(|modifier| match modifier.as_str() {
        "cta" => Some(Scope::Block),
        "cluster" | "gpu" | "gl" => Some(Scope::Device),
        "sys" => Some(Scope::System),
        _ => None,
    })
}

/// Atomics are relaxed where nothing is said, and seen by the device where no scope is.
fn atomic(instruction: &ptx::Instruction, access: Access) -> Access {
    match access.strength {
        Strength::Weak => Access { strength: Strength::Relaxed(scope(instruction).unwrap_or(Scope::Device)), ..access },
        _ => access,
    }
}

fn strength(instruction: &ptx::Instruction) -> Strength {
    let scope = scope(instruction).unwrap_or(Scope::Device);
    if instruction.has("acq_rel") {
        Strength::AcquireRelease(scope)
    } else if instruction.has("acquire") {
        Strength::Acquire(scope)
    } else if instruction.has("release") {
        Strength::Release(scope)
    } else if instruction.has("volatile") || instruction.has("mmio") {
        Strength::Relaxed(Scope::System)
    } else if instruction.has("relaxed") {
        Strength::Relaxed(scope)
    } else {
        Strength::Weak
    }
}

pub(super) fn fence(instruction: &ptx::Instruction) -> Decoded<Operation> {
    if instruction.has("proxy") {
        return match instruction.has("alias") {
            true => Ok(Operation::FenceAlias),
            false => Ok(Operation::Nothing),
        };
    }
    let scope = scope(instruction).ok_or("the scope is missing")?;
    let (strength, is_consistent) = match strength(instruction) {
        Strength::Acquire(_) => (Strength::Acquire(scope), false),
        Strength::Release(_) => (Strength::Release(scope), false),
        // `membar` is `fence.sc`.
        _ => (Strength::AcquireRelease(scope), !instruction.has("acq_rel")),
    };
    Ok(Operation::Fence { strength, is_consistent })
}

pub(super) fn space(modifier: &str) -> Option<Where> {
    Some(match modifier {
        "global" | "const" => Where::Global,
        "shared" | "shared::cta" => Where::Shared,
        "local" => Where::Local,
        "param" | "param::entry" => Where::Param,
        _ => return None,
    })
}

/// Where the generic addresses of a space begin; of global memory they are its own.
pub(crate) fn base_of(space: Where) -> u64 {
    match space {
        Where::Generic | Where::Global => 0,
        Where::Shared => 0x1 << 56,
        Where::Local => 0x2 << 56,
        Where::Param => 0x3 << 56,
    }
}

/// Which space a generic address is in.
pub(crate) fn space_of(address: u64) -> Where {
    match address >> 56 {
        0x1 => Where::Shared,
        0x2 => Where::Local,
        0x3 => Where::Param,
        _ => Where::Global,
    }
}
