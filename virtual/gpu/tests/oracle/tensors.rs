//! Matrix instructions and copies to shared memory.

use half::{bf16, f16};

use crate::device::{Module, Numbers, Shape};

static TENSORS: Module = Module::new("tensors");

/// Numbers whose products and sums are exact in every format here, in any order.
fn whole(numbers: &mut Numbers) -> f32 {
    numbers.below(9) as f32 - 4.0
}

/// Rows of `a` times columns of `b`; `at` gives elements of `b` by row and column.
fn product(a: &[f32], depth: usize, columns: usize, at: impl Fn(usize, usize) -> f32) -> Vec<f64> {
    let element = |row: &[f32], column| (0..depth).map(|k| f64::from(row[k]) * f64::from(at(k, column))).sum();
    a.chunks(depth)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, c)| element(row, c))
        .collect()
}

#[test]
fn mma_bfloats() {
    TENSORS.on_devices(|device| {
        let depth = 48;
        let fraction = |numbers: &mut Numbers| bf16::from_f64(numbers.unit()).to_f32();
        // Fractions may be off by what the sums lose: each of the additions at most one unit of the sum of magnitudes.
        for (make, tolerance) in
            [(whole as fn(&mut Numbers) -> f32, 0.0), (fraction, depth as f64 / f64::from(1 << 22))]
        {
            let mut numbers = Numbers::new(51);
            let (a, b) = (numbers.list(16 * depth, make), numbers.list(8 * depth, make));
            let narrow =
                |values: &[f32]| values.iter().map(|&value| bf16::from_f32(value).to_bits()).collect::<Vec<_>>();
            let (left, right) = (device.buffer(&narrow(&a)), device.buffer(&narrow(&b)));
            let output = device.zeros::<f32>(128);
            device.launch("mma_bfloats", Shape::line(1, 32), &[&left, &right, &output, &(depth as u32)]);
            let expected = product(&a, depth, 8, |k, column| b[column * depth + k]);
            let magnitudes: Vec<f32> = a.iter().map(|value| value.abs()).collect();
            let bounds = product(&magnitudes, depth, 8, |k, column| b[column * depth + k].abs());
            for ((found, expected), bound) in output.read().into_iter().zip(expected).zip(bounds) {
                assert!((f64::from(found) - expected).abs() <= bound * tolerance, "{found} {expected} {bound}");
            }
        }
    });
}

#[test]
fn mma_halves() {
    TENSORS.on_devices(|device| {
        let mut numbers = Numbers::new(52);
        let (a, b) = (numbers.list(256, whole), numbers.list(128, whole));
        let narrow = |values: &[f32]| values.iter().map(|&value| f16::from_f32(value).to_bits()).collect::<Vec<_>>();
        let (left, right) = (device.buffer(&narrow(&a)), device.buffer(&narrow(&b)));
        let output = device.zeros::<u16>(128);
        device.launch("mma_halves", Shape::line(1, 32), &[&left, &right, &output]);
        let found: Vec<f64> = output.read().into_iter().map(|bits| f16::from_bits(bits).to_f64()).collect();
        assert_eq!(found, product(&a, 16, 8, |k, column| b[k * 8 + column]));
    });
}

#[test]
fn mma_matmul() {
    TENSORS.on_devices(|device| {
        let n = 64;
        let mut numbers = Numbers::new(53);
        let [a, b] = [(); 2].map(|()| numbers.list(n * n, whole));
        let narrow = |values: &[f32]| values.iter().map(|&value| f16::from_f32(value).to_bits()).collect::<Vec<_>>();
        let (left, right) = (device.buffer(&narrow(&a)), device.buffer(&narrow(&b)));
        let output = device.zeros::<f32>(n * n);
        device.launch("mma_matmul", Shape::plane([4, 2], [128, 1]), &[&left, &right, &output, &(n as u32)]);
        let found: Vec<f64> = output.read().into_iter().map(f64::from).collect();
        assert_eq!(found, product(&a, n, n, |k, column| b[k * n + column]));
    });
}

#[test]
fn move_matrices() {
    TENSORS.on_devices(|device| {
        let values = Numbers::new(54).list(128, |numbers| numbers.word() as u16);
        let (input, output) = (device.buffer(&values), device.zeros::<u16>(128));
        device.launch("move_matrices", Shape::line(1, 32), &[&input, &output]);
        let mut expected = values.clone();
        (0..64).for_each(|i| expected[i] = values[i % 8 * 8 + i / 8]);
        assert_eq!(output.read(), expected);
    });
}

#[test]
fn pipelined_sums() {
    TENSORS.on_devices(|device| {
        let parts = 7;
        let values = Numbers::new(55).list(2 * parts * 64, |numbers| [(); 4].map(|()| numbers.below(1000) as i32));
        let (input, output) = (device.buffer(&values), device.zeros::<i32>(128));
        device.launch("pipelined_sums", Shape::line(2, 64), &[&input, &output, &(parts as u32)]);
        let weighted = |four: &[i32; 4]| four.iter().zip(1..).map(|(value, weight)| value * weight).sum::<i32>();
        let sum = |i: usize| {
            let rows = values[i / 64 * parts * 64..].chunks(64).take(parts);
            rows.map(|row| weighted(&row[63 - i % 64])).sum()
        };
        assert_eq!(output.read(), (0..128).map(sum).collect::<Vec<i32>>());
    });
}

#[test]
fn short_copies() {
    TENSORS.on_devices(|device| {
        let values = Numbers::new(56).list(256, |numbers| numbers.word() as u32);
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(256));
        device.launch("short_copies", Shape::line(1, 32), &[&input, &output]);
        let row = |lane: usize| {
            let own = &values[lane * 8..][..8];
            let mut row = [own[7], lane as u32, own[2], 0, 0, 0, 0, 0];
            let some = lane % 17;
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut row[4..]);
            bytes[..some].copy_from_slice(&bytemuck::cast_slice(own)[..some]);
            row
        };
        assert_eq!(output.read(), (0..32).flat_map(|lane| row(lane ^ 1)).collect::<Vec<_>>());
    });
}
