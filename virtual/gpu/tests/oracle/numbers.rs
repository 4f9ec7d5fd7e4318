//! Arithmetic of every width, and approximations.

use half::f16;

use crate::device::{Device, Module, Numbers, Shape};
use crate::rounding::{BF16, E4M3, E5M2, F16, Float, directions};

static NUMBERS: Module = Module::new("numbers");

/// Words of every magnitude.
fn word(numbers: &mut Numbers) -> u64 {
    numbers.word() >> numbers.below(64)
}

/// A float of either sign whose exponent is from `least` on, below `most`.
fn float(numbers: &mut Numbers, least: i32, most: i32) -> f64 {
    let fraction = 1.0 + numbers.unit().abs();
    let sign = if numbers.below(2) == 0 { 1.0 } else { -1.0 };
    sign * fraction * 2.0_f64.powi(least + numbers.below((most - least) as u64) as i32)
}

/// Runs a kernel that takes two lists and gives one.
fn pairs<A: bytemuck::Pod, B: bytemuck::Pod, T: bytemuck::Pod>(
    device: &mut Device,
    kernel: &str,
    (a, b): (&[A], &[B]),
    results: usize,
) -> Vec<T> {
    let (left, right) = (device.buffer(a), device.buffer(b));
    let output = device.zeros::<T>(a.len() * results);
    device.launch(kernel, Shape::line(a.len() as u32 / 64, 64), &[&left, &right, &output]);
    output.read()
}

#[test]
fn divisions() {
    let mut numbers = Numbers::new(61);
    let mut signed = |numbers: &mut Numbers| (word(numbers) as i64).wrapping_mul(1 - 2 * numbers.below(2) as i64);
    let a = numbers.list(128, &mut signed);
    let b = numbers.list(128, |numbers| signed(numbers) | 1);
    let results = |(&x, &y): (&i64, &i64)| {
        let (ux, uy) = (x as u64, y as u64);
        let (x32, y32) = (x as i32, y as i32 | 1);
        let (ux32, uy32) = (x32 as u32, y32 as u32);
        let (x16, y16) = (i64::from(x as i16), i64::from(y as i16 | 1));
        let (x8, y8) = (i64::from(x as i8), i64::from(y as i8 | 1));
        let low24 = |value: i32| value << 8 >> 8;
        let differs = x32.abs_diff(y32).wrapping_add(ux32);
        [
            x.wrapping_div(y),
            x.wrapping_rem(y),
            (ux / uy) as i64,
            (ux % uy) as i64,
            i64::from(x32.wrapping_div(y32)),
            i64::from(x32.wrapping_rem(y32)),
            i64::from(ux32 / uy32),
            i64::from(ux32 % uy32),
            x16 / y16,
            x16 % y16,
            x8 / y8,
            x8 % y8,
            ((i128::from(x) * i128::from(y)) >> 64) as i64,
            ((u128::from(ux) * u128::from(uy)) >> 64) as i64,
            (i64::from(x32) * i64::from(y32)) >> 32,
            ((u64::from(ux32) * u64::from(uy32)) >> 32) as i64,
            x.wrapping_mul(y),
            i64::from(x32) * i64::from(y32),
            x / 7,
            i64::from(x32 % 10),
            (ux / 1_000_003) as i64,
            i64::from(differs),
            i64::from(ux32.abs_diff(uy32).wrapping_add(ux32)),
            i64::from(low24(x32).wrapping_mul(low24(y32))),
            i64::from((ux32 & 0xff_ffff).wrapping_mul(uy32 & 0xff_ffff)),
            (i64::from(x32) + i64::from(y32)) >> 1,
            (i64::from(x32) + i64::from(y32) + 1) >> 1,
            (i64::from(ux32) + i64::from(uy32)) >> 1,
            x.wrapping_abs(),
            i64::from(x32.wrapping_abs()),
        ]
    };
    let expected: Vec<i64> = a.iter().zip(&b).flat_map(results).collect();
    NUMBERS.on_devices(|device| assert_eq!(pairs::<_, _, i64>(device, "divisions", (&a, &b), 30), expected));
}

