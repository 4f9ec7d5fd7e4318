//! Atomics, locks, and blocks that wait for each other.

use crate::device::{Module, Numbers, Shape};

static ATOMICS: Module = Module::new("atomics");

#[test]
fn every_atomic() {
    ATOMICS.on_devices(|device| {
        let values = Numbers::new(41).list(96, |numbers| numbers.word() as i32);
        let words = [5_i32, -7, 100, -100, 1 << 30, 77, -1, 0x1000, 0x1234_5678, 30, 3];
        let wide: [u64; 8] = [3, u64::MAX, 0, 0, 0, u64::MAX, 0, 0x0123_4567_89ab_cdef];
        let (input, narrow, long) = (device.buffer(&values), device.buffer(&words), device.buffer(&wide));
        let old_sum = device.zeros::<u32>(1);
        device.launch("every_atomic", Shape::line(3, 32), &[&input, &narrow, &long, &old_sum]);
        let (mut words, mut wide, mut old) = (words, wide, 0_u32);
        for &value in &values {
            let bits = value as u32;
            let long = u64::from(bits) * 0x1_0000_0001;
            let unsigned = |word: i32, change: fn(u32, u32) -> u32, by: u32| change(word as u32, by) as i32;
            words[0] = words[0].wrapping_add(value);
            words[1] = words[1].wrapping_sub(value);
            words[2] = words[2].min(value);
            words[3] = words[3].max(value);
            words[4] = unsigned(words[4], u32::min, bits);
            words[5] = unsigned(words[5], u32::max, bits);
            words[6] &= (bits | 0xffff_0000) as i32;
            words[7] |= (bits & 0x00ff_00ff) as i32;
            words[8] ^= value;
            old = old.wrapping_add(words[9] as u32).wrapping_add(words[10] as u32);
            words[9] = if words[9] >= 36 { 0 } else { words[9] + 1 };
            words[10] = if words[10] == 0 || words[10] > 50 { 50 } else { words[10] - 1 };
            wide[0] = wide[0].wrapping_add(long);
            wide[1] = wide[1].min(long);
            wide[2] = wide[2].max(long);
            wide[3] = (wide[3] as i64).min(i64::from(value)) as u64;
            wide[4] = (wide[4] as i64).max(i64::from(value)) as u64;
            wide[5] &= long | 0xffff_ffff_0000_0000;
            wide[6] |= long & 0x0f0f_0f0f_0f0f_0f0f;
            wide[7] ^= long;
        }
        assert_eq!((narrow.read(), long.read(), old_sum.read()), (words.to_vec(), wide.to_vec(), vec![old]));
    });
}

#[test]
fn exchange() {
    ATOMICS.on_devices(|device| {
        let (slots, wide_slots) = (device.zeros::<u32>(16), device.zeros::<u64>(16));
        let seen = device.zeros::<u32>(128);
        device.launch("exchange", Shape::line(2, 32), &[&slots, &wide_slots, &seen]);
        let mut seen = seen.read();
        slots.read().iter().filter(|&&token| token != 0).for_each(|&token| seen[token as usize - 1] += 1);
        for token in wide_slots.read().into_iter().filter(|&token| token != 0) {
            assert_eq!(token >> 32, token & 0xffff_ffff);
            seen[64 + (token >> 32) as usize - 1] += 1;
        }
        assert_eq!(seen, [1; 128]);
    });
}

#[test]
fn float_atomics() {
    ATOMICS.on_devices(|device| {
        let values = Numbers::new(42).list(128, |numbers| (numbers.below(2001) as f32 - 1000.0) / 64.0);
        let (input, single) = (device.buffer(&values), device.buffer(&[0.5_f32]));
        let (twice, largest) = (device.buffer(&[0.25_f64]), device.buffer(&[0.0_f32]));
        device.launch("float_atomics", Shape::line(4, 32), &[&input, &single, &twice, &largest]);
        assert_eq!(single.read(), [values.iter().sum::<f32>() + 0.5]);
        assert_eq!(twice.read(), [values.iter().map(|&value| f64::from(value) / 1024.0).sum::<f64>() + 0.25]);
        assert_eq!(largest.read(), [values.iter().copied().fold(0.0, f32::max)]);
    });
}

