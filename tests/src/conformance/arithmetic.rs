//! Elementary functions against those of `f64`, within the errors that they state; softmax and RMSNorm of rows.

use congruent::device::{Fp8E4M3, Fp8E5M2, SmallFloat, bf16};
use congruent::{Error, Grid, World};
use congruent_test_kernels::arithmetic::{self as kernels, Function};

use super::limit::at_most;

/// Arithmetic.
pub fn arithmetic(world: &mut World) -> Result<(), Error> {
    for function in Function::ALL {
        errors(world, function)?;
    }
    exact(world)?;
    powers(world)?;
    softmax(world)?;
    rms_norm(world)?;
    quantized(world)?;
    both_fp8(world)
}

/// Both formats of 8 bits give what they give here, whether a machine has instructions for them or not.
fn both_fp8(world: &mut World) -> Result<(), Error> {
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, -1e-45];
    let of = |bits: u8| [Fp8E4M3(bits).widen(), Fp8E5M2(bits).widen()];
    // All values, all middles between two, and what is beside each.
    let exact = (0..=u8::MAX).flat_map(|bits| of(bits).into_iter().zip(of(bits.wrapping_add(1))));
    let near = exact.flat_map(|(value, next)| [value, (value + next) / 2.0]);
    let given: Vec<f32> = near.flat_map(|x| [x.next_down(), x, x.next_up()]).chain(special).collect();
    let (len, stream) = (given.len(), world.stream()?);
    let (x, back) = (world.alloc::<f32>(len)?, world.alloc::<f32>(2 * len)?);
    let (e4m3, e5m2) = (world.alloc::<Fp8E4M3>(len)?, world.alloc::<Fp8E5M2>(len)?);
    x.write(0, &given)?;
    world.run(&stream, kernels::both_fp8, Grid::one(64), (x.view(), e4m3.view(), e5m2.view(), back.view()))?;
    let (e4m3, e5m2, back) = (e4m3.to_vec()?, e5m2.to_vec()?, back.to_vec()?);
    for (i, &x) in given.iter().enumerate() {
        let (right4, right5) = (Fp8E4M3::narrow(x), Fp8E5M2::narrow(x));
        assert_eq!((e4m3[i].0, e5m2[i].0), (right4.0, right5.0), "{x:e}");
        for (found, right) in [(back[i], right4.widen()), (back[len + i], right5.widen())] {
            assert!(
                found.to_bits() == right.to_bits() || found.is_nan() && right.is_nan(),
                "{x:e}: {found}, not {right}"
            );
        }
    }
    Ok(())
}

/// Groups of 64 numbers in 8 bits: each scale is a power of two by which the largest one fits and half of which it would not, and no
/// number is off by more than half of its last place.
fn quantized(world: &mut World) -> Result<(), Error> {
    let (groups, stream) = (3, world.stream()?);
    let len = groups * 64;
    // The first group is all zeros, of the others the second is much smaller than the third.
    let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) * [0.0, 1e-7, 30.0][i / 64];
    let given: Vec<f32> = (0..len).map(number).collect();
    let (mut from, to) = (world.buffer(len)?, world.alloc::<Fp8E4M3>(len)?);
    let (scales, back) = (world.alloc::<f32>(groups)?, world.alloc::<f32>(len)?);
    from.write(0, &given)?;
    world.run(&stream, kernels::to_fp8, Grid::one(64), (&from, to.view(), scales.view(), back.view()))?;
    let (scales, back, narrow) = (scales.to_vec()?, back.to_vec()?, to.to_vec()?);
    assert_eq!((scales[0], &back[..64]), (f32::MIN_POSITIVE, &[0.0; 64][..]));
    for (group, scale) in scales.iter().enumerate().skip(1) {
        let numbers = &given[group * 64..][..64];
        let largest = numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(
            scale.log2().fract() == 0.0 && largest <= 448.0 * scale && largest > 224.0 * scale,
            "{scale} for {largest}"
        );
        for (i, &x) in numbers.iter().enumerate() {
            let (found, bits) = (back[group * 64 + i], narrow[group * 64 + i]);
            assert_eq!(found, bits.widen() * scale);
            // Three bits behind the first one, and nothing below 2^-9.
            let allowed = (x.abs() / 16.0).max(scale / 1024.0);
            assert!((found - x).abs() <= allowed, "{x} became {found}, with scale {scale}");
        }
    }
    Ok(())
}

