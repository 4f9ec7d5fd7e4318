//! Elementary functions, and kernels that live of them.

use congruent_device::{
    Fp8E4M3, Fp8E5M2, Group, Max, Slice, SmallFloat, Sum, Sym, bf16, kernel_arg, kernels, math, quantize,
};

kernel_arg! {
    /// An elementary function.
    #[derive(Debug, PartialEq, Eq)]
    pub enum Function {
        /// e to a power.
        Exp,
        /// Two to a power.
        Exp2,
        /// The natural logarithm.
        Ln,
        /// The logarithm to base two.
        Log2,
        /// The square root.
        Sqrt,
        /// One divided by the square root.
        Rsqrt,
        /// One divided by the number.
        Recip,
        /// The hyperbolic tangent.
        Tanh,
        /// The logistic function.
        Sigmoid,
        /// The sine.
        Sin,
        /// The cosine.
        Cos,
    }
}

impl Function {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Exp,
        Self::Exp2,
        Self::Ln,
        Self::Log2,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Recip,
        Self::Tanh,
        Self::Sigmoid,
        Self::Sin,
        Self::Cos,
    ];
}

kernels! {
    /// Each 64 numbers in 8 bits with their scale, and what these are.
    pub fn to_fp8(block, ctx, from: Slice<f32>, to: Sym<Fp8E4M3>, scales: Sym<f32>, back: Sym<f32>) {
        let warp = block.warp();
        for group in (block.warp_index()..from.len() / 64).step_by(block.warps()) {
            let numbers = &from[group * 64..][..64];
            let largest = warp.strided(64).fold(0.0_f32, |most, i| most.max(numbers[i].abs()));
            let scale = quantize::of_ue8m0(quantize::to_ue8m0(quantize::scale::<Fp8E4M3>(&warp, largest)));
            for i in warp.strided(64) {
                let narrow = quantize::narrow(numbers[i], scale);
                ctx.store(to, group * 64 + i, narrow);
                ctx.store(back, group * 64 + i, quantize::widen(narrow, scale));
            }
            if warp.leader() {
                ctx.store(scales, group, scale);
            }
        }
    }

    /// Numbers in both formats of 8 bits, and each of these as a number again: first all of the one, then of the other.
    pub fn both_fp8(block, ctx, x: Sym<f32>, e4m3: Sym<Fp8E4M3>, e5m2: Sym<Fp8E5M2>, back: Sym<f32>) {
        for i in block.strided(x.len()) {
            let x = ctx.load(x, i);
            let (e4m3_of_x, e5m2_of_x) = (Fp8E4M3::narrow(x), Fp8E5M2::narrow(x));
            ctx.store(e4m3, i, e4m3_of_x);
            ctx.store(e5m2, i, e5m2_of_x);
            ctx.store(back.chunk(0, 2), i, e4m3_of_x.widen());
            ctx.store(back.chunk(1, 2), i, e5m2_of_x.widen());
        }
    }

    /// A function of every number, precise and approximate.
    pub fn apply(block, ctx, function: Function, x: Sym<f32>, precise: Sym<f32>, fast: Sym<f32>) {
        for i in block.strided(x.len()) {
            let x = ctx.load(x, i);
            let (y, z) = match function {
                Function::Exp => (math::exp(x), math::approx::exp(x)),
                Function::Exp2 => (math::exp2(x), math::approx::exp2(x)),
                Function::Ln => (math::ln(x), math::approx::ln(x)),
                Function::Log2 => (math::log2(x), math::approx::log2(x)),
                Function::Sqrt => (math::sqrt(x), math::approx::sqrt(x)),
                Function::Rsqrt => (math::rsqrt(x), math::approx::rsqrt(x)),
                Function::Recip => (1.0 / x, math::approx::recip(x)),
                Function::Tanh => (math::tanh(x), math::approx::tanh(x)),
                Function::Sigmoid => (math::sigmoid(x), math::approx::sigmoid(x)),
                Function::Sin => (math::sin(x), math::approx::sin(x)),
                Function::Cos => (math::cos(x), math::approx::cos(x)),
            };
            ctx.store(precise, i, y);
            ctx.store(fast, i, z);
        }
    }

    /// Sums, products and powers that are exact or rounded once: `out` has the square root of two in `f64`, a fused product of each
    /// width, and two powers.
    pub fn exact(block, ctx, two: f64, out: Sym<f64>) {
        let single = two as f32;
        let results = [
            math::sqrt(two),
            math::fma(two + f64::EPSILON, 1.0 - f64::EPSILON, -two),
            math::fma(single + 2.0 * f32::EPSILON, 1.0 - f32::EPSILON, -single).into(),
            math::powi(two, -3),
            math::powi(single, 5).into(),
            math::rsqrt(2.0 * two * two * two),
        ];
        for i in block.strided(results.len()) {
            // Not by the index: that would keep them in memory.
            let result = results.iter().enumerate().fold(0.0, |all, (j, result)| if i == j { *result } else { all });
            ctx.store(out, i, result);
        }
    }

    /// Powers of numbers, in `f32` and in `f64`.
    pub fn powers(block, ctx, n: i32, x: Sym<f32>, single: Sym<f32>, double: Sym<f64>) {
        for i in block.strided(x.len()) {
            let x = ctx.load(x, i);
            ctx.store(single, i, math::powi(x, n));
            ctx.store(double, i, math::powi(f64::from(x), n));
        }
    }

    /// The softmax of each of `count` rows, by a block for each.
    pub fn softmax(block, ctx, rows: Sym<f32>, count: u64) {
        for row in (block.index()..count as usize).step_by(block.count()) {
            let row = rows.chunk(row, count as usize);
            let most = block.strided(row.len()).fold(f32::NEG_INFINITY, |most, i| most.max(ctx.load(row, i)));
            let most = block.reduce(most, Max);
            let sum = block.strided(row.len()).fold(0.0, |sum, i| sum + math::exp(ctx.load(row, i) - most));
            let scale = 1.0 / block.reduce(sum, Sum);
            for i in block.strided(row.len()) {
                ctx.store(row, i, math::exp(ctx.load(row, i) - most) * scale);
            }
        }
    }

    /// Each of `count` rows divided by the root of the mean of its squares, and times `weights`, by a warp for each: sums in `f32`,
    /// numbers in `bf16`.
    pub fn rms_norm(block, ctx, rows: Sym<bf16>, weights: Sym<bf16>, count: u64) {
        let warp = block.warp();
        for row in (block.warp_index()..count as usize).step_by(block.warps()) {
            let row = rows.chunk(row, count as usize);
            let square = |x: f32| x * x;
            let sum = warp.strided(row.len()).fold(0.0, |sum, i| sum + square(ctx.load(row, i).widen()));
            let scale = math::rsqrt(warp.reduce(sum, Sum) / row.len() as f32 + 1e-6);
            for i in warp.strided(row.len()) {
                let x = ctx.load(row, i).widen() * scale * ctx.load(weights, i).widen();
                ctx.store(row, i, bf16::narrow(x));
            }
        }
    }
}
