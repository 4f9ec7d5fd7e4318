//! What parts of instructions mean: types, operators, constants and special registers.

use core::mem::size_of;

use congruent_verify::ptx;

use super::{Decoded, unknown};
use crate::alu::{self, Function};
use crate::instruction::{Boolean, Combination, Special};

/// Bits of a type, from its name.
pub(super) fn bits(type_name: &str) -> Option<u32> {
    Some(match type_name {
        "pred" => 1,
        "f16x2" | "bf16x2" | "u16x2" | "s16x2" | "tf32" => 32,
        "e4m3x2" | "e5m2x2" | "bf16" => 16,
        "f32x2" => 64,
        name => name.trim_start_matches(|letter: char| letter.is_ascii_lowercase()).parse().ok()?,
    })
}

pub(super) fn boolean(name: &str) -> Decoded<Boolean> {
    match name {
        "and" => Ok(Boolean::And),
        "or" => Ok(Boolean::Or),
        "xor" => Ok(Boolean::Xor),
        _ => Err(format!("{name} does not combine predicates")),
    }
}

/// What an atomic, a reduction of lanes or of devices does with two values.
pub(super) fn combination(instruction: &ptx::Instruction) -> Decoded<Combination> {
    let type_name = instruction.modifiers.last().map_or("", String::as_str);
    const NAMES: [&str; 9] = ["add", "min", "max", "and", "or", "xor", "inc", "dec", "exch"];
    let name = NAMES.into_iter().find(|name| instruction.has(name)).ok_or("it does nothing that is known")?;
    // Bits are bits, whatever they are called.
    let bits = format!("b{}", bits(type_name).ok_or("this type is not executed")?);
    let form: Vec<String> = match (name, type_name) {
        ("and" | "or" | "xor", _) => vec![bits],
        ("add", "f32" | "f64" | "f16" | "f16x2" | "bf16" | "bf16x2") => vec!["rn".to_owned(), type_name.to_owned()],
        _ => vec![type_name.to_owned()],
    };
    let function = match name {
        "exch" => Some(alu::two(|_, new| new)),
        "inc" => Some(alu::two(|old, bound| if old >= bound { 0 } else { old + 1 })),
        "dec" => Some(alu::two(|old, bound| if old == 0 || old > bound { bound } else { old - 1 })),
        _ => alu::function(name, &form),
    };
    match function {
        Some(Function::Two(function)) => Ok(function),
        _ => unknown(),
    }
}

/// `0f3F800000`, `0d3FF0000000000000` or `1.5`, as bits of a type.
pub(super) fn float(text: &str, type_name: &str) -> Decoded<u64> {
    let wrong = || format!("`{text}` is no float of type {type_name}");
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| wrong());
    let is_double = bits(type_name) == Some(8 * size_of::<f64>() as u32);
    if let Some(digits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        let bits = hexadecimal(digits)?;
        let single = f32::from_bits(u32::try_from(bits).map_err(|_| wrong())?);
        return Ok(if is_double { f64::from(single).to_bits() } else { bits });
    }
    let double = match text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        Some(digits) => f64::from_bits(hexadecimal(digits)?),
        None => text.parse().map_err(|_| wrong())?,
    };
    Ok(if is_double { double.to_bits() } else { u64::from((double as f32).to_bits()) })
}

pub(super) fn special(name: &str) -> Decoded<Special> {
    let (name, part) = name.split_once('.').unwrap_or((name, ""));
    let part = ["x", "y", "z", "w"].iter().position(|known| *known == part).unwrap_or(0);
    Ok(match name {
        // The fourth part is 0 of an index and 1 of a size, and nobody reads it.
        "%tid" if part < 3 => Special::Thread(part),
        "%ntid" if part < 3 => Special::Threads(part),
        "%ctaid" if part < 3 => Special::Block(part),
        "%nctaid" if part < 3 => Special::Blocks(part),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" => Special::Sm,
        "%nsmid" => Special::Sms,
        "%gridid" => Special::Grid,
        "%clock" | "%clock64" => Special::Clock,
        "%clock_hi" => Special::ClockHigh,
        "%globaltimer" | "%globaltimer_lo" => Special::Time,
        "%globaltimer_hi" => Special::TimeHigh,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_lt" => Special::LanesBelow,
        "%lanemask_ge" => Special::LanesFrom,
        "%lanemask_gt" => Special::LanesAbove,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        "WARP_SZ" => Special::Constant(32),
        // Every block is a cluster of its own.
        "%clusterid" if part < 3 => Special::Block(part),
        "%nclusterid" if part < 3 => Special::Blocks(part),
        "%cluster_ctaid" | "%cluster_ctarank" | "%is_explicit_cluster" => Special::Constant(0),
        "%cluster_nctaid" | "%cluster_nctarank" => Special::Constant(1),
        _ => return Err(format!("the register {name} is not executed")),
    })
}