/// The sum of `c` and products of parts of `bits` bits of words, signed or not.
fn dot<const N: usize>(a: [i64; N], b: [i64; N], c: i64) -> u64 {
    let products: i64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
    u64::from(c.wrapping_add(products) as u32)
}

#[test]
fn bit_tricks() {
    let mut numbers = Numbers::new(62);
    let a = numbers.list(128, word);
    let b = numbers.list(128, |numbers| numbers.word() as u32);
    let results = |(&x, &y): (&u64, &u32)| {
        let (low, high) = (x as u32, (x >> 32) as u32);
        let wide = u64::from(high) << 32 | u64::from(low);
        let (position, mask) = (y % 40, (1_u64 << (y / 64 % 40)) - 1);
        let hole = (mask << position) as u32;
        let part = i64::from(high as i32) >> (y % 32);
        let signed_part = match y / 32 % 32 {
            0 => 0,
            length => part << (64 - length) >> (64 - length),
        };
        let first_set = |value: u64| u64::from(if value == 0 { 0 } else { value.trailing_zeros() + 1 });
        let bytes: Vec<u8> = x.to_le_bytes().to_vec();
        let chosen: [u8; 4] = core::array::from_fn(|i| bytes[(y >> (4 * i) & 7) as usize]);
        let of_bytes = |word: u32| word.to_le_bytes().map(|byte| i64::from(byte as i8));
        let of_unsigned = |word: u32| word.to_le_bytes().map(i64::from);
        let halves = |word: u32| [i64::from(word as i16), i64::from((word >> 16) as i16)];
        let unsigned_halves = |word: u32| [i64::from(word as u16), i64::from(word >> 16)];
        let [b0, b1, ..] = of_bytes(high);
        let [.., b2, b3] = of_unsigned(high);
        let no_sign = if (low as i32) < 0 { !low } else { low };
        [
            u64::from(low.reverse_bits()),
            x.reverse_bits(),
            u64::from((low >> (y % 32)).leading_zeros()),
            u64::from((x >> (y % 64)).leading_zeros()),
            first_set(u64::from(low << (y % 32))),
            first_set(x << (y % 64)),
            u64::from(low.count_ones()),
            u64::from(x.count_ones()),
            wide << (y % 32) >> 32,
            wide >> (y % 32) & 0xffff_ffff,
            u64::from(((wide << (y % 64).min(32)) >> 32) as u32),
            u64::from((wide >> (y % 64).min(32)) as u32),
            u64::from(u32::from_le_bytes(chosen)),
            dot(of_bytes(low), of_bytes(high), i64::from(y as i32)),
            dot(of_unsigned(low), of_unsigned(high), i64::from(y)),
            dot(halves(low), [b0, b1], i64::from(y as i32)),
            dot(unsigned_halves(low), [b2, b3], i64::from(y)),
            u64::from(low) >> position & mask,
            u64::from(high & !hole | ((u64::from(low) & mask) << position) as u32),
            u64::from(if no_sign == 0 { u32::MAX } else { no_sign.ilog2() }),
            u64::from(signed_part as u32),
            u64::from(low & high | !low & y),
            u64::from(low ^ high ^ y),
            x << (y % 64),
            x >> (y % 64),
            ((x as i64) >> (y % 64)) as u64,
            u64::from(((low as i32) >> (y % 32)) as u32),
        ]
    };
    let expected: Vec<u64> = a.iter().zip(&b).flat_map(results).collect();
    NUMBERS.on_devices(|device| assert_eq!(pairs::<_, _, u64>(device, "bit_tricks", (&a, &b), 27), expected));
}