/// What each is in `f64`, its stated error in ulp, that of the approximate one: relative, or absolute where results are less than 1.
fn reference(function: Function) -> (fn(f64) -> f64, f64, f64) {
    let bits = |n: i32| 2_f64.powi(-n);
    match function {
        // More in proportion to the argument, which is at most 104.
        Function::Exp => (f64::exp, 1.5, 128.0 * bits(21)),
        Function::Exp2 => (f64::exp2, 1.5, bits(22)),
        Function::Ln => (f64::ln, 1.5, bits(21)),
        Function::Log2 => (f64::log2, 1.5, bits(22)),
        Function::Sqrt => (f64::sqrt, 0.5, bits(23)),
        Function::Rsqrt => (|x| 1.0 / x.sqrt(), 2.0, bits(22)),
        Function::Recip => (f64::recip, 0.5, bits(23)),
        Function::Tanh => (f64::tanh, 2.0, bits(10)),
        Function::Sigmoid => (|x| 1.0 / (1.0 + (-x).exp()), 3.0, bits(11)),
        Function::Sin => (f64::sin, 2.0, bits(20)),
        Function::Cos => (f64::cos, 2.0, bits(20)),
    }
}

/// By how many units in the last place of an `f32` a result is off.
fn ulps(found: f32, exact: f64) -> f64 {
    if exact.is_nan() || found.is_nan() {
        return if exact.is_nan() && found.is_nan() { 0.0 } else { f64::INFINITY };
    }
    // As if the exponents of f32 had no end.
    let wide = |x: f32| if x.is_infinite() { 2_f64.powi(128).copysign(x.into()) } else { x.into() };
    if (exact as f32).is_infinite() && found == exact as f32 {
        return 0.0;
    }
    let exponent = ((exact.to_bits() >> 52 & 0x7ff) as i32 - 1023).clamp(-126, 127);
    (wide(found) - exact).abs() / 2_f64.powi(exponent - 23)
}

fn errors(world: &mut World, function: Function) -> Result<(), Error> {
    let (exact, stated, approximate) = reference(function);
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45, -1e-45];
    let len = 20 * at_most(2000);
    // All bits in equal steps, and the numbers around zero, where functions are themselves.
    let all = (0..len as u32).map(|i| f32::from_bits(i * (u32::MAX / len as u32)));
    let near = (0..len as u32 / 4).map(|i| (i as f32 / (len as f32 / 4.0) - 0.5) * 40.0);
    let given: Vec<f32> = special.into_iter().chain(all).chain(near).collect();
    let len = given.len();
    let (x, precise, fast) = (world.alloc(len)?, world.alloc(len)?, world.alloc(len)?);
    x.write(0, &given)?;
    let arguments = (function, x.view(), precise.view(), fast.view());
    let stream = world.stream()?;
    world.run(&stream, kernels::apply, Grid::one(64), arguments)?;
    let mut worst = (0.0, 0.0_f32, 0.0_f32);
    for ((&x, found), fast) in given.iter().zip(precise.to_vec()?).zip(fast.to_vec()?) {
        let right = exact(x.into());
        let off = ulps(found, right);
        if off > worst.0 {
            worst = (off, x, found);
        }
        assert!(found != 0.0 || found.is_sign_negative() == right.is_sign_negative(), "{function:?} of {x}: {found}");
        // Approximations are for arguments of some size, and for results that are not subnormal.
        let usual = x.abs() < 104.0 && (x.abs() >= 1e-30) && (1e-30..1e30).contains(&right.abs());
        let turns = !matches!(function, Function::Sin | Function::Cos) || x.abs() <= std::f32::consts::PI;
        if usual && turns {
            let absolute =
                matches!(function, Function::Sin | Function::Cos | Function::Sigmoid | Function::Ln | Function::Log2);
            let size = if absolute { right.abs().max(1.0) } else { right.abs() };
            assert!(
                (f64::from(fast) - right).abs() <= approximate * size,
                "about {function:?} of {x}: {fast}, not {right}"
            );
        }
    }
    assert!(worst.0 <= stated, "{function:?} of {} is {}, {} ulp off", worst.1, worst.2, worst.0);
    Ok(())
}

fn exact(world: &mut World) -> Result<(), Error> {
    let out = world.alloc::<f64>(6)?;
    let stream = world.stream()?;
    world.run(&stream, kernels::exact, Grid::one(32), (2.0, out.view()))?;
    let (two, single) = (2.0_f64, 2.0_f32);
    let fused = (two + f64::EPSILON).mul_add(1.0 - f64::EPSILON, -two);
    let fused32 = (single + 2.0 * f32::EPSILON).mul_add(1.0 - f32::EPSILON, -single);
    assert_eq!(out.to_vec()?, [two.sqrt(), fused, fused32.into(), 0.125, 32.0, 0.25]);
    Ok(())
}