#[test]
fn products_by_cas() {
    ATOMICS.on_devices(|device| {
        let values = Numbers::new(43).list(96, |numbers| numbers.word() as u32);
        let (input, shorts) = (device.buffer(&values), device.buffer(&[1_u16, 1]));
        let (word, wide) = (device.buffer(&[1_u32]), device.buffer(&[1_u64]));
        device.launch("products_by_cas", Shape::line(3, 32), &[&input, &shorts, &word, &wide]);
        let product = |by: u64, modulo: u64, first: usize, step: usize| {
            let factors = values.iter().skip(first).step_by(step).map(|&value| u64::from(value) % by + 1);
            factors.fold(1, |product, factor| product * factor % modulo)
        };
        assert_eq!(shorts.read(), [0, 1].map(|first| product(255, 257, first, 2) as u16));
        assert_eq!(word.read(), [product(65535, 65537, 0, 1) as u32]);
        assert_eq!(wide.read(), [product(1_000_003, 2_147_483_647, 0, 1)]);
    });
}

#[test]
fn spinlock() {
    ATOMICS.on_devices(|device| {
        let (lock, account) = (device.zeros::<u32>(1), device.zeros::<u32>(21));
        device.launch("spinlock", Shape::line(5, 32), &[&lock, &account, &4_u32]);
        let mut entered = account.read();
        assert_eq!((lock.read(), entered.remove(0)), (vec![0], 20));
        entered.sort_unstable();
        assert_eq!(entered, (0..20).map(|i| i / 4).collect::<Vec<_>>());
    });
}

#[test]
fn ring_of_two() {
    ATOMICS.on_devices(|device| {
        let (parts, threads) = (7, 64);
        let values = Numbers::new(44).list(parts * threads, |numbers| numbers.below(1 << 20) as u32);
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(values.len()));
        let (slots, flags) = (device.zeros::<u32>(2 * threads), device.zeros::<u32>(2));
        let shape = Shape::line(2, threads as u32);
        device.launch("ring_of_two", shape, &[&input, &slots, &flags, &output, &(parts as u32)]);
        let expected = values.iter().enumerate().map(|(i, value)| 3 * value + (i / threads) as u32);
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn grid_barrier() {
    ATOMICS.on_devices(|device| {
        let (blocks, threads, steps) = (4, 32, 5_u32);
        let n = blocks * threads;
        let mut values = Numbers::new(45).list(n, |numbers| numbers.word() as u32);
        values.resize(2 * n, 0);
        let (both, arrived) = (device.buffer(&values), device.zeros::<u32>(1));
        device.launch("grid_barrier", Shape::line(blocks as u32, threads as u32), &[&both, &arrived, &steps]);
        let mut now = values[..n].to_vec();
        for step in 0..steps {
            let value = |me: usize| {
                let right = now[(me + threads) % n].wrapping_mul(2);
                now[(me + n - threads) % n].wrapping_add(right).wrapping_add(step)
            };
            now = (0..n).map(value).collect();
        }
        let half = steps as usize % 2 * n;
        assert_eq!(both.read()[half..half + n], now);
    });
}

#[test]
fn tickets() {
    ATOMICS.on_devices(|device| {
        let (output, totals) = (device.zeros::<u32>(320), device.zeros::<u64>(2));
        device.launch("tickets", Shape::line(2, 160), &[&output, &totals]);
        assert_eq!(output.read(), (0..320).map(|i| (i % 160).max(1)).collect::<Vec<_>>());
        assert_eq!(totals.read(), [((159 * 160 / 2) << 20) + 160; 2]);
    });
}