#[test]
fn exact_floats() {
    let mut numbers = Numbers::new(63);
    let [a, b] = [(); 2].map(|()| numbers.list(128, |numbers| float(numbers, -20, 30)));
    let doubles = |(&x, &y): (&f64, &f64)| {
        let (roots, quotients) = (f64::root(x.abs()), f64::quotient(x, y));
        let mut results = [f64::sum(x, y), f64::product(x, y), f64::fused(x, y, x), quotients].concat();
        results.extend([roots[0], roots[2], f64::quotient(1.0, y)[3]]);
        results.extend([x.floor(), x.ceil(), x.trunc(), x.round_ties_even(), x.min(y), x.max(y), x.copysign(y)]);
        results.extend([x as i64 as f64, y.abs() as u32 as f64, f64::from(x as f32), if x > y { 1.0 } else { -1.0 }]);
        results.into_iter().map(f64::to_bits).collect::<Vec<_>>()
    };
    let converted = |whole: i64| directions(whole as f32, (whole - (whole as f32) as i64) as f32);
    let singles = |(&x, &y): (&f64, &f64)| {
        let (p, q) = (x as f32, y as f32);
        let roots = f32::root(p.abs());
        let mut results = [f32::sum(p, q), f32::product(p, q), f32::fused(p, q, p), f32::quotient(p, q)].concat();
        results.extend([roots[0], roots[3], f32::quotient(1.0, q)[2]]);
        results.extend([p.floor(), p.ceil(), p.trunc(), p.round_ties_even(), p.min(q), p.max(q), p.copysign(q)]);
        results.push(p.clamp(0.0, 1.0));
        let up = converted(p.ceil() as i64)[1];
        results.extend([up, converted(q.abs().round_ties_even() as i64)[3], converted(x.floor() as i64)[2]]);
        // The sign of a zero is not looked at: that of a whole number is lost on the way.
        results.into_iter().map(|result| if result == 0.0 { 0.0 } else { result }.to_bits()).collect::<Vec<_>>()
    };
    let expected: Vec<u64> = a.iter().zip(&b).flat_map(doubles).collect();
    let expected_singles: Vec<u32> = a.iter().zip(&b).flat_map(singles).collect();
    NUMBERS.on_devices(|device| {
        let (left, right) = (device.buffer(&a), device.buffer(&b));
        let (output, output32) = (device.zeros::<u64>(expected.len()), device.zeros::<f32>(expected_singles.len()));
        device.launch("exact_floats", Shape::line(2, 64), &[&left, &right, &output, &output32]);
        assert_eq!(output.read(), expected);
        let found = output32.read().into_iter().map(|result| if result == 0.0 { 0.0 } else { result }.to_bits());
        assert_eq!(found.collect::<Vec<_>>(), expected_singles);
    });
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    let terms = (0..60).scan(x, |power, n| {
        let term = *power / f64::from(2 * n + 1);
        *power *= -x * x / f64::from(n + 1);
        Some(term)
    });
    terms.sum::<f64>() * std::f64::consts::FRAC_2_SQRT_PI
}

/// A function that is approximated, and how far from the exact result it may be: units in the last place, or an absolute
/// difference.
struct Approximated {
    name: &'static str,
    exact: fn(f64) -> f64,
    units: f64,
    absolute: f64,
}

fn within(name: &'static str, exact: fn(f64) -> f64, units: f64) -> Approximated {
    Approximated { name, exact, units, absolute: 0.0 }
}

impl Approximated {
    /// Compares what was found at `x`; `unit` gives the unit in the last place at a result.
    fn check(&self, x: f64, found: f64, unit: impl Fn(f64) -> f64) {
        let exact = (self.exact)(x);
        let bound = (self.units * unit(exact)).max(self.absolute);
        assert!((found - exact).abs() <= bound, "{}({x}) is {exact}, not {found}", self.name);
    }
}