/// Each power within the error that [`powi`](congruent::device::math::powi) states.
fn powers(world: &mut World) -> Result<(), Error> {
    let (len, stream) = (at_most(400), world.stream()?);
    let (x, single, double) = (world.alloc::<f32>(len)?, world.alloc::<f32>(len)?, world.alloc::<f64>(len)?);
    // From 0.7 to 1.3, with bits down to the last, of both signs.
    let number = |i: usize| {
        (0.7 + 0.6 * ((i * 7919 + 13) % 1009) as f32 / 1009.0) * if i.is_multiple_of(3) { -1.0 } else { 1.0 }
    };
    let given = Vec::from_iter((0..len).map(number));
    x.write(0, &given)?;
    for n in [0, 1, 2, 3, 7, 20, 31, 127, 200, -1, -2, -5, -63, -150] {
        world.run(&stream, kernels::powers, Grid::one(64), (n, x.view(), single.view(), double.view()))?;
        let allowed = f64::from(n.unsigned_abs() + 1);
        for ((&x, single), double) in given.iter().zip(single.to_vec()?).zip(double.to_vec()?) {
            let (right, rest) = power(x.into(), n.unsigned_abs());
            let (right, rest) = if n < 0 { inverse(right, rest) } else { (right, rest) };
            let off = |found: f64| (found - right - rest).abs() / right.abs();
            assert!(off(single.into()) <= allowed * 2_f64.powi(-24), "{x} to the power of {n}: {single}, not {right}");
            assert!(off(double) <= allowed * 2_f64.powi(-53), "{x} to the power of {n}: {double}, not {right}");
        }
    }
    Ok(())
}

/// A power as the sum of two numbers, of which the second is what the first one lacks: with about twice as many bits as `f64`.
fn power(x: f64, n: u32) -> (f64, f64) {
    (0..n).fold((1.0, 0.0), |(high, low), _| {
        let product = high * x;
        two_sum(product, high.mul_add(x, -product) + low * x)
    })
}

/// One divided by such a sum.
fn inverse(high: f64, low: f64) -> (f64, f64) {
    let first = high.recip();
    two_sum(first, first * ((-first).mul_add(high, 1.0) - first * low))
}

/// The sum of a number and a smaller one, and what is lost of it.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    (sum, b - (sum - a))
}

fn softmax(world: &mut World) -> Result<(), Error> {
    for (count, len, grid) in [(1, 1, Grid::one(32)), (5, 37, Grid::new(2, 48)), (3, at_most(1000), Grid::one(256))] {
        let rows = world.alloc::<f32>(count * len)?;
        let given: Vec<f32> = (0..count * len).map(|i| (i * 7919 % 1013) as f32 / 50.0 - 10.0).collect();
        rows.write(0, &given)?;
        let stream = world.stream()?;
        world.run(&stream, kernels::softmax, grid, (rows.view(), count as u64))?;
        for (found, row) in rows.to_vec()?.chunks(len).zip(given.chunks(len)) {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            for (&found, &x) in found.iter().zip(row) {
                let right = f64::from(x).exp() / sum;
                assert!(
                    (f64::from(found) - right).abs() <= 1e-5 * right,
                    "{count} rows of {len}: {found}, not {right}"
                );
            }
        }
    }
    Ok(())
}

fn rms_norm(world: &mut World) -> Result<(), Error> {
    for (count, len, threads) in [(1, 1, 32), (5, 37, 48), (3, at_most(500), 128)] {
        let (rows, weights) = (world.alloc::<bf16>(count * len)?, world.alloc::<bf16>(len)?);
        let number = |i: usize| bf16::narrow((i * 7919 % 1013) as f32 / 100.0 - 5.0);
        let (given, by): (Vec<_>, Vec<_>) =
            ((0..count * len).map(number).collect(), (3..len + 3).map(number).collect());
        rows.write(0, &given)?;
        weights.write(0, &by)?;
        let stream = world.stream()?;
        world.run(&stream, kernels::rms_norm, Grid::one(threads), (rows.view(), weights.view(), count as u64))?;
        for (found, row) in rows.to_vec()?.chunks(len).zip(given.chunks(len)) {
            let squares: f64 = row.iter().map(|x| f64::from(x.widen()).powi(2)).sum();
            let scale = 1.0 / (squares / len as f64 + 1e-6).sqrt();
            for ((found, x), by) in found.iter().zip(row).zip(&by) {
                let right = f64::from(x.widen()) * scale * f64::from(by.widen());
                let off = (f64::from(found.widen()) - right).abs();
                assert!(off <= right.abs() / 255.0, "{count} rows of {len}: {found}, not {right}");
            }
        }
    }
    Ok(())
}
