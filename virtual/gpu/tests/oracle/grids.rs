//! Data in two and three dimensions, shared and constant memory.

use crate::device::{Module, Numbers, Shape};

static GRIDS: Module = Module::new("grids");

#[test]
fn tiled_matmul() {
    GRIDS.on_devices(|device| {
        let n = 48;
        let mut numbers = Numbers::new(11);
        let [a, b] = [(); 2].map(|()| numbers.list(n * n, |numbers| numbers.unit() as f32));
        let (left, right, output) = (device.buffer(&a), device.buffer(&b), device.zeros::<f32>(n * n));
        device.launch("tiled_matmul", Shape::plane([3, 3], [16, 16]), &[&left, &right, &output, &(n as u32)]);
        let element = |i: usize| {
            let (row, column) = (i / n, i % n);
            (0..n).fold(0.0_f32, |sum, k| a[row * n + k].mul_add(b[k * n + column], sum)).to_bits()
        };
        let bits: Vec<u32> = output.read().into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, (0..n * n).map(element).collect::<Vec<_>>());
    });
}

#[test]
fn transpose() {
    GRIDS.on_devices(|device| {
        let (rows, columns) = (50, 70);
        let values = Numbers::new(12).list(rows * columns, |numbers| numbers.word() as u16);
        let (input, output) = (device.buffer(&values), device.zeros::<u16>(values.len()));
        let shape = Shape::plane([3, 2], [32, 8]);
        device.launch("transpose", shape, &[&input, &output, &(rows as u32), &(columns as u32)]);
        let expected = (0..values.len()).map(|i| values[i % rows * columns + i / rows]);
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn stencil() {
    GRIDS.on_devices(|device| {
        let size = [13, 9, 6];
        let values = Numbers::new(13).list(13 * 9 * 6, |numbers| numbers.below(1000) as i32 - 500);
        let (input, output) = (device.buffer(&values), device.zeros::<i32>(values.len()));
        device.launch("stencil", Shape::cube([2, 3, 2], [8, 4, 4]), &[&input, &output, &size]);
        let at = |x: i32, y: i32, z: i32| {
            let inside = [x, y, z].iter().zip(size).all(|(&at, size)| (0..size).contains(&at));
            if inside { values[((z * size[1] + y) * size[0] + x) as usize] } else { 0 }
        };
        let mut expected = Vec::new();
        for (z, y, x) in (0..6).flat_map(|z| (0..9).flat_map(move |y| (0..13).map(move |x| (z, y, x)))) {
            let around = [at(x - 1, y, z), at(x + 1, y, z), at(x, y - 1, z), at(x, y + 1, z), at(x, y, z - 1)];
            expected.push(6 * at(x, y, z) - around.iter().sum::<i32>() - at(x, y, z + 1));
        }
        assert_eq!(output.read(), expected);
    });
}

#[test]
fn shortest_paths() {
    GRIDS.on_devices(|device| {
        let n = 27;
        let mut numbers = Numbers::new(14);
        let edge = |numbers: &mut Numbers| if numbers.below(4) == 0 { numbers.below(100) as u32 + 1 } else { 1 << 20 };
        let mut between = numbers.list(n * n, edge);
        (0..n).for_each(|node| between[node * n + node] = 0);
        let distances = device.buffer(&between);
        let shape = Shape::plane([1, 1], [16, 6]).shared((n * n * 4) as u32);
        device.launch("shortest_paths", shape, &[&distances, &(n as u32)]);
        // Bellman and Ford, from each node.
        let from = |start: usize| {
            let mut best = vec![u32::MAX / 2; n];
            best[start] = 0;
            for _ in 0..n {
                for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    best[j] = best[j].min(best[i] + between[i * n + j]);
                }
            }
            best
        };
        assert_eq!(distances.read(), (0..n).flat_map(from).collect::<Vec<_>>());
    });
}

#[test]
fn bitonic_sort() {
    GRIDS.on_devices(|device| {
        let n = 128;
        let keys = Numbers::new(15).list(2 * n, Numbers::word);
        let values: Vec<u32> = (0..2 * n as u32).collect();
        let (sorted, with) = (device.buffer(&keys), device.buffer(&values));
        let shape = Shape::line(2, n as u32 / 2).shared((n * 12) as u32);
        device.launch("bitonic_sort", shape, &[&sorted, &with]);
        let mut expected = values;
        expected.chunks_mut(n).for_each(|part| part.sort_by_key(|&value| keys[value as usize]));
        assert_eq!(with.read(), expected);
        assert_eq!(sorted.read(), expected.iter().map(|&value| keys[value as usize]).collect::<Vec<_>>());
    });
}

#[test]
fn histogram() {
    GRIDS.on_devices(|device| {
        let values = Numbers::new(16).list(2003, |numbers| (numbers.below(16) * numbers.below(18)) as u8);
        let (input, counts) = (device.buffer(&values), device.zeros::<u32>(256));
        device.launch("histogram", Shape::line(3, 96), &[&input, &counts, &2003_u32]);
        let mut expected = vec![0; 256];
        values.iter().for_each(|&value| expected[usize::from(value)] += 1);
        assert_eq!(counts.read(), expected);
    });
}

#[test]
fn weighted_taps() {
    GRIDS.on_devices(|device| {
        let (width, height, planes) = (20, 9, 4);
        let values = Numbers::new(17).list(width * height * planes, |numbers| numbers.unit() as f32);
        let (input, output) = (device.buffer(&values), device.zeros::<f32>(values.len()));
        let shape = Shape::plane([planes as u32, 1], [width as u32, height as u32]);
        device.launch("weighted_taps", shape, &[&input, &output]);
        let taps = [(0, 0, 0.5), (width - 1, 0, 0.125), (1, 0, 0.125), (0, height - 1, 0.125), (0, 1, 0.125)];
        let element = |i: usize| {
            let (x, y, plane) = (i % width, i / width % height, i / (width * height));
            // The compiler contracts each product and sum to one operation.
            let sum = taps.iter().fold([-0.75, 0.75][plane % 2], |sum, &(dx, dy, weight): &(usize, usize, f32)| {
                weight.mul_add(values[(plane * height + (y + dy) % height) * width + (x + dx) % width], sum)
            });
            (sum * [1.0, -2.0, 0.25][plane % 3]).to_bits()
        };
        let bits: Vec<u32> = output.read().into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, (0..values.len()).map(element).collect::<Vec<_>>());
    });
}

#[test]
fn clamp_points() {
    GRIDS.on_devices(|device| {
        let values = Numbers::new(18).list(70, |numbers| [(); 3].map(|()| 4.0 * numbers.unit() as f32));
        let (input, output) = (device.buffer(&values), device.zeros::<[f32; 3]>(values.len()));
        let (low, high, name, scale) = ([-1.0_f32, -2.0, -3.0], [1.0_f32, 2.0, 3.0], *b"point", 1.3_f64);
        let mut bounds = [0; 40];
        bounds[..12].copy_from_slice(bytemuck::bytes_of(&low));
        bounds[12..24].copy_from_slice(bytemuck::bytes_of(&high));
        bounds[24..29].copy_from_slice(&name);
        bounds[32..].copy_from_slice(&scale.to_le_bytes());
        device.launch("clamp_points", Shape::line(2, 64), &[&input, &output, &bounds, &70_u32]);
        let moved = |(i, point): (usize, &[f32; 3])| {
            let mut moved: [f32; 3] = core::array::from_fn(|axis| point[axis].min(high[axis]).max(low[axis]));
            moved[2] = (f64::from(moved[2]) * scale) as f32 + f32::from(name[i % 5]);
            moved
        };
        assert_eq!(output.read(), values.iter().enumerate().map(moved).collect::<Vec<_>>());
    });
}