#[test]
fn approximations() {
    // What the CUDA C++ Programming Guide says, in its appendix on mathematical functions.
    let functions = [
        within("expf", f64::exp, 2.0),
        within("__expf", f64::exp, 2.0 + 1.173 * 3.0),
        within("exp2f", f64::exp2, 2.0),
        within("logf", f64::ln, 1.0),
        Approximated { absolute: 3.6e-7, ..within("__logf", f64::ln, 3.0) },
        within("log2f", f64::log2, 1.0),
        within("rsqrtf", |x| x.sqrt().recip(), 2.0),
        within("sinf", f64::sin, 2.0),
        within("cosf", f64::cos, 2.0),
        Approximated { absolute: 3.6e-7, ..within("__sinf", f64::sin, 0.0) },
        Approximated { absolute: 4.2e-7, ..within("__cosf", f64::cos, 0.0) },
        within("tanhf", f64::tanh, 2.0),
        within("powf", |x| x.powf(1.75), 4.0),
        within("__fdividef", f64::recip, 2.0),
        within("erff", erf, 2.0),
        within("cbrtf", f64::cbrt, 1.0),
        within("atan2f", |x| x.atan2(2.0), 3.0),
        within("sqrtf", f64::sqrt, 0.5),
        within("tanf", f64::tan, 4.0),
        within("log1pf", f64::ln_1p, 1.0),
    ];
    let values = Numbers::new(64).list(256, |numbers| (1.52 + 1.47 * numbers.unit()) as f32);
    NUMBERS.on_devices(|device| {
        let (input, output) = (device.buffer(&values), device.zeros::<f32>(values.len() * 20));
        device.launch("approximations", Shape::line(4, 64), &[&input, &output]);
        for (&x, found) in values.iter().zip(output.read().chunks(20)) {
            let unit = |exact: f64| f64::from((exact as f32).abs().next_up() - (exact as f32).abs());
            functions.iter().zip(found).for_each(|(function, &found)| function.check(x.into(), found.into(), unit));
        }
    });
}

#[test]
fn approximations_of_doubles() {
    // Two units of the kernel's library, and the host's own may be off by one.
    let functions = [
        within("exp", f64::exp, 3.0),
        within("log", f64::ln, 3.0),
        within("sin", f64::sin, 3.0),
        within("cos", f64::cos, 3.0),
        within("rsqrt", |x| x.sqrt().recip(), 3.0),
        within("pow", |x| x.powf(0.75), 3.0),
        within("tanh", f64::tanh, 3.0),
        within("atan", f64::atan, 3.0),
    ];
    let values = Numbers::new(65).list(128, |numbers| 1.52 + 1.47 * numbers.unit());
    NUMBERS.on_devices(|device| {
        let (input, output) = (device.buffer(&values), device.zeros::<f64>(values.len() * 8));
        device.launch("approximations_of_doubles", Shape::line(2, 64), &[&input, &output]);
        for (&x, found) in values.iter().zip(output.read().chunks(8)) {
            let unit = |exact: f64| exact.abs().next_up() - exact.abs();
            functions.iter().zip(found).for_each(|(function, &found)| function.check(x, found, unit));
        }
    });
}

/// Pairs whose products and sums in 64 bits are exact once they are of 16.
fn moderate() -> Vec<[f32; 2]> {
    Numbers::new(66).list(256, |numbers| [(); 2].map(|()| float(numbers, -4, 6) as f32))
}

/// Toward zero, up and down, in the order in which the kernels round.
const DIRECTIONS: [fn(f64) -> f64; 4] = [f64::round_ties_even, f64::trunc, f64::ceil, f64::floor];

#[test]
fn halves() {
    let values = moderate();
    let results = |(i, &[x, y]): (usize, &[f32; 2])| {
        let near = |value: f64| F16.bits(value, 15, f64::round_ties_even);
        let half = |value: f32| {
            let bits = near(value.into());
            f64::from(value).signum() * F16.value(u32::from(bits & 0x7fff))
        };
        let (a, b) = (half(x), half(y));
        let [nearest, zero, up, down] = DIRECTIONS.map(|whole| F16.bits(x.into(), 15, whole));
        let fused = a * b + a;
        [
            nearest,
            zero,
            up,
            down,
            near(a + b),
            near(a * b),
            near(fused),
            near(a - b),
            near(a + b),
            near(a * b + b),
            near(a.max(b)),
            near(-a),
            u16::from(a < b),
            b as i32 as u16,
            near(f64::from(i as i32 * 37 - 3000)),
            nearest,
        ]
    };
    let expected: Vec<u16> = values.iter().enumerate().flat_map(results).collect();
    NUMBERS.on_devices(|device| {
        let (input, output) = (device.buffer(&values), device.zeros::<u16>(expected.len()));
        device.launch("halves", Shape::line(4, 64), &[&input, &output]);
        assert_eq!(output.read(), expected);
    });
}

