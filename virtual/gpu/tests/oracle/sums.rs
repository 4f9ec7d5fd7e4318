//! Scans and reductions.

use crate::device::{Module, Numbers, Shape};

static SUMS: Module = Module::new("sums");

#[test]
fn inclusive_scan() {
    SUMS.on_devices(|device| {
        let values = Numbers::new(1).list(5 * 256, |numbers| numbers.word() as u32);
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(values.len()));
        device.launch("inclusive_scan", Shape::line(5, 256), &[&input, &output]);
        let expected = values.chunks(256).flat_map(|part| {
            part.iter().scan(0_u32, |sum, &value| {
                *sum = sum.wrapping_add(value);
                Some(*sum)
            })
        });
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn segmented_scan() {
    SUMS.on_devices(|device| {
        let mut numbers = Numbers::new(2);
        let values = numbers.list(200, |numbers| numbers.below(2000) as i32 - 1000);
        let heads = numbers.list(200, |numbers| u8::from(numbers.below(7) == 0));
        let (input, marks, output) = (device.buffer(&values), device.buffer(&heads), device.zeros::<i32>(200));
        let shape = Shape::line(1, 256).shared(2 * 256 * 4);
        device.launch("segmented_scan", shape, &[&input, &marks, &output, &200_u32]);
        let expected = values.iter().zip(&heads).scan(0, |sum, (value, &head)| {
            *sum = if head != 0 { *value } else { *sum + value };
            Some(*sum)
        });
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn block_reduce() {
    SUMS.on_devices(|device| {
        let values = Numbers::new(3).list(3 * 1000, |numbers| numbers.word() as i32);
        let input = device.buffer(&values);
        let [sums, least, most] = [(); 3].map(|()| device.zeros::<i32>(3));
        device.launch("block_reduce", Shape::line(3, 160), &[&input, &sums, &least, &most, &1000_u32]);
        let parts: Vec<_> = values.chunks(1000).collect();
        let sum = |part: &[i32]| part.iter().fold(0_i32, |sum, &value| sum.wrapping_add(value));
        assert_eq!(sums.read(), parts.iter().map(|part| sum(part)).collect::<Vec<_>>());
        assert_eq!(least.read(), parts.iter().map(|part| part.iter().copied().min().unwrap()).collect::<Vec<_>>());
        assert_eq!(most.read(), parts.iter().map(|part| part.iter().copied().max().unwrap()).collect::<Vec<_>>());
    });
}

#[test]
fn grid_reduce() {
    SUMS.on_devices(|device| {
        let (blocks, threads) = (7, 128);
        let values = Numbers::new(4).list(3000, |numbers| numbers.unit() as f32);
        let (input, output) = (device.buffer(&values), device.zeros::<f32>(1));
        let parts = device.zeros::<f32>(blocks);
        let of_thread = |block: usize, thread: usize| {
            values.iter().skip(block * threads + thread).step_by(blocks * threads).fold(0.0, |sum, value| sum + value)
        };
        let of_block = |block: usize| {
            let mut sums: Vec<f32> = (0..threads).map(|thread| of_thread(block, thread)).collect();
            while sums.len() > 1 {
                let upper = sums.split_off(sums.len() / 2);
                sums.iter_mut().zip(upper).for_each(|(sum, other)| *sum += other);
            }
            sums[0]
        };
        let expected = (0..blocks).map(of_block).fold(0.0, |sum: f32, part| sum + part);
        // Twice: the counter of blocks is 0 again after the first.
        for _ in 0..2 {
            let shape = Shape::line(blocks as u32, threads as u32);
            device.launch("grid_reduce", shape, &[&input, &parts, &output, &3000_u32]);
            assert_eq!(output.read()[0].to_bits(), expected.to_bits());
        }
    });
}

#[test]
fn block_votes() {
    SUMS.on_devices(|device| {
        let mut values = Numbers::new(5).list(4 * 96, |numbers| numbers.below(100) as u32);
        values[..96].fill(50);
        values[96..192].fill(49);
        values[130] = 50;
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(12));
        device.launch("block_votes", Shape::line(4, 96), &[&input, &50_u32, &output]);
        let votes = |part: &[u32]| {
            let odd = part.iter().filter(|&&value| value % 2 == 1).count() as u32;
            let (all, any) = (part.iter().all(|&value| value >= 50), part.iter().any(|&value| value >= 50));
            [odd, u32::from(all), u32::from(any)]
        };
        assert_eq!(output.read(), values.chunks(96).flat_map(votes).collect::<Vec<_>>());
    });
}

#[test]
fn wide_dot() {
    SUMS.on_devices(|device| {
        let mut numbers = Numbers::new(6);
        let (a, b) = (numbers.list(100, Numbers::word), numbers.list(100, Numbers::word));
        let (left, right, output) = (device.buffer(&a), device.buffer(&b), device.zeros::<u64>(2));
        device.launch("wide_dot", Shape::line(1, 32), &[&left, &right, &output, &100_u32]);
        let products = a.iter().zip(&b).map(|(&a, &b)| u128::from(a) * u128::from(b));
        let sum = products.fold(0_u128, u128::wrapping_add);
        assert_eq!(output.read(), [sum as u64, (sum >> 64) as u64]);
    });
}