#[test]
fn bfloats() {
    let values = moderate();
    let narrow = |value: f32| f32::from_bits(u32::from(BF16.bits(value.into(), 15, f64::round_ties_even)) << 16);
    let results = |(i, &[x, y]): (usize, &[f32; 2])| {
        let near = |value: f64| BF16.bits(value, 15, f64::round_ties_even);
        let (a, b) = (f64::from(narrow(x)), f64::from(narrow(y)));
        let [nearest, zero, up, down] = DIRECTIONS.map(|whole| BF16.bits(x.into(), 15, whole));
        [
            nearest,
            zero,
            up,
            down,
            near(a + b),
            near(a * b),
            near(a * b + a),
            near(a + b),
            near(a * b + b),
            near(a.min(b)),
            u16::from(a >= b),
            near(f64::from(i as i32 * 37 - 3000)),
        ]
    };
    let expected: Vec<u16> = values.iter().enumerate().flat_map(results).collect();
    NUMBERS.on_devices(|device| {
        let (input, output) = (device.buffer(&values), device.zeros::<u16>(expected.len()));
        let back = device.zeros::<[f32; 2]>(values.len());
        device.launch("bfloats", Shape::line(4, 64), &[&input, &output, &back]);
        assert_eq!(output.read(), expected);
        for (i, (&[x, _], [wide, half])) in values.iter().zip(back.read()).enumerate() {
            assert_eq!(wide, narrow(x));
            assert_eq!(half, f16::from_bits(i as u16 * 16 + 5).to_f32());
        }
    });
}

#[test]
fn eighths() {
    let mut values = Numbers::new(67).list(256, |numbers| [(); 2].map(|()| float(numbers, -20, 18) as f32));
    values[7] = [f32::NAN, f32::INFINITY];
    values[8] = [0.0, -0.0];
    let packed = |value: f32, largest: f64| {
        let value = f64::from(value);
        if value.is_nan() {
            return 0x7f;
        }
        let format = if largest == 448.0 { E4M3 } else { E5M2 };
        let bits = format.bits(value.clamp(-largest, largest), 7, f64::round_ties_even);
        // What rounds up to more than the largest is the largest.
        let most = format.bits(largest, 7, f64::round_ties_even);
        bits & 0x80 | (bits & 0x7f).min(most)
    };
    let both = |&[x, y]: &[f32; 2]| [448.0, 57344.0].map(|largest| packed(x, largest) | packed(y, largest) << 8);
    let expected: Vec<u16> = values.iter().flat_map(both).collect();
    let from_e4m3 = |bits: u32| match bits & 0x7f {
        0x7f => f64::NAN,
        magnitude => E4M3.value(magnitude) * if bits & 0x80 == 0 { 1.0 } else { -1.0 },
    };
    NUMBERS.on_devices(|device| {
        let input = device.buffer(&values);
        let (bytes, wide) = (device.zeros::<u16>(expected.len()), device.zeros::<[u16; 4]>(values.len()));
        device.launch("eighths", Shape::line(4, 64), &[&input, &bytes, &wide]);
        assert_eq!(bytes.read(), expected);
        for (i, halves) in wide.read().into_iter().enumerate() {
            // The format of five bits of exponent is the upper half of a half.
            let e5m2 = expected[2 * i + 1].to_le_bytes().map(|byte| f16::from_bits(u16::from(byte) << 8).to_f64());
            let wanted = [from_e4m3(i as u32), from_e4m3(i as u32), e5m2[0], e5m2[1]];
            for (found, wanted) in halves.map(|bits| f16::from_bits(bits).to_f64()).into_iter().zip(wanted) {
                assert!(
                    found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                    "{i}: {found} {wanted}"
                );
            }
        }
    });
}

#[test]
fn random_numbers() {
    let key = [0x1234_5678_u32, 0x9abc_def0];
    let philox = |i: u32| {
        let (mut counter, mut key) = ([i, 0, 7, 0], key);
        for _ in 0..10 {
            let [first, second] = [(0xd251_1f53_u64, 0), (0xcd9e_8d57, 2)].map(|(by, at)| by * u64::from(counter[at]));
            let [high0, high1] = [first, second].map(|product| (product >> 32) as u32);
            counter = [high1 ^ counter[1] ^ key[0], second as u32, high0 ^ counter[3] ^ key[1], first as u32];
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        counter
    };
    let next =
        |&state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    let congruent: Vec<u64> = core::iter::successors(Some(42), next).take(128).collect();
    NUMBERS.on_devices(|device| {
        let (counters, states) = (device.zeros::<[u32; 4]>(128), device.zeros::<u64>(128));
        device.launch("random_numbers", Shape::line(2, 64), &[&counters, &states, &key]);
        assert_eq!(counters.read(), (0..128).map(philox).collect::<Vec<_>>());
        assert_eq!(states.read(), congruent);
    });
}

#[test]
fn crc32() {
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
        })
    };
    // The check value that catalogues of CRCs give.
    assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    let texts = Numbers::new(68).list(64 * 50, |numbers| numbers.word() as u8);
    NUMBERS.on_devices(|device| {
        let (input, output) = (device.buffer(&texts), device.zeros::<u32>(64));
        device.launch("fill_crc_table", Shape::line(1, 256), &[]);
        device.launch("crc32", Shape::line(2, 32), &[&input, &output, &50_u32]);
        assert_eq!(output.read(), texts.chunks(50).map(crc).collect::<Vec<_>>());
    });
}

/// By halves, recursively; the same operations as the kernel's, in another order of calls.
fn transform(values: &[[f32; 2]], twiddles: &[[f32; 2]]) -> Vec<[f32; 2]> {
    let n = values.len();
    if n == 1 {
        return values.to_vec();
    }
    let part = |first: usize| {
        let part: Vec<_> = values.iter().skip(first).step_by(2).copied().collect();
        transform(&part, twiddles)
    };
    let (even, odd) = (part(0), part(1));
    let step = twiddles.len() * 2 / n;
    let turned = |k: usize| {
        let ([x, y], [real, imaginary]) = (odd[k], twiddles[k * step]);
        [x * real - y * imaginary, x * imaginary + y * real]
    };
    let combined = |k: usize, sign: f32| {
        let [x, y] = turned(k);
        [even[k][0] + sign * x, even[k][1] + sign * y]
    };
    (0..n / 2).map(|k| combined(k, 1.0)).chain((0..n / 2).map(|k| combined(k, -1.0))).collect()
}

#[test]
fn fft() {
    let n = 128;
    let angle = |k: usize| -2.0 * std::f64::consts::PI * k as f64 / n as f64;
    let twiddles: Vec<[f32; 2]> = (0..n / 2).map(|k| [angle(k).cos() as f32, angle(k).sin() as f32]).collect();
    let values = Numbers::new(69).list(2 * n, |numbers| [(); 2].map(|()| numbers.unit() as f32));
    let expected: Vec<[f32; 2]> = values.chunks(n).flat_map(|part| transform(part, &twiddles)).collect();
    // The definition, within what a few roundings of sums of 128 numbers cost.
    for (k, [real, imaginary]) in expected[..n].iter().enumerate() {
        let terms = values[..n].iter().enumerate().map(|(i, [x, y])| {
            let (sin, cos) = angle(i * k % n).sin_cos();
            [f64::from(*x) * cos - f64::from(*y) * sin, f64::from(*x) * sin + f64::from(*y) * cos]
        });
        let sum = terms.fold([0.0, 0.0], |sum, term| [sum[0] + term[0], sum[1] + term[1]]);
        assert!((sum[0] - f64::from(*real)).abs() < 1e-4 && (sum[1] - f64::from(*imaginary)).abs() < 1e-4);
    }
    NUMBERS.on_devices(|device| {
        let (both, factors) = (device.buffer(&values), device.buffer(&twiddles));
        let shape = Shape::line(2, n as u32 / 2).shared(n as u32 * 8);
        device.launch("fft", shape, &[&both, &factors, &7_u32]);
        assert_eq!(both.read(), expected);
    });
}
